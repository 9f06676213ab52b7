//! Several threads of a rank receive at once: each message goes to one of them, and none is left lying while somebody waits.

use std::sync::Mutex;
use std::time::Duration;

use comm_core::Error;
use comm_core::tensor::Tensor;
use comm_group::ThreadGroup;
use comm_testkit::fault::{Fault, set_rank};
use comm_testkit::{Case, LauncherCtx, Program, RankCtx, RankResult, check, check_eq, done};
use serde_json::json;

use crate::support::{Any, group};

const AMPLE: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(20);

const SENDER: usize = 0;
const RECEIVER: usize = 1;

pub const PROGRAMS: &[Program] = &[Program { name: "group-receivers", run: two_receive }];

/// Whom two threads receive from: any rank, or the sender.
const PAIRS: [(&str, [bool; 2]); 3] =
    [("any-and-any", [true, true]), ("one-and-any", [false, true]), ("one-and-one", [false, false])];

pub fn cases() -> Vec<Case> {
    let slow = |(name, kinds): (&str, [bool; 2])| {
        let title = format!("recv/-/-/slow-beside-another/{name}");
        let case = Case::launcher("collective", title, move |ctx| slow_receiver(ctx, kinds));
        case.worlds(|world| (2..=3).contains(&world)).limit(Duration::from_secs(60))
    };
    let all = PAIRS.map(slow).into_iter().chain([
        Case::ranks("collective", "recv/-/-/threads-share", share).worlds(|world| world > 1),
        Case::ranks("collective", "recv/-/-/what-timeouts-say", late).worlds(|world| world > 1),
    ]);
    all.map(|case| case.backend("same-device")).collect()
}

fn receive(ctx: &RankCtx, group: &ThreadGroup, any: bool, deadline: Duration) -> Result<Tensor, Error> {
    set_rank(Some(ctx.rank()));
    if any { group.recv_any(deadline).map(|(_, tensor)| tensor) } else { group.recv(SENDER, deadline) }
}

/// One thread has its message, and does not come back from the call; the sender sends another, which the other thread gets.
fn slow_receiver(ctx: &LauncherCtx, kinds: [bool; 2]) -> RankResult {
    let fault = Fault::at("group.taken").rank(RECEIVER).hit(1).hold("slow");
    let running = ctx.launch("group-receivers").arg(json!(kinds)).fault(fault).limit(AMPLE).spawn()?;
    running.wait_held(RECEIVER, "slow", AMPLE)?;
    running.wait_note(SENDER, "both sent", AMPLE)?;
    running.go("slow")?;
    running.end_well(AMPLE)
}

fn two_receive(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let kinds: [bool; 2] = serde_json::from_value(ctx.args().clone())?;
    match ctx.rank() {
        SENDER => {
            for number in 0..2i32 {
                group.send(&Tensor::from_slice(&[1], &[number])?, RECEIVER, ctx.deadline())?;
            }
            ctx.note("both sent");
        }
        RECEIVER => {
            let got = std::thread::scope(|scope| {
                let group = &group;
                let threads = kinds.map(|any| scope.spawn(move || receive(ctx, group, any, AMPLE)));
                threads.map(|thread| thread.join())
            });
            let mut numbers = Vec::new();
            for outcome in got {
                numbers.extend(outcome.map_err(|_| "a thread has panicked")??.to_vec::<i32>()?);
            }
            numbers.sort_unstable();
            check_eq!(numbers, [0, 1]);
        }
        _ => {}
    }
    group.barrier(ctx.deadline())?;
    done()
}

/// Threads that receive from the sender, from any, and with a deadline that passes in between: each message is one's.
fn share(ctx: &RankCtx) -> RankResult {
    const THREADS: i32 = 3;
    const ROUNDS: i32 = 200;
    let group = group(ctx, "g")?;
    let sent: Vec<i32> = (0..THREADS * ROUNDS).collect();
    match ctx.rank() {
        SENDER => {
            for &number in &sent {
                group.send(&Tensor::from_slice(&[1], &[number])?, RECEIVER, ctx.deadline())?;
            }
        }
        RECEIVER => {
            let got = Mutex::new(Vec::new());
            let work = |thread: i32| -> Any<()> {
                for _ in 0..ROUNDS {
                    let tensor = loop {
                        let deadline = if thread == 2 { SHORT } else { AMPLE };
                        match receive(ctx, &group, thread == 1, deadline) {
                            Err(Error::Timeout { .. }) if thread == 2 => {}
                            outcome => break outcome?,
                        }
                    };
                    got.lock().map_err(|_| "a thread has panicked")?.extend(tensor.to_vec::<i32>()?);
                }
                Ok(())
            };
            std::thread::scope(|scope| {
                let work = &work;
                let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
                threads.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread has panicked")?)
            })?;
            let mut got = got.into_inner().map_err(|_| "a thread has panicked")?;
            got.sort_unstable();
            check_eq!(got, sent);
        }
        _ => {}
    }
    group.barrier(ctx.deadline())?;
    done()
}

/// Whoever waits in vain is told for what, and for whom.
fn late(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let peer = (ctx.rank() + 1) % ctx.world();
    let t = Tensor::from_slice(&[1], &[0u8])?;
    let says = |outcome: Result<(), Error>, whom: Option<usize>, text: String| {
        let Err(Error::Timeout { what, missing, seen, expected, at, .. }) = outcome else {
            return Err(format!("{text}: {outcome:?}").into());
        };
        check!(what.starts_with(&text) && at.op.starts_with(&text), "{what} at {at}");
        check_eq!((missing.first().map(|missing| missing.rank), seen, expected), (whom, 0, 1));
        // Nobody receives while another one sends.
        group.barrier(ctx.deadline())?;
        done()
    };
    says(group.send(&t, peer, SHORT), Some(peer), format!("send: rank {peer} to take"))?;
    says(group.recv(peer, SHORT).map(drop), Some(peer), format!("recv: a message of rank {peer}"))?;
    says(group.recv_any(SHORT).map(drop), None, "recv_any: a message of any rank".into())
}
