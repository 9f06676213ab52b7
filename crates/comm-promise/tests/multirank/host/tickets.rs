//! Tickets: who claims a promise, and what is no ticket.

use std::collections::HashSet;

use comm_core::error::BrokenHow;
use comm_core::tensor::Tensor;
use comm_core::{Error, Kind};
use comm_promise::{Promise, SetError, Ticket, Wire};
use comm_testkit::{Case, RankCtx, RankResult, block_on, check, check_eq};

use crate::support::{Scene, host, in_vain, is_broken, tensor};

pub fn cases() -> Vec<Case> {
    vec![
        host("ticket/-/-/slot-of-another-type", slot_of_another_type),
        host("ticket/-/-/of-one-that-its-holder-has-set", set_then_ticket),
        host("ticket/-/-/unique", unique),
        host("ticket/-/-/unclaimed", unclaimed),
        host("ticket/-/-/attached-when-set", attached_when_set),
        host("ticket/-/-/attached-when-read", attached_when_read),
        host("ticket/-/-/attached-by-all", attached_by_all),
        host("ticket/-/-/last-holder-breaks-it", last_holder),
        host("ticket/-/-/at-most-seven", at_most_seven),
        host("ticket/-/-/handed-on", handed_on),
        host("ticket/-/-/at-home", at_home),
        host("ticket/-/-/of-one-that-has-ended", ended),
        host("ticket/-/-/of-another-type", of_another_type),
        host("ticket/-/-/garbage", garbage),
        host("ticket/-/-/kinds-without", kinds_without),
    ]
}

fn unique(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for _ in 0..1000 {
        let promise = Promise::<()>::new(Kind::Host)?;
        all.push(promise.future()?);
        let bytes = promise.into_ticket()?.to_bytes();
        check!(!bytes.is_empty() && bytes.len() < 100, "{} bytes", bytes.len());
        check!(seen.insert(bytes));
    }
    // Those of other processes are others. A few do, since the home is in them.
    for rank in 0..ctx.world() {
        let mine = seen.iter().next().ok_or("there are some")?.clone();
        let theirs = s.say(rank, &mine)?;
        check_eq!(seen.contains(&theirs), rank == ctx.rank());
    }
    s.end()
}

/// Nobody's, it waits, and is cancelled.
fn unclaimed(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    if s.is_client() {
        let promise = Promise::<()>::new(Kind::Host)?;
        let future = promise.future()?;
        let _ = promise.into_ticket()?;
        let said = in_vain(&future)?;
        check!(said.contains("unclaimed"), "{said}");
        future.cancel();
        is_broken(block_on(future), BrokenHow::Cancelled)?;
    }
    s.end()
}

fn attached_when_set(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let promise = s.is_client().then(|| Promise::<Wire<u8>>::new(Kind::Host)).transpose()?;
    let future = promise.as_ref().map(Promise::future).transpose()?;
    let ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
    if s.is_worker() {
        Promise::attach(&ticket, s.by)?.set(Wire(1))?;
        // It is dropped when it is attached again, and has its value.
        let again = Promise::attach(&ticket, s.by)?;
        check!(again.is_set());
        check!(matches!(again.set(Wire(2)), Err(SetError::AlreadySet { value: Wire(2), .. })));
    }
    s.all()?;
    if s.is_client() {
        let here = Promise::attach(&ticket, s.by)?;
        check!(here.is_set());
        check!(matches!(here.set(Wire(3)), Err(SetError::AlreadySet { .. })));
    }
    if let Some(future) = future {
        check_eq!(*future.get(s.by)?, 1);
    }
    s.end()
}

fn attached_when_read(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let promise = s.is_client().then(|| Promise::<Wire<u8>>::new(Kind::Host)).transpose()?;
    let future = promise.as_ref().map(Promise::future).transpose()?;
    let ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
    if s.is_worker() {
        Promise::attach(&ticket, s.by)?.set(Wire(1))?;
    }
    if let Some(future) = future {
        check_eq!(*future.get(s.by)?, 1);
        drop(future);
    }
    s.all()?;
    is_broken(Promise::attach(&ticket, s.by), BrokenHow::Unwanted)?;
    s.end()
}

/// All ranks attach one ticket and set it: one of them succeeds, and its value is the one that is read.
fn attached_by_all(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    for _ in 0..20 {
        let promise = s.is_client().then(|| Promise::<Tensor>::new(Kind::Host)).transpose()?;
        let future = promise.as_ref().map(Promise::future).transpose()?;
        let ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
        let mine = Promise::attach(&ticket, s.by)?;
        s.all()?;
        let outcome = mine.set(tensor(&[ctx.rank() as f32; 3])?);
        let set = match &outcome {
            Ok(()) => 1,
            Err(SetError::AlreadySet { value, .. }) => {
                check_eq!(value.to_vec::<f32>()?, [ctx.rank() as f32; 3]);
                0
            }
            other => return Err(format!("{other:?}").into()),
        };
        let mut winners = Vec::new();
        for rank in 0..ctx.world() {
            if s.say(rank, &[set])? == [1] {
                winners.push(rank);
            }
        }
        check_eq!(winners.len(), 1);
        if let Some(future) = future {
            check_eq!(future.get(s.by)?.to_vec::<f32>()?, [winners[0] as f32; 3]);
        }
        s.all()?;
    }
    s.end()
}

