//! Works and the queue that moves them, with a test's code in place of operations.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::{Wake, Waker};
use std::thread;
use std::time::Instant;

use comm_core::team::Team;

use super::*;
use crate::ThreadGroup;

const AMPLE: Duration = Duration::from_secs(20);

fn alone(name: &str) -> ThreadGroup {
    ThreadGroup::new(Team::join(name, 0, 1, AMPLE).unwrap(), AMPLE).unwrap()
}

/// What the group does, with the code of a test in place of an operation.
fn start<T: Send + 'static>(
    group: &ThreadGroup,
    run: impl FnOnce() -> Result<T> + Send + 'static,
) -> Work<T> {
    let inner = group.inner();
    inner.queue().start(inner, "test", |_| run()).unwrap()
}

fn drain(group: &ThreadGroup) -> Result<()> {
    group.inner().queue().drain(group.inner(), "test", AMPLE.into())
}

#[test]
fn who_blocks_behind_what_was_started_waits_no_longer_than_he_wants() {
    let group = alone("work-behind");
    let (open, gate) = channel::<()>();
    let first = start(&group, move || gate.recv().map_err(|_| Error::bad_peer("a test that is gone")));
    let short = Duration::from_millis(20);
    let began = Instant::now();
    match group.barrier(short) {
        Err(Error::Timeout { what, at, .. }) => {
            assert!(what.contains("started before") && at.team == "work-behind", "{what}");
        }
        other => panic!("{other:?}"),
    }
    assert!(began.elapsed() >= short);
    open.send(()).unwrap();
    first.wait().unwrap();
    group.barrier(AMPLE).expect("nothing had begun");
}

#[test]
fn who_is_behind_what_was_started_hears_of_the_end_before_that_his_time_is_over() {
    let group = alone("work-over");
    let (open, gate) = channel::<()>();
    let first = start(&group, move || gate.recv().map_err(|_| Error::bad_peer("a test that is gone")));
    group.team().abort("enough");
    assert!(matches!(group.barrier(Duration::ZERO), Err(Error::Aborted { by: 0, .. })));
    open.send(()).unwrap();
    first.wait().unwrap();
}

#[test]
fn jobs_go_one_after_the_other_in_order() {
    let group = alone("work-order");
    let (tell, told) = channel();
    let works: Vec<Work<usize>> = (0..50)
        .map(|i| {
            let tell = tell.clone();
            start(&group, move || {
                tell.send(i).unwrap();
                Ok(i)
            })
        })
        .collect();
    // Waited for from the last to the first.
    for (i, work) in works.into_iter().enumerate().rev() {
        assert_eq!(work.wait().unwrap(), i);
    }
    drop(tell);
    assert_eq!(told.iter().collect::<Vec<_>>(), (0..50).collect::<Vec<_>>());
}

#[test]
fn a_timeout_takes_nothing_and_a_result_is_taken_once() {
    let group = alone("work-once");
    let (open, gate) = channel::<()>();
    let mut work = start(&group, move || {
        gate.recv().unwrap();
        Ok(7)
    });
    assert!(work.wait_timeout(Duration::from_millis(5)).unwrap().is_none() && !work.is_ready());
    assert_eq!(format!("{work:?}"), "Work(test, in flight)");
    open.send(()).unwrap();
    assert_eq!(work.wait_timeout(AMPLE).unwrap(), Some(7));
    // There is no second one, and nobody waits for it.
    assert!(!work.is_ready());
    let taken = |error: Error| assert!(error.to_string().contains("taken"), "{error}");
    taken(work.wait_timeout(AMPLE).unwrap_err());
    taken(work.wait().unwrap_err());
}

#[test]
fn an_error_is_the_works_and_is_given_once_too() {
    let group = alone("work-error");
    let mut work = start::<()>(&group, || Err(Error::bad_peer("as asked for")));
    assert!(matches!(work.wait_timeout(AMPLE), Err(Error::BadPeer { .. })));
    assert!(matches!(work.wait(), Err(Error::InvalidArgument { .. })));
    assert_eq!(start(&group, || Ok(1)).wait().unwrap(), 1, "the worker goes on");
}

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_task_is_woken_and_polled_again_gets_an_error() {
    let group = alone("work-task");
    let (open, gate) = channel::<()>();
    let mut work = start(&group, move || {
        gate.recv().unwrap();
        Ok("done")
    });
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(count.clone());
    let mut context = Context::from_waker(&waker);
    assert!(Pin::new(&mut work).poll(&mut context).is_pending());
    assert_eq!(count.0.load(Ordering::SeqCst), 0);
    open.send(()).unwrap();
    while count.0.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    assert!(matches!(Pin::new(&mut work).poll(&mut context), Poll::Ready(Ok("done"))));
    assert!(matches!(Pin::new(&mut work).poll(&mut context), Poll::Ready(Err(_))));
}

struct Falls;

impl Wake for Falls {
    fn wake(self: Arc<Self>) {
        resume_unwind(Box::new("on purpose"));
    }
}

#[test]
fn a_waker_that_panics_stops_nobody_else() {
    let group = alone("work-waker");
    let (open, gate) = channel::<()>();
    let mut work = start(&group, move || gate.recv().map_err(|_| Error::bad_peer("a test that is gone")));
    let waker = Waker::from(Arc::new(Falls));
    assert!(Pin::new(&mut work).poll(&mut Context::from_waker(&waker)).is_pending());
    open.send(()).unwrap();
    work.wait().unwrap();
    assert_eq!(start(&group, || Ok(1)).wait().unwrap(), 1, "the worker goes on");
}

#[test]
fn nobody_waits_for_a_job_that_panicked_or_was_behind_it() {
    let group = alone("work-panic");
    let (open, gate) = channel::<()>();
    let falls = start::<()>(&group, move || {
        gate.recv().unwrap();
        panic!("on purpose");
    });
    let behind = start(&group, || Ok(1));
    open.send(()).unwrap();
    for outcome in [falls.wait(), behind.wait().map(drop)] {
        let error = outcome.unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
    }
    drain(&group).unwrap();
    // The channel is closed by the end of the thread, which may be a moment away.
    loop {
        match group.inner().queue().start(group.inner(), "test", |_| Ok(1)) {
            Err(error) => break assert!(error.to_string().contains("panicked"), "{error}"),
            Ok(work) => drop(work.wait()),
        }
    }
}

/// Who has the last result and drops the group has left when that returns: its process may end.
#[test]
fn after_the_last_result_only_the_handle_holds_the_group() {
    for round in 0..300 {
        let group = alone(&format!("work-left-{round}"));
        let member = std::sync::Arc::clone(group.team());
        start(&group, || Ok(())).wait().unwrap();
        drop(group);
        assert!(matches!(member.check("test"), Err(Error::PeerLeft { .. })), "round {round}");
    }
}

#[test]
fn what_is_pending_is_waited_for_and_what_is_dropped_is_done() {
    let group = alone("work-drain");
    let done = Arc::new(AtomicUsize::new(0));
    for _ in 0..20 {
        let done = done.clone();
        let work = start(&group, move || Ok(done.fetch_add(1, Ordering::SeqCst)));
        drop(work);
    }
    drain(&group).unwrap();
    assert_eq!(done.load(Ordering::SeqCst), 20);
    // The group's handle goes, its pending work does not.
    let (open, gate) = channel::<()>();
    let last = {
        let done = done.clone();
        start(&group, move || {
            gate.recv().unwrap();
            Ok(done.fetch_add(1, Ordering::SeqCst))
        })
    };
    drop(group);
    open.send(()).unwrap();
    assert_eq!(last.wait().unwrap(), 20);
}
