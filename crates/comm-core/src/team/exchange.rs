//! A few bytes from each rank to all: how things that stand on a team find each other.

use std::sync::atomic::Ordering;

use super::control::BOARD_BYTES;
use super::{Member, OpGuard, odd_one_out};
use crate::error::{Error, Result};
use crate::wait::Deadline;
use crate::{layout, point};

impl Member {
    /// Gives each rank's bytes to all ranks, in rank order.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if a rank does something else that says a few bytes, on all of them, and the team goes on. Those of
    /// any symmetric operation: what ended the team, [`Error::PeerLeft`], [`Error::Timeout`], which ends it.
    ///
    /// ```
    /// use comm_core::{Deadline, team::{BOARD_BYTES, Team}};
    ///
    /// let team = Team::join("exchange-example", 0, 1, Deadline::default())?;
    /// let said = team.exchange(&[7; BOARD_BYTES], Deadline::default())?;
    /// assert_eq!(said, [[7; BOARD_BYTES]]);
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn exchange(
        &self,
        bytes: &[u8; BOARD_BYTES],
        deadline: impl Into<Deadline>,
    ) -> Result<Vec<[u8; BOARD_BYTES]>> {
        let mut op = self.begin("exchange", deadline)?;
        point!("exchange.begun");
        let outcome = op.say(bytes).and_then(|said| {
            point!("exchange.met");
            op.heard().map(|()| said)
        });
        let agreed = matches!(outcome, Err(Error::Mismatch { .. }));
        op.settle(outcome, agreed)
    }
}

/// A number for a name.
fn fold(name: &str) -> usize {
    name.bytes().fold(0, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)))
}

impl OpGuard<'_> {
    /// Says a few bytes to all ranks, and returns what each of them says, in rank order. Once in an operation, and
    /// followed by [`heard`](OpGuard::heard).
    ///
    /// # Errors
    /// [`Error::Mismatch`] if ranks say it in different operations, on all of them, and the team goes on: nothing more is
    /// to be heard then. Else as [`all_reach`](OpGuard::all_reach).
    pub fn say(&mut self, bytes: &[u8; BOARD_BYTES]) -> Result<Vec<[u8; BOARD_BYTES]>> {
        let team = self.team();
        let control = team.shared.control();
        for (word, chunk) in control.rank(team.rank).board.iter().zip(bytes.chunks_exact(8)) {
            word.store(u64::from_ne_bytes(std::array::from_fn(|i| chunk[i])), Ordering::Relaxed);
        }
        let kind = layout::hash(&[self.name().len(), fold(self.name())]);
        control.rank(team.rank).saying.store(kind, Ordering::Relaxed);
        let round = self.seq();
        self.meet("what the others say", |rank| &control.rank(rank).posted, round)?;
        let read = |rank: usize| {
            let mut bytes = [0; BOARD_BYTES];
            for (chunk, word) in bytes.chunks_exact_mut(8).zip(&control.rank(rank).board) {
                chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }
            bytes
        };
        let said = (0..team.size()).map(read).collect();
        let kinds: Vec<u64> =
            (0..team.size()).map(|rank| control.rank(rank).saying.load(Ordering::Relaxed)).collect();
        let Some((odd, common)) = odd_one_out(&kinds) else { return Ok(said) };
        let name = |rank: usize| {
            let here = kinds[rank] == kind;
            if here { self.name().to_string() } else { control.rank(rank).status.op_name.get() }
        };
        let (theirs, others) = (name(odd), name(common));
        self.heard()?;
        Err(Error::Mismatch { rank: odd, field: "op", theirs, others, at: Box::default() })
    }

    /// Waits until all ranks have done what they do with what was [said](OpGuard::say): before that nobody says
    /// anything else, or leaves in good order.
    ///
    /// # Errors
    /// As [`all_reach`](OpGuard::all_reach).
    pub fn heard(&mut self) -> Result<()> {
        let control = self.team().shared.control();
        let round = self.seq();
        self.meet("the others to have heard", |rank| &control.rank(rank).taken, round)
    }
}
