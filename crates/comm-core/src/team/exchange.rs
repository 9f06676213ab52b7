//! A few bytes from each rank to all: how things that stand on a team find each other.

use std::sync::atomic::Ordering;

use super::control::BOARD_BYTES;
use super::{Member, OpGuard};
use crate::error::Result;
use crate::point;
use crate::wait::Deadline;

impl Member {
    /// Gives each rank's bytes to all ranks, in rank order.
    ///
    /// # Errors
    /// Those of any symmetric operation: what ended the team, [`Error::PeerLeft`](crate::Error::PeerLeft),
    /// [`Error::Timeout`](crate::Error::Timeout), which ends it.
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
        op.settle(outcome, false)
    }
}

impl OpGuard<'_> {
    /// Says a few bytes to all ranks, and returns what each of them says, in rank order. Once in an operation, and
    /// followed by [`heard`](OpGuard::heard).
    ///
    /// # Errors
    /// As [`all_reach`](OpGuard::all_reach).
    pub fn say(&mut self, bytes: &[u8; BOARD_BYTES]) -> Result<Vec<[u8; BOARD_BYTES]>> {
        let team = self.team();
        let control = team.shared.control();
        for (word, chunk) in control.rank(team.rank).board.iter().zip(bytes.chunks_exact(8)) {
            word.store(u64::from_ne_bytes(std::array::from_fn(|i| chunk[i])), Ordering::Relaxed);
        }
        let round = self.seq();
        self.meet("what the others say", |rank| &control.rank(rank).posted, round)?;
        let read = |rank: usize| {
            let mut bytes = [0; BOARD_BYTES];
            for (chunk, word) in bytes.chunks_exact_mut(8).zip(&control.rank(rank).board) {
                chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }
            bytes
        };
        Ok((0..team.size()).map(read).collect())
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
