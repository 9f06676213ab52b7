//! Threads of one rank at one mailbox.

use std::time::Duration;

use comm_core::tensor::Tensor;
use comm_testkit::fault::Fault;
use comm_testkit::{Case, LauncherCtx, Outcome, Program, RankCtx, RankResult, check_eq, done, eventually};

use crate::support::{Any, group};

pub const PROGRAMS: &[Program] = &[Program { name: "group-passed-over", run: passed_over }];

pub fn cases() -> Vec<Case> {
    ["recv", "recv_any"]
        .map(|first| {
            let name = format!("recv_any/-/-/passed-over-for-{first}");
            let case = Case::launcher("message", name, move |ctx| passed_over_for(ctx, first));
            case.worlds(|w| w == 2).backend("same-device")
        })
        .into()
}

/// Two threads of rank 0 receive. One has a message and is held before it gives its turn back; the next message comes, and
/// the other thread passes over the box. It must look again when the turn is free.
fn passed_over_for(ctx: &LauncherCtx, first: &'static str) -> RankResult {
    let soon = Duration::from_secs(20);
    let fault = Fault::at("group.taken").rank(0).hit(1).hold("late");
    let running = ctx.launch("group-passed-over").fault(fault).arg(first).limit(soon).spawn()?;
    running.wait_held(0, "late", soon)?;
    running.wait_note(1, "sends again", soon)?;
    running.go("second")?;
    running.wait_note(0, "passed over", soon)?;
    running.go("late")?;
    for report in running.wait(soon) {
        check_eq!(report.outcome, Outcome::Ok(serde_json::json!(null)), "rank {}", report.rank);
    }
    done()
}

fn passed_over(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    if ctx.rank() == 1 {
        group.send(&Tensor::from_slice(&[1], &[1u8])?, 0, ctx.deadline())?;
        let again = group.send_start(&Tensor::from_slice(&[1], &[2u8])?, 0, ctx.deadline())?;
        // It waits for its answer: the message lies there, and has rung.
        let waits = || group.team().snapshot().ranks[1].wait.is_some();
        eventually("the second message lies there", waits)?;
        ctx.note("sends again");
        again.wait()?;
        return done();
    }
    let waits = |rank: usize, text: &str| {
        let seen = group.team().snapshot();
        let wait = seen.ranks.get(rank).and_then(|rank| rank.wait.clone());
        wait.is_some_and(|wait| wait.what.contains(text))
    };
    std::thread::scope(|s| -> RankResult {
        let second = s.spawn(|| -> Any<Tensor> {
            // The first message is answered, and its receiver held: what is sent now is the second one.
            ctx.await_go("second")?;
            let looks = s.spawn(|| -> Any<()> {
                eventually("the second thread waits", || waits(0, "signal"))?;
                ctx.note("passed over");
                Ok(())
            });
            let (_, got) = group.recv_any(ctx.deadline())?;
            looks.join().expect("no panic")?;
            Ok(got)
        });
        // Faults hit the thread of the rank.
        let first = match ctx.args().as_str() {
            Some("recv") => group.recv(1, ctx.deadline())?,
            _ => group.recv_any(ctx.deadline())?.1,
        };
        check_eq!(first.to_vec::<u8>()?, [1]);
        check_eq!(second.join().expect("no panic")?.to_vec::<u8>()?, [2]);
        done()
    })
}
