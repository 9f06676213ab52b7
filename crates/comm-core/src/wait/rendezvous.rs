//! All ranks meet: each sets its own cell to the round, and waits for everybody's.
//!
//! Such cells count rounds and never go back, so a rank that is a round ahead is not mistaken for one that is behind.

use super::blocking::{Unmet, Waiter, until};
use super::cell::Cell;
#[cfg(loom)]
use super::model::Patience;
#[cfg(not(loom))]
use super::patience::Patience;

/// Waits until `ready` accepts the cell of each of these ranks, one after the other.
///
/// `ended` is asked about the rank that is waited for at that moment.
pub(crate) fn all_reach<'c, E>(
    ranks: impl Iterator<Item = usize>,
    cell_of: impl Fn(usize) -> &'c Cell,
    ready: impl Fn(u64) -> bool,
    waiter: Waiter<'_>,
    patience: &mut Patience,
    mut ended: impl FnMut(usize) -> Option<E>,
) -> Result<(), Unmet<E>> {
    for rank in ranks {
        let cell = cell_of(rank);
        until(cell, waiter, patience, || ready(cell.load()).then_some(()), || ended(rank))?;
    }
    Ok(())
}
