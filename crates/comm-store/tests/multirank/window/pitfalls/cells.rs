//! Cells that two ranks, or two rounds, use in ways that do not go together.

use comm_core::Error;
use comm_store::window::WindowSpec;
use comm_store::{Cmp, NotifyOp};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq};

use super::super::case;
use crate::support::{SHORT, Scene, gave_up, left, others, right};

pub fn cases() -> Vec<Case> {
    vec![
        case("pitfall/-/-/swapped-rows", swapped_rows),
        case("pitfall/-/-/set-zero-as-reset", set_zero),
        case("pitfall/-/-/set-and-add", set_and_add),
        case("pitfall/-/-/eq-on-a-counter", eq_on_a_counter),
        case("pitfall/-/-/tag-zero", tag_zero),
        case("pitfall/-/-/negative-left", negative_left),
    ]
}

const A: usize = 0;
const B: usize = 1;

/// Notify writes my row of the peer, wait reads the peer's row of mine. The other way round nobody hears anybody, and the
/// error says in which cell.
fn swapped_rows(ctx: &RankCtx) -> RankResult {
    let (n, me) = (ctx.world(), ctx.rank());
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(3 * n))?;
    let window = &scene.window;
    let (there, here, fine) =
        (window.signals(&[n])?, window.signals_from(n, &[n])?, window.signals_from(2 * n, &[n])?);
    let src = right(ctx);

    // The peer's row of the peer.
    for peer in others(ctx) {
        there.notify(peer, &[peer], 1, NotifyOp::Add)?;
    }
    scene.all()?;
    let vain = gave_up(there.wait(&[src], Cmp::Ge, 1, Some(src), SHORT))?;
    check_eq!((vain.seen, vain.expected, vain.missing), (0, 1, vec![src]));
    check_eq!(vain.what, format!("signal [{src}] >= 1"));
    check_eq!(there.read(&[me])?, n as i32 - 1, "that is where they went");

    // My row of mine.
    for peer in others(ctx) {
        here.notify(peer, &[me], 1, NotifyOp::Add)?;
    }
    scene.all()?;
    let vain = gave_up(here.wait(&[me], Cmp::Ge, 1, Some(src), SHORT))?;
    check_eq!((vain.seen, vain.expected), (0, 1));
    check_eq!(vain.what, format!("signal [{me}] >= 1"));
    check_eq!(here.wait(&[src], Cmp::Ge, 1, Some(src), scene.by)?, 1, "and there they are");

    for peer in others(ctx) {
        fine.notify(peer, &[me], 1, NotifyOp::Add)?;
    }
    for src in others(ctx) {
        check_eq!(fine.wait(&[src], Cmp::Ge, 1, Some(src), scene.by)?, 1);
    }
    scene.end()
}

/// A fast peer has sent its next credit before this rank clears the cell: a stored 0 wipes that out, taking 1 away does not.
fn set_zero(ctx: &RankCtx) -> RankResult {
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(2))?;
    let signals = scene.window.signals(&[2])?;
    let (stored, taken) = (&[0], &[1]);
    match ctx.rank() {
        0 => {
            for cell in [stored, taken] {
                check_eq!(signals.wait(cell, Cmp::Ge, 1, Some(1), scene.by)?, 1);
            }
            scene.script.open(A)?;
            // The peer is fast.
            scene.script.pass(B)?;
            signals.write(stored, 0)?;
            signals.notify(0, taken, -1, NotifyOp::Add)?;
            let wiped = gave_up(signals.wait(stored, Cmp::Ge, 1, Some(1), SHORT))?;
            check_eq!((wiped.seen, wiped.expected, wiped.missing), (0, 1, vec![1]));
            check_eq!(signals.wait(taken, Cmp::Ge, 1, Some(1), SHORT)?, 1, "the credit is still there");
        }
        1 => {
            let credit = |cell| signals.notify(0, cell, 1, NotifyOp::Add);
            credit(stored).and(credit(taken))?;
            scene.script.pass(A)?;
            credit(stored).and(credit(taken))?;
            scene.script.open(B)?;
        }
        _ => {}
    }
    scene.end()
}

