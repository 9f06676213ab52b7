//! barrier: nobody leaves before the last has entered.

use std::time::Duration;

use comm_core::team::Team;
use comm_store::window::WindowSpec;
use comm_store::{NotifyOp, Window};
use comm_testkit::{Case, RankCtx, RankResult, check, done};

use super::case;
use crate::support::group;

pub fn cases() -> Vec<Case> {
    vec![case("barrier/-/-/1000-rounds", rounds)]
}

fn rounds(ctx: &RankCtx) -> RankResult {
    let group = group(ctx, "g")?;
    // Signals of another team say who has entered.
    let team = Team::join(&ctx.name("signals"), ctx.rank(), ctx.world(), ctx.deadline())?;
    let window = Window::alloc(&team, WindowSpec::bytes(0).signals(ctx.world()), ctx.deadline())?;
    let entered = window.signals(&[ctx.world()])?;
    let mut rng = ctx.rng();
    for round in 1..=1000 {
        match rng.below(16) {
            0 => std::thread::sleep(Duration::from_micros(rng.below(500))),
            1..6 => (0..rng.below(2000)).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
        for peer in 0..ctx.world() {
            entered.notify(peer, &[ctx.rank()], round, NotifyOp::Set)?;
        }
        group.barrier(ctx.deadline())?;
        for rank in 0..ctx.world() {
            let seen = entered.read(&[rank])?;
            check!(seen >= round, "left barrier {round}, but rank {rank} has entered {seen} only");
        }
    }
    done()
}
