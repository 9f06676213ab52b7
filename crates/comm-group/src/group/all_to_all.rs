//! Operations in which every rank has something for every other one.

#[cfg(doc)]
use comm_core::Error;
use comm_core::tensor::{Tensor, TensorMut};
use comm_core::{Deadline, Result};

use super::{ThreadGroup, one};
use crate::request::{Op, Request};
use crate::work::Work;

/// Exchanging parts of shards.
impl ThreadGroup {
    /// From shards along one dimension to shards along another: each rank gets its shard along `to`, by the rule of
    /// [`shard_sizes`](crate::shard_sizes()), of the whole whose shards along `from` the ranks bring, which may differ in size.
    ///
    /// With `from` and `to` the same, the shards are made as even as the rule says.
    ///
    /// # Errors
    /// On every rank, and the team goes on: [`Error::Mismatch`] if the ranks disagree (dtype, dimensions, shape other than along `from`), [`Error::InvalidArgument`] for a dimension that is not there or a whole that is too large,
    /// [`Error::DeviceMismatch`] for memory of another device than the CPU. [`Error::OutOfMemory`] on the rank that has
    /// none, and [`Error::Aborted`] on the others. What ends a symmetric operation.
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
    pub fn all_to_all(
        &self,
        tensor: &Tensor,
        from: usize,
        to: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Tensor> {
        let request = Request::new(Op::AllToAll { from, to }, Some(tensor));
        self.one(request, deadline)
    }

    /// [`all_to_all`](ThreadGroup::all_to_all) into the caller's buffer, of the result's shape and dtype, in any strides.
    ///
    /// # Errors
    /// Those of [`all_to_all`](ThreadGroup::all_to_all); [`Error::Mismatch`] of `output`, on every rank, if the buffer of one has
    /// another shape. After an error its content is unspecified.
    pub fn all_to_all_into<'a>(
        &self,
        tensor: &Tensor,
        from: usize,
        to: usize,
        out: impl Into<TensorMut<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let request = Request::new(Op::AllToAll { from, to }, Some(tensor));
        self.into(request, out, deadline)
    }

    /// Starts [`all_to_all`](ThreadGroup::all_to_all).
    ///
    /// # Errors
    /// Those of starting a thread; the others are the work's.
    pub fn all_to_all_start(
        &self,
        tensor: &Tensor,
        from: usize,
        to: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Work<Tensor>> {
        let request = Request::new(Op::AllToAll { from, to }, Some(tensor));
        self.start(request, deadline, one)
    }

    /// [`all_to_all`](ThreadGroup::all_to_all) to shards of given sizes along `to`, one for each rank.
    ///
    /// # Errors
    /// Those of [`all_to_all`](ThreadGroup::all_to_all); [`Error::Mismatch`] if the sizes differ between ranks, and
    /// [`Error::InvalidArgument`] on every rank if they do not add up to the dimension.
    pub fn all_to_all_sizes(
        &self,
        tensor: &Tensor,
        from: usize,
        to: usize,
        sizes: &[usize],
        deadline: impl Into<Deadline>,
    ) -> Result<Tensor> {
        let request = Request::new(Op::AllToAll { from, to }, Some(tensor)).with_sizes(sizes.iter().copied());
        self.one(request, deadline)
    }

    /// [`all_to_all_sizes`](ThreadGroup::all_to_all_sizes) into the caller's buffer, of the result's shape and dtype, in any strides.
    ///
    /// # Errors
    /// Those of [`all_to_all_sizes`](ThreadGroup::all_to_all_sizes); [`Error::Mismatch`] of `output`, on every rank, if the buffer of one has
    /// another shape. After an error its content is unspecified.
    pub fn all_to_all_sizes_into<'a>(
        &self,
        tensor: &Tensor,
        from: usize,
        to: usize,
        sizes: &[usize],
        out: impl Into<TensorMut<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let request = Request::new(Op::AllToAll { from, to }, Some(tensor)).with_sizes(sizes.iter().copied());
        self.into(request, out, deadline)
    }

    /// Starts [`all_to_all_sizes`](ThreadGroup::all_to_all_sizes).
    ///
    /// # Errors
    /// Those of starting a thread; the others are the work's.
    pub fn all_to_all_sizes_start(
        &self,
        tensor: &Tensor,
        from: usize,
        to: usize,
        sizes: &[usize],
        deadline: impl Into<Deadline>,
    ) -> Result<Work<Tensor>> {
        let request = Request::new(Op::AllToAll { from, to }, Some(tensor)).with_sizes(sizes.iter().copied());
        self.start(request, deadline, one)
    }

    /// Sends rows, indices of the first dimension, to each rank: the first `send[0]` to rank 0, the next `send[1]` to rank 1,
    /// and so on; and gets `receive[r]` rows from each rank r, which come out in rank order.
    ///
    /// # Errors
    /// On every rank, and the team goes on: [`Error::Mismatch`] if the ranks disagree (dtype, shape other than the first dimension; `sizes` if a rank awaits what
    /// another does not send), [`Error::InvalidArgument`] if the numbers are not one for each rank, or do not add up to the rows of the tensor,
    /// [`Error::DeviceMismatch`] for memory of another device than the CPU. [`Error::OutOfMemory`] on the rank that has
    /// none, and [`Error::Aborted`] on the others. What ends a symmetric operation.
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
    pub fn all_to_all_rows(
        &self,
        tensor: &Tensor,
        send: &[usize],
        receive: &[usize],
        deadline: impl Into<Deadline>,
    ) -> Result<Tensor> {
        let request =
            Request::new(Op::AllToAllRows, Some(tensor)).with_sizes(send.iter().chain(receive).copied());
        self.one(request, deadline)
    }

    /// [`all_to_all_rows`](ThreadGroup::all_to_all_rows) into the caller's buffer, of the result's shape and dtype, in any strides.
    ///
    /// # Errors
    /// Those of [`all_to_all_rows`](ThreadGroup::all_to_all_rows); [`Error::Mismatch`] of `output`, on every rank, if the buffer of one has
    /// another shape. After an error its content is unspecified.
    pub fn all_to_all_rows_into<'a>(
        &self,
        tensor: &Tensor,
        send: &[usize],
        receive: &[usize],
        out: impl Into<TensorMut<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let request =
            Request::new(Op::AllToAllRows, Some(tensor)).with_sizes(send.iter().chain(receive).copied());
        self.into(request, out, deadline)
    }

    /// Starts [`all_to_all_rows`](ThreadGroup::all_to_all_rows).
    ///
    /// # Errors
    /// Those of starting a thread; the others are the work's.
    pub fn all_to_all_rows_start(
        &self,
        tensor: &Tensor,
        send: &[usize],
        receive: &[usize],
        deadline: impl Into<Deadline>,
    ) -> Result<Work<Tensor>> {
        let request =
            Request::new(Op::AllToAllRows, Some(tensor)).with_sizes(send.iter().chain(receive).copied());
        self.start(request, deadline, one)
    }
}
