//! Tensors exposed in place, for peers to read.
//!
//! A peer in the same process is handed the tensor itself, which keeps the memory alive and unchanged however long it
//! reads. A peer in another process is told the place; it copies, and looks once more whether the tensor is still
//! exposed in the same round. The owner withdraws it before the memory can be used for anything else, so a copy that
//! was begun too late is found out, not believed.

use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, PoisonError};

use comm_core::hub::is_forked;
use comm_core::tensor::Tensor;
use comm_core::{Error, Result};

use super::Window;

/// A tensor of this rank that peers can read until this is dropped.
#[must_use = "the tensor is withdrawn when this is dropped"]
#[derive(Debug)]
pub struct Exposed<'w> {
    window: &'w Window,
    slot: usize,
    round: u64,
}

/// What a rank exposes in a slot, for peers in its own process.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    /// The round of what is exposed, or was last.
    pub(super) round: u64,
    pub(super) tensor: Option<Tensor>,
}

impl Window {
    /// Exposes a contiguous tensor in a slot of this rank's part, in a round that grows from use to use. Peers may read
    /// it in place once they have been told, by a signal that is sent afterwards; none of them can write it.
    ///
    /// If there are peers in other processes it must lie in a block of the arena of tensors, to which
    /// [`Tensor::contiguous_in`] brings it.
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team, tensor::{DType, Tensor}};
    /// use comm_store::{Cmp, NotifyOp, Window, window::WindowSpec};
    ///
    /// let team = Team::join("expose-example", 0, 1, Deadline::default())?;
    /// let window = Window::alloc(&team, WindowSpec::bytes(0).signals(1).slots(1), Deadline::default())?;
    /// let signals = window.signals(&[1])?;
    /// let t = Tensor::from_slice(&[3], &[1u8, 2, 3])?.contiguous_in(team.hub().tensors())?;
    ///
    /// let exposed = window.expose(0, 1, &t)?;
    /// signals.notify(0, &[0], 1, NotifyOp::Set)?; // a peer, in earnest
    ///
    /// signals.wait(&[0], Cmp::Ge, 1, None, Deadline::default())?;
    /// let region = window.region(0, 0, 1, Deadline::default())?.typed(&[3], DType::U8)?;
    /// assert_eq!(region.remote_load(&[1], &[2])?.as_slice::<u8>()?, [2, 3]);
    /// drop(exposed); // once all have read, and say so by a signal
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the tensor is not contiguous, or lies where peers cannot reach it; if the slot
    /// does not exist or something is exposed in it; if the round does not grow. What ended the team.
    pub fn expose(&self, slot: usize, round: u64, tensor: &Tensor) -> Result<Exposed<'_>> {
        const OP: &str = "Window::expose";
        self.alive(OP)?;
        if !tensor.is_contiguous() {
            return Err(Error::invalid(OP, "the tensor must be contiguous"));
        }
        if round == 0 {
            return Err(Error::invalid(OP, format!("slot {slot} in round 0: rounds begin at 1, and grow")));
        }
        let line = self.part(self.rank())?.slot(slot)?;
        let block = if self.is_abroad() { Some(self.reachable(tensor)?) } else { None };
        {
            let mut exposed = self.expositions(self.rank())?.lock().unwrap_or_else(PoisonError::into_inner);
            let place = exposed.entry(slot).or_default();
            if place.tensor.is_some() || round <= place.round {
                let (now, last) = (if place.tensor.is_some() { "is" } else { "was" }, place.round);
                let why = format!("slot {slot} in round {round}: it {now} in use in round {last}");
                return Err(Error::invalid(OP, why));
            }
            *place = Exposition { round, tensor: Some(tensor.clone()) };
        }
        if let Some((segment, offset)) = block {
            line.segment.store(segment, Ordering::Relaxed);
            line.offset.store(offset, Ordering::Relaxed);
            line.len.store(tensor.nbytes() as u64, Ordering::Relaxed);
            line.round.store(round, Ordering::Release);
        }
        Ok(Exposed { window: self, slot, round })
    }

    pub(super) fn expositions(&self, rank: usize) -> Result<&Mutex<HashMap<usize, Exposition>>> {
        let there = self.local.exposed(rank);
        there.ok_or_else(|| Error::invalid("Window", format!("no rank {rank}")))
    }

    /// Where a tensor lies that peers in other processes can reach: in the arena whose segments are pushed to them.
    fn reachable(&self, tensor: &Tensor) -> Result<(u64, u64)> {
        let segments = self.context().hub().tensors().segments();
        match tensor.block() {
            Some((id, offset, _)) if segments.iter().any(|segment| segment.id() == id) => Ok((id, offset)),
            _ => Err(Error::invalid(
                "Window::expose",
                "peers in other processes reach only blocks of the hub's arena of tensors: see Tensor::contiguous_in",
            )),
        }
    }
}

impl Drop for Exposed<'_> {
    fn drop(&mut self) {
        if is_forked() {
            // It is the parent's.
            return;
        }
        if let Ok(line) = self.window.part(self.window.rank()).and_then(|part| part.slot(self.slot)) {
            // Release: whoever finds it withdrawn also finds what ended the team. Only this round's: another thread of
            // this rank may be at the next.
            let _ = line.round.compare_exchange(self.round, 0, Ordering::Release, Ordering::Relaxed);
            // Before any later write to the memory that was exposed; pairs with the fence in `Region::verify`.
            fence(Ordering::Release);
        }
        let Ok(exposed) = self.window.expositions(self.window.rank()) else { return };
        let held = {
            let mut exposed = exposed.lock().unwrap_or_else(PoisonError::into_inner);
            let place = exposed.get_mut(&self.slot).filter(|place| place.round == self.round);
            place.and_then(|place| place.tensor.take())
        };
        // Outside of the lock: it may be the last handle, and freeing takes its time.
        drop(held);
    }
}
