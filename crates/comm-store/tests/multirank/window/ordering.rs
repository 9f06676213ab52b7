//! What was written before a signal is there for whoever has seen the signal, whichever way it goes.

use comm_core::tensor::{DType, Tensor};
use comm_store::window::{Await, Notify, Signals, StoreOp, View, WindowSpec};
use comm_store::{Cmp, NotifyOp, Window};
use comm_testkit::{Case, RankCtx, RankResult, block_on, check, check_eq, done};

use super::long;
use crate::support::{Any, left, right, team};

pub fn cases() -> Vec<Case> {
    vec![
        long("order/-/-/put-then-notify", |ctx| sizes(ctx, put)),
        long("order/-/-/put-with-notify", |ctx| sizes(ctx, put_and_notify)),
        long("order/-/-/remote_store-then-barrier", |ctx| sizes(ctx, store)),
        long("order/-/-/store-barrier-remote_load", |ctx| sizes(ctx, load)),
        long("order/-/-/get-after-wait", |ctx| sizes(ctx, get)),
        long("order/-/-/wait_async", |ctx| sizes(ctx, put_async)),
        long("order/-/-/tag-handshake", tags),
    ]
}

/// Elements of a payload.
const SIZES: [usize; 5] = [1, 2, 15, 1024, 40_000];

/// Everything that one round needs.
struct Round<'w> {
    team: &'w comm_core::team::Team,
    /// Rows that are nobody else's: one for what has come, one for what may come, one for a barrier.
    came: &'w Signals<'w>,
    free: &'w Signals<'w>,
    row: &'w Signals<'w>,
    source: View<'w>,
    target: View<'w>,
    n: usize,
    number: i32,
}

impl Round<'_> {
    fn value(&self, rank: usize, i: usize) -> i64 {
        i64::from(self.number) * 1_000_000_000 + rank as i64 * 10_000_000 + i as i64
    }

    fn stage(&self, ctx: &RankCtx) -> Any<()> {
        Ok(self.source.store(&self.payload(ctx)?, &[0])?)
    }

    fn payload(&self, ctx: &RankCtx) -> Any<Tensor> {
        let values: Vec<i64> = (0..self.n).map(|i| self.value(ctx.rank(), i)).collect();
        Ok(Tensor::from_slice(&[self.n], &values)?)
    }

    fn check_is_of(&self, seen: &Tensor, rank: usize) -> Any<()> {
        let seen = seen.as_slice::<i64>()?;
        let wrong = seen.iter().enumerate().find(|&(i, &x)| x != self.value(rank, i));
        if let Some((i, x)) = wrong {
            let expected = self.value(rank, i);
            check!(false, "round {}: element {i} of {} is {x}, expected {expected}", self.number, self.n);
        }
        Ok(())
    }

    /// What this rank holds in its target is what the left one has sent; then that one may send again.
    fn take(&self, ctx: &RankCtx) -> Any<()> {
        let me = ctx.rank();
        self.check_is_of(&self.target.remote_load(me, &[0], &[self.n])?, left(ctx))?;
        Ok(self.free.notify(left(ctx), &[me], 1, NotifyOp::Add)?)
    }

    /// Waits until the right one has taken what was sent last.
    fn may_send(&self, ctx: &RankCtx) -> Any<()> {
        let right = right(ctx);
        self.free.wait(&[right], Cmp::Ge, self.number - 1, Some(right), ctx.deadline())?;
        Ok(())
    }
}

