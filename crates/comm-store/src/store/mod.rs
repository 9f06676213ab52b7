//! Tensors by key: one rank publishes, others fetch, and the one knows when the others are through.
//!
//! ```text
//! producer                                     readers
//!   publish(key, tensor, stream, n, None)        fetch(key, stream)       waits until it is published
//!   ... goes on at once ...                      ... reads ...
//!   wait_consumed(key)                           drop, or finish(key, stream)
//! ```
//!
//! A key is used once between two [resets](TensorStore::reset). A value is for as many reads as its producer says; each
//! fetch is one, and is finished once. Streams are ordered, not waited for: a reader's stream goes on when the
//! producer's has written, and the producer's when the readers' have read.
//!
//! **Nothing is copied** where nothing has to be. In one process the tensor itself changes hands. To another process it
//! goes as a place in shared memory: for nothing if it lies in a block of the arena of tensors
//! (`TensorBuf::zeros_in(team.hub().tensors(), ..)`), also strided, and else by one copy, which [`Stats`] counts. What comes from another
//! process can be written there, so its elements are copied out ([`Tensor::to_vec`], [`Tensor::to_buf`]), also where threads could have
//! a slice.
//!
//! **Lifetimes.** The producer's store holds a value until [`wait_consumed`](TensorStore::wait_consumed) or
//! [`reset`](TensorStore::reset), and if it goes before that, until all others have gone, too. Whoever still has a tensor then, or a clone of it,
//! may keep it: the memory is used for something else only when all of them are gone, or dead.
//!
//! ```
//! use comm_core::{Deadline, device::Stream, team::Team, tensor::Tensor};
//! use comm_store::store;
//!
//! fn rank(rank: usize) -> comm_core::Result<()> {
//!     let (deadline, cpu) = (Deadline::default(), Stream::cpu());
//!     let team = Team::join("store-example", rank, 3, deadline)?;
//!     let store = store::open(&team, deadline)?;
//!     if rank == 0 {
//!         let weights = Tensor::from_slice(&[2], &[0.5f32, 1.5])?;
//!         store.publish("weights", &weights, &cpu, 2, None)?;
//!         store.wait_consumed("weights", deadline)?;
//!     } else {
//!         let weights = store.fetch("weights", &cpu, deadline)?;
//!         assert_eq!(weights.to_vec::<f32>()?, [0.5, 1.5]);
//!     } // finished here
//!     store.reset(deadline)
//! }
//!
//! std::thread::scope(|s| {
//!     for r in 0..3 {
//!         s.spawn(move || rank(r).unwrap());
//!     }
//! });
//! ```

mod fetch;
mod fetched;
mod finish;
mod held;
mod loan;
mod log;
mod order;
mod publish;
mod record;
mod stats;
mod team_store;
#[cfg(test)]
mod tests;
mod turn;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use comm_core::device::{Device, DeviceKind, Stream};
use comm_core::team::Member;
use comm_core::tensor::Tensor;
use comm_core::{Deadline, Error, Result};

pub use comm_core::Kind;
pub use fetched::Fetched;
pub use stats::Stats;
pub use team_store::TeamStore;

/// Keys have at most so many bytes.
pub const MAX_KEY_BYTES: usize = 1024;

/// What a call that can be awaited gives.
pub type Awaitable<'s, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 's>>;

/// The exchange of tensors by key among the ranks of a team. See the [module](self).
///
/// All methods may be called by several threads of a rank at once; [`barrier`](TensorStore::barrier) and
/// [`reset`](TensorStore::reset) are symmetric operations of the team, and the latter not while this rank publishes or waits for
/// readers: whichever of them comes second is refused with [`Error::ConcurrentUse`], and nothing has happened. What waits for a
/// key meanwhile goes on waiting, for what is published after it.
///
/// What waits for one other rank has a form for tasks. What all ranks do together has none, since a task may be dropped at any
/// moment, and a rank that leaves such an operation in the middle is lost to the others. Nor has
/// [`fetch_to_device`](TensorStore::fetch_to_device), whose copy is the caller's: a task fetches, and then copies by
/// [`Tensor::to_device`].
pub trait TensorStore: Send + Sync + fmt::Debug {
    /// How far it reaches.
    fn kind(&self) -> Kind;

    /// The ranks that share it.
    fn context(&self) -> &Arc<Member>;

    /// Publishes a tensor under a key, for so many reads, and goes on at once. What `stream` has queued until now is what
    /// writes it: readers are ordered behind that. `to` is the kind of device on which readers want it: it is brought to
    /// the current stream's device of that kind before. For 0 `readers` it is consumed at once. A rank may fetch what it has
    /// published itself.
    ///
    /// # Errors
    /// [`Error::DuplicateKey`] if the key has been published since the last reset; [`Error::DeviceMismatch`] if the tensor
    /// is not on the stream's device, or is not of host memory and may go to another process; [`Error::InvalidArgument`]
    /// for a key that is empty or too long; [`Error::OutOfMemory`]; [`Error::Timeout`], after the default time, for memory
    /// that a peer has told of and not sent; what ended the team. Nothing is published then.
    #[doc(alias = "SrcSet")]
    fn publish(
        &self,
        key: &str,
        tensor: &Tensor,
        stream: &Stream,
        readers: usize,
        to: Option<DeviceKind>,
    ) -> Result<()>;

