//! Tensors that peers read in place.

use comm_core::Error;
use comm_core::team::Team;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_store::window::{Await, Region, StoreOp, WindowSpec};
use comm_store::{Cmp, NotifyOp, Window};
use comm_testkit::values::{SplitMix64, poison, random_elements};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use super::{case, long};
use crate::support::{Any, left, others, right, team};

pub fn cases() -> Vec<Case> {
    vec![
        case("expose/-/u8/read", read),
        case("expose/-/u8/withdrawn", withdrawn),
        case("expose/-/u8/never", never),
        case("expose/-/i32/typed", typed),
        case("expose/-/u8/forgotten", forgotten),
        long("expose/-/u8/while-read", while_read),
    ]
}

struct Exposing {
    team: Team,
    window: Window,
}

/// A window with slots, and signals for meeting.
fn exposing(ctx: &RankCtx, slots: usize) -> Any<Exposing> {
    let team = team(ctx, "t")?;
    let spec = WindowSpec::bytes(4096).signals(ctx.world()).slots(slots);
    let window = Window::alloc(&team, spec, ctx.deadline())?;
    Ok(Exposing { team, window })
}

/// Exposes random bytes in the arena.
fn exposable(ctx: &RankCtx, team: &Team, rng: &SplitMix64, n: usize) -> Result<Tensor, Error> {
    let bytes = of(rng, ctx.rank(), n);
    let mut buf = TensorBuf::zeros_in(team.hub().tensors(), &[n], DType::U8)?;
    buf.bytes_mut()?.copy_from_slice(&bytes);
    Ok(buf.freeze())
}

fn of(rng: &SplitMix64, rank: usize, n: usize) -> Vec<u8> {
    random_elements(&mut rng.fork(rank as u64), DType::U8, n)
}

fn read(ctx: &RankCtx) -> RankResult {
    let Exposing { team, window } = exposing(ctx, 2)?;
    let signals = window.signals(&[ctx.world()])?;
    for (i, n) in [0usize, 1, 100, 1 << 20, 77].into_iter().enumerate() {
        let rng = ctx.common_rng().fork(i as u64);
        let tensor = exposable(ctx, &team, &rng, n)?;
        let round = i as u64 + 1;
        let exposed = window.expose(i % 2, round, &tensor)?;
        signals.barrier(ctx.deadline())?;
        for rank in 0..ctx.world() {
            let region = window.region(rank, i % 2, round, ctx.deadline())?;
            check_eq!((region.len(), region.is_empty()), (n, n == 0));
            let mut bytes = vec![0; n];
            let half = n / 2;
            region.read(half, &mut bytes[half..])?;
            region.read(0, &mut bytes[..half])?;
            region.verify()?;
            check!(bytes == of(&rng, rank, n), "{n} bytes of rank {rank}");
            let other = window.region(rank, 1 - i % 2, round, ctx.deadline());
            check!(matches!(other, Err(Error::BadPeer { .. })), "the other slot is empty: {other:?}");
        }
        signals.barrier(ctx.deadline())?;
        drop(exposed);
    }
    done()
}