fn sizes(ctx: &RankCtx, run: fn(&RankCtx, &Round<'_>) -> Any<()>) -> RankResult {
    let world = ctx.world();
    let team = team(ctx, "t")?;
    for n in SIZES {
        let spec = WindowSpec::bytes(2 * 8 * n).signals(3 * world);
        let window = Window::alloc(&team, spec, ctx.deadline())?;
        let [came, free, row] = [0, 1, 2].map(|k| window.signals_from(k * world, &[world]));
        let (came, free, row) = (came?, free?, row?);
        let rounds = if ctx.full() { 5000 } else { 200 } / if n > 10_000 { 10 } else { 1 };
        for number in 1..=rounds {
            let (source, target) = (window.view(0, &[n], DType::I64)?, window.view(8 * n, &[n], DType::I64)?);
            let round = Round { team: &team, came: &came, free: &free, row: &row, source, target, n, number };
            run(ctx, &round)?;
        }
    }
    done()
}

/// Push, tell, wait, read. Counts go up, so nothing is reset.
fn put(ctx: &RankCtx, round: &Round<'_>) -> Any<()> {
    round.may_send(ctx)?;
    round.stage(ctx)?;
    round.target.put(right(ctx), &round.source, None, StoreOp::Set, None)?;
    round.came.notify(right(ctx), &[ctx.rank()], 1, NotifyOp::Add)?;
    let left = left(ctx);
    round.came.wait(&[left], Cmp::Ge, round.number, Some(left), ctx.deadline())?;
    round.take(ctx)
}

fn put_and_notify(ctx: &RankCtx, round: &Round<'_>) -> Any<()> {
    round.may_send(ctx)?;
    round.stage(ctx)?;
    let (me, left) = ([ctx.rank()], left(ctx));
    let notify = Notify::set(round.came, &me, round.number);
    round.target.put(right(ctx), &round.source, None, StoreOp::Set, Some(notify))?;
    Await::new(round.came, &[left], Cmp::Eq, round.number).from(left).by(ctx.deadline()).now()?;
    round.take(ctx)
}

fn put_async(ctx: &RankCtx, round: &Round<'_>) -> Any<()> {
    let (right, left) = (right(ctx), left(ctx));
    let free = round.free.wait_async(&[right], Cmp::Ge, round.number - 1, Some(right), ctx.deadline())?;
    block_on(free)?;
    round.stage(ctx)?;
    let me = [ctx.rank()];
    let notify = Notify::add(round.came, &me, 1);
    round.target.put(right, &round.source, None, StoreOp::Set, Some(notify))?;
    let came = round.came.wait_async(&[left], Cmp::Ge, round.number, Some(left), ctx.deadline())?;
    check!(block_on(came)? >= round.number);
    round.take(ctx)
}

/// `y[r] = x[r - 1]`: store into the right one's part, barrier, read one's own.
fn store(ctx: &RankCtx, round: &Round<'_>) -> Any<()> {
    round.target.remote_store(&round.payload(ctx)?, right(ctx), &[0], StoreOp::Set)?;
    round.row.barrier(ctx.deadline())?;
    round.check_is_of(&round.target.remote_load(ctx.rank(), &[0], &[round.n])?, left(ctx))?;
    round.row.barrier(ctx.deadline())?;
    Ok(())
}

/// `y[r] = x[r + 1]`: stage, barrier, load from the right one, and a barrier before that is staged anew: of the team this
/// time, which is as good.
fn load(ctx: &RankCtx, round: &Round<'_>) -> Any<()> {
    round.stage(ctx)?;
    round.row.barrier(ctx.deadline())?;
    round.check_is_of(&round.source.remote_load(right(ctx), &[0], &[round.n])?, right(ctx))?;
    round.team.barrier(ctx.deadline())?;
    Ok(())
}

/// Tell the rank that will read me, wait for the one that I read, get.
fn get(ctx: &RankCtx, round: &Round<'_>) -> Any<()> {
    let (reader, read) = (right(ctx), left(ctx));
    // Before it is staged anew, its reader must have had the last one.
    round.may_send(ctx)?;
    round.stage(ctx)?;
    round.came.notify(reader, &[ctx.rank()], 1, NotifyOp::Add)?;
    let cell = [read];
    let signal = Await::ge(round.came, &cell, round.number).from(read).by(ctx.deadline());
    round.source.get(read, &round.target, None, Some(signal))?;
    round.take(ctx)
}

/// `out[r] = ((r - 1) mod P) + 1`, three times on one window: each time the cell is reset behind a barrier, and one that was
/// not would show.
fn tags(ctx: &RankCtx) -> RankResult {
    let (n, me) = (ctx.world(), ctx.rank());
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, WindowSpec::tensor(&[1], DType::I32)?.signals(n + 1), ctx.deadline())?;
    let (tag, row) = (window.signals(&[1])?, window.signals_from(1, &[n])?);
    for round in 0..3 {
        tag.notify(right(ctx), &[0], me as i32 + 1 + 100 * round, NotifyOp::Set)?;
        let out = tag.wait(&[0], Cmp::Ge, 1, Some(left(ctx)), ctx.deadline())?;
        check_eq!(out, ((me + n - 1) % n) as i32 + 1 + 100 * round, "round {round}");
        tag.write(&[0], 0)?;
        row.barrier(ctx.deadline())?;
    }
    // And without the reset it shows: the old tag is taken for the new one.
    tag.notify(right(ctx), &[0], 1, NotifyOp::Set)?;
    tag.wait(&[0], Cmp::Ge, 1, Some(left(ctx)), ctx.deadline())?;
    row.barrier(ctx.deadline())?;
    check_eq!(tag.wait(&[0], Cmp::Ge, 1, Some(left(ctx)), ctx.deadline())?, 1, "stale");
    window.reset(ctx.deadline())?;
    check_eq!(tag.read(&[0])?, 0);
    team.barrier(ctx.deadline())?;
    done()
}
