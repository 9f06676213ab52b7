//! What a store holds, and for how long: nothing outlives its last handle.

use std::time::Duration;

use comm_core::Error;
use comm_core::device::Stream;
use comm_core::team::Team;
use comm_core::tensor::Tensor;
use comm_store::store::{self, Fetched, Kind};
use comm_testkit::{RankCtx, RankResult, check, check_eq, done, probe};

use super::{Run, Scene, tensor, values};
use crate::support::{Any, Script, eventually, right, team};

pub const CASES: &[(&str, Run)] = &[
    ("wait_consumed/-/-/gives-back", gives_back),
    ("wait_consumed/-/-/gives-back-behind-clones", gives_back_behind_clones),
    ("drop/-/-/unread-values", unread_values),
    ("drop/-/-/producer-first", producer_first),
    ("drop/-/-/clones-alone", clones_alone),
    ("drop/-/-/last-handle-is-a-guard", last_handle_is_a_guard),
    ("drop/-/-/last-handle-is-a-future", last_handle_is_a_future),
    ("drop/-/-/in-any-order", in_any_order),
    ("drop/-/-/100-stores", hundred_stores),
    ("drop/-/-/at-once", at_once),
    ("leave/-/-/before-the-readers", leave_before_the_readers),
    ("leave/-/-/all-others", all_others_leave),
];

/// Blocks of tensors and of windows in this process.
fn blocks(team: &Team) -> (u64, u64) {
    (team.hub().tensors().stats().blocks, team.hub().windows().stats().blocks)
}

/// The same while all ranks are outside of everything.
fn blocks_now(ctx: &RankCtx, keep: &Team) -> Any<(u64, u64)> {
    keep.barrier(ctx.deadline())?;
    let seen = blocks(keep);
    keep.barrier(ctx.deadline())?;
    Ok(seen)
}

fn until_blocks(team: &Team, expected: (u64, u64)) -> Any<()> {
    eventually("all blocks were given back", || blocks(team) == expected)
        .map_err(|e| format!("{e}: {:?}, expected {expected:?}", blocks(team)).into())
}

/// When the wait returns, the value and all that was made for it have gone, if readers keep nothing.
fn gives_back(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    for rank in 0..ctx.world() {
        let warm = format!("warm-{rank}");
        if ctx.rank() == rank {
            s.publish(&warm, &tensor(&[])?, 0)?;
        }
    }
    let before = blocks_now(ctx, &s.team)?;
    for round in 0..20 {
        for (key, in_arena) in [("arena", true), ("heap", false)] {
            let key = format!("{key}-{round}");
            if ctx.rank() == 0 {
                let values = values(0, round);
                let t = if in_arena { s.in_arena(&values)? } else { tensor(&values)? };
                s.publish(&key, &t, ctx.world() - 1)?;
                drop(t);
                s.wait_consumed(&key)?;
                check_eq!(blocks(&s.team), before, "{key}");
            } else {
                check_eq!(s.read(&key)?, values(0, round));
            }
            s.all()?;
        }
    }
    s.end()
}

/// Readers keep clones: they have finished, and the memory is theirs until the last of them has gone.
fn gives_back_behind_clones(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        s.publish("warm", &tensor(&[])?, 0)?;
    }
    let before = blocks_now(ctx, &s.team)?;
    for last in 1..ctx.world() {
        let key = last.to_string();
        if ctx.rank() == 0 {
            s.publish(&key, &s.in_arena(&values(0, last))?, ctx.world() - 1)?;
            s.wait_consumed(&key)?;
            check!(blocks(&s.team).0 > before.0, "its memory is still read");
        }
        let mut kept = if ctx.rank() > 0 { Some(s.fetch(&key)?.tensor().clone()) } else { None };
        if ctx.rank() != last {
            kept = None;
        }
        s.all()?;
        if ctx.rank() == 0 {
            check!(blocks(&s.team).0 > before.0, "its memory is still read");
            s.script.open(last)?;
        }
        s.script.pass(last)?;
        if let Some(kept) = kept {
            check_eq!(kept.to_vec::<f32>()?, values(0, last));
        }
        until_blocks(&s.team, before)?;
        s.all()?;
    }
    s.end()
}

