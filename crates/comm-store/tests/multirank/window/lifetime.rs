//! How long the memory of a window lasts: as long as one rank has it, and no longer.

use std::time::{Duration, Instant};

use comm_core::Error;
use comm_core::shm::Block;
use comm_core::team::Team;
use comm_core::tensor::DType;
use comm_store::window::WindowSpec;
use comm_store::{Cmp, NotifyOp, Window};
use comm_testkit::values::poison;
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done, probe};

use super::case;
use crate::support::{Any, Script, eventually, others, team};

pub fn cases() -> Vec<Case> {
    vec![
        case("drop/-/-/last-one-frees", last_one_frees),
        case("drop/-/-/owner-first", owner_first),
        case("drop/-/-/200-windows", two_hundred),
        case("drop/-/-/refused-windows", refused),
        case("leave/-/-/at-once", leave_at_once),
        case("leave/-/-/with-windows-open", leave_open),
    ]
}

/// Blocks of windows in this process, all ranks being outside of everything.
fn blocks(ctx: &RankCtx, keep: &Team) -> Any<u64> {
    keep.barrier(ctx.deadline())?;
    let seen = keep.hub().windows().stats().blocks;
    keep.barrier(ctx.deadline())?;
    Ok(seen)
}

/// Waits, without any operation of any team, until this process has so many blocks.
fn until_blocks(team: &Team, expected: u64) -> Any<()> {
    let blocks = || team.hub().windows().stats().blocks;
    eventually("all blocks were given back", || blocks() == expected)
        .map_err(|e| format!("{e}: {} blocks, expected {expected}", blocks()).into())
}

/// Ranks drop their handles one after the other. As long as one has its own, the memory of all is there; then it goes,
/// although nobody does anything with the team any more.
fn last_one_frees(ctx: &RankCtx) -> RankResult {
    let script = Script::new(ctx)?;
    let keep = team(ctx, "keep")?;
    for last in 0..ctx.world() {
        let before = blocks(ctx, &keep)?;
        let mine = (0..ctx.world()).filter(|&rank| ctx.shares_process(rank)).count() as u64;
        let window = Window::alloc(&keep, WindowSpec::bytes(1000).signals(2).slots(1), ctx.deadline())?;
        check_eq!(blocks(ctx, &keep)?, before + mine);
        if ctx.rank() != last {
            drop(window);
            check!(blocks(ctx, &keep)? == before + mine, "freed while rank {last} has it");
        } else {
            check_eq!(blocks(ctx, &keep)?, before + mine);
            for peer in others(ctx) {
                window.write_bytes(peer, 0, &poison(1000))?;
            }
            // From here on nobody begins an operation.
            drop(window);
            script.open(last)?;
        }
        script.pass(last)?;
        until_blocks(&keep, before)?;
    }
    keep.barrier(ctx.deadline())?;
    done()
}

/// The owner lets go of the window first, and uses as much new memory as it had: what the others read is still what it
/// wrote.
fn owner_first(ctx: &RankCtx) -> RankResult {
    const BYTES: usize = 20_000;
    const SPENT: usize = 0;
    const READ: usize = 1;
    let script = Script::new(ctx)?;
    let keep = team(ctx, "keep")?;
    let before = blocks(ctx, &keep)?;
    let mut window = Some(Window::alloc(&keep, BYTES, ctx.deadline())?);
    let pattern: Vec<u8> = (0..BYTES).map(|i| (i * 7 % 251) as u8).collect();
    let write = |window: &Window| window.write_bytes(ctx.rank(), 0, &pattern);
    window.as_ref().map_or(Ok(()), write)?;
    keep.barrier(ctx.deadline())?;
    let mut spent: Vec<Block> = Vec::new();
    if ctx.rank() == 0 {
        window = None;
        for _ in 0..50 {
            let block = keep.hub().windows().alloc(BYTES as u64 + 64)?;
            block.copy_in(0, &poison(BYTES))?;
            spent.push(block);
        }
        script.open(SPENT)?;
    }
    script.pass(SPENT)?;
    if let Some(window) = &window {
        for _ in 0..20 {
            let mut seen = vec![0; BYTES];
            window.read_bytes(0, 0, &mut seen)?;
            check!(seen == pattern, "memory of a window was used for something else");
        }
    }
    keep.barrier(ctx.deadline())?;
    drop((window, spent));
    if ctx.rank() == 0 {
        script.open(READ)?;
    }
    script.pass(READ)?;
    until_blocks(&keep, before)?;
    keep.barrier(ctx.deadline())?;
    done()
}

#[derive(Debug, Clone, Copy)]
struct Held {
    blocks: u64,
    fds: usize,
    mappings: usize,
    threads: usize,
}

/// What this process holds while all ranks wait for each other; given a while to come down to `goal`, because the
/// reactor closes and frees when it comes to it.
fn held(ctx: &RankCtx, keep: &Team, goal: Option<Held>) -> Any<Held> {
    keep.barrier(ctx.deadline())?;
    let look = || -> Any<Held> {
        let blocks = keep.hub().windows().stats().blocks;
        let (fds, mappings) = (probe::fds()?, probe::mappings()?);
        Ok(Held { blocks, fds, mappings, threads: probe::threads()? })
    };
    let until = Instant::now() + Duration::from_secs(10);
    let mut seen = look()?;
    let above = |seen: Held| goal.is_some_and(|g| seen.blocks > g.blocks || seen.fds > g.fds);
    while above(seen) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
        seen = look()?;
    }
    keep.barrier(ctx.deadline())?;
    Ok(seen)
}

