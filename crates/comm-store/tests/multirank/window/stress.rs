//! Many barriers, with random delays, on several windows and in several threads.

use std::time::{Duration, Instant};

use comm_core::team::Team;
use comm_core::tensor::DType;
use comm_store::Window;
use comm_store::window::{Signals, View, WindowSpec};
use comm_testkit::values::SplitMix64;
use comm_testkit::{Case, RankCtx, RankResult, check_eq, done};

use super::long;
use crate::support::{Any, team};

pub fn cases() -> Vec<Case> {
    vec![
        long("stress/-/-/barriers", barriers),
        long("stress/-/-/two-teams-two-threads", two_teams),
        long("stress/-/-/two-windows-one-thread", two_windows),
    ]
}

/// Mostly nothing; sometimes the core is given away, or kept, or left for a while.
pub fn delay(rng: &mut SplitMix64) {
    match rng.below(200) {
        0 => std::thread::sleep(Duration::from_micros(rng.below(50))),
        1..=4 => std::thread::yield_now(),
        5..=8 => {
            let until = Instant::now() + Duration::from_micros(rng.below(10));
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
        _ => {}
    }
}

/// Two numbers of each rank's, written by turns: what was written for one barrier stays until all have passed the next.
struct Counted<'w> {
    signals: Signals<'w>,
    turns: View<'w>,
    round: i64,
}

impl<'w> Counted<'w> {
    fn spec(ranks: usize) -> WindowSpec {
        WindowSpec::bytes(16).signals(ranks)
    }

    fn new(window: &'w Window) -> Any<Counted<'w>> {
        let (signals, turns) = (window.signals(&[window.nranks()])?, window.view(0, &[2], DType::I64)?);
        Ok(Counted { signals, turns, round: 0 })
    }

    /// A barrier, after which a peer's number is of this round.
    fn step(&mut self, ctx: &RankCtx, rng: &mut SplitMix64) -> Any<()> {
        self.round += 1;
        let turn = [(self.round % 2) as usize];
        self.turns.write(&turn, self.round)?;
        delay(rng);
        self.signals.barrier(ctx.deadline())?;
        let peer = rng.below(ctx.world() as u64) as usize;
        let seen = self.turns.remote_load(peer, &turn, &[1])?;
        check_eq!(seen.as_slice::<i64>()?, [self.round], "rank {peer} passed too early, or was passed");
        Ok(())
    }

    /// When all have come, no credit is left.
    fn end(&self, team: &Team, ctx: &RankCtx) -> Any<()> {
        team.barrier(ctx.deadline())?;
        for cell in 0..ctx.world() {
            check_eq!(self.signals.read(&[cell])?, 0);
        }
        Ok(())
    }
}

pub fn barriers(ctx: &RankCtx) -> RankResult {
    let rounds = if ctx.full() { 100_000 } else { 10_000 };
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, Counted::spec(ctx.world()), ctx.deadline())?;
    let (mut counted, mut rng) = (Counted::new(&window)?, ctx.rng());
    (0..rounds).try_for_each(|_| counted.step(ctx, &mut rng))?;
    counted.end(&team, ctx)?;
    done()
}

/// Two threads of each rank, a team and a window each, at their own pace.
fn two_teams(ctx: &RankCtx) -> RankResult {
    let rounds = if ctx.full() { 50_000 } else { 2000 };
    let drive = |name: &'static str, which: u64| {
        move || -> Any<()> {
            let team = team(ctx, name)?;
            let window = Window::alloc(&team, Counted::spec(ctx.world()), ctx.deadline())?;
            let (mut counted, mut rng) = (Counted::new(&window)?, ctx.rng().fork(which));
            (0..rounds).try_for_each(|_| counted.step(ctx, &mut rng))?;
            counted.end(&team, ctx)
        }
    };
    std::thread::scope(|scope| {
        let threads = [scope.spawn(drive("a", 1)), scope.spawn(drive("b", 2))];
        threads.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread panicked")?)
    })?;
    done()
}

/// One thread and two windows, in an order that is random and the same on all ranks.
fn two_windows(ctx: &RankCtx) -> RankResult {
    let rounds = if ctx.full() { 50_000 } else { 2000 };
    let team = team(ctx, "t")?;
    let make = || Window::alloc(&team, Counted::spec(ctx.world()), ctx.deadline());
    let (a, b) = (make()?, make()?);
    let mut both = [Counted::new(&a)?, Counted::new(&b)?];
    let (mut order, mut rng) = (ctx.common_rng(), ctx.rng());
    for _ in 0..rounds {
        let which = order.below(2) as usize;
        both[which].step(ctx, &mut rng)?;
    }
    both.iter().try_for_each(|counted| counted.end(&team, ctx))?;
    done()
}
