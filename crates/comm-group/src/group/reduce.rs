//! Reductions.

#[cfg(doc)]
use comm_core::Error;
use comm_core::tensor::{Tensor, TensorBuf, TensorMut};
use comm_core::{Deadline, Result};

use super::{Target, ThreadGroup, forms, maybe, one};
use crate::reduce::ReduceOp;
use crate::request::{Op, Request};
use crate::work::Work;

/// Reductions go in rank order, whatever arrives when: see [`ReduceOp`] for what there is, and to the last bit.
impl ThreadGroup {
    forms! {
        /// Combines the tensors of all ranks, element by element; every rank gets the result.
        ///
        /// Any shape and strides, the same shape on all ranks; the result is contiguous.
        ///
        /// # Errors
        /// Those of [every operation](ThreadGroup#errors-of-operations), where the ranks agree about shape,
        /// dtype, operator; [`Error::Unsupported`] for an operator that there is not for the dtype.
        ///
        /// ```
        /// use comm_core::{Deadline, team::Team, tensor::Tensor};
        /// use comm_group::{ReduceOp, ThreadGroup};
        ///
        /// fn rank(rank: usize) -> comm_core::Result<()> {
        ///     let deadline = Deadline::default();
        ///     let group = ThreadGroup::new(Team::join("all-reduce-example", rank, 2, deadline)?, deadline)?;
        ///     let mine = Tensor::from_slice(&[2], &[1i64, 10 * rank as i64])?;
        ///     let sum = group.all_reduce(&mine, ReduceOp::Sum, deadline)?;
        ///     assert_eq!(sum.as_slice::<i64>()?, [2, 10]);
        ///     Ok(())
        /// }
        /// # std::thread::scope(|s| {
        /// #     for r in 0..2 {
        /// #         s.spawn(move || rank(r).unwrap());
        /// #     }
        /// # });
        /// ```
        #[doc(alias = "AllReduce")]
        all_reduce / all_reduce_into / all_reduce_start(tensor: &Tensor, op: ReduceOp) -> Tensor: one =
            Request::new(Op::AllReduce(op), Some(tensor))
    }

    /// [`all_reduce`](ThreadGroup::all_reduce) of what is in a buffer, into the same buffer.
    ///
    /// # Errors
    /// Those of [`all_reduce`](ThreadGroup::all_reduce). After an error its content is unspecified.
    pub fn all_reduce_in_place(
        &self,
        buf: &mut TensorBuf,
        op: ReduceOp,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let (input, wrong) = match copy_of(buf) {
            Ok(copy) => (Some(copy), None),
            Err(error) => (None, Some(error)),
        };
        let request = Request { wrong, ..Request::new(Op::AllReduce(op), input.as_ref()) };
        self.into(request, buf, deadline)
    }

    /// [`all_reduce`](ThreadGroup::all_reduce) of several tensors, one after the other.
    ///
    /// # Errors
    /// Those of [`all_reduce`](ThreadGroup::all_reduce), of the first that fails.
    pub fn all_reduce_batch(
        &self,
        tensors: &[Tensor],
        op: ReduceOp,
        deadline: impl Into<Deadline>,
    ) -> Result<Vec<Tensor>> {
        let deadline = deadline.into();
        tensors.iter().map(|tensor| self.all_reduce(tensor, op, deadline)).collect()
    }

