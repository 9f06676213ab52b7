//! What operations cost is what is foretold, and signals leave the bytes alone.

use comm_core::tensor::{DType, Tensor};
use comm_store::window::{Await, Cost, Notify, Operation, StoreOp, Sub, WindowSpec, cost};
use comm_store::{Cmp, NotifyOp, Window};
use comm_testkit::values::{is_poison, poison};
use comm_testkit::{Case, LauncherCtx, Layout, Outcome, Program, RankCtx, RankResult, check, check_eq, done};

use super::arrival::{WAYS, by_hand};
use super::{SUITE, case};
use crate::support::{left, right, team};

pub const PROGRAM: Program = Program { name: "window-costs", run: all };

pub fn cases() -> Vec<Case> {
    let sweep = Case::launcher(SUITE, "costs/-/-/from-2-to-8-ranks", from_two_to_eight)
        .worlds(|world| world == 4)
        .layouts(&[Layout::Threads]);
    vec![case("costs/-/-/as-foretold", all), sweep]
}

fn from_two_to_eight(ctx: &LauncherCtx) -> RankResult {
    for world in 2..=8 {
        for report in ctx.launch_on(PROGRAM.name, world, Layout::Threads).run(ctx.deadline())? {
            check!(report.outcome.is_ok(), "rank {} of {world}: {}", report.rank, report.outcome);
            check_eq!(report.outcome, Outcome::Ok(serde_json::json!(world)));
        }
    }
    done()
}

const BYTES: usize = 4096;

fn all(ctx: &RankCtx) -> RankResult {
    let (n, me) = (ctx.world(), ctx.rank());
    let peers = n as u64 - 1;
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, WindowSpec::bytes(2 * BYTES).signals(3 * n), ctx.deadline())?;
    let [signals, hand, ring] = [0, n, 2 * n].map(|first| window.signals_from(first, &[n]));
    let (signals, hand, ring) = (signals?, hand?, ring?);
    check_eq!(window.costs(), Cost::default(), "to make it costs nothing");
    let mut last = window.costs();
    let mut spent = || {
        let now = window.costs();
        let spent = now - last;
        last = now;
        spent
    };

    // Signals, and the bytes that they leave alone.
    window.write_bytes(me, 0, &poison(2 * BYTES))?;
    check_eq!(spent(), Cost::default(), "one's own bytes are free");
    for _ in 0..5 {
        signals.barrier(ctx.deadline())?;
        check_eq!(spent(), cost(Operation::Barrier, n, 0));
    }
    check_eq!(cost(Operation::Barrier, n, 0), Cost { notifies: peers, waits: peers, rounds: 1, bytes: 0 });
    by_hand(ctx, &hand, WAYS[0])?;
    check_eq!(spent(), Cost { rounds: 0, ..cost(Operation::Barrier, n, 0) }, "the same by hand");
    let mut bytes = vec![0; 2 * BYTES];
    window.read_bytes(me, 0, &mut bytes)?;
    check!(is_poison(&bytes), "a barrier writes into no bytes");
    ring.notify(right(ctx), &[me], 1, NotifyOp::Add)?;
    check_eq!(spent(), cost(Operation::Notify, n, 0));
    ring.wait(&[left(ctx)], Cmp::Ge, 1, Some(left(ctx)), ctx.deadline())?;
    check_eq!(spent(), cost(Operation::Wait, n, 0));
    ring.notify(me, &[me], 1, NotifyOp::Set)?;
    check!(!ring.test(&[left(ctx)], Cmp::Ge, 2)? && ring.read(&[me])? == 1);
    check_eq!(spent(), Cost::default(), "to tell oneself, and to look, is free");

    // Payloads.
    team.barrier(ctx.deadline())?;
    let (mine, theirs) = (window.view(0, &[BYTES], DType::U8)?, window.view(BYTES, &[BYTES], DType::U8)?);
    for bytes in [1u64, 64, 1000, BYTES as u64] {
        let len = bytes as usize;
        mine.remote_load(right(ctx), &[0], &[len])?;
        check_eq!(spent(), cost(Operation::RemoteLoad, n, bytes));
        mine.remote_load(me, &[0], &[len])?;
        check_eq!(spent(), Cost::default(), "from one's own part");
        let tensor = Tensor::from_slice(&[len], &vec![1u8; len])?;
        theirs.remote_store(&tensor, right(ctx), &[0], StoreOp::Set)?;
        check_eq!(spent(), cost(Operation::RemoteStore, n, bytes));
        theirs.remote_store(&tensor, right(ctx), &[0], StoreOp::Add)?;
        check_eq!(spent(), cost(Operation::RemoteStore, n, bytes), "to add is not dearer");
        let sub = Some(Sub { to: &[0], from: &[0], shape: &[len] });
        theirs.put(right(ctx), &mine, sub, StoreOp::Set, Some(Notify::add(&ring, &[me], 1)))?;
        check_eq!(spent(), cost(Operation::Put, n, bytes));
        theirs.put(right(ctx), &mine, sub, StoreOp::Set, None)?;
        check_eq!(spent(), Cost { notifies: 0, ..cost(Operation::Put, n, bytes) });
        // It is up already.
        let cell = [left(ctx)];
        let signal = Await::ge(&ring, &cell, 1).from(left(ctx)).by(ctx.deadline());
        mine.get(right(ctx), &theirs, sub, Some(signal))?;
        check_eq!(spent(), cost(Operation::Get, n, bytes));
    }
    let ragged = window.view(0, &[3, 5], DType::U8)?;
    ragged.remote_load_valid(right(ctx), &[2, 3], &[2, 4], &[1, 2])?;
    check_eq!(spent().bytes, 2, "of a ragged tile only what is read counts");
    team.barrier(ctx.deadline())?;
    Ok(serde_json::json!(n))
}