/// A store that goes with values that nobody has read, and with some that are being read.
fn unread_values(ctx: &RankCtx, kind: Kind) -> RankResult {
    let keep = team(ctx, "keep")?;
    let before = blocks_now(ctx, &keep)?;
    for store_first in [false, true] {
        let store = store::open_kind(&keep, kind, ctx.deadline())?;
        let cpu = Stream::cpu();
        for i in 0..10 {
            let t = tensor(&values(ctx.rank(), i))?;
            store.publish(&format!("{}-{i}", ctx.rank()), &t, &cpu, ctx.world(), None)?;
        }
        let next = right(ctx);
        let read = store.fetch(&format!("{next}-3"), &cpu, ctx.deadline())?;
        let mut store = Some(store);
        if store_first {
            store = None;
        }
        check_eq!(read.to_vec::<f32>()?, values(next, 3));
        drop(read);
        drop(store);
        keep.barrier(ctx.deadline())?;
        until_blocks(&keep, before)?;
        keep.barrier(ctx.deadline())?;
    }
    done()
}

/// The producer drops its store, and uses its memory for something else, while others still read what they have fetched and
/// have some to fetch.
fn producer_first(ctx: &RankCtx, kind: Kind) -> RankResult {
    let script = Script::named(ctx, "order")?;
    let keep = team(ctx, "keep")?;
    let before = blocks_now(ctx, &keep)?;
    let s = Scene::new(ctx, kind)?;
    let spent = if ctx.rank() == 0 {
        for key in ["fetched", "later"] {
            let round = key.len();
            s.publish(key, &s.in_arena(&values(0, round))?, ctx.world() - 1)?;
        }
        script.pass(0)?;
        drop(s);
        // As much as there was, and more.
        let spent =
            (0..50).map(|_| Tensor::from_slice(&[5], &[-1.0f32; 5])?.contiguous_in(keep.hub().tensors()));
        let spent = spent.collect::<Result<Vec<_>, Error>>()?;
        script.open(1)?;
        spent
    } else {
        let read = s.fetch("fetched")?;
        if ctx.rank() == ctx.world() - 1 {
            script.open(0)?;
        }
        script.pass(1)?;
        check_eq!(read.to_vec::<f32>()?, values(0, 7));
        check_eq!(s.fetch("later")?.to_vec::<f32>()?, values(0, 5));
        read.finish()?;
        drop(s);
        vec![]
    };
    keep.barrier(ctx.deadline())?;
    drop(spent);
    until_blocks(&keep, before)?;
    keep.barrier(ctx.deadline())?;
    done()
}

/// All stores have gone, with values that were unread or are read no more, and readers have clones: the memory under them is
/// used for nothing else until they have gone, too.
fn clones_alone(ctx: &RankCtx, kind: Kind) -> RankResult {
    let keep = team(ctx, "keep")?;
    let before = blocks_now(ctx, &keep)?;
    let mut kept = Vec::new();
    {
        let store = store::open_kind(&keep, kind, ctx.deadline())?;
        let cpu = Stream::cpu();
        if ctx.rank() == 0 {
            for round in 0..10 {
                let t = tensor(&values(0, round))?.contiguous_in(keep.hub().tensors())?;
                store.publish(&round.to_string(), &t, &cpu, ctx.world(), None)?;
            }
        } else {
            for round in 0..10 {
                kept.push(store.fetch(&round.to_string(), &cpu, ctx.deadline())?.tensor().clone());
            }
        }
    }
    keep.barrier(ctx.deadline())?;
    // Whatever has not gone by now is held by the clones.
    let spent = if ctx.rank() == 0 {
        let spent =
            (0..50).map(|_| Tensor::from_slice(&[5], &[-1.0f32; 5])?.contiguous_in(keep.hub().tensors()));
        spent.collect::<Result<Vec<_>, Error>>()?
    } else {
        vec![]
    };
    keep.barrier(ctx.deadline())?;
    for (round, t) in kept.iter().enumerate() {
        check_eq!(t.to_vec::<f32>()?, values(0, round), "memory under a clone was used for something else");
    }
    keep.barrier(ctx.deadline())?;
    drop((kept, spent));
    until_blocks(&keep, before)?;
    keep.barrier(ctx.deadline())?;
    done()
}

