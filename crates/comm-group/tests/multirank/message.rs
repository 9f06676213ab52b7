//! Messages from rank to rank: no third rank takes part, and a time-out withdraws a message and nothing else. What faults do to
//! them is in `fault`.

use std::time::Duration;

use comm_core::Error;
use comm_core::team::Team;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_group::ThreadGroup;
use comm_store::window::WindowSpec;
use comm_store::{Cmp, NotifyOp, Window};
use comm_testkit::values::random_elements;
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use crate::support::{Any, Place, bytes_of, group, tensor};

const SOON: Duration = Duration::from_millis(100);

pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&RankCtx) -> RankResult| {
        Case::ranks("collective", name, run).backend("same-device")
    };
    vec![
        case("send/-/-/sizes", sizes),
        case("send/-/-/ring", ring),
        case("send/-/-/in-order", in_order),
        case("send/-/-/withdrawn", withdrawn),
        case("send/-/-/mismatch", mismatch),
        case("send/-/-/misuse", misuse),
        case("recv_any/-/-/each-once", any),
        case("recv_any/-/-/timeout", nobody),
        case("recv/-/-/left", left),
        case("send/-/-/behind-another-thread", behind),
        case("send/-/-/between-collectives", between),
    ]
}

fn of(ctx: &RankCtx, round: u64, rank: usize, n: usize) -> Vec<u8> {
    random_elements(&mut ctx.common_rng().fork(round).fork(rank as u64), DType::U8, n)
}

/// Rank 0 to rank 1 and back; the others do nothing.
fn sizes(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    if ctx.rank() > 1 {
        return done();
    }
    let other = 1 - ctx.rank();
    for (round, n) in [0usize, 1, 511, 512, 513, 5000, 1 << 20].into_iter().enumerate() {
        for place in [Place::Heap, Place::Arena] {
            let sender = round % 2;
            if ctx.rank() == sender {
                let t = tensor(&group, place, &[n], DType::U8, &of(ctx, round as u64, sender, n))?;
                group.send(&t, other, ctx.deadline())?;
            } else {
                let got = group.recv(other, ctx.deadline())?;
                check_eq!(got.shape(), [n]);
                check!(bytes_of(&got)? == of(ctx, round as u64, sender, n), "{n} bytes, {place:?}");
            }
        }
    }
    let turned = Tensor::from_slice(&[2, 3], &[1i32, 2, 3, 4, 5, 6])?.transpose(0, 1)?;
    if ctx.rank() == 0 {
        group.send(&turned, 1, ctx.deadline())?;
        let scalar = group.recv(1, ctx.deadline())?;
        check_eq!((scalar.shape(), scalar.to_vec::<f64>()?), (&[][..], vec![0.5]));
    } else {
        let got = group.recv(0, ctx.deadline())?;
        check_eq!((got.shape(), got.to_vec::<i32>()?), (&[3, 2][..], vec![1, 4, 2, 5, 3, 6]));
        let mut columns = TensorBuf::zeros(&[], DType::F64)?;
        columns.fill(0.5f64)?;
        group.send(&columns.freeze(), 0, ctx.deadline())?;
    }
    done()
}

fn ring(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let n = ctx.world();
    let (right, left) = ((ctx.rank() + 1) % n, (ctx.rank() + n - 1) % n);
    for round in 0..60u64 {
        let len = [3usize, 600, 100_000][round as usize % 3];
        let mine = Tensor::from_slice(&[len], &of(ctx, round, ctx.rank(), len))?;
        let got = group.exchange(&mine, right, left, ctx.deadline())?;
        check!(bytes_of(&got)? == of(ctx, round, left, len), "round {round}");
    }
    done()
}

fn in_order(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    if ctx.rank() == 0 {
        let sent: Vec<_> = (0..50i32)
            .flat_map(|i| (1..ctx.world()).map(move |to| (i, to)))
            .map(|(i, to)| {
                group.send_start(&Tensor::from_slice(&[1], &[100 * i + to as i32])?, to, ctx.deadline())
            })
            .collect::<Result<_, _>>()?;
        for work in sent {
            work.wait()?;
        }
    } else {
        for i in 0..50i32 {
            check_eq!(group.recv(0, ctx.deadline())?.to_vec::<i32>()?, [100 * i + ctx.rank() as i32]);
        }
    }
    done()
}

/// What says, outside of the group, that it is time.
fn gate(ctx: &RankCtx) -> Any<(Team, Window)> {
    let team = Team::join(&ctx.name("gate"), ctx.rank(), ctx.world(), ctx.deadline())?;
    let window = Window::alloc(&team, WindowSpec::bytes(0).signals(1), ctx.deadline())?;
    Ok((team, window))
}

fn withdrawn(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let (_team, window) = gate(ctx)?;
    let gate = window.signals(&[1])?;
    for len in [4usize, 10_000] {
        match ctx.rank() {
            0 => {
                let t = tensor(&group, Place::Heap, &[len], DType::U8, &vec![7; len])?;
                match group.send(&t, 1, SOON) {
                    Err(Error::Timeout { missing, .. }) => check_eq!(missing[0].rank, 1),
                    other => return Err(format!("{other:?}").into()),
                }
                gate.notify(1, &[0], 1, NotifyOp::Add)?;
                let t = tensor(&group, Place::Heap, &[len], DType::U8, &vec![8; len])?;
                group.send(&t, 1, ctx.deadline())?;
            }
            1 => {
                gate.wait(&[0], Cmp::Ge, 1, Some(0), ctx.deadline())?;
                gate.notify(1, &[0], -1, NotifyOp::Add)?;
                check!(bytes_of(&group.recv(0, ctx.deadline())?)? == vec![8; len], "the first was withdrawn");
                match group.recv(0, SOON) {
                    Err(Error::Timeout { missing, .. }) => check_eq!(missing[0].rank, 0),
                    other => return Err(format!("{other:?}").into()),
                }
            }
            _ => {}
        }
        group.barrier(ctx.deadline())?;
    }
    done()
}

