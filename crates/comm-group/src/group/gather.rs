//! Operations that put shards together.

#[cfg(doc)]
use comm_core::Error;
use comm_core::tensor::{Tensor, TensorMut};
use comm_core::{Deadline, Result};

use super::{Target, ThreadGroup, many, maybe, one};
use crate::request::{Op, Request};
use crate::work::Work;

/// Putting shards together.
impl ThreadGroup {
    /// Puts the shards of all ranks together along `dim`, in rank order; every rank gets the whole.
    ///
    /// Any dtype and strides; shards may differ in size along `dim`, and may be empty. The result is contiguous.
    ///
    /// # Errors
    /// On every rank, and the team goes on: [`Error::Mismatch`] if the ranks disagree (dtype, dimension, shape other than along it), [`Error::InvalidArgument`] for a dimension that is not there or a whole that is too large,
    /// [`Error::DeviceMismatch`] for memory of another device than the CPU. [`Error::OutOfMemory`] on the rank that has
    /// none, and [`Error::Aborted`] on the others. What ends a symmetric operation.
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team, tensor::Tensor};
    /// use comm_group::ThreadGroup;
    ///
    /// fn rank(rank: usize) -> comm_core::Result<()> {
    ///     let deadline = Deadline::default();
    ///     let group = ThreadGroup::new(Team::join("all-gather-example", rank, 2, deadline)?, deadline)?;
    ///     // Two rows; rank 0 has one column, rank 1 has two.
    ///     let mine = Tensor::from_slice(&[2, rank + 1], &vec![rank as i32; 2 * (rank + 1)])?;
    ///     let whole = group.all_gather(&mine, 1, deadline)?;
    ///     assert_eq!(whole.shape(), [2, 3]);
    ///     assert_eq!(whole.as_slice::<i32>()?, [0, 1, 1, 0, 1, 1]);
    ///     Ok(())
    /// }
    /// # std::thread::scope(|s| {
    /// #     for r in 0..2 {
    /// #         s.spawn(move || rank(r).unwrap());
    /// #     }
    /// # });
    /// ```
    #[doc(alias = "AllGather")]
    #[doc(alias = "AllGatherIntoTensor")]
    pub fn all_gather(&self, tensor: &Tensor, dim: usize, deadline: impl Into<Deadline>) -> Result<Tensor> {
        let request = Request::new(Op::AllGather { dim }, Some(tensor));
        self.one(request, deadline)
    }

    /// [`all_gather`](ThreadGroup::all_gather) into the caller's buffer, of the result's shape and dtype, in any strides.
    ///
    /// # Errors
    /// Those of [`all_gather`](ThreadGroup::all_gather); [`Error::Mismatch`] of `output`, on every rank, if the buffer of one has
    /// another shape. After an error its content is unspecified.
    pub fn all_gather_into<'a>(
        &self,
        tensor: &Tensor,
        dim: usize,
        out: impl Into<TensorMut<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let request = Request::new(Op::AllGather { dim }, Some(tensor));
        self.into(request, out, deadline)
    }

    /// Starts [`all_gather`](ThreadGroup::all_gather).
    ///
    /// # Errors
    /// Those of starting a thread; the others are the work's.
    pub fn all_gather_start(
        &self,
        tensor: &Tensor,
        dim: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Work<Tensor>> {
        let request = Request::new(Op::AllGather { dim }, Some(tensor));
        self.start(request, deadline, one)
    }

    /// [`all_gather`](ThreadGroup::all_gather) along the first dimension of tensors that all have one shape.
    ///
    /// # Errors
    /// On every rank, and the team goes on: [`Error::Mismatch`] if the ranks disagree (dtype, shape), [`Error::InvalidArgument`] for tensors without dimensions or a whole that is too large,
    /// [`Error::DeviceMismatch`] for memory of another device than the CPU. [`Error::OutOfMemory`] on the rank that has
    /// none, and [`Error::Aborted`] on the others. What ends a symmetric operation.
    #[doc(alias = "EqualShapeAllGatherIntoTensor")]
    pub fn all_gather_equal(&self, tensor: &Tensor, deadline: impl Into<Deadline>) -> Result<Tensor> {
        let request = Request::new(Op::AllGatherEqual, Some(tensor));
        self.one(request, deadline)
    }

    /// [`all_gather_equal`](ThreadGroup::all_gather_equal) into the caller's buffer, of the result's shape and dtype, in any strides.
    ///
    /// # Errors
    /// Those of [`all_gather_equal`](ThreadGroup::all_gather_equal); [`Error::Mismatch`] of `output`, on every rank, if the buffer of one has
    /// another shape. After an error its content is unspecified.
    pub fn all_gather_equal_into<'a>(
        &self,
        tensor: &Tensor,
        out: impl Into<TensorMut<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let request = Request::new(Op::AllGatherEqual, Some(tensor));
        self.into(request, out, deadline)
    }

    /// Starts [`all_gather_equal`](ThreadGroup::all_gather_equal).
    ///
    /// # Errors
    /// Those of starting a thread; the others are the work's.
    pub fn all_gather_equal_start(
        &self,
        tensor: &Tensor,
        deadline: impl Into<Deadline>,
    ) -> Result<Work<Tensor>> {
        let request = Request::new(Op::AllGatherEqual, Some(tensor));
        self.start(request, deadline, one)
    }

    /// Gives every rank the tensors of all, in rank order, each with its own shape, which the others need not know.
    ///
    /// # Errors
    /// On every rank, and the team goes on: [`Error::Mismatch`] if the ranks disagree (dtype), [`Error::InvalidArgument`]
    /// [`Error::DeviceMismatch`] for memory of another device than the CPU. [`Error::OutOfMemory`] on the rank that has
    /// none, and [`Error::Aborted`] on the others. What ends a symmetric operation.
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team, tensor::Tensor};
    /// use comm_group::ThreadGroup;
    ///
    /// fn rank(rank: usize) -> comm_core::Result<()> {
    ///     let deadline = Deadline::default();
    ///     let group = ThreadGroup::new(Team::join("into-vec-example", rank, 2, deadline)?, deadline)?;
    ///     let mine = Tensor::from_slice(&[rank, 2], &vec![7u8; 2 * rank])?;
    ///     let all = group.all_gather_into_vec(&mine, deadline)?;
    ///     assert_eq!([all[0].shape(), all[1].shape()], [[0, 2], [1, 2]]);
    ///     Ok(())
    /// }
    /// # std::thread::scope(|s| {
    /// #     for r in 0..2 {
    /// #         s.spawn(move || rank(r).unwrap());
    /// #     }
    /// # });
    /// ```
    #[doc(alias = "AllGatherIntoVec")]
    pub fn all_gather_into_vec(&self, tensor: &Tensor, deadline: impl Into<Deadline>) -> Result<Vec<Tensor>> {
        let request = Request::new(Op::AllGatherVec, Some(tensor));
        self.call(request, Target::Fresh, deadline).and_then(many)
    }

    /// Starts [`all_gather_into_vec`](ThreadGroup::all_gather_into_vec).
    ///
    /// # Errors
    /// Those of starting a thread; the others are the work's.
    pub fn all_gather_into_vec_start(
        &self,
        tensor: &Tensor,
        deadline: impl Into<Deadline>,
    ) -> Result<Work<Vec<Tensor>>> {
        let request = Request::new(Op::AllGatherVec, Some(tensor));
        self.start(request, deadline, many)
    }

    /// Puts the shards of all ranks together as [`all_gather`](ThreadGroup::all_gather) does; the root gets the whole, the
    /// others get none.
    ///
    /// # Errors
    /// On every rank, and the team goes on: [`Error::Mismatch`] if the ranks disagree (root, dtype, dimension, shape other than along it), [`Error::InvalidArgument`] for a root or a dimension that is not there or a whole that is too large,
    /// [`Error::DeviceMismatch`] for memory of another device than the CPU. [`Error::OutOfMemory`] on the rank that has
    /// none, and [`Error::Aborted`] on the others. What ends a symmetric operation.
    #[doc(alias = "Gather")]
    pub fn gather(
        &self,
        tensor: &Tensor,
        dim: usize,
        root: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Option<Tensor>> {
        let request = Request::new(Op::Gather { dim, root }, Some(tensor));
        self.maybe(request, deadline)
    }

    /// [`gather`](ThreadGroup::gather) into the caller's buffer, of the result's shape and dtype, in any strides.
    ///
    /// # Errors
    /// Those of [`gather`](ThreadGroup::gather); [`Error::Mismatch`] of `output`, on every rank, if the buffer of one has
    /// another shape. After an error its content is unspecified.
    pub fn gather_into<'a>(
        &self,
        tensor: &Tensor,
        dim: usize,
        root: usize,
        out: impl Into<TensorMut<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let request = Request::new(Op::Gather { dim, root }, Some(tensor));
        self.into(request, out, deadline)
    }

    /// Starts [`gather`](ThreadGroup::gather).
    ///
    /// # Errors
    /// Those of starting a thread; the others are the work's.
    pub fn gather_start(
        &self,
        tensor: &Tensor,
        dim: usize,
        root: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Work<Option<Tensor>>> {
        let request = Request::new(Op::Gather { dim, root }, Some(tensor));
        self.start(request, deadline, |outcome| Ok(maybe(outcome)))
    }
}