    /// Waits until the key is published, and gives its tensor for one read, which may be used on `stream` at once.
    ///
    /// # Errors
    /// [`Error::OverFinished`] if as many have fetched it as it is for; [`Error::Timeout`], which changes nothing: the
    /// same call may be made again; what ended the team, if it is not there; [`Error::PeerLeft`] if all others have left.
    #[doc(alias = "DestGet")]
    fn fetch(&self, key: &str, stream: &Stream, deadline: Deadline) -> Result<Fetched>;

    /// As [`fetch`](TensorStore::fetch), for a task. Dropped before it is ready, it has fetched nothing.
    fn fetch_async<'s>(&'s self, key: &str, stream: &Stream, deadline: Deadline) -> Awaitable<'s, Fetched>;

    /// As [`fetch`](TensorStore::fetch), and brings the tensor to a device: itself if it is there. The copy is made behind
    /// what `stream` has queued, and ready on that device's current stream. It is still this reader's to
    /// finish.
    ///
    /// # Errors
    /// Those of [`fetch`](TensorStore::fetch); [`Error::Unsupported`] if there is no way to that device. Nothing is fetched
    /// then.
    #[doc(alias = "DestGetAndToDevice")]
    fn fetch_to_device(
        &self,
        key: &str,
        stream: &Stream,
        device: Device,
        deadline: Deadline,
    ) -> Result<Fetched>;

    /// Finishes one read of this rank by name, which it has fetched with [`Fetched::into_tensor`]: once for each fetch. What
    /// `stream` has queued until now is the end of it. (Reads have no names of their own: if this rank has the guard of another
    /// one, it is that one which finds itself finished.)
    ///
    /// # Errors
    /// [`Error::UnknownKey`]; [`Error::OverFinished`] if this rank has finished all that it has fetched of it; [`Error::Timeout`] as in
    /// [`publish`](TensorStore::publish). Nothing changes then.
    #[doc(alias = "DestFinishGet")]
    fn finish(&self, key: &str, stream: &Stream) -> Result<()>;

    /// Waits until all reads of a key that this rank has published are finished, makes the stream that it was published
    /// on wait for what readers have queued, and lets go of the tensor. Once that is so, it is so each time.
    ///
    /// # Errors
    /// [`Error::UnknownKey`]; [`Error::InvalidArgument`] if another rank has published it; [`Error::Timeout`], which
    /// changes nothing; what ended the team, if they have not finished; [`Error::PeerLeft`] if all others have left.
    #[doc(alias = "SrcWaitUntilGetFinished")]
    fn wait_consumed(&self, key: &str, deadline: Deadline) -> Result<()>;

    /// As [`wait_consumed`](TensorStore::wait_consumed), for a task. Dropped before it is ready, it has changed nothing.
    fn wait_consumed_async<'s>(&'s self, key: &str, deadline: Deadline) -> Awaitable<'s, ()>;

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// Those of any symmetric operation.
    #[doc(alias = "Barrier")]
    fn barrier(&self, deadline: Deadline) -> Result<()>;

    /// Forgets all keys, on all ranks: nobody goes on before all have come, nor before all have forgotten. Reads that have
    /// not been finished are so by this. Streams of producers go on behind what readers that have finished had queued, as in
    /// [`wait_consumed`](TensorStore::wait_consumed).
    ///
    /// # Errors
    /// Those of any symmetric operation; [`Error::Mismatch`] if ranks reset different things.
    #[doc(alias = "Reset")]
    fn reset(&self, deadline: Deadline) -> Result<()>;

    /// What this rank has done so far.
    fn stats(&self) -> Stats;
}

/// The store that fits: of kind [`Process`](Kind::Process) if all ranks of the team share a process, else
/// [`Host`](Kind::Host). All ranks call it. A team can have several stores, which know nothing of each other's keys.
/// A store does not hold its team: when that is dropped, the rank has left.
///
/// # Errors
/// Those of any symmetric operation; [`Error::OutOfMemory`].
#[doc(alias = "Create")]
pub fn open(member: &Arc<Member>, deadline: impl Into<Deadline>) -> Result<Arc<dyn TensorStore>> {
    Ok(Arc::new(TeamStore::open(member, deadline)?))
}

/// A store of a kind. All ranks ask for the same.
///
/// # Errors
/// [`Error::Unsupported`], on every rank, for a kind that does not reach all of them, or that does not exist yet;
/// [`Error::Mismatch`], on every rank, if they ask for different kinds; those of [`open`]. In either case the team goes on.
///
/// ```
/// use comm_core::{Deadline, Error, team::Team};
/// use comm_store::store::{self, Kind};
///
/// let team = Team::join("kinds-example", 0, 1, Deadline::default())?;
/// assert_eq!(store::open(&team, Deadline::default())?.kind(), Kind::Process);
/// assert_eq!(store::open_kind(&team, Kind::Host, Deadline::default())?.kind(), Kind::Host);
/// let none = store::open_kind(&team, Kind::Network, Deadline::default());
/// assert!(matches!(none, Err(Error::Unsupported { .. })));
/// # Ok::<(), Error>(())
/// ```
pub fn open_kind(
    member: &Arc<Member>,
    kind: Kind,
    deadline: impl Into<Deadline>,
) -> Result<Arc<dyn TensorStore>> {
    Ok(Arc::new(TeamStore::open_kind(member, kind, deadline)?))
}

/// Whether a key can be one.
fn check_key(op: &'static str, key: &str) -> Result<()> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        let why = format!("a key of {} bytes: it has 1 to {MAX_KEY_BYTES}", key.len());
        return Err(Error::invalid(op, why));
    }
    Ok(())
}
