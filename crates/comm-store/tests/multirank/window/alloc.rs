//! Making a window: what all see of it at first, what they must agree on, and over whom it is.

use comm_core::Error;
use comm_core::team::{Team, snapshots};
use comm_core::tensor::{DType, Tensor};
use comm_store::window::WindowSpec;
use comm_store::{Cmp, NotifyOp, Window};
use comm_testkit::values::{poison, random_elements};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use super::case;
use crate::support::{Any, others, team};

pub fn cases() -> Vec<Case> {
    vec![
        case("alloc/-/-/zero-then-written", zero_then_written),
        case("alloc/-/-/zero-in-recycled-memory", recycled),
        case("alloc/-/-/mismatch", mismatch),
        case("alloc/-/-/invalid-on-one", invalid_on_one),
        case("alloc/-/-/invalid-on-all", invalid_on_all),
        case("alloc/-/-/second-thread", second_thread),
        case("alloc/-/-/subset", subset).worlds(|world| world >= 3),
        case("reset/-/-/of-different-windows", reset_crossed),
        case("reset/-/-/beside-something-else", reset_beside),
        case("view/-/-/alias", alias),
    ]
}

/// Of any size, down to the last byte: zero before anybody has written, then what each rank has written.
fn zero_then_written(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    for n in [1usize, 63, 64, 65, 4096, 100_001] {
        let window = Window::alloc(&team, n, ctx.deadline())?;
        let of = |rank: usize| random_elements(&mut ctx.common_rng().fork(rank as u64), DType::U8, n);
        let mut seen = vec![1; n];
        for rank in 0..ctx.world() {
            window.read_bytes(rank, 0, &mut seen)?;
            check!(seen.iter().all(|&b| b == 0), "zero before anybody has written");
        }
        team.barrier(ctx.deadline())?;
        window.write_bytes(ctx.rank(), 0, &of(ctx.rank()))?;
        team.barrier(ctx.deadline())?;
        let view = window.view(0, &[n], DType::U8)?;
        for rank in 0..ctx.world() {
            check!(view.remote_load(rank, &[0], &[n])?.bytes()? == of(rank), "{n} bytes of rank {rank}");
            let mut end = vec![0; n.min(3)];
            window.read_bytes(rank, n - end.len(), &mut end)?;
            check_eq!(end, of(rank)[n - end.len()..]);
        }
        for (at, len) in [(n, 1), (n + 1, 0), (usize::MAX, 1), (0, n + 1)] {
            let refused = window.read_bytes(ctx.rank(), at, &mut vec![0; len]);
            check!(matches!(refused, Err(Error::InvalidArgument { .. })), "{len} bytes at {at}");
        }
    }
    done()
}

/// Bytes and signals are zero also where a window was before.
fn recycled(ctx: &RankCtx) -> RankResult {
    const BYTES: usize = 5000;
    let team = team(ctx, "t")?;
    for _ in 0..20 {
        let window = Window::alloc(&team, WindowSpec::bytes(BYTES).signals(5), ctx.deadline())?;
        let signals = window.signals(&[5])?;
        let view = window.view(0, &[BYTES], DType::U8)?;
        check!(view.remote_load(ctx.rank(), &[0], &[BYTES])?.bytes()?.iter().all(|&b| b == 0));
        for cell in 0..5 {
            check_eq!(signals.read(&[cell])?, 0);
        }
        team.barrier(ctx.deadline())?;
        for rank in 0..ctx.world() {
            window.write_bytes(rank, 0, &poison(BYTES))?;
            (0..5).try_for_each(|cell| signals.notify(rank, &[cell], -7, NotifyOp::Set))?;
        }
        team.barrier(ctx.deadline())?;
    }
    done()
}

/// All hear who asked for something else, and what; then they agree, and it works.
fn mismatch(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let common = WindowSpec::bytes(64).signals(ctx.world());
    let odd_specs = [common.signals(1), WindowSpec::bytes(65).signals(ctx.world()), common.slots(1)];
    for odd in 0..ctx.world() {
        for odd_spec in odd_specs {
            let spec = if ctx.rank() == odd { odd_spec } else { common };
            match Window::alloc(&team, spec, ctx.deadline()) {
                Err(Error::Mismatch { rank, field: "spec", theirs, others, at }) => {
                    // Of two, either is as odd as the other.
                    check!(ctx.world() == 2 || rank == odd, "{rank} is odd, not {odd}");
                    let both = [theirs.as_str(), others.as_str()];
                    check!(both.contains(&odd_spec.to_string().as_str()), "{both:?}");
                    check!(both.contains(&common.to_string().as_str()), "{both:?}");
                    check!(at.op.contains("Window::alloc") && at.rank == ctx.rank(), "{at}");
                }
                other => return Err(format!("{other:?}").into()),
            }
            works(ctx, &Window::alloc(&team, common, ctx.deadline())?)?;
        }
    }
    done()
}

