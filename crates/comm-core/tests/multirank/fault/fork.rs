//! A forked child of a member is no member: it is told so, and disturbs nobody.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use comm_core::hub::Hub;
use comm_core::shm::Block;
use comm_core::team::{BOARD_BYTES, CellRef, OpGuard, Team};
use comm_core::tensor::{DType, TensorBuf};
use comm_core::wait::Cell as Word;
use comm_core::{Deadline, Error};
use comm_testkit::forked::in_child;
use comm_testkit::{Case, LauncherCtx, RankCtx, RankResult, check, check_eq, done};
use serde_json::json;

use super::kill::SOON;

pub fn cases() -> Vec<Case> {
    vec![
        Case::launcher("fault", "fork/under-load", under_load)
            .worlds(|world| world == 3)
            .limit(Duration::from_secs(120)),
        Case::launcher("fault", "fork/deadlines-pass", deadlines_pass).worlds(|world| world == 2),
    ]
}

fn deadlines_pass(ctx: &LauncherCtx) -> RankResult {
    for report in ctx.launch("fault.forker-waits").limit(SOON).run(SOON)? {
        check!(report.outcome.is_ok(), "rank {}: {} {:?}", report.rank, report.outcome, report.detail);
    }
    done()
}

/// A child looks at its deadlines so seldom that its parent would take each pause for time in which it was stopped.
pub fn forker_waits(ctx: &RankCtx) -> RankResult {
    let team = Team::join("forkers-wait", ctx.rank(), ctx.world(), SOON)?;
    let before = Deadline::from(Duration::from_millis(500));
    let child = in_child(|_| {
        let after = Deadline::from(Duration::from_millis(500));
        let passed = (0..8).any(|_| {
            std::thread::sleep(Duration::from_millis(400));
            before.has_passed() && after.has_passed()
        });
        i32::from(!passed)
    })?;
    check_eq!(child.exit, Some(0));
    team.barrier(SOON)?;
    done()
}

fn under_load(ctx: &LauncherCtx) -> RankResult {
    let forks = if ctx.full() { 1000 } else { 200 };
    let launch = ctx.launch("fault.forker").arg(json!({ "forks": forks })).limit(Duration::from_secs(100));
    for report in launch.run(Duration::from_secs(110))? {
        check!(report.outcome.is_ok(), "rank {}: {} {:?}", report.rank, report.outcome, report.detail);
    }
    done()
}

struct Shared(Arc<Block>);

impl CellRef for Shared {
    fn cell(&self) -> &Word {
        self.0.typed(0).unwrap()
    }
}

/// Rank 0 forks while other threads of its process hold, now and then, every lock there is.
pub fn forker(ctx: &RankCtx) -> RankResult {
    let team = Team::join("forkers", ctx.rank(), ctx.world(), SOON)?;
    if ctx.rank() != 0 {
        // Until rank 0 has had enough.
        loop {
            let said = team.exchange(&[0; BOARD_BYTES], SOON)?;
            if said[0][0] == 1 {
                return done();
            }
        }
    }
    let over = AtomicBool::new(false);
    let forked = std::thread::scope(|scope| {
        let load = load(&team, &over);
        for work in load {
            scope.spawn(work);
        }
        let forked = fork_often(ctx, &team);
        over.store(true, Ordering::Relaxed);
        forked
    });
    forked?;
    match Team::join("forkers", 0, ctx.world(), Duration::from_secs(5)) {
        Err(Error::NameInUse { .. }) => {}
        other => return Err(format!("the name of a live team: {other:?}").into()),
    }
    team.exchange(&[1; BOARD_BYTES], SOON)?;
    done()
}

type Work<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Threads that keep the hub, the arenas and the team busy.
fn load<'a>(team: &'a Team, over: &'a AtomicBool) -> Vec<Work<'a>> {
    let going = move || !over.load(Ordering::Relaxed);
    let mut work: Vec<Work<'a>> = vec![
        Box::new(move || {
            for i in 0.. {
                if !going() {
                    return;
                }
                Team::join(&format!("load{i}"), 0, 1, SOON).unwrap().barrier(SOON).unwrap();
            }
        }),
        Box::new(move || {
            while going() {
                let held: Vec<_> = (0..16).map(|i| team.hub().tensors().alloc(64 << i).unwrap()).collect();
                drop(held);
            }
        }),
        Box::new(move || {
            while going() {
                drop(team.snapshot());
                drop(comm_core::team::snapshots());
                team.share(9, || 9);
                let _ = team.peer_segment(team.size() - 1, 12345, Duration::from_micros(50));
            }
        }),
    ];
    work.push(Box::new(move || {
        let block = Arc::new(team.hub().windows().alloc_zeroed(64).unwrap());
        let mut context = Context::from_waker(Waker::noop());
        while going() {
            let cell = Shared(block.clone());
            let mut wait = team.wait_task("nothing", cell, None, 1, |v| v == 1, Duration::from_millis(1));
            let _ = Pin::new(&mut wait).poll(&mut context);
            Word::set(block.typed(0).unwrap(), 0, team.bell());
        }
    }));
    work
}