/// Heap memory and the stacks of others may be mapped piece by piece; what grew with the windows would be hundreds.
const SLACK: usize = 16;

/// The probes of the ranks beside this one have the directory open for a moment.
const PROBES: usize = 4;

fn nothing_grew(before: Held, after: Held) -> RankResult {
    check_eq!(after.blocks, before.blocks, "{before:?} then {after:?}");
    check!(after.fds <= before.fds + PROBES, "{before:?} then {after:?}");
    check!(after.mappings <= before.mappings + SLACK, "{before:?} then {after:?}");
    check!(after.threads <= before.threads, "{before:?} then {after:?}");
    done()
}

fn two_hundred(ctx: &RankCtx) -> RankResult {
    let keep = team(ctx, "keep")?;
    let some = |from: usize, to: usize| -> Any<()> {
        for n in from..to {
            let spec = WindowSpec::bytes(n * 37).signals(ctx.world()).slots(n % 3);
            let window = Window::alloc(&keep, spec, ctx.deadline())?;
            window.signals(&[ctx.world()])?.barrier(ctx.deadline())?;
        }
        Ok(())
    };
    let start = blocks(ctx, &keep)?;
    some(0, 10)?;
    until_blocks(&keep, start)?;
    let before = held(ctx, &keep, None)?;
    some(10, 210)?;
    nothing_grew(before, held(ctx, &keep, Some(before))?)
}

/// What was never made leaves nothing either.
fn refused(ctx: &RankCtx) -> RankResult {
    let keep = team(ctx, "keep")?;
    let before = blocks(ctx, &keep)?;
    for n in 0..20 {
        let bytes = if ctx.rank() == 0 { n + 1 } else { n };
        check!(matches!(Window::alloc(&keep, bytes, ctx.deadline()), Err(Error::Mismatch { .. })));
    }
    keep.barrier(ctx.deadline())?;
    until_blocks(&keep, before)?;
    keep.barrier(ctx.deadline())?;
    done()
}

/// Nobody leaves before all have what they need of him, and windows of teams that are over go too.
fn leave_at_once(ctx: &RankCtx) -> RankResult {
    let keep = team(ctx, "keep")?;
    let before = held(ctx, &keep, None)?;
    for round in 0..40 {
        let team = team(ctx, &format!("t{round}"))?;
        let windows = [1 << 16, 77].map(|n| {
            let spec = WindowSpec::bytes(n).signals(1).slots(1);
            Window::alloc(&team, spec, ctx.deadline())
        });
        for window in windows {
            window?;
        }
    }
    let after = held(ctx, &keep, Some(before))?;
    check_eq!(after.blocks, before.blocks, "{before:?} then {after:?}");
    done()
}

/// A rank leaves its team and keeps the window: to itself it is of no use any more, but the others still reach its part;
/// with the last handle the memory goes.
fn leave_open(ctx: &RankCtx) -> RankResult {
    const LEFT: usize = 0;
    const DROPPED: usize = 1;
    let script = Script::new(ctx)?;
    let keep = team(ctx, "keep")?;
    let before = blocks(ctx, &keep)?;
    let own = team(ctx, "own")?;
    let window = Window::alloc(&own, WindowSpec::bytes(64).signals(1), ctx.deadline())?;
    window.view(0, &[1], DType::I32)?.write(&[0], 70 + ctx.rank() as i32)?;
    own.barrier(ctx.deadline())?;
    let leaver = ctx.world() - 1;
    if ctx.rank() == leaver {
        drop(own);
        let signals = window.signals(&[1])?;
        let refused = [
            signals.notify(0, &[0], 1, NotifyOp::Add).err(),
            signals.wait(&[0], Cmp::Ge, 1, None, ctx.deadline()).err(),
            signals.wait(&[0], Cmp::Ge, 1, Some(0), ctx.deadline()).err(),
            window.view(0, &[1], DType::I32)?.remote_load(0, &[0], &[1]).err(),
            window.reset(ctx.deadline()).err(),
        ];
        for error in refused {
            check!(matches!(error, Some(Error::PeerLeft { rank, .. }) if rank == leaver), "{error:?}");
        }
        script.open(LEFT)?;
        script.pass(DROPPED)?;
        drop(window);
    } else {
        script.pass(LEFT)?;
        let seen = window.view(0, &[1], DType::I32)?.remote_load(leaver, &[0], &[1])?;
        check_eq!(seen.as_slice::<i32>()?, [70 + leaver as i32]);
        match window.reset(ctx.deadline()) {
            Err(Error::PeerLeft { rank, .. }) => check_eq!(rank, leaver),
            other => return Err(format!("{other:?}").into()),
        }
        drop((window, own));
        script.open(DROPPED)?;
    }
    keep.barrier(ctx.deadline())?;
    until_blocks(&keep, before)?;
    keep.barrier(ctx.deadline())?;
    done()
}