fn last_holder(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let promise = s.is_client().then(|| Promise::<()>::new(Kind::Host)).transpose()?;
    let future = promise.as_ref().map(Promise::future).transpose()?;
    let ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
    let mine = Promise::attach(&ticket, s.by)?;
    s.all()?;
    let mut mine = Some(mine);
    for rank in 0..ctx.world() {
        if let Some(future) = &future {
            check!(!future.is_ready(), "rank {rank} still holds it");
        }
        s.all()?;
        if rank == ctx.rank() {
            drop(mine.take());
        }
        s.all()?;
    }
    if let Some(future) = future {
        is_broken(future.get(s.by), BrokenHow::Dropped)?;
    }
    is_broken(Promise::attach(&ticket, s.by).map(drop), BrokenHow::Dropped)
        .or_else(|_| is_broken(Promise::attach(&ticket, s.by).map(drop), BrokenHow::Unwanted))?;
    s.end()
}

/// Seven holders in other processes, at once; one that goes makes room.
fn at_most_seven(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let promise = s.is_client().then(|| Promise::<Wire<u8>>::new(Kind::Host)).transpose()?;
    let future = promise.as_ref().map(Promise::future).transpose()?;
    let ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
    if s.is_worker() && s.is_abroad() {
        let mut all = (0..7).map(|_| Promise::attach(&ticket, s.by)).collect::<Result<Vec<_>, _>>()?;
        for _ in 0..20 {
            match Promise::attach(&ticket, s.by) {
                Err(Error::InvalidArgument { why, .. }) => check!(why.contains("held 7 times"), "{why}"),
                other => return Err(format!("one more: {other:?}").into()),
            }
            all.remove(0);
            all.push(Promise::attach(&ticket, s.by)?);
        }
        all[3].set(Wire(4))?;
    } else if s.is_worker() {
        // Holders at home share a row.
        let all = (0..20).map(|_| Promise::attach(&ticket, s.by)).collect::<Result<Vec<_>, _>>()?;
        all[3].set(Wire(4))?;
    }
    if let Some(future) = future {
        check_eq!(*future.get(s.by)?, 4);
    }
    s.end()
}

/// The right to set goes from rank to rank, and back to the client, which sets it.
fn handed_on(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let promise = s.is_client().then(|| Promise::<Tensor>::new(Kind::Host)).transpose()?;
    let future = promise.as_ref().map(Promise::future).transpose()?;
    let mut ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
    for rank in (1..ctx.world()).chain([0]) {
        let next = (rank == ctx.rank()).then(|| Promise::attach(&ticket, s.by)?.into_ticket()).transpose()?;
        let handed = s.ticket(rank, next)?;
        check_eq!(handed, ticket);
        ticket = handed;
        if let Some(future) = &future {
            check!(!future.is_ready());
        }
        s.all()?;
    }
    if s.is_worker() {
        // However often: who has handed it on takes no place.
        for _ in 0..10 {
            ticket = Promise::attach(&ticket, s.by)?.into_ticket()?;
        }
        Promise::attach(&ticket, s.by)?.set(tensor(&[5.0])?)?;
    }
    if let Some(future) = future {
        check_eq!(future.get(s.by)?.to_vec::<f32>()?, [5.0]);
    }
    s.end()
}

/// A ticket that comes back: the value goes from hand to hand.
fn at_home(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let promise = Promise::<Tensor>::new(Kind::Host)?;
    let future = promise.future()?;
    let ticket = promise.into_ticket()?;
    let [one, other] = [Promise::attach(&ticket, s.by)?, Promise::attach(&ticket, s.by)?];
    check!(matches!(one.future(), Err(Error::FutureTaken { .. })));
    drop(other);
    check!(!future.is_ready());
    let value = tensor(&[1.0, 2.0])?;
    one.set(value.clone())?;
    check!(future.get(s.by)?.shares_storage(&value));
    // The last of two breaks it here, too.
    let promise = Promise::<()>::new(Kind::Host)?;
    let future = promise.future()?;
    let ticket = promise.into_ticket()?;
    let [one, other] = [Promise::attach(&ticket, s.by)?, Promise::attach(&ticket, s.by)?];
    drop(one);
    in_vain(&future)?;
    drop(other);
    is_broken(future.get(s.by), BrokenHow::Dropped)?;
    is_broken(Promise::attach(&ticket, s.by), BrokenHow::Unwanted)
        .or_else(|_| is_broken(Promise::attach(&ticket, s.by), BrokenHow::Dropped))?;
    s.end()
}