fn mismatch(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let t = Tensor::from_slice(&[2, 2], &[1i16, 2, 3, 4])?;
    if ctx.rank() == 0 {
        let refused = group.send(&t, 1, ctx.deadline());
        check!(matches!(refused, Err(Error::Mismatch { rank: 1, field: "message", .. })), "{refused:?}");
        group.send(&t, 1, ctx.deadline())?;
    } else if ctx.rank() == 1 {
        let mut other = TensorBuf::zeros(&[4], DType::I16)?;
        let refused = group.recv_into(0, &mut other, ctx.deadline());
        check!(matches!(refused, Err(Error::Mismatch { rank: 0, field: "message", .. })), "{refused:?}");
        let mut room = TensorBuf::zeros(&[2, 2], DType::I16)?;
        group.recv_into(0, &mut room, ctx.deadline())?;
        check_eq!(room.as_slice::<i16>()?, [1, 2, 3, 4]);
    }
    group.barrier(ctx.deadline())?;
    done()
}

fn misuse(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let t = Tensor::from_slice(&[1], &[1u8])?;
    for peer in [ctx.rank(), ctx.world(), usize::MAX] {
        check!(matches!(group.send(&t, peer, SOON), Err(Error::InvalidArgument { .. })), "{peer}");
        check!(matches!(group.recv(peer, SOON), Err(Error::InvalidArgument { .. })), "{peer}");
    }
    group.barrier(ctx.deadline())?;
    done()
}

fn any(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let rounds = 40i32;
    if ctx.rank() != 0 {
        for i in 0..rounds {
            group.send(&Tensor::from_slice(&[1], &[100 * i + ctx.rank() as i32])?, 0, ctx.deadline())?;
        }
        return done();
    }
    let mut heard = vec![0i32; ctx.world()];
    for _ in 0..rounds as usize * (ctx.world() - 1) {
        let (from, tensor) = group.recv_any(ctx.deadline())?;
        check_eq!(tensor.to_vec::<i32>()?, [100 * heard[from] + from as i32]);
        heard[from] += 1;
    }
    check!(heard[1..].iter().all(|&n| n == rounds), "{heard:?}");
    done()
}

fn nobody(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    if ctx.rank() == 0 {
        check!(matches!(group.recv_any(SOON), Err(Error::Timeout { .. })));
    }
    group.barrier(ctx.deadline())?;
    done()
}

fn left(ctx: &RankCtx) -> RankResult {
    let group: ThreadGroup = group(ctx, "g")?;
    if ctx.rank() == 0 {
        match group.recv(1, ctx.deadline()) {
            Err(Error::PeerLeft { rank: 1, .. }) => {}
            other => return Err(format!("{other:?}").into()),
        }
        match group.recv_any(ctx.deadline()) {
            Err(Error::PeerLeft { .. }) => {}
            other => return Err(format!("{other:?}").into()),
        }
    }
    done()
}

/// Messages and collectives by turns: nothing of one is taken for the other's.
fn between(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let n = ctx.world();
    for round in 0..100usize {
        let (from, to) = (round % n, (round + 1) % n);
        let value = (1000 * round + from) as i64;
        if ctx.rank() == from {
            group.send(&Tensor::from_slice(&[1], &[value])?, to, ctx.deadline())?;
        } else if ctx.rank() == to {
            check_eq!(group.recv(from, ctx.deadline())?.to_vec::<i64>()?, [value]);
        }
        let all = group.all_gather(&Tensor::from_slice(&[1], &[value])?, 0, ctx.deadline())?;
        check_eq!(all.to_vec::<i64>()?, vec![value; n]);
    }
    done()
}

/// Two threads of rank 0 that send to the same wait for each other, no longer than they want; the group goes on meanwhile.
fn behind(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    let t = Tensor::from_slice(&[3], &[1i32, 2, 3])?;
    if ctx.rank() == 0 && group.size() > 1 {
        std::thread::scope(|s| {
            let sending = s.spawn(|| group.send(&t, 1, ctx.deadline()));
            until_behind(|| group.send(&t, 1, SOON))?;
            group.barrier(ctx.deadline())?;
            let outcome = sending.join();
            check!(matches!(outcome, Ok(Ok(()))), "{outcome:?}");
            done()
        })
    } else {
        group.barrier(ctx.deadline())?;
        if ctx.rank() == 1 {
            group.recv(0, ctx.deadline())?;
        }
        done()
    }
}

/// Until the other thread is there, this one times out for want of a peer.
fn until_behind(mut attempt: impl FnMut() -> comm_core::Result<()>) -> RankResult {
    loop {
        match attempt() {
            Err(Error::Timeout { what, .. }) if what.contains("another thread") => break done(),
            Err(Error::Timeout { .. }) => {}
            other => break Err(format!("{other:?}").into()),
        }
    }
}