/// Of two who add both count; of one who adds and one who sets after it only the latter does.
fn set_and_add(ctx: &RankCtx) -> RankResult {
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(2))?;
    let signals = scene.window.signals(&[2])?;
    let (mixed, added) = (&[0], &[1]);
    let last = ctx.world() - 1;
    if ctx.rank() == 1 {
        signals.notify(0, mixed, 1, NotifyOp::Add)?;
        signals.notify(0, added, 1, NotifyOp::Add)?;
        scene.script.open(A)?;
    }
    // Of two ranks, it is the other one itself.
    let second = if last == 1 { 0 } else { last };
    if ctx.rank() == second {
        scene.script.pass(A)?;
        signals.notify(0, mixed, 1, NotifyOp::Set)?;
        signals.notify(0, added, 1, NotifyOp::Add)?;
        scene.script.open(B)?;
    }
    if ctx.rank() == 0 {
        scene.script.pass(B)?;
        let lost = gave_up(signals.wait(mixed, Cmp::Ge, 2, None, SHORT))?;
        check_eq!((lost.seen, lost.expected), (1, 2), "one of them was overwritten");
        check_eq!(signals.wait(added, Cmp::Ge, 2, None, SHORT)?, 2);
    }
    scene.end()
}

/// A fast peer pushes a counter past the number that is waited for.
fn eq_on_a_counter(ctx: &RankCtx) -> RankResult {
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(1))?;
    let signals = scene.window.signals(&[1])?;
    match ctx.rank() {
        0 => {
            scene.script.pass(A)?;
            let passed = gave_up(signals.wait(&[0], Cmp::Eq, 1, Some(1), SHORT))?;
            check_eq!((passed.seen, passed.expected, passed.missing), (2, 1, vec![1]));
            check_eq!(signals.wait(&[0], Cmp::Ge, 1, Some(1), SHORT)?, 2);
            scene.script.open(B)?;
        }
        1 => {
            (0..2).try_for_each(|_| signals.notify(0, &[0], 1, NotifyOp::Add))?;
            scene.script.open(A)?;
            scene.script.pass(B)?;
        }
        _ => {}
    }
    scene.end()
}

/// A tag that is 0 looks like no tag.
fn tag_zero(ctx: &RankCtx) -> RankResult {
    let n = ctx.world();
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(2))?;
    let signals = scene.window.signals(&[2])?;
    let (from_zero, from_one) = (&[0], &[1]);
    let (tag, from) = (ctx.rank() as i32, left(ctx));
    signals.notify(right(ctx), from_zero, tag, NotifyOp::Set)?;
    signals.notify(right(ctx), from_one, tag + 1, NotifyOp::Set)?;
    let outcome = signals.wait(from_zero, Cmp::Ge, 1, Some(from), SHORT);
    if from == 0 {
        let vain = gave_up(outcome)?;
        check_eq!((vain.seen, vain.expected, vain.missing), (0, 1, vec![0]));
    } else {
        check_eq!(outcome?, from as i32);
    }
    let out = signals.wait(from_one, Cmp::Ge, 1, Some(from), scene.by)?;
    check_eq!(out, ((ctx.rank() + n - 1) % n) as i32 + 1, "((r - 1) mod P) + 1");
    scene.end()
}

/// `(r - 1) % P` is no rank where r is 0: it is refused, and `(r + P - 1) % P` is the one that is meant.
fn negative_left(ctx: &RankCtx) -> RankResult {
    let (n, me) = (ctx.world(), ctx.rank());
    let scene = Scene::new(ctx, WindowSpec::bytes(0).signals(1))?;
    let signals = scene.window.signals(&[1])?;
    let signed = ((me as isize - 1) % n as isize) as usize;
    if me == 0 {
        let outcome = signals.notify(signed, &[0], 1, NotifyOp::Add);
        check!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
        let outcome = signals.wait(&[0], Cmp::Ge, 1, Some(signed), SHORT);
        check!(matches!(outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
    } else {
        check_eq!(signed, left(ctx));
    }
    scene.all()?;
    check_eq!(signals.read(&[0])?, 0, "nothing was sent");
    scene.all()?;
    signals.notify((me + n - 1) % n, &[0], 1, NotifyOp::Add)?;
    check_eq!(signals.wait(&[0], Cmp::Ge, 1, Some(right(ctx)), scene.by)?, 1);
    scene.end()
}
