//! What the demo asks of the library: to make a tensor, and to take it from one placement to another.

use std::borrow::Cow;

use super::weights::Spec;

/// The conversions of one rank.
///
/// The demo is written against this so that its own logic can be tested without a team of ranks; what ships
/// is the implementation over a thread group in [`super::group`].
pub trait Exchange {
    /// A tensor of the library.
    type Tensor;

    /// Waits until all ranks are here.
    fn barrier(&self) -> Result<(), String>;

    /// A replicated tensor from its little-endian, row-major bytes.
    fn tensor(&self, spec: &Spec, bytes: &[u8]) -> Result<Self::Tensor, String>;

    /// R -> S(dim): this rank's shard.
    fn shard(&self, full: &Self::Tensor, dim: usize) -> Result<Self::Tensor, String>;

    /// S(dim) -> R: all shards, put together again.
    fn gather(&self, shard: &Self::Tensor, dim: usize) -> Result<Self::Tensor, String>;

    /// R -> P: the first rank keeps the value, the others hold the sum's identity.
    fn partial(&self, full: &Self::Tensor) -> Result<Self::Tensor, String>;

    /// P -> R: the sum of all partials.
    fn reduce(&self, partial: &Self::Tensor) -> Result<Self::Tensor, String>;

    /// A tensor's shape, in elements.
    fn shape(&self, tensor: &Self::Tensor) -> Vec<usize>;

    /// A tensor's bytes, little-endian and row-major.
    fn bytes<'a>(&self, tensor: &'a Self::Tensor) -> Result<Cow<'a, [u8]>, String>;
}
