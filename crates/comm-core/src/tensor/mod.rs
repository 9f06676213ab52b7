//! Tensors: dtype, shape, strides and offset over a storage.
//!
//! | type | what it is |
//! |---|---|
//! | [`DType`], [`Element`] | element types, and the Rust types behind them |
//! | [`Layout`] | shape, strides and offset, checked once and then safe to walk |
//! | [`TensorBuf`] | a dense tensor with one owner, who reads and writes it |
//! | [`Tensor`] | a frozen one, shared and viewed with any strides |
//! | [`Place`] | where a tensor lies, as other processes find it |
//! | [`Foreign`] | memory that somebody else allocated |
//! | [`interop`] | tensors of other libraries: DLPack |
//!
//! What may be done with bytes follows from who may write them:
//!
//! - A [`TensorBuf`] has its memory to itself and gives `&mut [T]`. [`TensorBuf::freeze`] makes it a [`Tensor`];
//!   from then on nobody writes it, and it gives `&[T]` to as many as like. [`Tensor::try_into_buf`] goes back, if
//!   the tensor is the only one left and no stream reads it.
//! - Memory of another process (an import) can change at any time: its bytes are never behind a Rust
//!   reference, only copied, by one routine that tolerates the race.
//! - Memory of a device is touched by its streams alone.
//!
//! Memory goes back in stream order: see [`Tensor::record_use`].
//!
//! ```
//! use comm_core::tensor::{DType, Tensor, TensorBuf};
//!
//! let mut buf = TensorBuf::zeros(&[4, 2], DType::F32)?;
//! for (i, x) in buf.as_mut_slice::<f32>()?.iter_mut().enumerate() {
//!     *x = i as f32;
//! }
//! let t = buf.freeze();
//! let shards = [t.narrow(0, 0, 2)?, t.narrow(0, 2, 2)?]; // views
//! assert!(Tensor::concat(&shards, 0)?.bytes_equal(&t)?);
//! # Ok::<(), comm_core::Error>(())
//! ```
//!
//! Not here: arithmetic, random access by element, and device allocators.

mod arena;
mod buf;
mod concat;
mod dtype;
mod element;
mod error;
mod foreign;
mod frozen;
mod heap;
pub mod interop;
mod layout;
mod place;
#[cfg(test)]
mod properties;
mod shared;
mod storage;
#[cfg(test)]
mod tests;
mod tile;
mod transfer;
mod view;
mod view_mut;
mod views;
mod walk;

pub use buf::TensorBuf;
pub use dtype::DType;
pub use element::Element;
pub use error::TensorError;
pub use foreign::Foreign;
pub use frozen::Tensor;
pub use layout::Layout;
pub use place::Place;
pub use tile::{Footprint, Runs, Tile};
pub use transfer::Transfer;
pub use view_mut::TensorMut;

/// The most dimensions that a tensor can have.
pub const MAX_DIMS: usize = 16;
