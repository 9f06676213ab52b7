//! What becomes of an exchange of which one half cannot be: nothing is sent in vain, and nothing that has arrived is lost.

use std::time::Duration;

use comm_core::Error;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_group::ThreadGroup;
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use crate::support::{Any, group};

const SHORT: Duration = Duration::from_millis(50);

pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&RankCtx) -> RankResult| {
        Case::ranks("collective", format!("exchange/-/-/{name}"), run).backend("same-device")
    };
    vec![
        case("bad-arguments", bad_arguments).worlds(|w| w > 1),
        case("sent-alone", sent_alone).worlds(|w| w > 1),
        case("received-alone", received_alone).worlds(|w| w > 1),
        case("neither", neither).worlds(|w| w > 1),
    ]
}

fn numbers(values: &[i32]) -> Any<Tensor> {
    Ok(Tensor::from_slice(&[values.len()], values)?)
}

fn bad_arguments(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    if ctx.rank() == 0 {
        for bad in [0, ctx.world(), usize::MAX] {
            for (to, from) in [(1, bad), (bad, 1), (bad, bad)] {
                let outcome = group.exchange(&numbers(&[1])?, to, from, ctx.deadline());
                check!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{to}, {from}: {outcome:?}");
            }
        }
    }
    group.barrier(ctx.deadline())?;
    if ctx.rank() == 1 {
        let outcome = group.recv(0, SHORT);
        check!(matches!(outcome, Err(Error::Timeout { .. })), "nothing was sent: {outcome:?}");
    }
    group.barrier(ctx.deadline())?;
    done()
}

/// Exchanges with rank 1, until the half that rank 1 takes part in comes about. It may be late for any deadline.
fn until_half(group: &ThreadGroup, t: &Tensor, half_left: &str, other: &str) -> Any<String> {
    let mut deadline = SHORT;
    loop {
        let Err(Error::Timeout { what, missing, .. }) = group.exchange(t, 1, 1, deadline) else {
            return Err("rank 1 does one half alone".into());
        };
        check_eq!(missing.iter().map(|missing| missing.rank).collect::<Vec<_>>(), [1]);
        check!(what.contains(half_left), "{what}");
        if !what.contains(other) {
            return Ok(what);
        }
        deadline *= 2;
    }
}

fn sent_alone(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    match ctx.rank() {
        0 => drop(until_half(&group, &numbers(&[7])?, "recv:", "send:")?),
        1 => check_eq!(group.recv(0, ctx.deadline())?.to_vec::<i32>()?, [7]),
        _ => {}
    }
    group.barrier(ctx.deadline())?;
    done()
}

/// What rank 0 has received comes next, whichever way it receives: before what was sent later, and once.
fn received_alone(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    for round in 0..3 {
        match ctx.rank() {
            0 => {
                drop(until_half(&group, &numbers(&[7])?, "send:", "recv:")?);
                group.barrier(ctx.deadline())?;
                match round {
                    0 => check_eq!(group.recv(1, SHORT)?.to_vec::<i32>()?, [0, 5]),
                    1 => {
                        let (from, got) = group.recv_any(SHORT)?;
                        check_eq!((from, got.to_vec::<i32>()?), (1, vec![1, 5]));
                    }
                    _ => {
                        let mut small = TensorBuf::zeros(&[1], DType::I32)?;
                        let refused = group.recv_into(1, &mut small, SHORT);
                        check!(matches!(refused, Err(Error::Mismatch { rank: 1, .. })), "{refused:?}");
                        let mut room = TensorBuf::zeros(&[2], DType::I32)?;
                        group.recv_into(1, &mut room, SHORT)?;
                        check_eq!(room.as_slice::<i32>()?, [2, 5]);
                    }
                }
                check_eq!(group.recv(1, ctx.deadline())?.to_vec::<i32>()?, [round, 6]);
            }
            1 => {
                group.send(&numbers(&[round, 5])?, 0, ctx.deadline())?;
                group.barrier(ctx.deadline())?;
                group.send(&numbers(&[round, 6])?, 0, ctx.deadline())?;
            }
            _ => group.barrier(ctx.deadline())?,
        }
        group.barrier(ctx.deadline())?;
    }
    done()
}

fn neither(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    if ctx.rank() == 0 {
        let from = ctx.world() - 1;
        let outcome = group.exchange(&numbers(&[7])?, 1, from, SHORT);
        let Err(Error::Timeout { what, missing, .. }) = outcome else {
            return Err(format!("{outcome:?}").into());
        };
        check_eq!(what, format!("recv: a message of rank {from}; send: rank 1 to take the message"));
        let mut expected = vec![from, 1];
        expected.dedup();
        check_eq!(missing.iter().map(|missing| missing.rank).collect::<Vec<_>>(), expected);
    }
    group.barrier(ctx.deadline())?;
    done()
}