/// Who attaches what has broken is told, also where somebody holds it still.
fn ended(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    for (how, drops) in [(BrokenHow::Cancelled, false), (BrokenHow::Unwanted, true)] {
        let promise = s.is_client().then(|| Promise::<Wire<u8>>::new(Kind::Host)).transpose()?;
        let future = promise.as_ref().map(Promise::future).transpose()?;
        let ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
        let held = Promise::attach(&ticket, s.by)?;
        s.all()?;
        let kept = future.filter(|_| !drops);
        if let Some(future) = &kept {
            future.cancel();
        }
        s.all()?;
        is_broken(Promise::attach(&ticket, s.by), how)?;
        is_broken(held.set(Wire(1)).map_err(Error::from), how)?;
        s.all()?;
    }
    // Of one that has its value there is nothing to set, and nothing is broken by those who go.
    let promise = s.is_client().then(|| Promise::<Wire<u8>>::new(Kind::Host)).transpose()?;
    let future = promise.as_ref().map(Promise::future).transpose()?;
    let ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
    let held = Promise::attach(&ticket, s.by)?;
    s.all()?;
    if s.is_worker() {
        held.set(Wire(2))?;
    }
    s.all()?;
    let again = Promise::attach(&ticket, s.by)?;
    check!(again.is_set());
    check_eq!(again.into_ticket()?, ticket);
    drop(held);
    s.all()?;
    if let Some(future) = future {
        check_eq!(*future.get(s.by)?, 2);
    }
    s.end()
}

fn of_another_type(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let promise = s.is_client().then(|| Promise::<Tensor>::new(Kind::Host)).transpose()?;
    let future = promise.as_ref().map(Promise::future).transpose()?;
    let ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
    let other = Ticket::<()>::from_bytes(&ticket.to_bytes())?;
    match Promise::attach(&other, s.by) {
        Err(Error::InvalidArgument { why, .. }) => check!(why.contains("another type"), "{why}"),
        other => return Err(format!("{other:?}").into()),
    }
    s.all()?;
    if let Some(future) = future {
        check!(!future.is_ready(), "nothing has happened");
    }
    s.end()
}

/// Bytes that are no ticket, with each bit of one turned round, say so.
fn garbage(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let promise = Promise::<()>::new(Kind::Host)?;
    let bytes = promise.into_ticket()?.to_bytes();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut other = bytes.clone();
            other[at] ^= 1 << bit;
            let outcome = Ticket::<()>::from_bytes(&other);
            check!(matches!(outcome, Err(Error::BadPeer { .. })), "byte {at}, bit {bit}: {outcome:?}");
        }
        check!(Ticket::<()>::from_bytes(&bytes[..at]).is_err());
    }
    check!(Ticket::<()>::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    s.end()
}

fn kinds_without(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let promise = Promise::<()>::new(Kind::Process)?;
    let future = promise.future()?;
    match promise.into_ticket() {
        Err(Error::Unsupported { why, .. }) => check!(why.contains("kind host"), "{why}"),
        other => return Err(format!("{other:?}").into()),
    }
    is_broken(future.get(s.by), BrokenHow::Dropped)?;
    match Promise::<()>::new(Kind::Network) {
        Err(Error::Unsupported { op, .. }) => check_eq!(op, "kind network"),
        other => return Err(format!("{other:?}").into()),
    }
    s.end()
}

/// Whoever has set it has nothing to hand on, and stays the one who has set it.
fn set_then_ticket(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let (future, promise) = s.ask::<Wire<u8>>()?;
    if let Some(promise) = promise {
        promise.set(Wire(1))?;
        let again = promise.into_ticket()?;
        let late = Promise::attach(&again, s.by)?.set(Wire(2));
        check!(matches!(late, Err(SetError::AlreadySet { .. })), "{late:?}");
    }
    s.all()?;
    if let Some(future) = future {
        check_eq!(*future.get(s.by)?, 1);
    }
    s.end()
}

/// A ticket of a promise that is over, whose slot one of another type has now, is of one that is over.
fn slot_of_another_type(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let old = Promise::<()>::new(s.kind)?;
    let future = old.future()?;
    let ticket = old.into_ticket()?;
    drop(future);
    // One of these has its slot.
    let others = (0..300).map(|_| Promise::<Tensor>::new(s.kind)).collect::<Result<Vec<_>, _>>()?;
    is_broken(Promise::attach(&ticket, s.by).map(drop), BrokenHow::Unwanted)?;
    drop(others);
    s.end()
}
