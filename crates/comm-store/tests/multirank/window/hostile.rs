//! A peer that writes what it should not: an error at the worst, never a panic, a hang or a fault.

use comm_core::Error;
use comm_core::tensor::DType;
use comm_store::window::WindowSpec;
use comm_store::{Cmp, NotifyOp, Window};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use super::case;
use crate::support::{Any, SHORT, Scene, team};

pub fn cases() -> Vec<Case> {
    vec![
        case("hostile/-/-/credits", credits),
        case("hostile/-/-/credits-of-another", credits_of_another),
        case("hostile/-/-/while-waiting", while_waiting),
        case("hostile/-/-/bytes", bytes),
    ]
}

/// What rank 0 must make of a row that holds this when its owner comes to the barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Must {
    /// There are never so many.
    BadPeer,
    /// Nobody seems to have come.
    Timeout,
    /// It depends on when it looks.
    Either,
}

const BAD: [(i32, Must); 8] = [
    (77, Must::BadPeer),
    (2, Must::Either),
    (3, Must::BadPeer),
    (1 << 20, Must::BadPeer),
    // One more is none.
    (-1, Must::Either),
    (-3, Must::BadPeer),
    (i32::MIN, Must::BadPeer),
    // One more is the smallest.
    (i32::MAX, Must::BadPeer),
];

/// The last rank writes into its own row at rank 0, and then comes to the barrier as if nothing were.
fn credits(ctx: &RankCtx) -> RankResult {
    in_row(ctx, |world| world - 1)
}

/// It writes into the row of rank 0 itself, where nobody looks, or of an honest peer, whose credit is then wrong.
fn credits_of_another(ctx: &RankCtx) -> RankResult {
    in_row(ctx, |_| 0)?;
    in_row(ctx, |world| if world > 2 { 1 } else { 0 })
}

fn in_row(ctx: &RankCtx, row_of: fn(usize) -> usize) -> RankResult {
    let (last, row) = (ctx.world() - 1, row_of(ctx.world()));
    for (i, (value, must)) in BAD.into_iter().enumerate() {
        let team = team(ctx, &format!("t{row}-{i}"))?;
        let window = Window::alloc(&team, WindowSpec::bytes(0).signals(ctx.world()), ctx.deadline())?;
        let signals = window.signals(&[ctx.world()])?;
        if ctx.rank() == last {
            signals.notify(0, &[row], value, NotifyOp::Set)?;
        }
        // A barrier of the team is not fooled.
        team.barrier(ctx.deadline())?;
        let patience = if ctx.rank() == 0 { SHORT } else { SHORT * 100 };
        let outcome = signals.barrier(patience).map(drop);
        if ctx.rank() == 0 && row != 0 {
            judge(&outcome, must, row).map_err(|e| format!("{value}: {e}"))?;
        } else if row == 0 {
            check!(outcome.is_ok(), "nobody waits in one's own row: {outcome:?}");
        } else {
            let fine = matches!(
                outcome,
                Ok(()) | Err(Error::Aborted { by: 0, .. } | Error::Timeout { .. } | Error::PeerLeft { .. })
            );
            check!(fine, "{value}: {outcome:?}");
        }
    }
    done()
}

fn judge(outcome: &Result<(), Error>, must: Must, row: usize) -> Any<()> {
    let fine = match outcome {
        Err(Error::BadPeer { what }) => {
            check!(what.contains(&format!("credits of rank {row}")), "{what}");
            must != Must::Timeout
        }
        Err(Error::Timeout { missing, .. }) => {
            check!(missing.iter().any(|m| m.rank == row), "{missing:?}");
            must != Must::BadPeer
        }
        // Two are what there may be.
        Ok(()) => must == Must::Either,
        Err(_) => false,
    };
    check!(fine, "must be {must:?}: {outcome:?}");
    Ok(())
}

/// The cell changes wildly under a wait, a task and a barrier of another row; they end with what they wait for.
fn while_waiting(ctx: &RankCtx) -> RankResult {
    const GO: usize = 0;
    const LAST: i32 = -12_345;
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(1 + ctx.world()))?;
    let (cell, row) = (scene.window.signals(&[1])?, scene.window.signals_from(1, &[ctx.world()])?);
    if ctx.rank() == 1 {
        let mut rng = ctx.rng();
        for _ in 0..20_000 {
            let value = rng.next_u64() as i32;
            let op = if rng.below(2) == 0 { NotifyOp::Set } else { NotifyOp::Add };
            cell.notify(0, &[0], value, op)?;
        }
        cell.notify(0, &[0], LAST, NotifyOp::Set)?;
        scene.script.open(GO)?;
    }
    if ctx.rank() == 0 {
        let seen = cell.wait(&[0], Cmp::Lt, 0, Some(1), scene.by)?;
        check!(seen < 0, "{seen}");
        scene.script.pass(GO)?;
        check_eq!(cell.wait(&[0], Cmp::Eq, LAST, Some(1), scene.by)?, LAST);
    }
    for _ in 0..100 {
        row.barrier(scene.by)?;
    }
    scene.end()
}

/// Bytes are whatever a peer has written; a bool that is none is found out where it is read, and nothing outside of the
/// bytes can be written.
fn bytes(ctx: &RankCtx) -> RankResult {
    let scene = Scene::new(ctx, WindowSpec::bytes(64).signals(ctx.world()))?;
    let signals = scene.window.signals(&[ctx.world()])?;
    if ctx.rank() == 1 {
        scene.window.write_bytes(0, 0, &[0xff; 64])?;
        for (at, len) in [(64, 1), (0, 65), (usize::MAX, 2), (usize::MAX - 63, 64)] {
            let outcome = scene.window.write_bytes(0, at, &vec![0xff; len]);
            check!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{len} at {at}: {outcome:?}");
        }
    }
    signals.barrier(scene.by)?;
    if ctx.rank() == 0 {
        let bools = scene.window.view(0, &[64], DType::Bool)?;
        check!(bools.read::<bool>(&[3]).is_err());
        check!(bools.load_tile(&[0], &[64])?.as_slice::<bool>().is_err());
        check!(bools.remote_load(0, &[1], &[2])?.to_vec::<bool>().is_err());
        check!(scene.window.view(0, &[16], DType::F32)?.read::<f32>(&[0])?.is_nan());
    }
    signals.barrier(scene.by)?;
    scene.end()
}
