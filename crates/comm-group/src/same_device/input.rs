//! What a rank contributes, wherever it lies.

use comm_core::tensor::Tensor;
use comm_core::{Error, Result};
use comm_store::window::Region;

/// The bytes of a rank's input, row-major.
pub(super) enum Input<'a> {
    /// This rank's own. If peers of other processes read it, it may be in memory of the arena.
    Own(Box<Tensor>),
    /// It came in the letter.
    Letter(Vec<u8>),
    /// The rank exposes it.
    Region(Region<'a>),
}

impl Input<'_> {
    /// Copies bytes out of it. They count only if [`verify`](Input::verify) says so afterwards.
    pub(super) fn read(&self, offset: usize, dst: &mut [u8]) -> Result<()> {
        let bytes = match self {
            Input::Own(tensor) => tensor.bytes()?,
            Input::Letter(bytes) => bytes,
            Input::Region(region) => return region.read(offset, dst),
        };
        let range = offset.checked_add(dst.len()).and_then(|end| bytes.get(offset..end));
        let outside = || Error::bad_peer(format!("{} bytes at {offset} of {}", dst.len(), bytes.len()));
        dst.copy_from_slice(range.ok_or_else(outside)?);
        Ok(())
    }

    /// Whether everything that was read is what the rank contributes.
    pub(super) fn verify(&self) -> Result<()> {
        match self {
            Input::Own(_) | Input::Letter(_) => Ok(()),
            Input::Region(region) => region.verify(),
        }
    }
}
