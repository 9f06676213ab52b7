//! The programs of stores: everything that a store does, over and over; and each kind of wait, by itself.

use comm_core::Error;
use comm_core::device::Stream;
use comm_core::team::Team;
use comm_core::tensor::Tensor;
use comm_store::store::{self, TensorStore};
use comm_testkit::report;
use comm_testkit::{Program, RankCtx, RankResult, block_on, check, done};

use super::program::{self, Call, OP};
use crate::support::{Any, others, right, team};

pub const BACKEND: &str = "store";

pub const LOOP: Program = Program { name: "store-loop", run: rounds };
pub const WAITS: Program = Program { name: "store-waits", run: waits };

const N: usize = 512;

fn rounds(ctx: &RankCtx) -> RankResult {
    let step = |team: &Team, round, call: &mut Call| {
        let mut kept = Vec::new();
        let outcome = step(ctx, team, round, call, &mut kept);
        // Whatever has happened, what was read is as it was.
        for (rank, tensor) in kept {
            check!(tensor.to_vec::<i64>()? == values(rank, round), "round {round}: of rank {rank}");
        }
        outcome
    };
    program::rounds(ctx, step, |team| store::open(team, OP).err())
}

fn values(rank: usize, round: u64) -> Vec<i64> {
    (0..N as i64).map(|i| round as i64 * 1_000_000 + rank as i64 * 10_000 + i).collect()
}

/// One of everything, in a store of its own, all results checked.
fn step(ctx: &RankCtx, team: &Team, round: u64, call: &mut Call, kept: &mut Vec<(usize, Tensor)>) -> Any<()> {
    let (me, n, cpu) = (ctx.rank(), ctx.world(), Stream::cpu());
    let by = OP.into();
    call.is("open");
    let store = store::open(team, OP)?;
    call.is("publish");
    let mut mine = Tensor::from_slice(&[N], &values(me, round))?;
    if round.is_multiple_of(2) {
        mine = mine.contiguous_in(team.hub().tensors())?;
    }
    store.publish(&format!("to-all-{me}"), &mine, &cpu, n - 1, None)?;
    store.publish(&format!("to-one-{me}"), &mine, &cpu, 1, None)?;
    drop(mine);
    for peer in others(ctx) {
        call.is("fetch");
        let read = store.fetch(&format!("to-all-{peer}"), &cpu, by)?;
        check!(read.to_vec::<i64>()? == values(peer, round), "round {round}: of rank {peer}");
        kept.push((peer, read.tensor().clone()));
        call.is("finish");
        read.finish()?;
    }
    call.is("fetch_async");
    let next = right(ctx);
    let read = block_on(store.fetch_async(&format!("to-one-{next}"), &cpu, by))?.into_tensor();
    kept.push((next, read));
    call.is("finish by name");
    store.finish(&format!("to-one-{next}"), &cpu)?;
    call.is("wait_consumed");
    store.wait_consumed(&format!("to-all-{me}"), by)?;
    call.is("wait_consumed_async");
    block_on(store.wait_consumed_async(&format!("to-one-{me}"), by))?;
    call.is("reset");
    store.publish(&format!("unread-{me}"), &Tensor::from_slice(&[N], &values(me, round))?, &cpu, 1, None)?;
    store.reset(by)?;
    call.is("barrier");
    store.barrier(by)?;
    Ok(())
}

/// Arguments: `kind` of the wait, and the `victim`, which comes no further than its gate.
fn waits(ctx: &RankCtx) -> RankResult {
    let kind = ctx.args()["kind"].as_str().unwrap_or_default();
    let victim = ctx.args()["victim"].as_u64().unwrap_or_default() as usize;
    let team = team(ctx, "t")?;
    let (cpu, by) = (Stream::cpu(), OP.into());
    let store = store::open(&team, OP)?;
    let own = ctx.rank().to_string();
    store.publish(&own, &Tensor::from_slice(&[1], &[1u8])?, &cpu, 1, None)?;
    ctx.note("ready");
    if ctx.process_of(victim) == Some(ctx.process()) {
        ctx.await_go("never")?;
        return done();
    }
    let before = report::busy();
    match wait(kind, &*store, &team, &own) {
        Some(Err(error)) => report::tell(ctx, kind, &error, before),
        Some(Ok(())) => return Err("it is over".into()),
        None => return Err(format!("no wait is called {kind:?}").into()),
    }
    // What is there is still to be had.
    let read = store.fetch(&own, &cpu, by)?;
    check!(read.to_vec::<u8>()? == [1]);
    drop(read);
    store.wait_consumed(&own, by)?;
    ctx.await_go("end")?;
    drop(store);
    program::nothing_is_left(team)
}

fn wait(kind: &str, store: &dyn TensorStore, team: &Team, own: &str) -> Option<Result<(), Error>> {
    let (cpu, by) = (Stream::cpu(), OP.into());
    Some(match kind {
        "fetch" => store.fetch("never", &cpu, by).map(drop),
        "fetch_async" => block_on(store.fetch_async("never", &cpu, by)).map(drop),
        "wait_consumed" => store.wait_consumed(own, by),
        "wait_consumed_async" => block_on(store.wait_consumed_async(own, by)),
        "store-barrier" => store.barrier(by),
        "store-reset" => store.reset(by),
        "open" => store::open(team, by).map(drop),
        _ => return None,
    })
}

pub const KINDS: [&str; 7] =
    ["fetch", "fetch_async", "wait_consumed", "wait_consumed_async", "store-barrier", "store-reset", "open"];