/// A round of everything small on a window with a row of signals.
fn works(ctx: &RankCtx, window: &Window) -> Any<()> {
    let (signals, view) =
        (window.signals(&[window.nranks()])?, window.view(0, &[window.nranks()], DType::I32)?);
    let me = window.rank();
    for peer in 0..window.nranks() {
        let mine = Tensor::from_slice(&[1], &[(10 * peer + me) as i32])?;
        view.remote_store(&mine, peer, &[me], comm_store::window::StoreOp::Set)?;
    }
    signals.barrier(ctx.deadline())?;
    for src in 0..window.nranks() {
        check_eq!(view.read::<i32>(&[src])?, (10 * me + src) as i32);
    }
    Ok(())
}

const TOO_MANY: usize = 1 << 50;

fn invalid_on_one(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let common = WindowSpec::bytes(64).signals(ctx.world());
    for odd in 0..ctx.world() {
        let spec = if ctx.rank() == odd { WindowSpec::bytes(TOO_MANY) } else { common };
        match Window::alloc(&team, spec, ctx.deadline()) {
            Err(Error::Mismatch { rank, field: "spec", .. }) => {
                check!(ctx.world() == 2 || rank == odd, "{rank}");
            }
            other => return Err(format!("{other:?}").into()),
        }
        works(ctx, &Window::alloc(&team, common, ctx.deadline())?)?;
    }
    done()
}

fn invalid_on_all(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let none = WindowSpec::bytes(64);
    for spec in [WindowSpec::bytes(TOO_MANY), none.signals(TOO_MANY), none.slots(usize::MAX)] {
        let outcome = Window::alloc(&team, spec, ctx.deadline());
        check!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
        works(ctx, &Window::alloc(&team, none.signals(ctx.world()), ctx.deadline())?)?;
    }
    for shape in [&[][..], &[0], &[4, 0]] {
        check!(matches!(WindowSpec::tensor(shape, DType::F32), Err(Error::InvalidArgument { .. })));
    }
    done()
}

/// A second thread that comes while a window is made is refused, and takes nothing from the first.
fn second_thread(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let signal = Team::join(&ctx.name("signal"), ctx.rank(), ctx.world(), ctx.deadline())?;
    let make = || Window::alloc(&team, WindowSpec::bytes(8).signals(1), ctx.deadline());
    let inside = || {
        let teams = snapshots();
        let found = teams.iter().find(|t| t.name == team.name());
        found.is_some_and(|t| t.ranks.iter().any(|r| r.rank == 0 && r.inside && r.op == "Window::alloc"))
    };
    for round in 0..20 {
        let window = if ctx.rank() == 0 {
            std::thread::scope(|s| -> Any<Window> {
                let first = s.spawn(make);
                while !inside() {
                    std::thread::yield_now();
                }
                // The others have not come yet, so the first is still inside.
                let second = make().err();
                signal.barrier(ctx.deadline())?;
                let window = first.join().map_err(|_| "a thread panicked")??;
                match second {
                    Some(Error::ConcurrentUse { .. }) => Ok(window),
                    other => Err(format!("{other:?}").into()),
                }
            })?
        } else {
            signal.barrier(ctx.deadline())?;
            make()?
        };
        // It is the same window on all of them.
        window.view(0, &[1], DType::I64)?.write(&[0], round + ctx.rank() as i64)?;
        team.barrier(ctx.deadline())?;
        for rank in 0..ctx.world() {
            let seen = window.view(0, &[1], DType::I64)?.remote_load(rank, &[0], &[1])?;
            check_eq!(seen.as_slice::<i64>()?, [round + rank as i64]);
        }
        team.barrier(ctx.deadline())?;
    }
    done()
}

/// Ranks `[last, 0]` are ranks 0 and 1 of a window of their own, while the others do something else: the others of a
/// team of three have a window alone.
fn subset(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let last = ctx.world() - 1;
    let rest: Vec<usize> = (1..last).collect();
    let (ranks, rounds) = if rest.contains(&ctx.rank()) { (rest, 7) } else { (vec![last, 0], 20) };
    let part = team.subset(&ranks, ctx.deadline())?;
    let spec = WindowSpec::bytes(64).signals(2 * ranks.len());
    let window = Window::alloc(&part, spec, ctx.deadline())?;
    check_eq!((window.nranks(), ranks[window.rank()]), (ranks.len(), ctx.rank()));
    check_eq!(window.context().id(), part.id());
    let signals = window.signals_from(ranks.len(), &[ranks.len()])?;
    let view = window.view(0, &[1], DType::I32)?;
    for round in 0..rounds {
        works(ctx, &window)?;
        signals.barrier(ctx.deadline())?;
        view.write(&[0], 100 * round + ctx.rank() as i32)?;
        signals.barrier(ctx.deadline())?;
        for (peer, &rank) in ranks.iter().enumerate() {
            let seen = view.remote_load(peer, &[0], &[1])?;
            check_eq!(seen.as_slice::<i32>()?, [100 * round + rank as i32]);
        }
        signals.barrier(ctx.deadline())?;
    }
    let beyond = signals.notify(ranks.len(), &[0], 1, NotifyOp::Add);
    check!(matches!(beyond, Err(Error::InvalidArgument { .. })), "{beyond:?}");
    team.barrier(ctx.deadline())?;
    done()
}

