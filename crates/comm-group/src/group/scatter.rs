//! Operations that hand out what one rank has.

#[cfg(doc)]
use comm_core::Error;
use comm_core::tensor::{Tensor, TensorMut};
use comm_core::{Deadline, Result};

use super::{ThreadGroup, one};
use crate::request::{Op, Request};
use crate::work::Work;

/// Handing out what one rank has.
impl ThreadGroup {
    /// Gives every rank a copy of the root's tensor. The others bring none, and need not know its shape.
    ///
    /// # Errors
    /// On every rank, and the team goes on: [`Error::Mismatch`] if the ranks disagree (root), [`Error::InvalidArgument`] for a root that is not there or brings no tensor,
    /// [`Error::DeviceMismatch`] for memory of another device than the CPU. [`Error::OutOfMemory`] on the rank that has
    /// none, and [`Error::Aborted`] on the others. What ends a symmetric operation.
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team, tensor::Tensor};
    /// use comm_group::ThreadGroup;
    ///
    /// fn rank(rank: usize) -> comm_core::Result<()> {
    ///     let deadline = Deadline::default();
    ///     let group = ThreadGroup::new(Team::join("broadcast-example", rank, 2, deadline)?, deadline)?;
    ///     let mine = Tensor::from_slice(&[2], &[3.5f32, -1.0])?;
    ///     let copy = group.broadcast((rank == 0).then_some(&mine), 0, deadline)?;
    ///     assert_eq!(copy.as_slice::<f32>()?, [3.5, -1.0]);
    ///     Ok(())
    /// }
    /// # std::thread::scope(|s| {
    /// #     for r in 0..2 {
    /// #         s.spawn(move || rank(r).unwrap());
    /// #     }
    /// # });
    /// ```
    #[doc(alias = "Broadcast")]
    pub fn broadcast(
        &self,
        tensor: Option<&Tensor>,
        root: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Tensor> {
        let request = Request::new(Op::Broadcast { root }, tensor);
        self.one(request, deadline)
    }

    /// [`broadcast`](ThreadGroup::broadcast) into the caller's buffer, of the result's shape and dtype, in any strides.
    ///
    /// # Errors
    /// Those of [`broadcast`](ThreadGroup::broadcast); [`Error::Mismatch`] of `output`, on every rank, if the buffer of one has
    /// another shape. After an error its content is unspecified.
    pub fn broadcast_into<'a>(
        &self,
        tensor: Option<&Tensor>,
        root: usize,
        out: impl Into<TensorMut<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let request = Request::new(Op::Broadcast { root }, tensor);
        self.into(request, out, deadline)
    }

    /// Starts [`broadcast`](ThreadGroup::broadcast).
    ///
    /// # Errors
    /// Those of starting a thread; the others are the work's.
    pub fn broadcast_start(
        &self,
        tensor: Option<&Tensor>,
        root: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Work<Tensor>> {
        let request = Request::new(Op::Broadcast { root }, tensor);
        self.start(request, deadline, one)
    }

    /// Cuts the root's tensor along a dimension, and gives rank r shard r, by the rule of
    /// [`shard_sizes`](crate::shard_sizes()). The others bring no tensor.
    ///
    /// # Errors
    /// On every rank, and the team goes on: [`Error::Mismatch`] if the ranks disagree (root, dimension), [`Error::InvalidArgument`] for a root or a dimension that is not there, or a root that brings no tensor,
    /// [`Error::DeviceMismatch`] for memory of another device than the CPU. [`Error::OutOfMemory`] on the rank that has
    /// none, and [`Error::Aborted`] on the others. What ends a symmetric operation.
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team, tensor::Tensor};
    /// use comm_group::ThreadGroup;
    ///
    /// fn rank(rank: usize) -> comm_core::Result<()> {
    ///     let deadline = Deadline::default();
    ///     let group = ThreadGroup::new(Team::join("scatter-example", rank, 2, deadline)?, deadline)?;
    ///     let whole = Tensor::from_slice(&[3], &[1u16, 2, 3])?;
    ///     let shard = group.scatter((rank == 1).then_some(&whole), 0, 1, deadline)?;
    ///     assert_eq!(shard.as_slice::<u16>()?, if rank == 0 { &[1, 2][..] } else { &[3] });
    ///     Ok(())
    /// }
    /// # std::thread::scope(|s| {
    /// #     for r in 0..2 {
    /// #         s.spawn(move || rank(r).unwrap());
    /// #     }
    /// # });
    /// ```
    #[doc(alias = "Scatter")]
    pub fn scatter(
        &self,
        tensor: Option<&Tensor>,
        dim: usize,
        root: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Tensor> {
        let request = Request::new(Op::Scatter { dim, root }, tensor);
        self.one(request, deadline)
    }

    /// [`scatter`](ThreadGroup::scatter) into the caller's buffer, of the result's shape and dtype, in any strides.
    ///
    /// # Errors
    /// Those of [`scatter`](ThreadGroup::scatter); [`Error::Mismatch`] of `output`, on every rank, if the buffer of one has
    /// another shape. After an error its content is unspecified.
    pub fn scatter_into<'a>(
        &self,
        tensor: Option<&Tensor>,
        dim: usize,
        root: usize,
        out: impl Into<TensorMut<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let request = Request::new(Op::Scatter { dim, root }, tensor);
        self.into(request, out, deadline)
    }

    /// Starts [`scatter`](ThreadGroup::scatter).
    ///
    /// # Errors
    /// Those of starting a thread; the others are the work's.
    pub fn scatter_start(
        &self,
        tensor: Option<&Tensor>,
        dim: usize,
        root: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Work<Tensor>> {
        let request = Request::new(Op::Scatter { dim, root }, tensor);
        self.start(request, deadline, one)
    }

    /// [`scatter`](ThreadGroup::scatter) into shards of given sizes along the dimension, one for each rank.
    ///
    /// # Errors
    /// Those of [`scatter`](ThreadGroup::scatter); [`Error::Mismatch`] if the sizes differ between ranks, and
    /// [`Error::InvalidArgument`] on every rank if they do not add up to the dimension.
    pub fn scatter_sizes(
        &self,
        tensor: Option<&Tensor>,
        dim: usize,
        root: usize,
        sizes: &[usize],
        deadline: impl Into<Deadline>,
    ) -> Result<Tensor> {
        let request = Request::new(Op::Scatter { dim, root }, tensor).with_sizes(sizes.iter().copied());
        self.one(request, deadline)
    }

    /// [`scatter_sizes`](ThreadGroup::scatter_sizes) into the caller's buffer, of the result's shape and dtype, in any strides.
    ///
    /// # Errors
    /// Those of [`scatter_sizes`](ThreadGroup::scatter_sizes); [`Error::Mismatch`] of `output`, on every rank, if the buffer of one has
    /// another shape. After an error its content is unspecified.
    pub fn scatter_sizes_into<'a>(
        &self,
        tensor: Option<&Tensor>,
        dim: usize,
        root: usize,
        sizes: &[usize],
        out: impl Into<TensorMut<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let request = Request::new(Op::Scatter { dim, root }, tensor).with_sizes(sizes.iter().copied());
        self.into(request, out, deadline)
    }

    /// Starts [`scatter_sizes`](ThreadGroup::scatter_sizes).
    ///
    /// # Errors
    /// Those of starting a thread; the others are the work's.
    pub fn scatter_sizes_start(
        &self,
        tensor: Option<&Tensor>,
        dim: usize,
        root: usize,
        sizes: &[usize],
        deadline: impl Into<Deadline>,
    ) -> Result<Work<Tensor>> {
        let request = Request::new(Op::Scatter { dim, root }, tensor).with_sizes(sizes.iter().copied());
        self.start(request, deadline, one)
    }
}
