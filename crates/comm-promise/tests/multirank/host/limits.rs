//! No memory is an error of the call that needed it: the promise is as before, and the value is given back.

use std::time::Duration;

use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_core::{Error, Kind};
use comm_promise::{Promise, SetError};
use comm_testkit::{Case, LauncherCtx, Layout, Program, RankCtx, RankResult, check, check_eq};

use crate::support::{Any, SUITE, Scene, until_blocks};

pub const PROGRAMS: &[Program] = &[SETTING, ASKING];

const SETTING: Program = Program { name: "promise-full-setting", run: setting };
const ASKING: Program = Program { name: "promise-full-asking", run: asking };

const LIMIT: Duration = Duration::from_secs(60);

/// What an arena may have.
const ROOM: usize = 12 << 20;

pub fn cases() -> Vec<Case> {
    let of = |name: &str, run: fn(&LauncherCtx) -> RankResult| {
        let case = Case::launcher(SUITE, format!("limits/-/-/{name}"), run).backend("host").limit(LIMIT);
        case.worlds(|world| world == 2).layouts(&[Layout::Processes])
    };
    vec![
        of("no-memory-for-a-value", |ctx| end_well(ctx, SETTING)),
        of("no-memory-for-a-promise", |ctx| end_well(ctx, ASKING)),
    ]
}

fn end_well(ctx: &LauncherCtx, program: Program) -> RankResult {
    let launch = ctx.launch(program.name).env("COMM_ARENA_MAX_BYTES", ROOM.to_string()).limit(LIMIT);
    for report in launch.run(ctx.deadline())? {
        for note in &report.notes {
            ctx.progress(&format!("rank {}: {}", report.rank, note.text));
        }
        check!(report.outcome.is_ok(), "rank {}: {}", report.rank, report.outcome);
    }
    comm_testkit::done()
}

fn of_the_heap(bytes: usize, value: u8) -> Any<Tensor> {
    let mut buf = TensorBuf::zeros(&[bytes], DType::U8)?;
    buf.as_mut_slice::<u8>()?.fill(value);
    Ok(buf.freeze())
}

/// Values that the client keeps fill the arena of who sets them. What is not set then can be set when there is room, or to an
/// error, for which there always is.
fn setting(ctx: &RankCtx) -> RankResult {
    const BYTES: usize = 1 << 20;
    let s = Scene::host(ctx)?;
    for round in 0..2 {
        let mut kept = Vec::new();
        for i in 0.. {
            let (future, promise) = s.ask::<Tensor>()?;
            let mut last = None;
            if let Some(promise) = promise {
                match promise.set(of_the_heap(BYTES, i)?) {
                    Ok(()) => {}
                    Err(SetError::Failed { value, why }) if matches!(*why, Error::OutOfMemory { .. }) => {
                        check!(i > 4, "{i} were set, then {why}");
                        check!(value.to_vec::<u8>()? == vec![i; BYTES] && !promise.is_set());
                        ctx.note(format!("round {round}: {i} values, then {why}"));
                        last = Some((promise, value));
                    }
                    Err(other) => return Err(format!("after {i}: {other}").into()),
                }
            }
            if s.say(1, &[u8::from(last.is_some())])? == [0] {
                kept.extend(future.map(|future| future.get(s.by)).transpose()?);
                continue;
            }
            // Of the value that was not set nothing has come, and of the others nothing is lost.
            for (i, value) in (0..).zip(&kept) {
                check!(value.to_vec::<u8>()? == vec![i; BYTES], "value {i}");
            }
            let (future_of_error, promise_of_error) = s.ask::<Tensor>()?;
            if let Some(promise) = promise_of_error {
                promise.set_error(Error::invalid("test", "there is no room"))?;
            }
            if let Some(future) = future_of_error {
                let said = future.get(s.by);
                check!(matches!(&said, Err(Error::SetToError { .. })), "{said:?}");
            }
            kept.clear();
            if let Some((promise, value)) = last {
                until_blocks(&s, 0)?;
                promise.set(value)?;
            }
            if let Some(future) = future {
                check!(future.get(s.by)?.to_vec::<u8>()? == vec![i; BYTES]);
            }
            break;
        }
        // One that can never be: it is refused and given back, however often.
        let (future, promise) = s.ask::<Tensor>()?;
        if let Some(promise) = promise {
            for _ in 0..3 {
                let refused = promise.set(of_the_heap(2 * ROOM, 7)?);
                let Err(SetError::Failed { value, why }) = refused else {
                    return Err(format!("{refused:?}").into());
                };
                check!(matches!(*why, Error::OutOfMemory { .. }), "{why}");
                check_eq!(value.nbytes(), 2 * ROOM);
            }
            promise.set(of_the_heap(3, 8)?)?;
        }
        if let Some(future) = future {
            check_eq!(future.get(s.by)?.to_vec::<u8>()?, [8; 3]);
        }
        s.all()?;
    }
    s.end()
}

/// Promises that are kept fill the arena of windows of their home. As soon as one is gone there is room for another.
fn asking(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let mut before = None;
    for _ in 0..2 {
        let mut kept = Vec::new();
        let why = loop {
            if kept.len() == 1_000_000 {
                return Err("there is no limit".into());
            }
            match Promise::<()>::new(Kind::Host) {
                Ok(promise) => kept.push((promise.future()?, promise)),
                Err(why) => break why,
            }
        };
        check!(matches!(why, Error::OutOfMemory { .. }), "after {}: {why}", kept.len());
        check!(kept.len() > 1000, "{} promises, then {why}", kept.len());
        ctx.note(format!("{} promises, then {why}", kept.len()));
        // As many each time: their slots are used again.
        check_eq!(*before.get_or_insert(kept.len()), kept.len());
        let (future, promise) = kept.swap_remove(kept.len() / 2);
        promise.set(())?;
        future.get(s.by)?;
        drop((future, promise));
        let promise = Promise::<()>::new(Kind::Host)?;
        check!(Promise::<()>::new(Kind::Host).is_err(), "there was room for one");
        drop(promise);
        for (future, promise) in kept {
            promise.set(())?;
            future.get(s.by)?;
        }
    }
    s.end()
}
