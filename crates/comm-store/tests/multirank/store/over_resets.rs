//! Threads that read whatever they find, at any time, while their rank publishes, gives up waiting, and resets.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use comm_core::Error;
use comm_core::tensor::Tensor;
use comm_store::store::{Fetched, Kind};
use comm_testkit::values::SplitMix64;
use comm_testkit::{RankCtx, RankResult, block_on, check, check_eq};

use super::{Run, Scene};
use crate::support::{Any, eventually};

pub const CASES: &[(&str, Run)] = &[("stress/-/i64/over-resets", over_resets)];

const KEYS: u64 = 12;
const READERS: u64 = 2;

/// A value names its round, its producer and its key. Whoever finds it, finds it whole, and never after its round; and whoever
/// keeps it, keeps it.
fn over_resets(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (round, stop) = (AtomicU64::new(1), AtomicBool::new(false));
    std::thread::scope(|scope| -> Any<()> {
        let (s, round, stop) = (&s, &round, &stop);
        let reading = (0..READERS).map(|reader| {
            let mut rng = ctx.rng().fork(1 + reader);
            scope.spawn(move || reads(s, &mut rng, round, stop))
        });
        let reading: Vec<_> = reading.collect();
        let outcome = publishes(ctx, s, round);
        stop.store(true, Ordering::Relaxed);
        reading.into_iter().try_for_each(|reading| reading.join().map_err(|_| "a thread panicked")?)?;
        outcome
    })?;
    s.all()?;
    s.store.reset(s.by)?;
    eventually("all memory was given back", || s.team.hub().tensors().stats().blocks == 0)?;
    s.end()
}

fn publishes(ctx: &RankCtx, s: &Scene, round: &AtomicU64) -> Any<()> {
    let mut rng = ctx.rng().fork(0);
    for now in 1..=if ctx.full() { 3000 } else { 200 } {
        for key in 0..KEYS {
            let elements = [0, 1, 3, 300, 300, 300, 5000][rng.below(7) as usize];
            let tag = (now as i64) << 16 | (ctx.rank() as i64) << 8 | key as i64;
            let mut value = Tensor::from_slice(&[elements], &vec![tag; elements])?;
            if rng.below(2) == 0 {
                value = value.contiguous_in(s.team.hub().tensors())?;
            }
            s.publish(&format!("{}/{key}", ctx.rank()), &value, rng.below(5) as usize)?;
            drop(value);
            let before = format!("{}/{}", ctx.rank(), rng.below(key + 1));
            let waited = match rng.below(6) {
                0 => s.store.wait_consumed(&before, Duration::from_micros(rng.below(300)).into()),
                1 => look(&mut s.store.wait_consumed_async(&before, s.by), 1).unwrap_or(Ok(())),
                _ => continue,
            };
            check!(matches!(waited, Ok(()) | Err(Error::Timeout { .. })), "{before}: {waited:?}");
        }
        s.store.reset(s.by)?;
        round.store(now + 1, Ordering::SeqCst);
    }
    Ok(())
}

fn reads(s: &Scene, rng: &mut SplitMix64, round: &AtomicU64, stop: &AtomicBool) -> Any<()> {
    let mut guards: Vec<Fetched> = Vec::new();
    let mut kept: Vec<(Tensor, i64)> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let (rank, key) = (rng.below(s.team.size() as u64), rng.below(KEYS));
        let (name, since) = (format!("{rank}/{key}"), round.load(Ordering::SeqCst));
        let by = Duration::from_micros(rng.below(1500)).into();
        let fetched = match rng.below(3) {
            0 => s.store.fetch(&name, &s.cpu, by),
            1 => block_on(s.store.fetch_async(&name, &s.cpu, by)),
            _ => match look(&mut s.store.fetch_async(&name, &s.cpu, by), rng.below(6)) {
                Some(fetched) => fetched,
                None => continue,
            },
        };
        let read = match fetched {
            Ok(read) => read,
            // It is not there, or has been read as often as it may be, or is forgotten while it is found.
            Err(Error::Timeout { .. } | Error::OverFinished { .. } | Error::ConcurrentUse { .. }) => continue,
            Err(other) => return Err(format!("{name}: {other}").into()),
        };
        if let Some(&tag) = read.to_vec::<i64>()?.first() {
            check_eq!((tag >> 8 & 0xff, tag & 0xff), (rank as i64, key as i64), "{name}");
            check!(tag >> 16 >= since as i64, "{name}: a value of round {} in {since}", tag >> 16);
            if rng.below(6) == 0 && kept.len() < 50 {
                kept.push((read.tensor().clone(), tag));
            }
            is_all(&read, tag)?;
        }
        match rng.below(4) {
            0 if guards.len() < 8 => guards.push(read),
            1 => {
                drop(read.into_tensor());
                let finished = s.store.finish(&name, &s.cpu);
                // Its guard finds itself finished by this, if the other thread has another one.
                let fine =
                    matches!(finished, Ok(()) | Err(Error::UnknownKey { .. } | Error::OverFinished { .. }));
                check!(fine, "{name}: {finished:?}");
            }
            _ => drop(read),
        }
        if rng.below(5) == 0 {
            guards.pop();
        }
        kept.iter().try_for_each(|(kept, tag)| is_all(kept, *tag))?;
        if rng.below(40) == 0 {
            kept.clear();
        }
    }
    Ok(())
}

fn is_all(tensor: &Tensor, tag: i64) -> Any<()> {
    check!(tensor.to_vec::<i64>()?.iter().all(|&seen| seen == tag), "{tag:#x} has become something else");
    Ok(())
}

/// Polls so many times, and gives up then.
fn look<T>(task: &mut (impl Future<Output = T> + Unpin), polls: u64) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    (0..polls).find_map(|_| match std::pin::Pin::new(&mut *task).poll(&mut context) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    })
}