    forms! {
        /// Combines the tensors of all ranks as [`all_reduce`](ThreadGroup::all_reduce) does; the root gets the result, the others
        /// get none. Their buffers of `reduce_into` stay as they are, whatever they are.
        ///
        /// # Errors
        /// Those of [every operation](ThreadGroup#errors-of-operations), where the ranks agree about root,
        /// shape, dtype, operator; [`Error::InvalidArgument`] for a root that is not there;
        /// [`Error::Unsupported`] for an operator that there is not for the dtype.
        ///
        /// ```
        /// use comm_core::{Deadline, team::Team, tensor::Tensor};
        /// use comm_group::{ReduceOp, ThreadGroup};
        ///
        /// fn rank(rank: usize) -> comm_core::Result<()> {
        ///     let deadline = Deadline::default();
        ///     let group = ThreadGroup::new(Team::join("reduce-example", rank, 2, deadline)?, deadline)?;
        ///     let mine = Tensor::from_slice(&[2], &[1i64, 10 * rank as i64])?;
        ///     let sum = group.reduce(&mine, ReduceOp::Max, 1, deadline)?;
        ///     assert_eq!(sum.map(|t| t.to_vec::<i64>()).transpose()?, (rank == 1).then_some(vec![1, 10]));
        ///     Ok(())
        /// }
        /// # std::thread::scope(|s| {
        /// #     for r in 0..2 {
        /// #         s.spawn(move || rank(r).unwrap());
        /// #     }
        /// # });
        /// ```
        #[doc(alias = "Reduce")]
        reduce / reduce_into / reduce_start(tensor: &Tensor, op: ReduceOp, root: usize) -> Option<Tensor>: maybe =
            Request::new(Op::Reduce { op, root }, Some(tensor))
    }

    forms! {
        /// Combines the tensors of all ranks, element by element, and cuts the result along a dimension: rank r gets shard r, by
        /// the rule of [`shard_sizes`](crate::shard_sizes()).
        ///
        /// # Errors
        /// Those of [every operation](ThreadGroup#errors-of-operations), where the ranks agree about dimension,
        /// shape, dtype, operator; [`Error::InvalidArgument`] for a dimension that is not there;
        /// [`Error::Unsupported`] for an operator that there is not for the dtype.
        ///
        /// ```
        /// use comm_core::{Deadline, team::Team, tensor::Tensor};
        /// use comm_group::{ReduceOp, ThreadGroup};
        ///
        /// fn rank(rank: usize) -> comm_core::Result<()> {
        ///     let deadline = Deadline::default();
        ///     let group = ThreadGroup::new(Team::join("reduce-scatter-example", rank, 2, deadline)?, deadline)?;
        ///     let mine = Tensor::from_slice(&[3], &[1i32, 2, 3])?;
        ///     let shard = group.reduce_scatter(&mine, ReduceOp::Sum, 0, deadline)?;
        ///     assert_eq!(shard.as_slice::<i32>()?, if rank == 0 { &[2, 4][..] } else { &[6] });
        ///     Ok(())
        /// }
        /// # std::thread::scope(|s| {
        /// #     for r in 0..2 {
        /// #         s.spawn(move || rank(r).unwrap());
        /// #     }
        /// # });
        /// ```
        #[doc(alias = "ReduceScatterTensor")]
        reduce_scatter / reduce_scatter_into / reduce_scatter_start(tensor: &Tensor, op: ReduceOp, dim: usize) -> Tensor: one =
            Request::new(Op::ReduceScatter { op, dim }, Some(tensor))
    }

    forms! {
        /// [`reduce_scatter`](ThreadGroup::reduce_scatter) into shards of given sizes along the dimension, one for each rank.
        ///
        /// # Errors
        /// Those of [`reduce_scatter`](ThreadGroup::reduce_scatter); [`Error::Mismatch`] if the sizes differ between ranks, and
        /// [`Error::InvalidArgument`] on every rank if they do not add up to the dimension.
        reduce_scatter_sizes / reduce_scatter_sizes_into / reduce_scatter_sizes_start(tensor: &Tensor, op: ReduceOp, dim: usize, sizes: &[usize]) -> Tensor: one =
            Request::new(Op::ReduceScatter { op, dim }, Some(tensor)).with_sizes(sizes.iter().copied())
    }
}

fn copy_of(buf: &TensorBuf) -> Result<Tensor> {
    let mut copy = TensorBuf::zeros(buf.shape(), buf.dtype())?;
    copy.bytes_mut()?.copy_from_slice(buf.bytes()?);
    Ok(copy.freeze())
}
