//! What a rank says to all others before an operation, as it lies in shared memory.

use std::mem::offset_of;

use comm_core::tensor::{DType, MAX_DIMS, Tensor};
use comm_core::{Error, Result, layout};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::reduce::ReduceOp;
use crate::request::Request;

/// The most bytes of an input that travel in a letter.
pub(crate) const CARRIED: usize = 512;

/// What a rank is about to do, as it lies in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Descriptor {
    /// [`LAYOUT`]: ranks of another build would misread the rest.
    pub(super) layout: u64,
    pub(super) seq: u64,
    pub(super) op: u32,
    pub(super) reduce: u32,
    pub(super) factor: u64,
    /// The dimensions that the operation is about, and its root.
    pub(super) dim: u32,
    pub(super) other_dim: u32,
    pub(super) root: u64,
    /// Zero, or one more than the dtype's code: whether there is a tensor.
    pub(super) dtype: u16,
    /// Whether the tensor is on another device than the CPU.
    pub(super) elsewhere: u16,
    pub(super) dims: u32,
    /// Whether this rank's own arguments are wrong: it refuses, and the others hear of it.
    pub(super) invalid: u32,
    /// How many sizes follow the descriptor.
    sizes: u32,
    /// How many bytes of the tensor follow those, or [`EXPOSED`]. Each rank's own affair.
    carried: u64,
    /// What stands for the shape and dtype of the buffer that the result is to go to; zero if there is none.
    out: u64,
    pub(super) shape: [u64; MAX_DIMS],
}

/// The layout of a descriptor, as one number.
pub(super) const LAYOUT: u64 = layout::hash(&[
    2, // counted up when the meaning of a field changes and its place does not
    size_of::<Descriptor>(),
    offset_of!(Descriptor, seq),
    offset_of!(Descriptor, op),
    offset_of!(Descriptor, reduce),
    offset_of!(Descriptor, factor),
    offset_of!(Descriptor, dim),
    offset_of!(Descriptor, other_dim),
    offset_of!(Descriptor, root),
    offset_of!(Descriptor, dtype),
    offset_of!(Descriptor, elsewhere),
    offset_of!(Descriptor, dims),
    offset_of!(Descriptor, invalid),
    offset_of!(Descriptor, sizes),
    offset_of!(Descriptor, carried),
    offset_of!(Descriptor, out),
    offset_of!(Descriptor, shape),
]);

/// The tensor does not follow its descriptor: it is exposed in place.
const EXPOSED: u64 = u64::MAX;

/// A dimension as it is written. What does not fit is there in no tensor, and stays so.
fn dim_code(dim: usize) -> u32 {
    u32::try_from(dim).unwrap_or(u32::MAX)
}

/// What stands for a buffer that a result is to go to.
pub(crate) fn out_code(shape: &[usize], dtype: DType) -> u64 {
    let mut words = [0; MAX_DIMS + 2];
    words[0] = usize::from(dtype.code());
    words[1] = shape.len();
    for (word, &size) in words[2..].iter_mut().zip(shape) {
        *word = size;
    }
    // Zero says that there is none.
    layout::hash(&words).max(1)
}

/// What a rank says besides its descriptor.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Saying {
    pub(crate) invalid: bool,
    /// How many bytes of the input travel along; none if it is exposed.
    pub(crate) carried: Option<usize>,
    pub(crate) out: u64,
}

impl Descriptor {
    pub(crate) const BYTES: usize = size_of::<Descriptor>();

