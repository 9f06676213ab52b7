//! barrier: nobody leaves before the last has entered.

use std::time::Duration;

use comm_core::team::Team;
use comm_store::Window;
use comm_testkit::{Case, RankCtx, RankResult, check, done};

use super::case;
use crate::support::group;

pub fn cases() -> Vec<Case> {
    vec![case("barrier/-/-/1000-rounds", rounds)]
}

fn rounds(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    // Cells of another team say who has entered.
    let team = Team::join(&ctx.name("cells"), ctx.rank(), ctx.world(), ctx.deadline())?;
    let entered = Window::alloc(&team, 1, 0, 0, ctx.deadline())?;
    let mut rng = ctx.rng();
    for round in 1..=1000u64 {
        match rng.below(16) {
            0 => std::thread::sleep(Duration::from_micros(rng.below(500))),
            1..6 => (0..rng.below(2000)).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
        entered.cell(ctx.rank(), 0)?.set(round, team.bell());
        group.barrier(ctx.deadline())?;
        for rank in 0..ctx.world() {
            let seen = entered.cell(rank, 0)?.load();
            check!(seen >= round, "left barrier {round}, but rank {rank} has entered {seen} only");
        }
    }
    done()
}
