//! What a watchdog is shown of a barrier that does not end.

use comm_core::team::{Team, snapshots};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

pub fn cases() -> Vec<Case> {
    vec![Case::ranks("rendezvous", "snapshot/-/-/stuck-barrier", stuck)]
}

fn stuck(ctx: &RankCtx) -> RankResult {
    let name = ctx.name("stuck");
    let team = Team::join(&name, ctx.rank(), ctx.world(), ctx.deadline())?;
    let late = ctx.world() - 1;
    for round in 0..3u64 {
        // The join was the first operation.
        let seq = round + 2;
        if ctx.rank() != late {
            team.barrier(ctx.deadline())?;
            continue;
        }
        let stuck = loop {
            let seen = team.snapshot();
            let in_vain = |rank: usize| seen.ranks[rank].wait.as_ref().is_some_and(|w| w.rank == Some(late));
            // A rank that has not woken from the last barrier still shows that one.
            let waits = |rank: usize| seen.ranks[rank].seq == seq && in_vain(rank);
            if (0..late).all(waits) {
                break seen;
            }
            check!(!ctx.deadline().has_passed(), "the others do not wait: {seen:?}");
            std::thread::yield_now();
        };
        check_eq!(stuck.name, name);
        check!(stuck.ended.is_none());
        for (rank, seen) in stuck.ranks.iter().enumerate() {
            check_eq!(seen.rank, rank);
            check_eq!(Some(seen.process), team.process_of(rank));
            check!(seen.pid.is_some(), "rank {rank}");
            check_eq!(seen.pid == Some(std::process::id()), ctx.shares_process(rank));
            check!(!seen.left);
            if rank == late {
                check_eq!((seen.seq, seen.inside), (seq - 1, false));
                check!(seen.wait.is_none());
                continue;
            }
            check_eq!((seen.op.as_str(), seen.seq, seen.inside), ("barrier", seq, true));
            let wait = seen.wait.as_ref().ok_or("it does not wait")?;
            // What was last seen of the late rank is its last barrier; the join is counted elsewhere.
            let last = if round == 0 { 0 } else { seq - 1 };
            check_eq!((wait.rank, wait.seen, wait.expected), (Some(late), last as i64, seq as i64));
            check!(wait.what.contains("barrier"), "{}", wait.what);
            let line = seen.to_string();
            for part in ["barrier", &format!("waits for rank {late}"), &format!("expected {seq}")] {
                check!(line.contains(part), "{part:?} is not in {line:?}");
            }
        }
        let all = snapshots();
        check!(all.iter().any(|t| t.name == name && t.ranks[0].wait.is_some()), "{all:?}");
        team.barrier(ctx.deadline())?;
    }
    done()
}
