//! Operations that put shards together.

#[cfg(doc)]
use comm_core::Error;
use comm_core::tensor::{Tensor, TensorMut};
use comm_core::{Deadline, Result};

use super::{Target, ThreadGroup, forms, many, maybe, one};
use crate::request::{Op, Request};
use crate::work::Work;

/// Putting shards together.
impl ThreadGroup {
    forms! {
        /// Puts the shards of all ranks together along `dim`, in rank order; every rank gets the whole.
        ///
        /// Any dtype and strides; shards may differ in size along `dim`, and may be empty. The result is contiguous.
        ///
        /// # Errors
        /// Those of [every operation](ThreadGroup#errors-of-operations), where the ranks agree about dtype,
        /// dimension, shape other than along it; [`Error::InvalidArgument`] for a dimension that is not there
        /// or a whole that is too large.
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
        all_gather / all_gather_into / all_gather_start(tensor: &Tensor, dim: usize) -> Tensor: one =
            Request::new(Op::AllGather { dim }, Some(tensor))
    }

    forms! {
        /// [`all_gather`](ThreadGroup::all_gather) along the first dimension of tensors that all have one shape.
        ///
        /// # Errors
        /// Those of [every operation](ThreadGroup#errors-of-operations), where the ranks agree about dtype,
        /// shape; [`Error::InvalidArgument`] for tensors without dimensions or a whole that is too large.
        #[doc(alias = "EqualShapeAllGatherIntoTensor")]
        all_gather_equal / all_gather_equal_into / all_gather_equal_start(tensor: &Tensor) -> Tensor: one =
            Request::new(Op::AllGatherEqual, Some(tensor))
    }

    forms! {
        /// Gives every rank the tensors of all, in rank order, each with its own shape, which the others need not know.
        ///
        /// # Errors
        /// Those of [every operation](ThreadGroup#errors-of-operations), where the ranks agree about dtype.
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
        all_gather_into_vec / all_gather_into_vec_start(tensor: &Tensor) -> Vec<Tensor>: many =
            Request::new(Op::AllGatherVec, Some(tensor))
    }

    forms! {
        /// Puts the shards of all ranks together as [`all_gather`](ThreadGroup::all_gather) does; the root gets the whole, the
        /// others get none. Their buffers of `gather_into` stay as they are, whatever they are.
        ///
        /// # Errors
        /// Those of [every operation](ThreadGroup#errors-of-operations), where the ranks agree about root,
        /// dtype, dimension, shape other than along it; [`Error::InvalidArgument`] for a root or a dimension
        /// that is not there or a whole that is too large.
        #[doc(alias = "Gather")]
        gather / gather_into / gather_start(tensor: &Tensor, dim: usize, root: usize) -> Option<Tensor>: maybe =
            Request::new(Op::Gather { dim, root }, Some(tensor))
    }
}
