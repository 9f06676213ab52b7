//! Started messages: each waits for those of its own pair and direction, and for nothing else.

use std::time::Duration;

use comm_core::Error;
use comm_core::tensor::Tensor;
use comm_group::ReduceOp;
use comm_testkit::values::SplitMix64;
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use crate::support::{Any, group};

pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&RankCtx) -> RankResult| {
        Case::ranks("collective", format!("recv_start/-/-/{name}"), run).backend("same-device")
    };
    vec![
        case("then-send", then_send).worlds(|w| w > 1),
        case("all-pairs-in-any-order", all_pairs).worlds(|w| w > 1),
        case("beside-operations", beside_operations).worlds(|w| w > 1),
        case("in-order", in_order).worlds(|w| w > 1),
        case("misuse", misuse).worlds(|w| w > 1),
    ]
}

fn number(value: i32) -> Any<Tensor> {
    Ok(Tensor::from_slice(&[1], &[value])?)
}

fn shuffle<T>(rng: &mut SplitMix64, all: &mut [T]) {
    for i in (1..all.len()).rev() {
        all.swap(i, rng.below(i as u64 + 1) as usize);
    }
}

/// Everybody is ready to receive before anybody sends, and nobody is before that.
fn then_send(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let (n, me) = (ctx.world(), ctx.rank());
    let (right, left) = ((me + 1) % n, (me + n - 1) % n);
    for round in 0..50 {
        let incoming = group.recv_start(left, ctx.deadline())?;
        group.send(&number(100 * round + me as i32)?, right, ctx.deadline())?;
        check_eq!(incoming.wait()?.to_vec::<i32>()?, [100 * round + left as i32]);
        // And the other way round.
        let outgoing = group.send_start(&number(round)?, left, ctx.deadline())?;
        check_eq!(group.recv(right, ctx.deadline())?.to_vec::<i32>()?, [round]);
        outgoing.wait()?;
    }
    done()
}

/// Everybody to everybody, started in an order that each rank draws for itself.
fn all_pairs(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let me = ctx.rank();
    let mut rng = ctx.rng();
    for round in 0..20 {
        let mut peers: Vec<(usize, bool)> = (0..ctx.world())
            .filter(|&peer| peer != me)
            .flat_map(|peer| [(peer, false), (peer, true)])
            .collect();
        shuffle(&mut rng, &mut peers);
        let (mut sent, mut incoming) = (Vec::new(), Vec::new());
        for (peer, sends) in peers {
            if sends {
                sent.push(group.send_start(&number(100 * round + me as i32)?, peer, ctx.deadline())?);
            } else {
                incoming.push((peer, group.recv_start(peer, ctx.deadline())?));
            }
        }
        shuffle(&mut rng, &mut incoming);
        for (peer, work) in incoming {
            check_eq!(work.wait()?.to_vec::<i32>()?, [100 * round + peer as i32], "of rank {peer}");
        }
        sent.into_iter().try_for_each(|work| work.wait())?;
    }
    done()
}

/// Rank 0 waits for a message that its peer sends when all have done some operations, started and not.
fn beside_operations(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let incoming = if ctx.rank() == 0 { Some(group.recv_start(1, ctx.deadline())?) } else { None };
    group.barrier(ctx.deadline())?;
    let sum = group.all_reduce_start(&number(1)?, ReduceOp::Sum, ctx.deadline())?;
    group.barrier(ctx.deadline())?;
    check_eq!(sum.wait()?.to_vec::<i32>()?, [ctx.world() as i32]);
    if ctx.rank() == 1 {
        group.send(&number(5)?, 0, ctx.deadline())?;
    }
    if let Some(incoming) = incoming {
        check_eq!(incoming.wait()?.to_vec::<i32>()?, [5]);
    }
    group.barrier(ctx.deadline())?;
    done()
}

/// Started or not, the messages of a pair come in order, and are received in order.
fn in_order(ctx: &RankCtx) -> RankResult {
    const MESSAGES: i32 = 60;
    let group = group(ctx, "g")?;
    let mut rng = ctx.rng();
    if ctx.rank() == 0 {
        let mut works = Vec::new();
        for i in 0..MESSAGES {
            match rng.below(2) {
                0 => works.push(group.send_start(&number(i)?, 1, ctx.deadline())?),
                _ => group.send(&number(i)?, 1, ctx.deadline())?,
            }
        }
        works.into_iter().try_for_each(|work| work.wait())?;
    } else if ctx.rank() == 1 {
        let mut works = Vec::new();
        for i in 0..MESSAGES {
            match rng.below(2) {
                0 => works.push((i, group.recv_start(0, ctx.deadline())?)),
                _ => check_eq!(group.recv(0, ctx.deadline())?.to_vec::<i32>()?, [i]),
            }
        }
        for (i, work) in works.into_iter().rev() {
            check_eq!(work.wait()?.to_vec::<i32>()?, [i]);
        }
    }
    group.barrier(ctx.deadline())?;
    done()
}

fn misuse(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    for peer in [ctx.rank(), ctx.world(), usize::MAX] {
        let outcomes = [
            group.recv_start(peer, Duration::ZERO).map(drop),
            group.send_start(&number(0)?, peer, Duration::ZERO).map(drop),
        ];
        for outcome in outcomes {
            check!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{peer}: {outcome:?}");
        }
    }
    group.barrier(ctx.deadline())?;
    done()
}
