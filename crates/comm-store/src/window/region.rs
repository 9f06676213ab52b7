//! What peers read of an exposed tensor.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};

use comm_core::shm::Segment;
use comm_core::team::OpGuard;
use comm_core::tensor::{DType, Layout, Tensor, TensorBuf, Tile};
use comm_core::{Deadline, Error, Result, point};

use super::handshake::Await;

use super::transfer::{Rect, StoreOp, Sub, check_dtypes, tiles};
use super::{View, Window};

/// A rank's exposed tensor, as bytes in row-major order.
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
    /// What a rank has exposed in a slot in this round.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if it has exposed nothing there, or no longer, or tells of memory that does not exist;
    /// [`Error::Timeout`] if its memory does not become known here; what ended the team.
    pub fn region(
        &self,
        rank: usize,
        slot: usize,
        round: u64,
        deadline: impl Into<Deadline>,
    ) -> Result<Region<'_>> {
        self.alive("Window::region")?;
        self.find(rank, slot, round, |id| self.context().peer_segment(rank, id, deadline))
    }

    /// As [`region`](Window::region), as a part of an operation that has begun, which ends the team if it fails.
    ///
    /// # Errors
    /// Those of [`region`](Window::region).
    pub fn region_in(
        &self,
        op: &mut OpGuard<'_>,
        rank: usize,
        slot: usize,
        round: u64,
    ) -> Result<Region<'_>> {
        if !std::ptr::eq(op.team(), self.context().as_ref()) {
            return Err(Error::invalid("Window::region", "the operation is of another rank than the window"));
        }
        self.find(rank, slot, round, |id| op.peer_segment(rank, id))
    }

    fn find(
        &self,
        rank: usize,
        slot: usize,
        round: u64,
        segment: impl FnOnce(u64) -> Result<Arc<Segment>>,
    ) -> Result<Region<'_>> {
        let line = self.part(rank)?.slot(slot)?;
        let nothing =
            || Error::bad_peer(format!("rank {rank} has exposed nothing in slot {slot} in round {round}"));
        let (len, memory) = if self.context().shares_process(rank) {
            let exposed = self.expositions(rank)?.lock().unwrap_or_else(PoisonError::into_inner);
            let there = exposed.get(&slot).filter(|there| there.round == round);
            let tensor = there.and_then(|there| there.tensor.clone()).ok_or_else(nothing)?;
            (tensor.nbytes(), Memory::Here(Box::new(tensor)))
        } else {
            if round == 0 || line.round.load(Ordering::Acquire) != round {
                return Err(nothing());
            }
            let id = line.segment.load(Ordering::Relaxed);
            let (offset, len) = (line.offset.load(Ordering::Relaxed), line.len.load(Ordering::Relaxed));
            let segment = segment(id)?;
            let unreachable = || Error::bad_peer(format!("rank {rank} exposes bytes that do not exist"));
            segment.range(offset, len).map_err(|_| unreachable())?;
            (usize::try_from(len).map_err(|_| unreachable())?, Memory::There(segment, offset))
        };
        Ok(Region { window: self, rank, slot, round, len, memory })
    }
}

impl<'w> Region<'w> {
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

    /// The bytes as elements of a shape.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if the rank exposes another number of bytes.
    pub fn typed(self, shape: &[usize], dtype: DType) -> Result<TypedRegion<'w>> {
        let numel = Layout::contiguous(shape)?.numel();
        let too_large = || Error::invalid("Region::typed", format!("{shape:?} of {dtype} is too large"));
        self.expect_len(dtype.bytes_of(numel).ok_or_else(too_large)?)?;
        Ok(TypedRegion { region: self, dtype, shape: shape.into() })
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
        if self.rank != self.window.rank() {
            self.window.counters.moved(dst.len());
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

/// A rank's exposed tensor with its shape: what can be read of it. It cannot be written.
#[derive(Debug)]
pub struct TypedRegion<'w> {
    region: Region<'w>,
    dtype: DType,
    shape: Box<[usize]>,
}

impl TypedRegion<'_> {
    /// A copy of a rectangle of it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rectangle that is not inside; [`Error::BadPeer`] if the rank has withdrawn the
    /// tensor meanwhile.
    pub fn remote_load(&self, offsets: &[usize], shape: &[usize]) -> Result<Tensor> {
        const OP: &str = "TypedRegion::remote_load";
        self.region.window.alive(OP)?;
        let tile = Tile::new(OP, &self.shape, offsets, shape)?;
        let mut copy = TensorBuf::zeros(shape, self.dtype)?;
        let (bytes, size) = (copy.bytes_mut()?, self.dtype.size());
        let mut done = 0;
        for (start, len) in tile.runs() {
            self.region.read(start * size, &mut bytes[done..done + len * size])?;
            done += len * size;
        }
        self.region.verify()?;
        Ok(copy.freeze())
    }

    /// Waits for a signal, if there is one to wait for, and then pulls a part of it into a view of this rank's own part;
    /// see [`View::get`].
    ///
    /// # Errors
    /// Those of [`View::get`]; [`Error::BadPeer`] if the rank has withdrawn the tensor meanwhile: then what has come counts
    /// for nothing.
    pub fn get(&self, target: &View<'_>, sub: Option<Sub<'_>>, after: Option<Await<'_>>) -> Result<()> {
        const OP: &str = "TypedRegion::get";
        self.region.window.alive(OP)?;
        check_dtypes(OP, target.dtype(), self.dtype)?;
        let (to, from) = tiles(OP, target.shape(), &self.shape, sub)?;
        if let Some(signal) = after {
            signal.check(OP, self.region.window)?;
            signal.now()?;
        }
        let (place, size): (Rect<'_>, usize) = (target.place(&to)?, self.dtype.size());
        place
            .store_from(OP, StoreOp::Set, &from, |element, bytes| self.region.read(element * size, bytes))?;
        self.region.verify()
    }

    /// Never: what a rank exposes is its own.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn remote_store(&self, _tensor: &Tensor, _offsets: &[usize], _op: StoreOp) -> Result<()> {
        self.refuse("remote_store")
    }

    /// Never: what a rank exposes is its own.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn put(&self, _source: &View<'_>, _sub: Option<Sub<'_>>, _op: StoreOp) -> Result<()> {
        self.refuse("put")
    }

    fn refuse(&self, op: &str) -> Result<()> {
        Err(Error::Unsupported {
            backend: "window",
            op: format!(
                "{op} into the tensor that rank {} exposes in slot {}",
                self.region.rank, self.region.slot
            ),
            why:
                "peers read an exposed tensor and never write it; store into the bytes of the window instead"
                    .into(),
        })
    }
}
