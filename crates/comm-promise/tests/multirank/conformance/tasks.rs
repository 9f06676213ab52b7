//! Futures that are awaited.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use comm_core::error::BrokenHow;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_core::{Deadline, Error, Kind};
use comm_promise::{Future, JoinAll, Wire, select};
use comm_testkit::sim::SimStream;
use comm_testkit::{
    Case, LauncherCtx, Layout, Program, RankCtx, RankResult, block_on, check, check_eq, done, eventually,
};

use crate::support::{Any, Run, SUITE, Scene, is_broken, poll, tensor};

pub const CASES: &[(&str, Run)] = &[
    ("await/-/f32/value", value),
    ("await/-/-/broken", broken),
    ("await/-/-/dropped-after-any-number-of-polls", dropped),
    ("await/-/-/another-waker", another_waker),
    ("await/-/-/many-in-one-thread", many),
    ("await/-/-/wakers-that-panic-and-drop", unruly),
    ("await/-/-/continuation-that-waits", |ctx, kind| continuation(ctx, kind, get, false)),
    ("await/-/-/continuation-behind-a-stream", |ctx, kind| continuation(ctx, kind, get, true)),
    ("await/-/-/continuation-that-joins", |ctx, kind| continuation(ctx, kind, join, false)),
    ("await/-/-/continuation-that-selects", |ctx, kind| continuation(ctx, kind, first, false)),
];

fn value(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    for round in 0..20 {
        let (future, promise) = s.ask()?;
        let mut future = future;
        if let Some(future) = &mut future {
            check!(poll(future).is_pending());
        }
        s.all()?;
        if let Some(promise) = promise {
            promise.set(tensor(&[round as f32])?)?;
        }
        if let Some(mut future) = future {
            check_eq!(block_on(&mut future)?.to_vec::<f32>()?, [round as f32]);
            check!(matches!(block_on(future), Err(Error::AlreadyConsumed { .. })));
        }
    }
    s.end()
}

fn broken(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<()>()?;
    let mut future = future;
    if let Some(future) = &mut future {
        check!(poll(future).is_pending());
    }
    s.all()?;
    drop(promise);
    if let Some(future) = future {
        is_broken(block_on(future), BrokenHow::Dropped)?;
    }
    s.end()
}

struct Counts(AtomicUsize);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// However often it was polled, a future that is dropped leaves no waker behind, and whoever sets it is told.
fn dropped(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    for polls in 0..6 {
        let (future, promise) = s.ask::<Wire<u32>>()?;
        if let Some(mut future) = future {
            let counts = Arc::new(Counts(AtomicUsize::new(0)));
            let waker = Waker::from(counts.clone());
            for _ in 0..polls {
                check!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
            }
            drop((future, waker));
            check_eq!(Arc::strong_count(&counts), 1, "after {polls} polls");
            check_eq!(counts.0.load(Ordering::Relaxed), 0, "after {polls} polls: woken for what is dropped");
        }
        s.all()?;
        if let Some(promise) = promise {
            is_broken(promise.set(Wire(1)).map_err(Error::from), BrokenHow::Unwanted)?;
        }
        s.all()?;
    }
    // An await that is given up gives the future back as it was, also when the value is there.
    for set_before in [false, true] {
        let (future, promise) = s.ask::<Wire<u32>>()?;
        let mut future = future;
        if let Some(promise) = &promise
            && set_before
        {
            promise.set(Wire(7))?;
        }
        s.all()?;
        if let Some(future) = &mut future {
            let mut awaits = Box::pin(async {
                let value = future.await;
                panic!("nobody goes on here with {value:?}");
            });
            // Dropped before it has begun, or in the middle.
            if !set_before {
                let polled = awaits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                check!(polled.is_pending());
            }
        }
        s.all()?;
        if let Some(promise) = &promise
            && !set_before
        {
            promise.set(Wire(7))?;
        }
        if let Some(future) = future {
            check_eq!(*block_on(future)?, 7);
        }
        s.all()?;
    }
    s.end()
}

