//! A slot, as its home has it: in use until the promise and the memory of its value are gone.

use std::sync::Arc;

use comm_core::hub::{Peer, is_forked};
use comm_core::wait::Bell;

use crate::home::{Home, Row};
use crate::slot::SlotAt;
use crate::state::{self, HOME, Phase, TASKS, THREADS};

/// A slot in use.
pub(crate) struct Lot {
    pub(crate) home: Arc<Home>,
    pub(crate) row: Arc<Row>,
    pub(crate) slot: SlotAt,
    pub(crate) generation: u64,
}

/// Wakes whoever waits for a slot at its home.
impl Bell for Lot {
    fn ring(&self, slot: usize, _tag: u32) {
        match slot {
            THREADS => self.slot.seat.park.wake(),
            TASKS => {
                self.slot.mark();
                self.home.hub().ring();
            }
            _ => {}
        }
    }
}

impl Drop for Lot {
    fn drop(&mut self) {
        if is_forked() {
            return;
        }
        self.row.forget(self.slot.index());
        self.home.retire(Retired {
            row: self.row.clone(),
            slot: self.slot.clone(),
            generation: self.generation,
        });
    }
}

/// A slot that has been let go of, and may still be written.
pub(crate) struct Retired {
    pub(crate) row: Arc<Row>,
    pub(crate) slot: SlotAt,
    pub(crate) generation: u64,
}

impl Retired {
    /// Whether it could be freed. Who had set it is told to let go of the memory, if nobody has.
    pub(crate) fn free(&self, home: &Home) -> bool {
        let cell = &self.slot.seat.cell;
        let mut freed = state::retire(cell, self.generation);
        if freed.is_err() {
            // Who writes wakes this home when he is through.
            cell.enrol(TASKS);
            freed = state::retire(cell, self.generation);
        }
        let Ok(before) = freed else { return false };
        if before.phase() == Phase::Set && before.row() != HOME {
            let who = self.slot.holder(before.row(), self.generation);
            if let Some(peer) = who.and_then(|who| home.guest(who)) {
                peer.ring();
            }
        }
        true
    }
}

/// Memory of the process that has set a value, as long as it is used here: shared by all tensors of the value.
pub(crate) struct Tenancy {
    pub(crate) lot: Arc<Lot>,
    /// Who is to be told, if he keeps anything.
    pub(crate) landlord: Option<Arc<Peer>>,
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        if let Some(peer) = &self.landlord
            && !is_forked()
        {
            state::returned(&self.lot.slot.seat.cell, self.lot.generation);
            peer.ring();
        }
    }
}
