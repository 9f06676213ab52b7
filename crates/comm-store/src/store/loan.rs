//! Who in other processes still has a tensor's memory mapped as a tensor.
//!
//! A value counts as read when its readers have finished. But a reader may have kept a clone, and the memory must not be
//! used for anything else under that. So beside each tensor that goes to other processes lies a count for each process,
//! which that process alone raises and lowers; a process that dies gives back what it had. Recalled, a loan makes whoever
//! gives back look whether it was the last.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use comm_core::Result;
use comm_core::hub::is_forked;
use comm_core::shm::Memory;
use comm_core::team::Member;

use crate::directory::recall;

/// Whether it is recalled; behind it a count for each process.
const RECALLED: usize = 0;

/// The owner's end.
#[derive(Clone)]
pub(super) struct Loan {
    memory: Memory,
    processes: usize,
}

impl Loan {
    /// A loan that nobody has taken yet.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn new(member: &Member) -> Result<Loan> {
        let processes = member.processes();
        let block = member.hub().windows().alloc_zeroed(((1 + processes) * size_of::<u64>()) as u64)?;
        Ok(Loan { memory: Memory::Here(Arc::new(block)), processes })
    }

    /// Segment and offset.
    pub(super) fn place(&self) -> (u64, u64) {
        self.memory.block().map_or((0, 0), |block| (block.segment().id(), block.offset()))
    }

    /// Asks for it back. Whoever has it then, makes this process look when he gives it back.
    pub(super) fn recall(&self) {
        if let Ok(words) = self.words() {
            recall::recall(&words[RECALLED]);
        }
    }

    /// Whether a process has none of it.
    pub(super) fn is_back(&self, process: usize) -> bool {
        let Ok(words) = self.words() else { return true };
        words.get(1 + process).is_none_or(recall::is_back)
    }

    /// Whether nobody has any of it.
    pub(super) fn is_all_back(&self) -> bool {
        (0..self.processes).all(|process| self.is_back(process))
    }

    fn words(&self) -> Result<&[AtomicU64]> {
        self.memory.typed(0, 1 + self.processes)
    }
}

/// The reader's end: given back when dropped.
pub(super) struct Lease {
    memory: Memory,
    member: Arc<Member>,
    own: usize,
    owner: usize,
}

impl Lease {
    /// Takes the memory of a tensor of a process on loan.
    ///
    /// # Errors
    /// What the peer tells of does not exist.
    pub(super) fn take(memory: Memory, member: &Arc<Member>, owner: usize) -> Result<Lease> {
        let own = member.process_of(member.rank()).unwrap_or_default();
        let lease = Lease { memory, member: member.clone(), own, owner };
        recall::take(lease.count()?);
        Ok(lease)
    }

    /// How much of it this process has.
    fn count(&self) -> Result<&AtomicU64> {
        Ok(&self.memory.typed::<AtomicU64>(0, 2 + self.own)?[1 + self.own])
    }

    fn give_back(&self) -> Result<()> {
        let recalled = &self.memory.typed::<AtomicU64>(0, 1)?[RECALLED];
        if recall::give_back(self.count()?, recalled) {
            self.member.ring_process(self.owner);
        }
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !is_forked() {
            // It was there when it was taken, and memory neither moves nor shrinks.
            let _ = self.give_back();
        }
    }
}