/// All handles go, but for those of reads.
fn last_handle_is_a_guard(ctx: &RankCtx, kind: Kind) -> RankResult {
    let keep = team(ctx, "keep")?;
    let before = blocks_now(ctx, &keep)?;
    let mut reads: Vec<Fetched> = Vec::new();
    {
        let s = Scene::new(ctx, kind)?;
        s.publish(&ctx.rank().to_string(), &tensor(&values(ctx.rank(), 1))?, ctx.world())?;
        for peer in 0..ctx.world() {
            reads.push(s.fetch(&peer.to_string())?);
        }
        s.all()?;
    }
    keep.barrier(ctx.deadline())?;
    for (peer, read) in reads.drain(..).enumerate() {
        check_eq!(read.to_vec::<f32>()?, values(peer, 1));
        read.finish()?;
    }
    until_blocks(&keep, before)?;
    keep.barrier(ctx.deadline())?;
    done()
}

/// A read that waits as a task holds its store; dropped, it holds nothing.
fn last_handle_is_a_future(ctx: &RankCtx, kind: Kind) -> RankResult {
    let keep = team(ctx, "keep")?;
    let before = blocks_now(ctx, &keep)?;
    let store = store::open_kind(&keep, kind, ctx.deadline())?;
    let cpu = Stream::cpu();
    for polled in [false, true] {
        let mut fetch = store.fetch_async("never", &cpu, ctx.deadline());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        check!(!polled || fetch.as_mut().poll(&mut context).is_pending());
    }
    drop(store);
    until_blocks(&keep, before)?;
    keep.barrier(ctx.deadline())?;
    done()
}

/// Team, store, script, values and reads go in every order of the three that matter.
fn in_any_order(ctx: &RankCtx, kind: Kind) -> RankResult {
    let keep = team(ctx, "keep")?;
    let before = blocks_now(ctx, &keep)?;
    for (n, order) in
        [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]].into_iter().enumerate()
    {
        let own = team(ctx, &format!("own{n}"))?;
        let store = store::open_kind(&own, kind, ctx.deadline())?;
        let cpu = Stream::cpu();
        let t = tensor(&values(ctx.rank(), n))?;
        store.publish(&ctx.rank().to_string(), &t, &cpu, ctx.world(), None)?;
        let next = right(ctx);
        let read = store.fetch(&next.to_string(), &cpu, ctx.deadline())?;
        let (mut own, mut store, mut read) = (Some(own), Some(store), Some(read));
        keep.barrier(ctx.deadline())?;
        for what in order {
            if let Some(read) = &read {
                check_eq!(read.to_vec::<f32>()?, values(next, n), "order {order:?}");
            }
            match what {
                0 => own = None,
                1 => store = None,
                _ => read = None,
            }
        }
        check!(own.is_none() && store.is_none() && read.is_none());
        drop(t);
        keep.barrier(ctx.deadline())?;
        until_blocks(&keep, before).map_err(|e| format!("order {order:?}: {e}"))?;
        keep.barrier(ctx.deadline())?;
    }
    done()
}

/// Heap memory and the stacks of others may be mapped piece by piece; what grew with the stores would be hundreds.
const SLACK: usize = 16;

/// The probes of the ranks beside this one have the directory open for a moment.
const PROBES: usize = 4;

fn hundred_stores(ctx: &RankCtx, kind: Kind) -> RankResult {
    let keep = team(ctx, "keep")?;
    let some = |count: usize| -> Any<()> {
        for n in 0..count {
            let store = store::open_kind(&keep, kind, ctx.deadline())?;
            let cpu = Stream::cpu();
            let next = right(ctx);
            store.publish(&ctx.rank().to_string(), &tensor(&values(ctx.rank(), n))?, &cpu, 1, None)?;
            let read = store.fetch(&next.to_string(), &cpu, ctx.deadline())?;
            check_eq!(read.to_vec::<f32>()?, values(next, n));
            if n % 3 == 0 {
                drop(store);
            }
        }
        Ok(())
    };
    let start = blocks_now(ctx, &keep)?;
    let probed = || -> Any<_> { Ok((probe::fds()?, probe::mappings()?, probe::threads()?)) };
    some(10)?;
    until_blocks(&keep, start)?;
    keep.barrier(ctx.deadline())?;
    let before = probed()?;
    some(100)?;
    keep.barrier(ctx.deadline())?;
    until_blocks(&keep, start)?;
    let mut after = probed()?;
    eventually("all descriptors are closed", || {
        after = probed().unwrap_or(after);
        after.0 <= before.0 + PROBES
    })?;
    check!(after.1 <= before.1 + SLACK && after.2 <= before.2, "{before:?}, then {after:?}");
    keep.barrier(ctx.deadline())?;
    done()
}

