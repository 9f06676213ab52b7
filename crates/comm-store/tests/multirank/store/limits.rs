//! No memory is an error of the call that needed it, and of nothing else.

use std::time::Duration;

use comm_core::Error;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_store::store::Kind;
use comm_testkit::{
    Case, LauncherCtx, Layout, Limit, Program, RankCtx, RankResult, Skip, check, check_eq, done,
};
use serde_json::json;

use super::{SUITE, Scene};
use crate::support::Any;

pub const PROGRAMS: &[Program] = &[FULL, HUGE];

const FULL: Program = Program { name: "store-full", run: full };
const HUGE: Program = Program { name: "store-huge", run: huge };

const SOON: Duration = Duration::from_secs(60);

pub fn cases() -> Vec<Case> {
    let of = |name: &str, run: fn(&LauncherCtx) -> RankResult| {
        let case = Case::launcher(SUITE, format!("limits/-/-/{name}"), run).worlds(|world| world == 2);
        let case = case.limit(4 * SOON);
        [
            case.clone().backend("process").layouts(&[Layout::Threads]),
            case.backend("host").layouts(&[Layout::Processes]),
        ]
    };
    [of("arena", arena), of("file-size", file_size), of("beyond-32-bits", beyond_32_bits)].concat()
}

fn run(launch: comm_testkit::Launch, ctx: &LauncherCtx) -> RankResult {
    for report in launch.limit(4 * SOON).run(ctx.deadline())? {
        for note in &report.notes {
            ctx.progress(&format!("rank {}: {}", report.rank, note.text));
        }
        check!(report.outcome.is_ok(), "rank {}: {}", report.rank, report.outcome);
    }
    done()
}

fn arena(ctx: &LauncherCtx) -> RankResult {
    for bytes in [0, 100_000] {
        run(
            ctx.launch(FULL.name).arg(json!(bytes)).env("COMM_ARENA_MAX_BYTES", (12 << 20).to_string()),
            ctx,
        )?;
    }
    done()
}

/// No segment can be larger than this, of which the log of a rank needs one sooner or later.
fn file_size(ctx: &LauncherCtx) -> RankResult {
    run(ctx.launch(FULL.name).arg(json!(0)).rlimit(Limit::FileSize, FILE_SIZE), ctx)
}

const FILE_SIZE: u64 = 5 << 20;

fn scene(ctx: &RankCtx) -> Any<Scene> {
    Scene::new(ctx, if ctx.backend() == "process" { Kind::Process } else { Kind::Host })
}

