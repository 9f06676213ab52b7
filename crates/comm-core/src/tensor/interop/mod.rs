//! Tensors of other libraries, and ours for them.
//!
//! | with | ours to theirs | theirs to ours | feature |
//! |---|---|---|---|
//! | [`dlpack`]: any library that speaks it | no copy | no copy | |
//! | `ndarray` 0.17 | a view, no copy | no copy; one for a `TensorBuf` of an array that is not dense | `ndarray` |
//! | `candle-core` 0.11 | one copy | no copy, `unsafe` | `candle` |
//!
//! Memory of another process cannot be borrowed, so it cannot be handed on without a copy either, and memory of devices
//! stays where it is. Memory that came from another library is a [`Foreign`](super::Foreign): it goes back when the last
//! tensor over it is gone.

#[cfg(feature = "candle")]
pub mod candle;
pub mod dlpack;
#[cfg(feature = "ndarray")]
pub mod ndarray;
