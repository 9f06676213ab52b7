//! Moving bytes between parts.

use comm_core::tensor::{DType, Tile};
use comm_core::{Error, Result};

use super::atomic;
use super::part::{CHUNK, Part};

/// What a store does to the elements that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[doc(alias = "AtomicType")]
pub enum StoreOp {
    /// It takes their place.
    #[default]
    Set,
    /// It is added to them, each element atomically: several ranks may add to one at a time. Integers wrap, floats are
    /// rounded after each addition, so that their sum depends on who comes first. Not for bool, fp8 and complex.
    #[doc(alias = "AtomicAdd")]
    Add,
}

/// Which part of one view goes to which part of another: equal extents, each with its own offsets, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sub<'a> {
    /// Where it begins in the view that is written, one offset for each dimension.
    pub to: &'a [usize],
    /// Where it begins in the view that is read.
    pub from: &'a [usize],
    /// How many elements along each dimension.
    pub shape: &'a [usize],
}

/// Elements of a rank's part: a rectangle of a view.
#[derive(Clone, Copy)]
pub(super) struct Rect<'a> {
    pub(super) part: &'a Part,
    /// Where the view begins in the part's bytes.
    pub(super) at: usize,
    pub(super) dtype: DType,
    pub(super) tile: &'a Tile,
}

impl Rect<'_> {
    fn byte(&self, element: usize) -> usize {
        self.at + element * self.dtype.size()
    }

    /// Stores dense elements of the tile's shape.
    pub(super) fn store(&self, op: StoreOp, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        for (start, len) in self.tile.runs() {
            let Some((run, after)) = rest.split_at_checked(len * self.dtype.size()) else { break };
            self.store_run(op, start, run)?;
            rest = after;
        }
        Ok(())
    }

    fn store_run(&self, op: StoreOp, start: usize, bytes: &[u8]) -> Result<()> {
        match op {
            StoreOp::Set => self.part.write(self.byte(start), bytes),
            StoreOp::Add => atomic::add(self.dtype, self.part, self.byte(start), bytes),
        }
    }

    /// Stores what is read, run by run, from another view: `read` is given the first element of a run there.
    pub(super) fn store_from(
        &self,
        call: &'static str,
        op: StoreOp,
        from: &Tile,
        read: impl Fn(usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let size = self.dtype.size();
        let mut chunk = vec![0; CHUNK.min(self.tile.numel() * size)];
        for (to, from, len) in Tile::pair(call, self.tile, from)? {
            for start in (0..len).step_by(CHUNK / size) {
                let bytes = &mut chunk[..CHUNK.min((len - start) * size)];
                read(from + start, bytes)?;
                self.store_run(op, to + start, bytes)?;
            }
        }
        Ok(())
    }
}

/// Whether elements of this type can be stored so.
pub(super) fn check_op(call: &'static str, op: StoreOp, dtype: DType) -> Result<()> {
    if op == StoreOp::Set || atomic::can_add(dtype) {
        return Ok(());
    }
    let why = "integers and floats of 16, 32 and 64 bits are added atomically";
    Err(Error::Unsupported { backend: "window", op: format!("{call} with Add of {dtype}"), why: why.into() })
}

/// Both views of a transfer must hold the same type.
pub(super) fn check_dtypes(call: &'static str, to: DType, from: DType) -> Result<()> {
    if to == from {
        return Ok(());
    }
    Err(Error::invalid(call, format!("elements of {from} into a view of {to}")))
}

/// The tiles of a transfer in the view that is written and in the one that is read.
pub(super) fn tiles(
    call: &'static str,
    to: &[usize],
    from: &[usize],
    sub: Option<Sub<'_>>,
) -> Result<(Tile, Tile)> {
    if let Some(sub) = sub {
        return Ok((Tile::new(call, to, sub.to, sub.shape)?, Tile::new(call, from, sub.from, sub.shape)?));
    }
    if to != from {
        let why = format!("a view of shape {from:?} into one of {to:?}: say which part goes where");
        return Err(Error::invalid(call, why));
    }
    Ok((Tile::whole(call, to)?, Tile::whole(call, from)?))
}