/// Publishes tensors of so many bytes until there is no memory: those in place are of the arena of tensors, those of one
/// byte fill that of windows, by what is noted about them. What was published before is as it was, and what was refused is
/// not there.
fn full(ctx: &RankCtx) -> RankResult {
    let s = scene(ctx)?;
    let bytes = ctx.args().as_u64().unwrap_or_default() as usize;
    let make = |i: usize| -> Result<Tensor, Error> {
        let mut buf = if bytes > 0 {
            TensorBuf::zeros_in(s.team.hub().tensors(), &[bytes], DType::U8)?
        } else {
            TensorBuf::zeros(&[1], DType::U8)?
        };
        buf.as_mut_slice::<u8>()?.fill(i as u8);
        Ok(buf.freeze())
    };
    let abroad = (0..ctx.world()).any(|rank| !ctx.shares_process(rank));
    for round in 0..2 {
        let mut count = 0;
        if ctx.rank() == 0 {
            let refused = loop {
                if count == 200_000 {
                    return Err("there is no limit".into());
                }
                let tensor = match make(count) {
                    Ok(tensor) => tensor,
                    Err(error) => break error,
                };
                match s.publish(&format!("{round}-{count}"), &tensor, 1) {
                    Ok(()) => count += 1,
                    Err(error) => break error,
                }
            };
            check!(matches!(refused, Error::OutOfMemory { .. }), "after {count}: {refused}");
            check!(count > 50, "{count} were published, then {refused}");
            ctx.note(format!("round {round}: {count} of {} bytes, then {refused}", bytes.max(1)));
        }
        let mut board = [0; comm_core::team::BOARD_BYTES];
        board[..8].copy_from_slice(&count.to_ne_bytes());
        let said = s.team.exchange(&board, s.by)?;
        let count = usize::from_ne_bytes(std::array::from_fn(|i| said[0][i]));
        let next = format!("{round}-{count}");
        check!(matches!(s.store.finish(&next, &s.cpu), Err(Error::UnknownKey { .. })), "it was refused");
        if ctx.rank() == 1 {
            for i in 0..count {
                let read = s.fetch(&format!("{round}-{i}"))?;
                let seen = read.to_vec::<u8>()?;
                check!(seen.len() == bytes.max(1) && seen.iter().all(|&byte| byte == i as u8), "{i}");
            }
        } else {
            // One that has been read makes room for one more, where tensors take it.
            s.wait_consumed(&format!("{round}-0"))?;
            (0..count).try_for_each(|i| s.wait_consumed(&format!("{round}-{i}")))?;
            if bytes > 0 {
                s.publish(&next, &make(count)?, 0)?;
            }
        }
        // What would have to be copied to where there is no room for it.
        if abroad {
            let large = TensorBuf::zeros(&[16 << 20], DType::U8)?.freeze();
            let refused = s.publish("large", &large, 1);
            check!(matches!(refused, Err(Error::OutOfMemory { .. })), "{refused:?}");
        }
        // After a reset there is as much room as at first.
        s.store.reset(s.by)?;
    }
    s.end()
}

/// In the long version more than 2^32 bytes, and more than 2^31 elements, really there.
fn beyond_32_bits(ctx: &LauncherCtx) -> RankResult {
    let available = available()?;
    if ctx.full() && available < 9 << 30 {
        return Err(Skip::because(format!("takes 5 GiB of memory, and {available} bytes are available")));
    }
    run(ctx.launch(HUGE.name).env("COMM_ARENA_MAX_BYTES", (6_u64 << 30).to_string()), ctx)
}

fn available() -> Any<u64> {
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:")).ok_or("no such line")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

fn huge(ctx: &RankCtx) -> RankResult {
    let s = scene(ctx)?;
    let (bytes, far) = if ctx.full() { (5 << 30, 1 << 32) } else { (20 << 20, 1 << 24) };
    let marks = [(0, 1), (far / 2, 2), (far - 1, 3), (far, 4), (bytes - 1, 5)];
    if ctx.rank() == 0 {
        let mut buf = TensorBuf::zeros_in(s.team.hub().tensors(), &[bytes], DType::U8)?;
        let slice = buf.as_mut_slice::<u8>()?;
        marks.iter().for_each(|&(at, mark)| slice[at] = mark);
        let whole = buf.freeze();
        s.publish("whole", &whole, 1)?;
        s.publish("flipped", &whole.flip(0)?, 1)?;
        s.publish("last", &whole.narrow(0, bytes - 1, 1)?, 1)?;
        s.publish("far apart", &whole.narrow(0, 0, far + 1)?.step(0, far)?, 1)?;
        drop(whole);
        for key in ["whole", "flipped", "last", "far apart"] {
            s.wait_consumed(key)?;
        }
    } else {
        let (whole, flipped) = (s.fetch("whole")?, s.fetch("flipped")?);
        check_eq!((whole.numel(), whole.nbytes()), (bytes, bytes));
        for (at, mark) in marks {
            check_eq!(whole.narrow(0, at, 1)?.to_vec::<u8>()?, [mark], "at {at}");
            check_eq!(flipped.narrow(0, bytes - 1 - at, 1)?.to_vec::<u8>()?, [mark], "at {at} from the end");
        }
        check_eq!(s.fetch("last")?.to_vec::<u8>()?, [5]);
        check_eq!(s.fetch("far apart")?.to_vec::<u8>()?, [1, 4]);
    }
    check_eq!(s.store.stats().bytes_copied, 0);
    s.end()
}
