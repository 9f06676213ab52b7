//! A few bytes from each rank to all: how things that stand on a team find each other.

use std::sync::atomic::Ordering;

use super::Team;
use super::control::BOARD_BYTES;
use crate::error::Result;
use crate::point;
use crate::wait::Deadline;

impl Team {
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
        let control = self.shared.control();
        let round = op.seq();
        point!("exchange.begun");
        for (word, chunk) in control.rank(self.rank).board.iter().zip(bytes.chunks_exact(8)) {
            word.store(u64::from_ne_bytes(std::array::from_fn(|i| chunk[i])), Ordering::Relaxed);
        }
        let outcome =
            op.meet("what the others say", |rank| &control.rank(rank).posted, round).and_then(|()| {
                let read = |rank: usize| {
                    let mut bytes = [0; BOARD_BYTES];
                    for (chunk, word) in bytes.chunks_exact_mut(8).zip(&control.rank(rank).board) {
                        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
                    }
                    bytes
                };
                let said = (0..self.size()).map(read).collect();
                point!("exchange.met");
                // Nobody writes his board again before all have read it.
                op.meet("the others to have read", |rank| &control.rank(rank).taken, round)?;
                Ok(said)
            });
        op.settle(outcome, false)
    }
}
