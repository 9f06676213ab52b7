//! Tensors exposed in place, for peers to read.
//!
//! A peer in the same process is handed the tensor itself, which keeps the memory alive and unchanged however long it
//! reads. A peer in another process is told the place; it copies, and looks once more whether the tensor is still
//! exposed in the same round. The owner withdraws it before the memory can be used for anything else, so a copy that
//! was begun too late is found out, not believed.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use comm_core::hub::{Hub, is_forked};
use comm_core::shm::Segment;
use comm_core::team::OpGuard;
use comm_core::tensor::Tensor;
use comm_core::{Error, Result, point};

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
pub(super) struct Place {
    /// The round of what is exposed, or was last.
    round: u64,
    tensor: Option<Tensor>,
}

/// A peer's exposed tensor, as bytes in row-major order.
#[derive(Debug)]
pub struct Region<'w> {
    window: &'w Window,
    rank: usize,
    slot: usize,
    round: u64,
    len: usize,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Here(Box<Tensor>),
    There(Arc<Segment>, u64),
}

impl Window {
    /// Exposes a contiguous tensor in a slot of this rank's part, in a round that grows from use to use. Peers may read
    /// it once they have been told, by a cell that is set afterwards.
    ///
    /// If `abroad`, peers in other processes read it too: then it must lie in a block of the arena of tensors.
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team, tensor::Tensor};
    /// use comm_store::Window;
    ///
    /// let team = Team::join("expose-example", 0, 1, Deadline::default())?;
    /// let window = Window::alloc(&team, 1, 0, 1, Deadline::default())?;
    /// let t = Tensor::from_slice(&[3], &[1u8, 2, 3])?.contiguous_in(team.hub().tensors())?;
    ///
    /// let mut op = team.begin("show", Deadline::default())?;
    /// let round = op.seq();
    /// let exposed = window.expose(0, round, &t, true)?;
    /// let cell = window.cell(0, 0)?;
    /// op.meet("the others to expose", |_| cell, round)?;
    /// let region = window.region(&mut op, 0, 0, round)?;
    /// let mut bytes = vec![0; region.len()];
    /// region.read(0, &mut bytes)?;
    /// region.verify()?; // only now do they count
    /// assert_eq!(bytes, [1, 2, 3]);
    /// drop(exposed); // in earnest: once all have read
    /// op.finish();
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the tensor is not contiguous, or lies where such peers cannot reach it; if the slot
    /// does not exist or something is exposed in it; if the round does not grow. [`Error::Forked`].
    pub fn expose(&self, slot: usize, round: u64, tensor: &Tensor, abroad: bool) -> Result<Exposed<'_>> {
        const OP: &str = "Window::expose";
        if is_forked() {
            return Err(Error::Forked);
        }
        if !tensor.is_contiguous() {
            return Err(Error::invalid(OP, "the tensor must be contiguous"));
        }
        let line = self.part(self.rank)?.slot(slot)?;
        let block = if abroad { Some(reachable(tensor)?) } else { None };
        let mut place = self.place(self.rank, slot)?.lock().unwrap_or_else(PoisonError::into_inner);
        if place.tensor.is_some() || round <= place.round {
            let (now, last) = (if place.tensor.is_some() { "is" } else { "was" }, place.round);
            return Err(Error::invalid(
                OP,
                format!("slot {slot} in round {round}: it {now} in use in round {last}"),
            ));
        }
        *place = Place { round, tensor: Some(tensor.clone()) };
        if let Some((segment, offset)) = block {
            line.segment.store(segment, Ordering::Relaxed);
            line.offset.store(offset, Ordering::Relaxed);
            line.len.store(tensor.nbytes() as u64, Ordering::Relaxed);
            line.round.store(round, Ordering::Release);
        }
        Ok(Exposed { window: self, slot, round })
    }

    /// What a rank has exposed in a slot in this round.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if it has exposed nothing there, or no longer, or tells of memory that does not exist;
    /// what ended the team, if that is why.
    pub fn region(&self, op: &mut OpGuard<'_>, rank: usize, slot: usize, round: u64) -> Result<Region<'_>> {
        if op.team().id() != self.team {
            return Err(Error::invalid("Window::region", "the operation is of another team than the window"));
        }
        let line = self.part(rank)?.slot(slot)?;
        let nothing =
            || Error::bad_peer(format!("rank {rank} has exposed nothing in slot {slot} in round {round}"));
        let (len, memory) = if op.team().shares_process(rank) {
            let place = self.place(rank, slot)?.lock().unwrap_or_else(PoisonError::into_inner);
            match &place.tensor {
                Some(tensor) if place.round == round => {
                    (tensor.nbytes(), Memory::Here(Box::new(tensor.clone())))
                }
                _ => return Err(nothing()),
            }
        } else {
            if line.round.load(Ordering::Acquire) != round {
                return Err(nothing());
            }
            let id = line.segment.load(Ordering::Relaxed);
            let (offset, len) = (line.offset.load(Ordering::Relaxed), line.len.load(Ordering::Relaxed));
            let segment = op.peer_segment(rank, id)?;
            let unreachable = || Error::bad_peer(format!("rank {rank} exposes bytes that do not exist"));
            segment.range(offset, len).map_err(|_| unreachable())?;
            (usize::try_from(len).map_err(|_| unreachable())?, Memory::There(segment, offset))
        };
        Ok(Region { window: self, rank, slot, round, len, memory })
    }

    fn place(&self, rank: usize, slot: usize) -> Result<&Mutex<Place>> {
        let place = self.local.exposed.get(rank).and_then(|slots| slots.get(slot));
        place.ok_or_else(|| Error::invalid("Window", format!("no slot {slot} of rank {rank}")))
    }
}

