//! Operations in which every rank has something for every other one.

#[cfg(doc)]
use comm_core::Error;
use comm_core::tensor::{Tensor, TensorMut};
use comm_core::{Deadline, Result};

use super::{Target, ThreadGroup, forms, one};
use crate::request::{Op, Request};
use crate::work::Work;

/// Exchanging parts of shards.
impl ThreadGroup {
    forms! {
        /// From shards along one dimension to shards along another: each rank gets its shard along `to`, by the rule of
        /// [`shard_sizes`](crate::shard_sizes()), of the whole whose shards along `from` the ranks bring, which may differ in size.
        ///
        /// With `from` and `to` the same, the shards are made as even as the rule says.
        ///
        /// # Errors
        /// Those of [every operation](ThreadGroup#errors-of-operations), where the ranks agree about dtype,
        /// dimensions, shape other than along `from`; [`Error::InvalidArgument`] for a dimension that is not
        /// there or a whole that is too large.
        ///
        /// ```
        /// use comm_core::{Deadline, team::Team, tensor::Tensor};
        /// use comm_group::ThreadGroup;
        ///
        /// fn rank(rank: usize) -> comm_core::Result<()> {
        ///     let deadline = Deadline::default();
        ///     let group = ThreadGroup::new(Team::join("all-to-all-example", rank, 2, deadline)?, deadline)?;
        ///     // The columns of [[0, 1], [2, 3]], and then its rows.
        ///     let column = Tensor::from_slice(&[2, 1], &[rank as i32, 2 + rank as i32])?;
        ///     let row = group.all_to_all(&column, 1, 0, deadline)?;
        ///     assert_eq!((row.shape(), row.as_slice::<i32>()?), (&[1, 2][..], &[2 * rank as i32, 2 * rank as i32 + 1][..]));
        ///     Ok(())
        /// }
        /// # std::thread::scope(|s| {
        /// #     for r in 0..2 {
        /// #         s.spawn(move || rank(r).unwrap());
        /// #     }
        /// # });
        /// ```
        #[doc(alias = "AllToAll")]
        all_to_all / all_to_all_into / all_to_all_start(tensor: &Tensor, from: usize, to: usize) -> Tensor: one =
            Request::new(Op::AllToAll { from, to }, Some(tensor))
    }

    forms! {
        /// [`all_to_all`](ThreadGroup::all_to_all) to shards of given sizes along `to`, one for each rank.
        ///
        /// # Errors
        /// Those of [`all_to_all`](ThreadGroup::all_to_all); [`Error::Mismatch`] if the sizes differ between ranks, and
        /// [`Error::InvalidArgument`] on every rank if they do not add up to the dimension.
        all_to_all_sizes / all_to_all_sizes_into / all_to_all_sizes_start(tensor: &Tensor, from: usize, to: usize, sizes: &[usize]) -> Tensor: one =
            Request::new(Op::AllToAll { from, to }, Some(tensor)).with_sizes(sizes.iter().copied())
    }

    forms! {
        /// Sends rows, indices of the first dimension, to each rank: the first `send[0]` to rank 0, the next `send[1]` to rank 1,
        /// and so on; and gets `receive[r]` rows from each rank r, which come out in rank order.
        ///
        /// # Errors
        /// Those of [every operation](ThreadGroup#errors-of-operations), where the ranks agree about dtype,
        /// shape other than the first dimension; `sizes` if a rank awaits what another does not send;
        /// [`Error::InvalidArgument`] if the numbers are not one for each rank, or do not add up to the rows of
        /// the tensor.
        ///
        /// ```
        /// use comm_core::{Deadline, team::Team, tensor::Tensor};
        /// use comm_group::ThreadGroup;
        ///
        /// fn rank(rank: usize) -> comm_core::Result<()> {
        ///     let deadline = Deadline::default();
        ///     let group = ThreadGroup::new(Team::join("rows-example", rank, 2, deadline)?, deadline)?;
        ///     // Rank 0 keeps one row and sends two; rank 1 sends one and keeps none.
        ///     let (send, receive) = if rank == 0 { ([1, 2], [1, 1]) } else { ([1, 0], [2, 0]) };
        ///     let mine = Tensor::from_slice(&[3 - 2 * rank], &(0..3 - 2 * rank as i32).map(|i| 10 * rank as i32 + i).collect::<Vec<_>>())?;
        ///     let got = group.all_to_all_rows(&mine, &send, &receive, deadline)?;
        ///     assert_eq!(got.as_slice::<i32>()?, if rank == 0 { [0, 10] } else { [1, 2] });
        ///     Ok(())
        /// }
        /// # std::thread::scope(|s| {
        /// #     for r in 0..2 {
        /// #         s.spawn(move || rank(r).unwrap());
        /// #     }
        /// # });
        /// ```
        #[doc(alias = "all_to_all_v")]
        #[doc(alias = "alltoallv")]
        all_to_all_rows / all_to_all_rows_into / all_to_all_rows_start(tensor: &Tensor, send: &[usize], receive: &[usize]) -> Tensor: one =
            Request::new(Op::AllToAllRows, Some(tensor)).with_sizes(send.iter().chain(receive).copied())
    }
}
