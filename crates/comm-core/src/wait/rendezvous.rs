//! All ranks meet: each sets its own cell, and waits for everybody's.

use super::blocking::{Unmet, Waiter, until};
use super::cell::{Bell, Cell};
#[cfg(loom)]
use super::model::Patience;
#[cfg(not(loom))]
use super::patience::Patience;

/// Waits until each of the `n` cells has reached `round`.
///
/// Cells count rounds and never go back, so a rank that is a round ahead is not mistaken for one that is behind.
/// `ended` is asked about the rank that is waited for at that moment.
pub(crate) fn all_reach<'c, E>(
    n: usize,
    cell_of: impl Fn(usize) -> &'c Cell,
    round: u64,
    waiter: Waiter<'_>,
    patience: &mut Patience,
    mut ended: impl FnMut(usize) -> Option<E>,
) -> Result<(), Unmet<E>> {
    for rank in 0..n {
        let cell = cell_of(rank);
        until(cell, waiter, patience, || (cell.load() >= round).then_some(()), || ended(rank))?;
    }
    Ok(())
}

/// A barrier over one cell per rank: announces `round` in the waiter's own cell and waits for all.
#[doc(alias = "Barrier")]
pub(crate) fn meet<'c, E>(
    n: usize,
    cell_of: impl Fn(usize) -> &'c Cell,
    round: u64,
    bell: &impl Bell,
    waiter: Waiter<'_>,
    patience: &mut Patience,
    ended: impl FnMut(usize) -> Option<E>,
) -> Result<(), Unmet<E>> {
    cell_of(waiter.slot).set(round, bell);
    all_reach(n, cell_of, round, waiter, patience, ended)
}
