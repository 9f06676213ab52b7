//! Memory that ranks reach in each other.

use comm_core::Error;
use comm_core::team::{Team, snapshots};
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_store::Window;
use comm_testkit::values::{SplitMix64, poison, random_elements};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

pub fn cases() -> Vec<Case> {
    let of = |name: &str, run: fn(&RankCtx) -> RankResult| Case::ranks("window", name, run);
    vec![
        of("alloc/-/-/bytes", bytes),
        of("alloc/-/-/cells", cells),
        of("alloc/-/-/mismatch", mismatch),
        of("alloc/-/-/second-thread", second_thread),
        of("alloc/-/-/leave-at-once", leave_at_once),
        of("alloc/-/-/given-back", given_back),
        of("expose/-/u8/read", read),
        of("expose/-/u8/withdrawn", withdrawn),
        of("expose/-/u8/never", never),
    ]
}

fn team(ctx: &RankCtx, name: &str) -> Result<Team, Error> {
    Team::join(&ctx.name(name), ctx.rank(), ctx.world(), ctx.deadline())
}

fn bytes(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let windows = [1usize, 63, 64, 65, 4096, 100_001];
    for n in windows {
        let window = Window::alloc(&team, 0, n, 0, ctx.deadline())?;
        let of = |rank: usize| random_elements(&mut ctx.common_rng().fork(rank as u64), DType::U8, n);
        let mut seen = vec![1; n];
        for rank in 0..ctx.world() {
            window.read(rank, 0, &mut seen)?;
            check!(seen.iter().all(|&b| b == 0), "zero before anybody has written");
        }
        team.barrier(ctx.deadline())?;
        window.write(0, &of(ctx.rank()))?;
        team.barrier(ctx.deadline())?;
        for rank in 0..ctx.world() {
            window.read(rank, 0, &mut seen)?;
            check!(seen == of(rank), "{n} bytes of rank {rank}");
            let mut end = vec![0; n.min(3)];
            window.read(rank, n - end.len(), &mut end)?;
            check_eq!(end, seen[n - end.len()..]);
        }
    }
    done()
}

/// Each rank tells the next, over and over: what was written before a cell was set is there when it is seen.
fn cells(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, 3, 8, 0, ctx.deadline())?;
    for round in 1..=300u64 {
        let mut op = team.begin("cells", ctx.deadline())?;
        window.write(0, &(round * 1000 + ctx.rank() as u64).to_ne_bytes())?;
        for cell in [0, 2] {
            let cells: Vec<_> = (0..ctx.world()).map(|r| window.cell(r, cell)).collect::<Result<_, _>>()?;
            op.meet("a cell of the others", |rank| cells[rank], round)?;
            for rank in (0..ctx.world()).filter(|_| cell == 0) {
                let mut bytes = [0; 8];
                window.read(rank, 0, &mut bytes)?;
                check_eq!(u64::from_ne_bytes(bytes), round * 1000 + rank as u64);
            }
        }
        op.finish();
        check_eq!(window.cell(0, 1)?.load(), 0, "a neighbour is untouched");
    }
    done()
}

fn mismatch(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    for odd in 0..ctx.world() {
        for shape in [(2, 64, 0), (1, 65, 0), (1, 64, 1)] {
            let (cells, bytes, slots) = if ctx.rank() == odd { shape } else { (1, 64, 0) };
            match Window::alloc(&team, cells, bytes, slots, ctx.deadline()) {
                Err(Error::Mismatch { rank, field: "shape", theirs, others, at }) => {
                    check!(ctx.world() == 2 || rank == odd, "{rank} is odd, not {odd}");
                    check!(theirs != others && at.op.contains("Window::alloc"), "{theirs}, {others}, {at}");
                }
                other => return Err(format!("{other:?}").into()),
            }
            Window::alloc(&team, 1, 64, 0, ctx.deadline())?;
        }
    }
    done()
}

/// A second thread that comes while a window is made is refused, and takes nothing from the first.
fn second_thread(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let signal = Team::join(&ctx.name("signal"), ctx.rank(), ctx.world(), ctx.deadline())?;
    let make = || Window::alloc(&team, 1, 8, 0, ctx.deadline());
    let inside = || {
        let teams = snapshots();
        let found = teams.iter().find(|t| t.name == team.name());
        found.is_some_and(|t| t.ranks.iter().any(|r| r.rank == 0 && r.inside && r.op == "Window::alloc"))
    };
    for round in 0..20u64 {
        let window = if ctx.rank() == 0 {
            std::thread::scope(|s| {
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
                    other => Err(Box::<dyn std::error::Error + Send + Sync>::from(format!("{other:?}"))),
                }
            })?
        } else {
            signal.barrier(ctx.deadline())?;
            make()?
        };
        window.cell(ctx.rank(), 0)?.set(round + 7, team.bell());
        team.barrier(ctx.deadline())?;
        for rank in 0..ctx.world() {
            check_eq!(window.cell(rank, 0)?.load(), round + 7, "another part than that of rank {rank}");
        }
    }
    done()
}

/// Nobody leaves before all have what they need of him.
fn leave_at_once(ctx: &RankCtx) -> RankResult {
    for round in 0..60 {
        let team = team(ctx, &format!("t{round}"))?;
        Window::alloc(&team, 1, 1 << 16, 1, ctx.deadline())?;
    }
    done()
}