/// Where a tensor lies that peers in other processes can reach: in the arena whose segments are pushed to them.
fn reachable(tensor: &Tensor) -> Result<(u64, u64)> {
    let hub = Hub::get()?;
    match tensor.block() {
        Some((id, offset, _)) if hub.tensors().segments().iter().any(|segment| segment.id() == id) => {
            Ok((id, offset))
        }
        _ => Err(Error::invalid(
            "Window::expose",
            "peers in other processes reach only blocks of the hub's arena",
        )),
    }
}

impl Drop for Exposed<'_> {
    fn drop(&mut self) {
        if is_forked() {
            // It is the parent's.
            return;
        }
        if let Ok(line) = self.window.part(self.window.rank).and_then(|part| part.slot(self.slot)) {
            // Release: whoever finds it withdrawn also finds what ended the team. Only this round's: another thread of
            // this rank may be at the next.
            let _ = line.round.compare_exchange(self.round, 0, Ordering::Release, Ordering::Relaxed);
            // Before any later write to the memory that was exposed; pairs with the fence in `Region::verify`.
            fence(Ordering::Release);
        }
        let Ok(place) = self.window.place(self.window.rank, self.slot) else { return };
        let held = {
            let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
            if place.round == self.round { place.tensor.take() } else { None }
        };
        // Outside of the lock: it may be the last handle, and freeing takes its time.
        drop(held);
    }
}

impl Region<'_> {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Checks its length against what the ranks have agreed on.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if it is another.
    pub fn expect_len(&self, len: usize) -> Result<()> {
        if self.len != len {
            return Err(Error::bad_peer(format!("rank {} exposes {} bytes, not {len}", self.rank, self.len)));
        }
        Ok(())
    }

    /// Copies bytes out of it. They count only if [`verify`](Region::verify) says so afterwards.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the range is not inside.
    pub fn read(&self, offset: usize, dst: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(dst.len()).filter(|&end| end <= self.len);
        let Some(end) = end else {
            let why = format!("{} bytes at {offset} of a region of {}", dst.len(), self.len);
            return Err(Error::invalid("Region::read", why));
        };
        point!("window.read");
        match &self.memory {
            Memory::Here(tensor) => dst.copy_from_slice(&tensor.bytes()?[offset..end]),
            Memory::There(segment, base) => segment.copy_out(base + offset as u64, dst)?,
        }
        Ok(())
    }

    /// Whether everything that was read is what the rank exposed: it had not withdrawn it meanwhile.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if it had, which it does only when its own call has failed.
    pub fn verify(&self) -> Result<()> {
        if let Memory::There(..) = self.memory {
            fence(Ordering::Acquire);
            let line = self.window.part(self.rank)?.slot(self.slot)?;
            if line.round.load(Ordering::Acquire) != self.round {
                let why = format!("rank {} has withdrawn slot {} while it was read", self.rank, self.slot);
                return Err(Error::bad_peer(why));
            }
        }
        Ok(())
    }
}
