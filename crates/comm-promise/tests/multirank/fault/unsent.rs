//! A value in a segment that cannot be sent for want of descriptors: it is set when that has been done, and not before. So it is
//! read, though whoever set it dies at that moment.

use std::fs::File;
use std::thread;
use std::time::Duration;

use comm_core::Kind;
use comm_core::tensor::Tensor;
use comm_promise::{Promise, Wire};
use comm_testkit::fault::Fault;
use comm_testkit::{Case, LauncherCtx, Limit, Program, RankCtx, RankResult, check, check_eq, done};
use serde_json::json;

use super::{SOON, case};
use crate::support::{Any, Scene, tensor};

pub const PROGRAMS: &[Program] = &[STARVED];

const STARVED: Program = Program { name: "promise-starved", run: starved };

/// Far more than there is room for in a slot.
const MANY: usize = 10_000;

/// Longer than it takes to set a promise, if that is not held up.
const MOMENT: Duration = Duration::from_millis(50);

pub fn cases() -> Vec<Case> {
    // Of a tensor its own segment has to be there, and of a long letter that in which it stands.
    let of = |what: &'static str| case(format!("kill/-/-/{what}-not-sent"), move |ctx| killed(ctx, what));
    vec![of("tensor"), of("letter")]
}

fn killed(ctx: &LauncherCtx, what: &str) -> RankResult {
    let launch = ctx.launch(STARVED.name).arg(json!(what)).rlimit(Limit::OpenFiles, 128);
    let running = launch.fault(Fault::at("promise.set").rank(1).kill()).limit(SOON).spawn()?;
    running.wait_exit(1, SOON)?;
    running.go("worker is gone")?;
    let reports = running.wait(SOON);
    check!(reports[0].outcome.is_ok(), "the client: {}", reports[0].outcome);
    done()
}

fn all_descriptors() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

fn starved(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let promise =
        s.is_client().then(|| Promise::<(Vec<Tensor>, Wire<Vec<u32>>)>::new(Kind::Host)).transpose()?;
    let future = promise.as_ref().map(Promise::future).transpose()?;
    let ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
    let (tensors, letter) = if ctx.args() == &json!("tensor") {
        (vec![tensor(&[1.5; MANY])?], Wire(vec![]))
    } else {
        (vec![], Wire((0..MANY as u32).collect()))
    };
    if ctx.rank() == 1 {
        let promise = Promise::attach(&ticket, s.by)?;
        let mut all = all_descriptors();
        // For the segment itself. To send it takes another one.
        all.pop();
        let hub = s.team.hub().clone();
        check_eq!(hub.tensors().stats().segments, 0);
        thread::scope(|scope| {
            let gives = scope.spawn(|| {
                // Not by `eventually`, which sleeps: it is soon tried again to send the segment.
                while hub.tensors().stats().segments == 0 {
                    thread::yield_now();
                }
                // Those that somebody had open for a moment, too.
                let more = all_descriptors();
                thread::sleep(MOMENT);
                drop((all, more));
            });
            promise.set((tensors, letter))?;
            gives.join().map_err(|_| "it panicked")?;
            Any::Ok(())
        })?;
        return Err("it is killed when it has set it".into());
    }
    if let Some(future) = future {
        ctx.await_go("worker is gone")?;
        let (seen_tensors, seen_letter) = future.get(s.by)?;
        check_eq!(seen_letter, letter);
        check_eq!(seen_tensors.len(), tensors.len());
        for (seen, expected) in seen_tensors.iter().zip(&tensors) {
            check!(seen.bytes_equal(expected)?);
        }
    }
    done()
}