/// The waker of the last poll is the one that is woken.
fn another_waker(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<()>()?;
    let counts: Vec<_> = (0..5).map(|_| Arc::new(Counts(AtomicUsize::new(0)))).collect();
    let mut future = future;
    if let Some(future) = &mut future {
        for count in &counts {
            let waker = Waker::from(count.clone());
            check!(Pin::new(&mut *future).poll(&mut Context::from_waker(&waker)).is_pending());
        }
    }
    s.all()?;
    if let Some(promise) = promise {
        promise.set(())?;
    }
    if let Some(future) = future {
        eventually("the last one is woken", || counts[4].0.load(Ordering::Relaxed) > 0)?;
        check!(counts[..4].iter().all(|count| count.0.load(Ordering::Relaxed) == 0));
        future.get(s.by)?;
    }
    s.end()
}

/// All of them on one thread.
fn all_of<T: Send + 'static>(mut futures: Vec<Future<T>>) -> Any<Vec<T>> {
    let mut values: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    block_on(std::future::poll_fn(|context| {
        for (future, value) in futures.iter_mut().zip(&mut values) {
            if value.is_none() {
                match Pin::new(future).poll(context) {
                    Poll::Ready(Ok(found)) => *value = Some(found),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {}
                }
            }
        }
        if values.iter().all(Option::is_some) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }))?;
    Ok(values.into_iter().flatten().collect())
}

fn many(ctx: &RankCtx, kind: Kind) -> RankResult {
    const MANY: usize = 100;
    let s = Scene::new(ctx, kind)?;
    let (mut futures, mut promises) = (Vec::new(), Vec::new());
    for _ in 0..MANY {
        let (future, promise) = s.ask::<Wire<usize>>()?;
        futures.extend(future);
        promises.extend(promise);
    }
    std::thread::scope(|scope| {
        let reader = s.is_client().then(|| scope.spawn(|| all_of(futures)));
        s.all()?;
        for (n, promise) in promises.iter().enumerate() {
            promise.set(Wire(n))?;
        }
        if let Some(reader) = reader {
            let values = reader.join().unwrap()?;
            check!(values.iter().map(|value| **value).eq(0..MANY));
        }
        s.end()
    })
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        // Without a message: it is meant to be.
        std::panic::resume_unwind(Box::new("a waker panics"));
    }
}

/// A waker that holds the last handle of the future that it wakes.
struct Drops(Mutex<Option<Future<()>>>);

impl Wake for Drops {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}

/// Neither a waker that panics nor one that drops its future keeps others from being woken.
fn unruly(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (mut futures, mut promises) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        let (future, promise) = s.ask::<()>()?;
        futures.extend(future);
        promises.extend(promise);
    }
    let mut good = Vec::new();
    let mut dropped = Vec::new();
    for (n, mut future) in futures.into_iter().enumerate() {
        match n % 3 {
            0 => {
                let waker = Waker::from(Arc::new(Panics));
                check!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
                good.push(future);
            }
            1 => {
                let drops = Arc::new(Drops(Mutex::default()));
                let waker = Waker::from(drops.clone());
                check!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
                *drops.0.lock().unwrap() = Some(future);
                dropped.push(drops);
            }
            _ => good.push(future),
        }
    }
    std::thread::scope(|scope| {
        let reader = s.is_client().then(|| scope.spawn(|| all_of(good)));
        s.all()?;
        for promise in &promises {
            promise.set(())?;
        }
        if let Some(reader) = reader {
            check_eq!(reader.join().unwrap()?.len(), 6);
            let is_gone = |drops: &Arc<Drops>| drops.0.lock().unwrap().is_none();
            eventually("all wakers have been called", || dropped.iter().all(is_gone))?;
        }
        s.end()
    })
}

/// A thread's wait.
type Read = fn(Future<Tensor>, Deadline) -> Result<Tensor, Error>;

