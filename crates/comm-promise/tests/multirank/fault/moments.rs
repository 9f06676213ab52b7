//! A worker is killed at any moment, with many values under way: each is the right one, or broken, and nobody waits for it.

use std::time::Duration;

use comm_core::error::BrokenHow;
use comm_core::tensor::Tensor;
use comm_core::{Error, Kind};
use comm_promise::{Promise, Ticket, Wire};
use comm_testkit::{Case, LauncherCtx, Program, RankCtx, RankResult, block_on, check, done, eventually};

use super::{SOON, case};
use crate::support::{Scene, tensor};

pub const PROGRAMS: &[Program] = &[MANY];

const MANY: Program = Program { name: "promise-many", run: many };
const COUNT: usize = 300;

pub fn cases() -> Vec<Case> {
    vec![case("kill/-/-/any-moment", any_moment)]
}

fn any_moment(ctx: &LauncherCtx) -> RankResult {
    let mut rng = ctx.rng();
    let (mut values, mut broken) = (0, 0);
    for _ in 0..if ctx.full() { 200 } else { 20 } {
        let running = ctx.launch(MANY.name).limit(SOON).spawn()?;
        running.wait_note(1, "setting", SOON)?;
        std::thread::sleep(Duration::from_micros(rng.below(4000)));
        running.kill(1)?;
        let reports = running.wait(SOON);
        check!(reports[0].outcome.is_ok(), "{}", reports[0].outcome);
        let note = reports[0].note("seen").ok_or("what was seen")?;
        values += note.value[0].as_u64().unwrap_or(0);
        broken += note.value[1].as_u64().unwrap_or(0);
    }
    ctx.progress(&format!("{values} values, {broken} broken"));
    check!(
        values > 0 && broken > 0,
        "killed too early or too late each time: {values} values, {broken} broken"
    );
    done()
}

fn many(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    // The tickets of all go in one value.
    let promise =
        (ctx.rank() == 1).then(|| Promise::<Wire<Vec<Ticket<Vec<Tensor>>>>>::new(Kind::Host)).transpose()?;
    let tickets = promise.as_ref().map(Promise::future).transpose()?;
    let ticket = s.ticket(1, promise.map(Promise::into_ticket).transpose()?)?;
    match ctx.rank() {
        0 => {
            let promises =
                (0..COUNT).map(|_| Promise::<Vec<Tensor>>::new(Kind::Host)).collect::<Result<Vec<_>, _>>()?;
            let futures = promises.iter().map(Promise::future).collect::<Result<Vec<_>, _>>()?;
            let tickets = promises.into_iter().map(Promise::into_ticket).collect::<Result<_, _>>()?;
            Promise::attach(&ticket, s.by)?.set(Wire(tickets))?;
            let (mut values, mut broken, mut kept) = (0, 0, Vec::new());
            for (n, future) in futures.into_iter().enumerate() {
                let outcome = if n % 2 == 0 { future.get(s.by) } else { block_on(future) };
                match outcome {
                    Ok(value) => {
                        values += 1;
                        kept.push((n, value));
                    }
                    Err(Error::BrokenPromise { how: BrokenHow::Died, .. }) => broken += 1,
                    Err(other) => return Err(format!("number {n}: {other}").into()),
                }
            }
            // Read when the one who set them is gone.
            for (n, value) in &kept {
                check!(value.len() == 1 + n % 3);
                for tensor in value {
                    check!(tensor.to_vec::<f32>()? == vec![*n as f32; 1 + n * 7], "number {n}");
                }
            }
            drop(kept);
            ctx.note_value("seen", vec![values, broken]);
        }
        1 => {
            let tickets = tickets.ok_or("mine")?.get(s.by)?.0;
            let promises =
                tickets.iter().map(|ticket| Promise::attach(ticket, s.by)).collect::<Result<Vec<_>, _>>()?;
            ctx.note("setting");
            for (n, promise) in promises.into_iter().enumerate() {
                let value = tensor(&vec![n as f32; 1 + n * 7])?;
                promise.set(vec![value; 1 + n % 3])?;
            }
            eventually("it is killed", || false)?;
        }
        _ => {}
    }
    done()
}