/// A tensor is withdrawn, and its memory used anew, between looking for it and reading it: a reader in another process
/// is told. (One in the same process has the tensor itself.)
fn withdrawn(ctx: &RankCtx) -> RankResult {
    let Exposing { team, window } = exposing(ctx, 1)?;
    let signals = window.signals(&[ctx.world()])?;
    let n = 1 << 16;
    let rng = ctx.common_rng();
    let tensor = exposable(ctx, &team, &rng, n)?;
    let exposed = window.expose(0, 7, &tensor)?;
    signals.barrier(ctx.deadline())?;
    let mut regions: Vec<(usize, Region<'_>)> = Vec::new();
    for rank in (0..ctx.world()).filter(|&r| !ctx.shares_process(r)) {
        regions.push((rank, window.region(rank, 0, 7, ctx.deadline())?));
    }
    for (_, region) in &regions {
        region.verify()?;
    }
    signals.barrier(ctx.deadline())?;
    let place = tensor.block().ok_or("it lies in the arena")?;
    drop((exposed, tensor));
    // Ranks of one process share the arena, so another one of them may get the place.
    let mut blocks = Vec::new();
    for _ in 0..200 {
        let block = team.hub().tensors().alloc(n as u64)?;
        block.copy_in(0, &poison(n))?;
        let again = block.segment().id() == place.0 && block.offset().abs_diff(place.1) < n as u64;
        blocks.push(block);
        if again {
            break;
        }
    }
    signals.barrier(ctx.deadline())?;
    let mut garbage = 0;
    for (rank, region) in &regions {
        let mut bytes = vec![0; n];
        region.read(0, &mut bytes)?;
        garbage += usize::from(bytes != of(&rng, *rank, n));
        check!(matches!(region.verify(), Err(Error::BadPeer { .. })), "rank {rank} has withdrawn it");
        check!(window.region(*rank, 0, 7, ctx.deadline()).is_err());
    }
    check_eq!(garbage, regions.len(), "the memory was not used anew, so nothing is shown");
    for (rank, region) in regions {
        let outcome = region.typed(&[n], DType::U8)?.remote_load(&[0], &[n]);
        check!(matches!(outcome, Err(Error::BadPeer { .. })), "rank {rank}: {outcome:?}");
    }
    signals.barrier(ctx.deadline())?;
    done()
}

/// A slot in which nothing is, and a round that is not this one.
fn never(ctx: &RankCtx) -> RankResult {
    let Exposing { team, window } = exposing(ctx, 1)?;
    let signals = window.signals(&[ctx.world()])?;
    let nothing = |rank: usize, round: u64| {
        let outcome = window.region(rank, 0, round, ctx.deadline());
        matches!(outcome, Err(Error::BadPeer { .. }))
    };
    check!((0..ctx.world()).all(|rank| nothing(rank, 1)));
    signals.barrier(ctx.deadline())?;
    let tensor = exposable(ctx, &team, &ctx.common_rng(), 10)?;
    let exposed = window.expose(0, 5, &tensor)?;
    signals.barrier(ctx.deadline())?;
    for rank in 0..ctx.world() {
        check!([4, 6, 0, u64::MAX].iter().all(|&round| nothing(rank, round)), "{rank}");
        window.region(rank, 0, 5, ctx.deadline())?;
    }
    for (rank, slot) in [(0, 1), (ctx.world(), 0)] {
        let outcome = window.region(rank, slot, 5, ctx.deadline());
        check!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
    }
    signals.barrier(ctx.deadline())?;
    drop(exposed);
    done()
}

/// A tensor with its shape: rectangles of it are loaded and got, and nobody stores into it.
fn typed(ctx: &RankCtx) -> RankResult {
    let Exposing { team, window } = exposing(ctx, 1)?;
    let signals = window.signals(&[ctx.world()])?;
    let target = window.view(1024, &[3, 4], DType::I32)?;
    for round in 1..=20u64 {
        let value = |rank: usize, i: usize, j: usize| {
            1000 * rank as i32 + 100 * round as i32 + 10 * i as i32 + j as i32
        };
        let values: Vec<i32> = (0..12).map(|k| value(ctx.rank(), k / 4, k % 4)).collect();
        let tensor = Tensor::from_slice(&[3, 4], &values)?.contiguous_in(team.hub().tensors())?;
        let exposed = window.expose(0, round, &tensor)?;
        // The rank before me reads mine: it is told, and says when it has.
        signals.notify(left(ctx), &[ctx.rank()], 1, NotifyOp::Add)?;
        let (from, by) = (right(ctx), ctx.deadline());
        let cell = [from];
        let told = Await::ge(&signals, &cell, 1).from(from).by(by);
        told.now()?;
        let region = window.region(from, 0, round, by)?.typed(&[3, 4], DType::I32)?;
        region.get(&target, None, Some(told))?;
        check_eq!(target.read::<i32>(&[2, 3])?, value(from, 2, 3));
        let corner = region.remote_load(&[1, 2], &[2, 2])?;
        let expected = [value(from, 1, 2), value(from, 1, 3), value(from, 2, 2), value(from, 2, 3)];
        check_eq!(corner.as_slice::<i32>()?, expected);
        let stored = region.remote_store(&tensor, &[0, 0], StoreOp::Set);
        check!(matches!(stored, Err(Error::Unsupported { .. })), "{stored:?}");
        let put = region.put(&target, None, StoreOp::Add);
        check!(matches!(put, Err(Error::Unsupported { .. })), "{put:?}");
        signals.write(&[from], 0)?;
        team.barrier(by)?;
        check!(tensor.as_slice::<i32>()? == values, "somebody wrote into it");
        drop(exposed);
    }
    done()
}

/// Exposed, and withdrawn without asking, while others read all the time: what they believe is one whole tensor.
fn while_read(ctx: &RankCtx) -> RankResult {
    const N: usize = 40_000;
    let Exposing { team, window } = exposing(ctx, 1)?;
    let rounds = if ctx.full() { 10_000 } else { 500 };
    // The round that rank 0 has come to.
    let latest = window.signals(&[1])?;
    let tensor_of = |round: i32| -> Any<Tensor> {
        let mut buf = TensorBuf::zeros_in(team.hub().tensors(), &[N], DType::U8)?;
        buf.bytes_mut()?.fill(round as u8);
        Ok(buf.freeze())
    };
    let tell = |round: i32| -> Any<()> {
        others(ctx).try_for_each(|peer| latest.notify(peer, &[0], round, NotifyOp::Set))?;
        Ok(())
    };
    if ctx.rank() == 0 {
        let mut rng = ctx.rng();
        for round in 1..rounds {
            let exposed = window.expose(0, round as u64, &tensor_of(round)?)?;
            tell(round)?;
            (0..rng.below(4)).for_each(|_| std::thread::yield_now());
            drop(exposed);
        }
        let exposed = window.expose(0, rounds as u64, &tensor_of(rounds)?)?;
        tell(rounds)?;
        team.barrier(ctx.deadline())?;
        drop(exposed);
        return done();
    }
    let mut round = 0;
    while round < rounds {
        round = latest.wait(&[0], Cmp::Ne, round, Some(0), ctx.deadline())?;
        let read = window
            .region(0, 0, round as u64, ctx.deadline())
            .and_then(|region| region.typed(&[N], DType::U8)?.remote_load(&[0], &[N]));
        match read {
            Ok(tensor) => check!(tensor.bytes()?.iter().all(|&b| b == round as u8), "torn in round {round}"),
            Err(Error::BadPeer { .. }) if round < rounds => {}
            Err(error) => return Err(error.into()),
        }
    }
    team.barrier(ctx.deadline())?;
    done()
}

/// A rank forgets that it exposes a tensor, and drops the window: what peers find afterwards is nothing, and never what else
/// is in that memory by then.
fn forgotten(ctx: &RankCtx) -> RankResult {
    let Exposing { team, window } = exposing(ctx, 1)?;
    let tensor = exposable(ctx, &team, &ctx.common_rng(), 4096)?;
    if ctx.rank() == 0 {
        std::mem::forget(window.expose(0, 1, &tensor)?);
    }
    team.barrier(ctx.deadline())?;
    if ctx.rank() == 0 {
        // With others of this process that hold the window it stays exposed, and so the tensor stays.
        drop((window, tensor));
        let others: Vec<_> =
            (0..8).map(|_| exposable(ctx, &team, &ctx.rng(), 4096)).collect::<Result<_, _>>()?;
        team.barrier(ctx.deadline())?;
        team.barrier(ctx.deadline())?;
        drop(others);
        return done();
    }
    team.barrier(ctx.deadline())?;
    let found = window.region(0, 0, 1, ctx.deadline()).and_then(|region| {
        let mut bytes = vec![0; region.len()];
        region.read(0, &mut bytes)?;
        region.verify().map(|()| bytes)
    });
    match found {
        Ok(bytes) => check!(bytes == of(&ctx.common_rng(), 0, 4096), "another tensor's bytes"),
        Err(Error::BadPeer { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    team.barrier(ctx.deadline())?;
    done()
}