fn given_back(ctx: &RankCtx) -> RankResult {
    let keep = team(ctx, "keep")?;
    let blocks = || keep.hub().windows().stats().blocks;
    let quiet = || -> Result<u64, Error> {
        keep.barrier(ctx.deadline())?;
        let seen = blocks();
        keep.barrier(ctx.deadline())?;
        Ok(seen)
    };
    let before = quiet()?;
    for round in 0..40 {
        let team = team(ctx, &format!("t{round}"))?;
        Window::alloc(&team, 1, 1000, 1, ctx.deadline())?;
        Window::alloc(&team, 1, 1000, 1, ctx.deadline())?;
    }
    let after = quiet()?;
    // They go when the next team is made after all have left, so the latest few may be there.
    check!(after <= before + 16, "{before} blocks before, {after} afterwards");
    done()
}

/// Exposes random bytes in an arena or on the heap, as the peers need it.
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
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, 1, 0, 2, ctx.deadline())?;
    for (i, n) in [0usize, 1, 100, 1 << 20, 77].into_iter().enumerate() {
        let rng = ctx.common_rng().fork(i as u64);
        let tensor = exposable(ctx, &team, &rng, n)?;
        let mut op = team.begin("read", ctx.deadline())?;
        let round = op.seq();
        let exposed = window.expose(i % 2, round, &tensor, true)?;
        let cells: Vec<_> = (0..ctx.world()).map(|r| window.cell(r, 0)).collect::<Result<_, _>>()?;
        op.meet("the others to expose", |rank| cells[rank], 2 * round)?;
        for rank in 0..ctx.world() {
            let region = window.region(&mut op, rank, i % 2, round)?;
            check_eq!((region.len(), region.is_empty()), (n, n == 0));
            let mut bytes = vec![0; n];
            let half = n / 2;
            region.read(half, &mut bytes[half..])?;
            region.read(0, &mut bytes[..half])?;
            region.verify()?;
            check!(bytes == of(&rng, rank, n), "{n} bytes of rank {rank}");
            check!(window.region(&mut op, rank, 1 - i % 2, round).is_err(), "the other slot is empty");
        }
        op.meet("the others to have read", |rank| cells[rank], 2 * round + 1)?;
        drop(exposed);
        op.finish();
    }
    done()
}

/// A tensor is withdrawn, and its memory used anew, between looking for it and reading it: a reader in another process
/// is told. (One in the same process has the tensor itself.)
fn withdrawn(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, 1, 0, 1, ctx.deadline())?;
    let n = 1 << 16;
    let rng = ctx.common_rng();
    let tensor = exposable(ctx, &team, &rng, n)?;
    let mut op = team.begin("withdraw", ctx.deadline())?;
    let cells: Vec<_> = (0..ctx.world()).map(|r| window.cell(r, 0)).collect::<Result<_, _>>()?;
    let exposed = window.expose(0, 7, &tensor, true)?;
    op.meet("the others to expose", |rank| cells[rank], 1)?;
    let mut regions = Vec::new();
    for rank in (0..ctx.world()).filter(|&r| !ctx.shares_process(r)) {
        regions.push((rank, window.region(&mut op, rank, 0, 7)?));
    }
    for (_, region) in &regions {
        region.verify()?;
    }
    op.meet("the others to have looked", |rank| cells[rank], 2)?;
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
    op.meet("the others to have withdrawn", |rank| cells[rank], 3)?;
    let mut garbage = 0;
    for (rank, region) in &regions {
        let mut bytes = vec![0; n];
        region.read(0, &mut bytes)?;
        garbage += usize::from(bytes != of(&rng, *rank, n));
        check!(matches!(region.verify(), Err(Error::BadPeer { .. })), "rank {rank} has withdrawn it");
        check!(window.region(&mut op, *rank, 0, 7).is_err());
    }
    check_eq!(garbage, regions.len(), "the memory was not used anew, so nothing is shown");
    op.meet("the others to have seen it", |rank| cells[rank], 4)?;
    op.finish();
    done()
}

/// A slot in which nothing is, and a round that is not this one.
fn never(ctx: &RankCtx) -> RankResult {
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, 1, 0, 1, ctx.deadline())?;
    let mut op = team.begin("never", ctx.deadline())?;
    let cells: Vec<_> = (0..ctx.world()).map(|r| window.cell(r, 0)).collect::<Result<_, _>>()?;
    for rank in 0..ctx.world() {
        check!(matches!(window.region(&mut op, rank, 0, 1), Err(Error::BadPeer { .. })), "{rank}");
    }
    op.meet("the others to have looked", |rank| cells[rank], 1)?;
    let tensor = exposable(ctx, &team, &ctx.common_rng(), 10)?;
    let exposed = window.expose(0, 5, &tensor, true)?;
    op.meet("the others to expose", |rank| cells[rank], 2)?;
    for rank in 0..ctx.world() {
        for round in [4, 6, 0, u64::MAX] {
            check!(matches!(window.region(&mut op, rank, 0, round), Err(Error::BadPeer { .. })), "{rank}");
        }
        window.region(&mut op, rank, 0, 5)?;
    }
    op.meet("the others to have looked again", |rank| cells[rank], 3)?;
    drop(exposed);
    op.finish();
    done()
}
