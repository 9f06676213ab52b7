//! Segments that come to be while peers are linked.

use std::time::Instant;

use comm_core::shm::Block;

use super::*;

pub fn cases() -> Vec<Case> {
    vec![
        Case::ranks("rendezvous", "segment/-/-/grows-while-linked", grows),
        Case::ranks("rendezvous", "segment/-/-/that-never-comes", never_comes),
    ]
}

/// Rank 0 allocates until it has had to make new segments; the others find every block in what was pushed to them.
fn grows(ctx: &RankCtx) -> RankResult {
    const LEN: u64 = 24 << 20;
    let team = Team::join(&ctx.name("s"), ctx.rank(), ctx.world(), ctx.deadline())?;
    let mut blocks: Vec<Block> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..9u8 {
        let mut board = [0; 64];
        if ctx.rank() == 0 {
            let block = team.hub().tensors().alloc(LEN)?;
            block.copy_in(LEN - 64, &[round + 1; 64])?;
            board[..8].copy_from_slice(&block.segment().id().to_ne_bytes());
            board[8..16].copy_from_slice(&(block.offset() + LEN - 64).to_ne_bytes());
            blocks.push(block);
        }
        let said = team.exchange(&board, ctx.deadline())?;
        let number = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| said[0][at + i]));
        let (id, offset) = (number(0), number(8));
        seen.insert(id);
        let mut op = team.begin("look", ctx.deadline())?;
        let found = op.peer_segment(0, id);
        op.finish();
        if team.shares_process(0) {
            check!(matches!(found, Err(Error::BadPeer { .. })), "its own process pushes nothing to it");
        } else {
            let segment = found?;
            let mut bytes = [0; 64];
            segment.copy_out(offset, &mut bytes)?;
            check_eq!(bytes, [round + 1; 64], "round {round}");
            check!(segment.copy_in(offset, &bytes).is_err(), "peers may only read it");
        }
        team.barrier(ctx.deadline())?;
    }
    check!(seen.len() >= 3, "segments {seen:?}: it has not grown often enough to show anything");
    drop(blocks);
    if ctx.rank() == 0 {
        team.hub().tensors().trim();
    }
    done()
}

fn never_comes(ctx: &RankCtx) -> RankResult {
    let patience = Duration::from_millis(150);
    let team = Team::join(&ctx.name("n"), ctx.rank(), ctx.world(), ctx.deadline())?;
    let Some(other) = (0..ctx.world()).find(|&rank| !team.shares_process(rank)) else {
        return team.barrier(ctx.deadline()).map(|()| serde_json::Value::Null).map_err(Into::into);
    };
    let started = Instant::now();
    let mut op = team.begin("look", patience)?;
    let outcome = op.peer_segment(other, u64::MAX);
    let error = op.settle(outcome, false).unwrap_err();
    // The first to give up ends the team for all.
    check!(matches!(error, Error::Timeout { .. }), "{error}");
    check!(error.to_string().contains("a segment of rank"), "{error}");
    check!(started.elapsed() < ctx.deadline().remaining());
    check!(matches!(team.barrier(ctx.deadline()), Err(Error::Timeout { .. })));
    done()
}