fn get(future: Future<Tensor>, by: Deadline) -> Result<Tensor, Error> {
    future.get(by)
}

fn join(future: Future<Tensor>, by: Deadline) -> Result<Tensor, Error> {
    Ok(JoinAll::from_iter([future]).get(by)?.remove(0))
}

fn first(future: Future<Tensor>, by: Deadline) -> Result<Tensor, Error> {
    let mut futures = [future];
    let first = select(&mut futures).get(by)?;
    futures[first].get(by)
}

/// What goes on in the waker: a thread's wait for another promise of the same worker.
struct Waits {
    second: Mutex<Option<Future<Tensor>>>,
    read: Read,
    by: Deadline,
    begun: AtomicBool,
    seen: Mutex<Option<Result<Vec<f32>, String>>>,
}

impl Wake for Waits {
    fn wake(self: Arc<Self>) {
        self.begun.store(true, Ordering::Release);
        let Some(second) = self.second.lock().unwrap().take() else { return };
        let value = (self.read)(second, self.by).and_then(|tensor| Ok(tensor.to_vec::<f32>()?));
        *self.seen.lock().unwrap() = Some(value.map_err(|error| error.to_string()));
    }
}

/// In processes that have made no tensor before: what is set comes in their first segment.
pub const FRESH: Program =
    Program { name: "promise-continuation", run: |ctx: &RankCtx| continuation(ctx, Kind::Host, get, false) };

pub fn in_fresh_processes() -> Case {
    let case = Case::launcher(SUITE, "await/-/-/continuation-and-first-segment", |ctx: &LauncherCtx| {
        for report in ctx.launch(FRESH.name).run(ctx.deadline())? {
            check!(report.outcome.is_ok(), "rank {}: {}", report.rank, report.outcome);
        }
        done()
    });
    case.backend("host").layouts(&[Layout::Processes])
}

/// `behind` streams, or as they are.
fn continuation(ctx: &RankCtx, kind: Kind, read: Read, behind: bool) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (first, first_promise) = s.ask::<()>()?;
    let (second, second_promise) = s.ask()?;
    let mut first = first;
    let waits = second.map(|second| {
        let second = Mutex::new(Some(second));
        Arc::new(Waits { second, read, by: s.by, begun: AtomicBool::new(false), seen: Mutex::default() })
    });
    if let (Some(first), Some(waits)) = (&mut first, &waits) {
        let waker = Waker::from(waits.clone());
        check!(Pin::new(first).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    s.all()?;
    // The second one is set while the waker of the first waits for it, and lies in a segment that is made for it: it comes over
    // a link that the waiting thread, which may be the one that serves links, has to look after by itself.
    let size = 8 << 20;
    let streams = [1, 2].map(SimStream::new);
    std::thread::scope(|scope| -> Any<()> {
        let setter = first_promise.map(|first| {
            let stream = streams[0].stream();
            scope.spawn(move || {
                if !behind {
                    return first.set(());
                }
                first.set_when_ready((), stream);
                Ok(())
            })
        });
        if let Some(waits) = &waits {
            eventually("the waker waits", || waits.begun.load(Ordering::Acquire))?;
        }
        s.all()?;
        if let Some(second) = second_promise {
            let mut buf = TensorBuf::zeros_in(s.team.hub().tensors(), &[size / 4], DType::F32)?;
            buf.as_mut_slice::<f32>()?.fill(1.5);
            if behind {
                second.set_when_ready(buf.freeze(), streams[1].stream());
            } else {
                second.set(buf.freeze())?;
            }
        }
        if let Some(setter) = setter {
            setter.join().unwrap()?;
        }
        Ok(())
    })?;
    if let Some(waits) = waits {
        eventually("the waker has come to its end", || waits.seen.lock().unwrap().is_some())?;
        let seen = waits.seen.lock().unwrap().take().ok_or("it has come")??;
        check_eq!((seen.len(), seen[size / 4 - 1]), (size / 4, 1.5));
    }
    s.end()
}