/// One rank publishes and has gone before the others have so much as come back from opening the store; they find what it
/// has left, and then nothing is left.
fn at_once(ctx: &RankCtx, kind: Kind) -> RankResult {
    let keep = team(ctx, "keep")?;
    let before = blocks_now(ctx, &keep)?;
    for round in 0..100 {
        let store = store::open_kind(&keep, kind, ctx.deadline())?;
        let cpu = Stream::cpu();
        let producer = round % ctx.world();
        if ctx.rank() == producer {
            store.publish("x", &tensor(&values(producer, round))?, &cpu, ctx.world() - 1, None)?;
        } else {
            check_eq!(store.fetch("x", &cpu, ctx.deadline())?.to_vec::<f32>()?, values(producer, round));
        }
    }
    keep.barrier(ctx.deadline())?;
    until_blocks(&keep, before)?;
    keep.barrier(ctx.deadline())?;
    done()
}

/// The producer leaves the team in good order, with values that nobody has fetched: they are to be had all the same, from
/// whichever process.
fn leave_before_the_readers(ctx: &RankCtx, kind: Kind) -> RankResult {
    let script = Script::named(ctx, "order")?;
    let keep = team(ctx, "keep")?;
    let before = blocks_now(ctx, &keep)?;
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        s.publish("x", &s.in_arena(&values(0, 1))?, 2 * (ctx.world() - 1))?;
        let Scene { store, script: unused, team, .. } = s;
        drop((unused, team));
        let refused = [
            store.publish("y", &tensor(&[])?, &Stream::cpu(), 0, None).err(),
            store.reset(ctx.deadline()).err(),
            store.barrier(ctx.deadline()).err(),
            store.wait_consumed("x", ctx.deadline()).err(),
            store.fetch("z", &Stream::cpu(), ctx.deadline()).err(),
        ];
        for error in refused {
            check!(matches!(error, Some(Error::PeerLeft { rank: 0, .. })), "{error:?}");
        }
        drop(store);
        script.open(0)?;
    } else {
        script.pass(0)?;
        let read = s.fetch("x")?;
        check_eq!(read.to_vec::<f32>()?, values(0, 1));
        read.finish()?;
        check_eq!(s.read("x")?, values(0, 1));
        match s.store.reset(s.by) {
            Err(Error::PeerLeft { rank: 0, .. }) => {}
            other => return Err(format!("{other:?}").into()),
        }
        drop(s);
    }
    keep.barrier(ctx.deadline())?;
    until_blocks(&keep, before)?;
    keep.barrier(ctx.deadline())?;
    done()
}

/// Who is left alone does not wait for what can come from nobody.
fn all_others_leave(ctx: &RankCtx, kind: Kind) -> RankResult {
    let keep = team(ctx, "keep")?;
    {
        let s = Scene::new(ctx, kind)?;
        if ctx.rank() > 0 {
            s.all()?;
            drop(s);
            keep.barrier(ctx.deadline())?;
            return done();
        }
        s.publish("x", &tensor(&values(0, 1))?, 1)?;
        s.all()?;
        let started = std::time::Instant::now();
        for error in [s.fetch("never").map(drop), s.wait_consumed("x")] {
            check!(matches!(error, Err(Error::PeerLeft { .. })), "{error:?}");
        }
        for error in [
            comm_testkit::block_on(s.store.fetch_async("never", &s.cpu, s.by)).map(drop),
            comm_testkit::block_on(s.store.wait_consumed_async("x", s.by)),
        ] {
            check!(matches!(error, Err(Error::PeerLeft { .. })), "{error:?}");
        }
        // What is there can still be had.
        check_eq!(s.read("x")?, values(0, 1));
        s.wait_consumed("x")?;
        check!(started.elapsed() < Duration::from_secs(20), "it has waited for nobody");
    }
    keep.barrier(ctx.deadline())?;
    done()
}
