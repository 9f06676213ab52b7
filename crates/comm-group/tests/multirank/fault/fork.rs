//! A forked child of a rank with work in flight.

use std::time::Duration;

use comm_core::tensor::Tensor;
use comm_core::{Deadline, Error};
use comm_testkit::{
    Case, LauncherCtx, Layout, Outcome, Program, RankCtx, RankResult, check_eq, done, in_forked_child,
};

use super::{BACKEND, SOON, SUITE};
use crate::support::group;

pub const FORKED: Program = Program { name: "group-forked", run: forked };

/// Less than anything here takes.
const SHORT: Duration = Duration::from_millis(100);

pub fn cases() -> Vec<Case> {
    let case = Case::launcher(SUITE, "fork/-/-/behind-started-work", behind_started_work);
    vec![case.layouts(&[Layout::Processes]).worlds(|w| w == 2).backend(BACKEND)]
}

/// A forked child of a rank with work in flight calls everything: it is told, and does not wait for threads that it lacks.
fn behind_started_work(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch("group-forked").limit(SOON).spawn()?;
    running.wait_note(0, "forked", SOON)?;
    running.go("forked")?;
    for report in running.wait(SOON) {
        check_eq!(report.outcome, Outcome::Ok(serde_json::json!(null)), "rank {}", report.rank);
    }
    done()
}

fn forked(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    if ctx.rank() == 1 {
        ctx.await_go("forked")?;
        group.barrier(ctx.deadline())?;
        return done();
    }
    let t = Tensor::from_slice(&[1], &[1u8])?;
    let mut work = group.barrier_start(ctx.deadline())?;
    let calls: [&mut dyn FnMut() -> Option<Error>; 8] = [
        &mut || work.wait_timeout(SHORT).err(),
        &mut || group.barrier(SHORT).err(),
        &mut || group.recv(1, SHORT).err(),
        &mut || group.recv_any(SHORT).err(),
        &mut || group.send(&t, 1, SHORT).err(),
        &mut || group.exchange(&t, 1, 1, SHORT).err(),
        &mut || group.barrier_start(SHORT).err(),
        &mut || group.shrink(SHORT).err(),
    ];
    for (i, call) in calls.into_iter().enumerate() {
        let told = in_forked_child(|| u8::from(matches!(call(), Some(Error::Forked))))?;
        check_eq!(told, 1, "call {i} in a forked child");
    }
    // A deadline of a child passes, though nobody beats the time there.
    let passed = in_forked_child(|| {
        let at = Deadline::from(Duration::from_millis(500));
        // Longer than the silence that would be taken for a stop.
        let looks = (0..8).any(|_| {
            std::thread::sleep(Duration::from_millis(400));
            at.has_passed()
        });
        u8::from(looks)
    })?;
    check_eq!(passed, 1, "a deadline in a forked child");
    ctx.note("forked");
    work.wait()?;
    done()
}