fn fork_often(ctx: &RankCtx, team: &Team) -> RankResult {
    let forks = ctx.args()["forks"].as_u64().ok_or("no number")?;
    let block = Arc::new(team.hub().windows().alloc_zeroed(64)?);
    let inside = Team::join("inside", 0, 1, SOON)?;
    for i in 0..forks {
        let (mut held, mut op) = (Some(Held::make(team, &block)?), Some(inside.begin("inside", SOON)?));
        let child = in_child(|at| check_handles(team, held.take(), op.take(), i, at))?;
        check_eq!(child.exit, Some(0), "fork {i}, the child having come to step {}", child.step);
        // The team goes on.
        team.exchange(&[0; BOARD_BYTES], SOON)?;
        op.ok_or("only the child has taken it")?.finish();
        inside.barrier(SOON)?;
        held.ok_or("only the child has taken it")?.check()?;
    }
    done()
}

/// One of each kind of handle.
struct Held {
    task: comm_core::team::TaskWait<Shared, fn(u64) -> bool>,
    abort: comm_core::team::AbortHandle,
    tensor: TensorBuf,
    lone: Team,
    /// A handle to a team that has no member in this process any more.
    late: comm_core::team::AbortHandle,
}

impl Held {
    fn make(team: &Team, block: &Arc<Block>) -> Result<Held, Box<dyn std::error::Error + Send + Sync>> {
        let ready: fn(u64) -> bool = |v| v == 99;
        let cell = Shared(block.clone());
        let mut task = team.wait_task("ninety-nine", cell, None, 99, ready, SOON);
        check!(Pin::new(&mut task).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let mut tensor = TensorBuf::zeros_in(team.hub().tensors(), &[100], DType::U8)?;
        tensor.bytes_mut()?.fill(5);
        let lone = Team::join("lone", 0, 1, SOON)?;
        let late = Team::join("late", 0, 1, SOON)?.abort_handle();
        Ok(Held { task, abort: team.abort_handle(), tensor, lone, late })
    }

    /// What the child did has not reached the parent.
    fn check(mut self) -> RankResult {
        check!(self.tensor.bytes_mut()?.iter().all(|&b| b == 5), "the child has written the parent's tensor");
        self.lone.barrier(SOON)?;
        check!(self.lone.snapshot().ended.is_none(), "the child has ended the parent's team");
        match Team::join("lone", 0, 1, Duration::from_secs(5)) {
            Err(Error::NameInUse { .. }) => done(),
            other => Err(format!("the name of a live team: {other:?}").into()),
        }
    }
}

/// The child's code: 0, or the step that went wrong.
fn check_handles(
    team: &Team,
    held: Option<Held>,
    op: Option<OpGuard<'_>>,
    turn: u64,
    at: &dyn Fn(u64),
) -> i32 {
    let (Some(mut held), Some(mut op)) = (held, op) else { return 98 };
    let soon = Duration::from_secs(1);
    let forked = |error: Option<Error>| matches!(error, Some(Error::Forked));
    let mut checks: Vec<Box<dyn FnMut() -> bool + '_>> = vec![
        Box::new(|| forked(Hub::get().err())),
        Box::new(|| forked(Team::join("x", 0, 1, soon).err())),
        Box::new(|| forked(team.barrier(soon).err())),
        Box::new(|| forked(team.exchange(&[0; BOARD_BYTES], soon).err())),
        Box::new(|| forked(team.subset(&[0], soon).err())),
        Box::new(|| forked(team.begin("x", soon).err())),
        Box::new(|| comm_core::team::snapshots().is_empty()),
        Box::new(|| team.snapshot().ranks.len() == team.size()),
        Box::new(|| forked(team.peer_segment(team.size() - 1, 1, soon).err())),
        Box::new(|| {
            let cell = Word::default();
            forked(team.wait(&"x", &cell, None, 1, |v| (v == 9).then_some(()), soon).err())
        }),
        Box::new(|| {
            let poll = Pin::new(&mut held.task).poll(&mut Context::from_waker(Waker::noop()));
            matches!(poll, Poll::Ready(Err(Error::Forked)))
        }),
        Box::new(|| team.hub().tensors().alloc(64).is_err()),
        Box::new(|| TensorBuf::zeros_in(team.hub().tensors(), &[1], DType::U8).is_err()),
        Box::new(|| {
            let handles =
                [team.abort_handle(), held.abort.clone(), held.lone.abort_handle(), held.late.clone()];
            handles.iter().for_each(|handle| handle.abort("by a child"));
            true
        }),
        Box::new(|| forked(op.say(&[0; BOARD_BYTES]).err()) && forked(op.heard().err())),
        Box::new(|| *team.share(9, || 9) == 9),
        Box::new(|| {
            team.keep(vec![1], |_| false);
            team.ring_process(0);
            true
        }),
    ];
    for (i, check) in checks.iter_mut().enumerate() {
        at(i as u64 + 1);
        if !check() {
            return i as i32 + 1;
        }
    }
    drop(checks);
    if turn.is_multiple_of(2) {
        return 0;
    }
    at(50);
    match turn % 6 {
        1 => op.finish(),
        3 => drop(op),
        _ => drop(op.settle::<()>(Err(Error::Forked), false)),
    }
    drop(held.task);
    at(51);
    drop((held.abort, held.late, held.tensor));
    at(52);
    drop(held.lone);
    at(53);
    // SAFETY: the bytes of the handle are those of the parent's, which this process, being a copy, owns; what they were
    // read from is not used again, for the process ends here.
    drop(unsafe { std::ptr::read(team) });
    at(54);
    std::process::exit(0);
}
