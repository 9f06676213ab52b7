//! Operations that hand out what one rank has.

#[cfg(doc)]
use comm_core::Error;
use comm_core::tensor::{Tensor, TensorMut};
use comm_core::{Deadline, Result};

use super::{Target, ThreadGroup, forms, one};
use crate::request::{Op, Request};
use crate::work::Work;

/// Handing out what one rank has.
impl ThreadGroup {
    forms! {
        /// Gives every rank a copy of the root's tensor. The others bring none, and need not know its shape.
        ///
        /// # Errors
        /// Those of [every operation](ThreadGroup#errors-of-operations), where the ranks agree about root;
        /// [`Error::InvalidArgument`] for a root that is not there or brings no tensor.
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
        broadcast / broadcast_into / broadcast_start(tensor: Option<&Tensor>, root: usize) -> Tensor: one =
            Request::new(Op::Broadcast { root }, tensor)
    }

    forms! {
        /// Cuts the root's tensor along a dimension, and gives rank r shard r, by the rule of
        /// [`shard_sizes`](crate::shard_sizes()). The others bring no tensor.
        ///
        /// # Errors
        /// Those of [every operation](ThreadGroup#errors-of-operations), where the ranks agree about root,
        /// dimension; [`Error::InvalidArgument`] for a root or a dimension that is not there, or a root that
        /// brings no tensor.
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
        scatter / scatter_into / scatter_start(tensor: Option<&Tensor>, dim: usize, root: usize) -> Tensor: one =
            Request::new(Op::Scatter { dim, root }, tensor)
    }

    forms! {
        /// [`scatter`](ThreadGroup::scatter) into shards of given sizes along the dimension, one for each rank.
        ///
        /// # Errors
        /// Those of [`scatter`](ThreadGroup::scatter); [`Error::Mismatch`] if the sizes differ between ranks, and
        /// [`Error::InvalidArgument`] on every rank if they do not add up to the dimension.
        scatter_sizes / scatter_sizes_into / scatter_sizes_start(tensor: Option<&Tensor>, dim: usize, root: usize, sizes: &[usize]) -> Tensor: one =
            Request::new(Op::Scatter { dim, root }, tensor).with_sizes(sizes.iter().copied())
    }
}
