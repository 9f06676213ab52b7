//! Tasks that wait for streams hold up no thread.

use std::task::{Context, Poll, Waker};

use comm_core::Error;
use comm_store::store::Kind;
use comm_testkit::sim::SimStream;
use comm_testkit::{RankCtx, RankResult, block_on, check, check_eq};

use super::super::{Run, Scene, in_vain};
use super::{Memory, NEW, look};
use crate::support::eventually;

pub const CASES: &[(&str, Run)] = &[
    ("streams/-/-/task-behind-device", task_behind_device),
    ("streams/-/-/task-of-a-producer", task_of_a_producer),
    ("streams/-/-/task-and-failure", task_and_failure),
    ("streams/-/-/task-before-what-follows", task_before_what_follows),
];

/// A fetch for the host of what a device has not written: the thread goes on; given up, it has not fetched.
fn task_behind_device(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        let (producer, memory) = (SimStream::new(0), Memory::new());
        let gate = producer.gate()?;
        producer.write(&memory.buffer, 0, &NEW)?;
        s.store.publish("x", &memory.tensor(0)?, producer.stream(), 1, None)?;
        s.script.open(1)?;
        s.script.pass(0)?;
        check_eq!(s.not_consumed("x")?.seen, 0);
        drop(gate);
        s.wait_consumed("x")?;
    }
    if ctx.rank() == 1 {
        let mut context = Context::from_waker(Waker::noop());
        s.script.pass(1)?;
        let early = in_vain(|by| block_on(s.store.fetch_async("x", &s.cpu, by)))?;
        check!(early.what.contains("value of key \"x\""), "{}", early.what);
        for polls in 1..4 {
            let mut fetch = s.store.fetch_async("x", &s.cpu, s.by);
            for _ in 0..polls {
                check!(fetch.as_mut().poll(&mut context).is_pending());
            }
            // It is the only read.
            let second = s.fetch("x");
            check!(matches!(second, Err(Error::OverFinished { fetched: 1, finished: 0, .. })), "{second:?}");
        }
        let mut fetch = s.store.fetch_async("x", &s.cpu, s.by);
        check!(fetch.as_mut().poll(&mut context).is_pending());
        check_eq!(s.store.stats().fetched, 0);
        s.script.open(0)?;
        let read = block_on(fetch)?;
        check_eq!(look(&read), NEW);
        drop(read);
    }
    s.end()
}

/// A producer that waits as a task for readers whose streams have not read.
fn task_of_a_producer(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        s.publish("x", &s.in_arena(&[7.0])?, 1)?;
        s.script.pass(0)?;
        let mut context = Context::from_waker(Waker::noop());
        let early = in_vain(|by| block_on(s.store.wait_consumed_async("x", by)))?;
        check!(early.what.contains("streams of the readers of key \"x\""), "{}", early.what);
        for polls in 0..3 {
            let mut wait = s.store.wait_consumed_async("x", s.by);
            for _ in 0..polls {
                check!(wait.as_mut().poll(&mut context).is_pending());
            }
        }
        let mut wait = s.store.wait_consumed_async("x", s.by);
        check!(wait.as_mut().poll(&mut context).is_pending());
        s.script.open(1)?;
        block_on(wait)?;
        s.wait_consumed("x")?;
    }
    if ctx.rank() == 1 {
        let reader = SimStream::new(0);
        let read = s.store.fetch("x", reader.stream(), s.by)?;
        let gate = reader.gate()?;
        read.finish()?;
        s.script.open(0)?;
        s.script.pass(1)?;
        drop(gate);
        reader.stream().synchronize(s.by)?;
    }
    s.end()
}

/// The device fails while a task waits for it: the task is told, long before its time is over.
fn task_and_failure(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        let (producer, memory) = (SimStream::new(0), Memory::new());
        let gate = producer.gate()?;
        s.store.publish("x", &memory.tensor(0)?, producer.stream(), 1, None)?;
        s.script.open(1)?;
        s.script.pass(0)?;
        producer.fail(Error::bad_peer("the device has failed"));
        drop(gate);
    }
    if ctx.rank() == 1 {
        s.script.pass(1)?;
        let mut fetch = s.store.fetch_async("x", &s.cpu, s.by);
        let mut context = Context::from_waker(Waker::noop());
        check!(fetch.as_mut().poll(&mut context).is_pending());
        s.script.open(0)?;
        let mut outcome = None;
        eventually("the task is told", || {
            if let Poll::Ready(ready) = fetch.as_mut().poll(&mut context) {
                outcome = Some(ready.map(drop));
            }
            outcome.is_some()
        })?;
        let Some(Err(error)) = outcome else { return Err(format!("{outcome:?}").into()) };
        check!(error.to_string().contains("the device has failed"), "{error}");
        let refused = s.store.finish("x", &s.cpu);
        check!(matches!(refused, Err(Error::OverFinished { fetched: 0, .. })), "{refused:?}");
    }
    s.end()
}

/// A task waits for the value and for the reads, and not for what their streams have queued behind them.
fn task_before_what_follows(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (published, fetched, finished, through) = (0, 1, 2, 3);
    let mut context = Context::from_waker(Waker::noop());
    if ctx.rank() == 0 {
        let (producer, memory) = (SimStream::new(0), Memory::new());
        let before = producer.gate()?;
        producer.write(&memory.buffer, 0, &NEW)?;
        s.store.publish("x", &memory.tensor(0)?, producer.stream(), 1, None)?;
        let behind = producer.gate()?;
        s.script.open(published)?;
        s.script.pass(fetched)?;
        drop(before);
        s.wait_consumed("x")?;
        drop(behind);
        s.publish("y", &s.in_arena(&[7.0])?, 1)?;
        s.script.pass(finished)?;
        let mut wait = s.store.wait_consumed_async("y", s.by);
        check!(wait.as_mut().poll(&mut context).is_pending());
        s.script.open(through)?;
        block_on(wait)?;
        s.script.open(through + 1)?;
    }
    if ctx.rank() == 1 {
        s.script.pass(published)?;
        let mut fetch = s.store.fetch_async("x", &s.cpu, s.by);
        check!(fetch.as_mut().poll(&mut context).is_pending());
        s.script.open(fetched)?;
        let read = block_on(fetch)?;
        check_eq!(look(&read), NEW);
        drop(read);
        let reader = SimStream::new(0);
        let read = s.store.fetch("y", reader.stream(), s.by)?;
        let before = reader.gate()?;
        read.finish()?;
        let behind = reader.gate()?;
        s.script.open(finished)?;
        s.script.pass(through)?;
        drop(before);
        s.script.pass(through + 1)?;
        drop(behind);
        reader.stream().synchronize(s.by)?;
    }
    s.end()
}
