//! A guard around the sleep: an interpreter's lock, say, which others need meanwhile.

use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use comm_core::{Deadline, Kind};
use comm_promise::{Future, JoinAll, select};
use comm_testkit::{RankCtx, RankResult, check_eq};

use crate::support::{Any, Run, Scene};

pub const CASES: &[(&str, Run)] = &[
    ("get/-/-/guard-around-the-sleep", |ctx, kind| guarded(ctx, kind, get)),
    ("wait/-/-/guard-around-the-sleep", |ctx, kind| guarded(ctx, kind, wait)),
    ("join/-/-/guard-around-the-sleep", |ctx, kind| guarded(ctx, kind, join)),
    ("select/-/-/guard-around-the-sleep", |ctx, kind| guarded(ctx, kind, first)),
];

/// A lock that is let go of and taken again where a guard says so. It counts how often it was let go of.
#[derive(Default)]
struct Lock {
    state: Mutex<(bool, usize)>,
    freed: Condvar,
}

/// Takes the lock again.
struct Retakes(Arc<Lock>);

impl Lock {
    fn take(&self) {
        let held = self.state.lock().unwrap();
        self.freed.wait_while(held, |(held, _)| *held).unwrap().0 = true;
    }

    fn give(&self) {
        let mut state = self.state.lock().unwrap();
        assert!(state.0, "whoever gives it has it");
        *state = (false, state.1 + 1);
        self.freed.notify_one();
    }

    fn state(&self) -> (bool, usize) {
        *self.state.lock().unwrap()
    }
}

impl Drop for Retakes {
    fn drop(&mut self) {
        self.0.take();
    }
}

type Enter = Box<dyn Fn() -> Retakes + Send + Sync>;

fn get(future: Future<()>, enter: Enter, by: Deadline) -> Any<()> {
    Ok(future.on_blocking(enter).get(by)?)
}

fn wait(future: Future<()>, enter: Enter, by: Deadline) -> Any<()> {
    future.on_blocking(enter).wait(by)?.ok_or_else(|| "in vain".into())
}

fn join(future: Future<()>, enter: Enter, by: Deadline) -> Any<()> {
    let all = JoinAll::from_iter([future]).on_blocking(enter).get(by)?;
    check_eq!(all, [()]);
    Ok(())
}

fn first(future: Future<()>, enter: Enter, by: Deadline) -> Any<()> {
    let mut futures = [future];
    check_eq!(select(&mut futures).on_blocking(enter).wait(by)?, Some(0));
    Ok(futures[0].get(Duration::ZERO)?)
}

/// Whoever sets the promise needs the lock that the sleeper holds, so it comes to nothing unless the guard gives that. Afterwards
/// the sleeper has it again.
fn guarded(ctx: &RankCtx, kind: Kind, sleep: fn(Future<()>, Enter, Deadline) -> Any<()>) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    // One that must be slept for, and one that is there.
    for is_there in [false, true] {
        let (future, promise) = s.ask::<()>()?;
        let set = || promise.as_ref().map_or(Ok(()), |promise| promise.set(()));
        if is_there {
            set()?;
            s.all()?;
        }
        let Some(future) = future else {
            s.all()?;
            if !is_there {
                set()?;
            }
            s.all()?;
            continue;
        };
        let lock = Arc::new(Lock::default());
        let other = lock.clone();
        let enter = Box::new(move || {
            other.give();
            Retakes(other.clone())
        });
        lock.take();
        let (team, by) = (&s.team, s.by);
        let needs_it = || {
            if is_there {
                return team.barrier(by);
            }
            lock.take();
            let told = team.barrier(by);
            lock.give();
            told
        };
        thread::scope(|scope| {
            let needs_it = scope.spawn(needs_it);
            sleep(future, enter, by)?;
            needs_it.join().map_err(|_| "it panicked")??;
            Any::Ok(())
        })?;
        check_eq!(lock.state().0, true, "it has it again");
        // Who needed it has given it once, and the sleeper before that; what is there is not slept for.
        check_eq!(lock.state().1, if is_there { 0 } else { 2 });
        s.all()?;
    }
    s.end()
}