    pub(crate) fn new(seq: u64, request: &Request, saying: Saying) -> Descriptor {
        let tensor = request.input.as_ref();
        let mut shape = [0; MAX_DIMS];
        for (to, &from) in shape.iter_mut().zip(tensor.map_or(&[][..], Tensor::shape)) {
            *to = from as u64;
        }
        let op = request.op;
        let (dim, other_dim) = op.dims();
        let reduce = op.reduce();
        Descriptor {
            layout: LAYOUT,
            seq,
            op: op.code(),
            reduce: reduce.map_or(0, ReduceOp::code),
            factor: reduce.map_or(0, ReduceOp::factor_bits),
            dim: dim_code(dim),
            other_dim: dim_code(other_dim),
            root: op.root().map_or(0, |root| (root as u64).saturating_add(1)),
            dtype: tensor.map_or(0, |t| u16::from(t.dtype().code()) + 1),
            elsewhere: tensor.map_or(0, |t| u16::from(!t.device().is_cpu())),
            dims: tensor.map_or(0, |t| t.shape().len() as u32),
            invalid: u32::from(saying.invalid),
            sizes: request.sizes().len() as u32,
            carried: saying.carried.map_or(EXPOSED, |bytes| bytes as u64),
            out: saying.out,
            shape,
        }
    }

    /// Checks that a rank's descriptor is of this build.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if not.
    pub(crate) fn check_layout(&self, rank: usize) -> Result<()> {
        if self.layout == LAYOUT {
            return Ok(());
        }
        Err(Error::bad_peer(format!("rank {rank} writes descriptors of another build ({:#x})", self.layout)))
    }

    /// The number that it was made with.
    pub(crate) fn seq(&self) -> u64 {
        self.seq
    }

    /// The shape, if it can be one: a peer wrote it.
    pub(crate) fn shape(&self) -> Option<Vec<usize>> {
        let dims = self.shape.get(..self.dims as usize)?;
        dims.iter().map(|&n| usize::try_from(n).ok()).collect()
    }

    /// The dtype of the tensor, if there is one.
    pub(crate) fn dtype(&self) -> Option<DType> {
        DType::from_code(u8::try_from(self.dtype.checked_sub(1)?).ok()?)
    }

    /// Whether the tensor is on another device than the CPU.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.elsewhere != 0
    }

    /// How many bytes of the tensor follow; none if it is exposed in place.
    pub(crate) fn carried(&self) -> Option<u64> {
        (self.carried != EXPOSED).then_some(self.carried)
    }

    /// How many sizes follow.
    pub(crate) fn sizes(&self) -> usize {
        self.sizes as usize
    }

    /// What stands for the buffer of this rank's result, if it has one.
    pub(crate) fn out(&self) -> Option<u64> {
        (self.out != 0).then_some(self.out)
    }

    pub(super) fn dtype_name(&self) -> String {
        match (self.dtype, self.dtype()) {
            (0, _) => "no tensor".into(),
            (_, Some(dtype)) => dtype.to_string(),
            (code, None) => format!("dtype {code}"),
        }
    }

    pub(super) fn device_name(&self) -> String {
        if self.elsewhere == 0 { "cpu" } else { "another device" }.to_string()
    }

    pub(super) fn root_name(&self) -> String {
        self.root.checked_sub(1).map_or_else(|| "none".into(), |root| root.to_string())
    }

    fn known_dims(&self) -> &[u64] {
        &self.shape[..(self.dims as usize).min(MAX_DIMS)]
    }

    pub(super) fn shape_text(&self) -> String {
        format!("{:?}", self.known_dims())
    }

    /// The shape without a dimension along which shards may differ.
    pub(super) fn shape_but(&self, dim: u32) -> (u32, Vec<u64>) {
        let dims = self.known_dims().iter().enumerate().filter(|&(d, _)| d as u64 != u64::from(dim));
        (self.dims, dims.map(|(_, &n)| n).collect())
    }
}

/// What a rank has said: a descriptor, and the sizes after it.
#[derive(Debug, Clone)]
pub(crate) struct Letter {
    pub(crate) descriptor: Descriptor,
    pub(crate) sizes: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_differ_by_shape_and_dtype() {
        let all = [
            out_code(&[], DType::F32),
            out_code(&[0], DType::F32),
            out_code(&[0, 0], DType::F32),
            out_code(&[2, 3], DType::F32),
            out_code(&[3, 2], DType::F32),
            out_code(&[6], DType::F32),
            out_code(&[6], DType::I32),
        ];
        for (i, code) in all.iter().enumerate() {
            assert!(*code != 0 && !all[..i].contains(code), "{all:x?}");
        }
    }
}
