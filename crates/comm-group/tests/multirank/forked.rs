//! A forked child of a rank with work in flight: whatever it calls says at once that it is one, and the parent goes on.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use comm_core::Error;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_group::placement::{DeviceMesh, Distributed, MeshRank, Placement};
use comm_group::{ReduceOp, ThreadGroup, ThreadGroupManager, Work};
use comm_testkit::forked::in_child;
use comm_testkit::{Case, LauncherCtx, Outcome, Program, RankCtx, RankResult, check, check_eq, done};
use serde_json::json;

use crate::support::group;

/// A child that waits so long is taken to hang.
const AMPLE: Duration = Duration::from_secs(60);

pub const PROGRAMS: &[Program] = &[Program { name: "group-forker", run: forker }];

pub fn cases() -> Vec<Case> {
    vec![
        Case::launcher("fault", "fork/-/-/work-in-flight", in_flight)
            .worlds(|world| world == 2)
            .limit(Duration::from_secs(120))
            .backend("same-device"),
    ]
}

fn in_flight(ctx: &LauncherCtx) -> RankResult {
    for report in ctx.launch("group-forker").limit(AMPLE).run(AMPLE)? {
        check_eq!(report.outcome, Outcome::Ok(json!(null)), "rank {}: {:?}", report.rank, report.detail);
    }
    done()
}

/// Rank 0 forks while rank 1 has not come to what it has started.
fn forker(ctx: &RankCtx) -> RankResult {
    let (group, gate) = (group(ctx, "g")?, group(ctx, "gate")?);
    let t = Tensor::from_slice(&[1000], &[1f32; 1000])?;
    if ctx.rank() != 0 {
        gate.barrier(AMPLE)?;
        for _ in 0..3 {
            group.all_reduce(&t, ReduceOp::Sum, AMPLE)?;
        }
        group.send(&t, 0, AMPLE)?;
        return done();
    }
    let manager = ThreadGroupManager::with_prefix(ctx.name("alone"));
    let alone = manager.group([0], 0, AMPLE)?;
    let mut started = Started::new(&group, &t)?;
    let child = in_child(|at| says_so(&group, &manager, &alone, &t, &mut started, at))?;
    check_eq!(child.exit, Some(0), "the child having come to step {}", child.step);
    let Started { sums, message, done: (ready, _) } = started;
    check!(ready.is_ready(), "it is the parent's");
    gate.barrier(AMPLE)?;
    for sum in sums {
        check_eq!(sum.wait()?.to_vec::<f32>()?, [2.0; 1000]);
    }
    check!(message.wait()?.bytes_equal(&t)?);
    check_eq!(manager.group([0], 0, AMPLE)?.team().id(), alone.team().id());
    alone.barrier(AMPLE)?;
    done()
}

struct Started {
    sums: Vec<Work<Tensor>>,
    message: Work<Tensor>,
    /// Of a group of this rank alone, and that group.
    done: (Work<()>, ThreadGroup),
}

impl Started {
    fn new(group: &ThreadGroup, t: &Tensor) -> Result<Started, Error> {
        let sums =
            (0..3).map(|_| group.all_reduce_start(t, ReduceOp::Sum, AMPLE)).collect::<Result<_, _>>()?;
        let message = group.recv_start(1, AMPLE)?;
        let team = comm_core::team::Team::join("forked-alone", 0, 1, AMPLE)?;
        let alone = ThreadGroup::new(team, AMPLE)?;
        let done = alone.barrier_start(AMPLE)?;
        while !done.is_ready() {
            std::thread::yield_now();
        }
        Ok(Started { sums, message, done: (done, alone) })
    }
}

/// The child's code: 0, or the step that went wrong.
fn says_so(
    group: &ThreadGroup,
    manager: &ThreadGroupManager,
    alone: &ThreadGroup,
    t: &Tensor,
    started: &mut Started,
    at: &dyn Fn(u64),
) -> i32 {
    fn forked<T>(outcome: Result<T, Error>) -> bool {
        matches!(outcome, Err(Error::Forked))
    }
    let Started { sums, message, done } = started;
    let mut waited = sums.pop();
    let [timed, polled] = &mut sums[..] else { return 98 };
    let mesh = DeviceMesh::new(&[1], vec![0]).unwrap();
    let line = DeviceMesh::new(&[2], vec![0, 1]).unwrap();
    let (here, both) = (MeshRank::new(&mesh, 0, manager).unwrap(), MeshRank::new(&line, 0, manager).unwrap());
    let part = Distributed::new(t.clone(), &[1000], &[Placement::Partial(ReduceOp::Sum)]);
    let mut room = TensorBuf::zeros(&[1000], DType::F32).unwrap();
    let mut checks: Vec<Box<dyn FnMut() -> bool + '_>> = vec![
        Box::new(|| waited.take().is_some_and(|work| forked(work.wait()))),
        Box::new(|| forked(timed.wait_timeout(AMPLE))),
        Box::new(|| {
            let poll = Pin::new(&mut *polled).poll(&mut Context::from_waker(Waker::noop()));
            matches!(poll, Poll::Ready(Err(Error::Forked)))
        }),
        Box::new(|| forked(message.wait_timeout(AMPLE)) && !message.is_ready()),
        // It was ready before: that is the parent's.
        Box::new(|| {
            let says_so = !done.0.is_ready() && forked(done.0.wait_timeout(AMPLE));
            says_so && format!("{:?}", done.0).contains("barrier")
        }),
        Box::new(|| forked(group.barrier(AMPLE)) && forked(alone.barrier(AMPLE))),
        Box::new(|| forked(group.barrier_start(AMPLE)) && forked(alone.barrier_start(AMPLE))),
        Box::new(|| forked(group.all_reduce(t, ReduceOp::Sum, AMPLE))),
        Box::new(|| forked(group.all_reduce_into(t, ReduceOp::Sum, &mut room, AMPLE))),
        Box::new(|| forked(group.send(t, 1, AMPLE)) && forked(group.send_start(t, 1, AMPLE))),
        Box::new(|| forked(group.recv(1, AMPLE)) && forked(group.recv_start(1, AMPLE))),
        Box::new(|| forked(group.recv_any(AMPLE)) && forked(group.exchange(t, 1, 1, AMPLE))),
        Box::new(|| forked(group.shrink(AMPLE)) && forked(alone.shrink(AMPLE))),
        Box::new(|| forked(manager.group([0], 0, AMPLE)) && forked(manager.group([0, 1], 0, AMPLE))),
        Box::new(|| manager.keys().is_empty() && format!("{manager:?}").contains("0 groups")),
        Box::new(|| {
            manager.forget([0], 0);
            drop(manager.watch(0));
            true
        }),
        Box::new(|| forked(here.axis(0, AMPLE)) && forked(both.axis(0, AMPLE))),
        Box::new(|| forked(both.redistribute(&part, &[Placement::Replicate], AMPLE))),
        Box::new(|| forked(both.collect(&part, 0, AMPLE))),
        Box::new(|| forked(both.distribute(Some(t), 0, &[Placement::Replicate], AMPLE))),
        Box::new(|| group.recent().is_empty() && group.costs() == group.costs()),
        Box::new(|| {
            group.abort_handle().abort("by a child");
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
    at(50);
    // SAFETY: the bytes of the handles are those of the parent's, which this process, being a copy, owns; what they were read
    // from is not used again, for the process ends here.
    unsafe {
        drop(std::ptr::read(started));
        at(51);
        drop(std::ptr::read(manager));
        at(52);
        drop(std::ptr::read(group));
    }
    0
}