/// Views are ways to look at the same bytes, here and at a peer.
fn alias(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, WindowSpec::bytes(64).signals(ctx.world()), ctx.deadline())?;
    let (words, bytes) = (window.view(0, &[4, 4], DType::I32)?, window.view(16, &[48], DType::U8)?);
    let signals = window.signals(&[ctx.world()])?;
    let mine = 0x0101_0101 * (ctx.rank() as i32 + 1);
    words.write(&[1, 0], mine)?;
    check_eq!(bytes.read::<u8>(&[3])?, ctx.rank() as u8 + 1);
    for peer in others(ctx) {
        signals.notify(peer, &[ctx.rank()], 1, NotifyOp::Add)?;
    }
    for peer in others(ctx) {
        signals.wait(&[peer], Cmp::Ge, 1, Some(peer), ctx.deadline())?;
        let seen = bytes.remote_load(peer, &[0], &[4])?;
        check_eq!(seen.as_slice::<u8>()?, [peer as u8 + 1; 4]);
    }
    // Signals are in none of the bytes.
    let ends = words.remote_load(ctx.rank(), &[2, 0], &[2, 4])?;
    check_eq!(ends.as_slice::<i32>()?, [0; 8]);
    for (at, shape) in [(0, &[17][..]), (4, &[4, 4]), (64, &[1]), (2, &[4])] {
        let view = window.view(at, shape, DType::I32);
        check!(matches!(view, Err(Error::InvalidArgument { .. })), "{view:?}");
    }
    team.barrier(ctx.deadline())?;
    done()
}

/// Each rank's part holds its own number everywhere.
fn filled(ctx: &RankCtx, team: &Team) -> Any<Window> {
    let window = Window::alloc(team, 64, ctx.deadline())?;
    window.write_bytes(ctx.rank(), 0, &[ctx.rank() as u8 + 1; 64])?;
    Ok(window)
}

fn is_filled(ctx: &RankCtx, window: &Window) -> RankResult {
    for rank in 0..ctx.world() {
        let mut bytes = [0; 64];
        window.read_bytes(rank, 0, &mut bytes)?;
        check_eq!(bytes, [rank as u8 + 1; 64], "rank {rank}");
    }
    done()
}

/// One rank resets another window than the others: all are told, and nothing is wiped.
fn reset_crossed(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let (a, b) = (filled(ctx, &team)?, filled(ctx, &team)?);
    team.barrier(ctx.deadline())?;
    for odd in 0..ctx.world() {
        let window = if ctx.rank() == odd { &b } else { &a };
        match window.reset(ctx.deadline()) {
            Err(Error::Mismatch { rank, field: "window", .. }) => check!(ctx.world() == 2 || rank == odd),
            other => return Err(format!("{other:?}").into()),
        }
        is_filled(ctx, &a)?;
        is_filled(ctx, &b)?;
        team.barrier(ctx.deadline())?;
    }
    a.reset(ctx.deadline())?;
    is_filled(ctx, &b)
}

/// One rank resets, the others make a window or exchange a few bytes: all are told what the odd one does.
fn reset_beside(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let window = filled(ctx, &team)?;
    team.barrier(ctx.deadline())?;
    for odd in 0..ctx.world() {
        for exchange in [true, false] {
            let outcome = match (ctx.rank() == odd, exchange) {
                (true, _) => window.reset(ctx.deadline()),
                (false, true) => team.exchange(&[3; 64], ctx.deadline()).map(drop),
                (false, false) => Window::alloc(&team, 8, ctx.deadline()).map(drop),
            };
            match outcome {
                Err(Error::Mismatch { rank, field: "op", theirs, others, .. }) => {
                    check!(ctx.world() == 2 || rank == odd);
                    let names = [theirs, others].concat();
                    let other = if exchange { "exchange" } else { "Window::alloc" };
                    check!(names.contains("Window::reset") && names.contains(other), "{names}");
                }
                other => return Err(format!("{other:?}").into()),
            }
        }
        team.barrier(ctx.deadline())?;
    }
    is_filled(ctx, &window)
}
