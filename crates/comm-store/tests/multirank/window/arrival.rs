//! The barrier that is written by hand: who has arrived, exactly.

use comm_core::tensor::{DType, Tensor};
use comm_store::window::{Cost, Signals, StoreOp, WindowSpec};
use comm_store::{Cmp, NotifyOp, Window};
use comm_testkit::{Case, RankCtx, RankResult, check_eq, done};

use super::case;
use crate::support::{Any, others, team};

pub fn cases() -> Vec<Case> {
    vec![case("barrier/-/-/arrival-matrix", matrix), case("barrier/-/-/shared-cell", shared)]
}

/// How it is written. All of them are right where every peer has a row of its own.
pub const WAYS: [(NotifyOp, Cmp); 3] =
    [(NotifyOp::Add, Cmp::Ge), (NotifyOp::Set, Cmp::Ge), (NotifyOp::Set, Cmp::Eq)];

/// Notifies every other rank in this rank's row there, and waits for every other rank in that one's row here.
pub fn by_hand(ctx: &RankCtx, signals: &Signals<'_>, (op, cmp): (NotifyOp, Cmp)) -> Any<()> {
    let two_dims = signals.shape().len() == 2;
    let row = |rank: usize| if two_dims { vec![rank, 0] } else { vec![rank] };
    for peer in others(ctx) {
        signals.notify(peer, &row(ctx.rank()), 1, op)?;
    }
    for src in others(ctx) {
        signals.wait(&row(src), cmp, 1, Some(src), ctx.deadline())?;
    }
    Ok(())
}

/// `y[r][i]` is 1 where i is another rank than r, and 0 on the diagonal: read by each rank of its own row, and by all of
/// all.
pub fn matrix(ctx: &RankCtx) -> RankResult {
    let (n, me) = (ctx.world(), ctx.rank());
    let team = team(ctx, "t")?;
    for way in WAYS {
        for round in 0..25 {
            let spec = WindowSpec::tensor(&[n, n], DType::I32)?.signals(2 * n);
            let window = Window::alloc(&team, spec, ctx.deadline())?;
            let (signals, after) = (window.signals(&[n, 1])?, window.signals_from(n, &[n])?);
            let before = window.costs();
            by_hand(ctx, &signals, way)?;
            let spent = Cost { notifies: n as u64 - 1, waits: n as u64 - 1, rounds: 0, bytes: 0 };
            check_eq!(window.costs() - before, spent, "{way:?}, round {round}");
            let row: Vec<i32> = (0..n).map(|src| signals.read(&[src, 0])).collect::<Result<_, _>>()?;
            let golden: Vec<i32> = (0..n).map(|i| i32::from(i != me)).collect();
            check_eq!(row, golden, "{way:?}, round {round}");
            let matrix = window.view(0, &[n, n], DType::I32)?;
            for peer in 0..n {
                matrix.remote_store(&Tensor::from_slice(&[1, n], &row)?, peer, &[me, 0], StoreOp::Set)?;
            }
            after.barrier(ctx.deadline())?;
            for (r, i) in (0..n * n).map(|k| (k / n, k % n)) {
                check_eq!(matrix.read::<i32>(&[r, i])?, i32::from(r != i), "y[{r}][{i}], {way:?}");
            }
        }
    }
    done()
}

/// One cell for all: everybody adds 1, and it is over with as many as there are others.
pub fn shared(ctx: &RankCtx) -> RankResult {
    let all = ctx.world() as i32 - 1;
    let team = team(ctx, "t")?;
    for round in 0..100 {
        let window = Window::alloc(&team, WindowSpec::bytes(0).signals(1), ctx.deadline())?;
        let signals = window.signals(&[1])?;
        for peer in others(ctx) {
            signals.notify(peer, &[0], 1, NotifyOp::Add)?;
        }
        check_eq!(signals.wait(&[0], Cmp::Ge, all, None, ctx.deadline())?, all, "round {round}");
        check_eq!(signals.read(&[0])?, all);
    }
    done()
}
