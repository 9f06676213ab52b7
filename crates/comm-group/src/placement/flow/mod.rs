//! Tensors that go from devices to devices by a [`TensorStore`], without groups.
//!
//! | flow | from | to |
//! |---|---|---|
//! | [`convert_mesh`](Participant::convert_mesh) | the devices of a mesh | those of another of the same shape, rank by rank |
//! | [`scatter`](Participant::scatter) | one device, which has the whole | the devices of a mesh, as its placements say |
//! | [`gather`](Participant::gather) | the devices of a mesh | one device, which gets the whole |
//! | [`copy`](Participant::copy) | the devices of a mesh | tensors that are there, on the same mesh or another of the same shape |
//!
//! All who take part make the same call, each as the device that it is, and that says what it does: it may give, get, both, or
//! neither, and who does neither goes on at once. A device is known by its id alone. Whoever has the store may be any of them,
//! each of them one at a time; ranks of the store that take no part do not call.
//!
//! **Three steps.** A participant publishes all that it gives, then fetches what it gets, then waits until what it gave has been
//! read. So who gives to itself or to one who gives to it waits for nobody who waits for it. What a device gives to itself stays
//! where it is. Each fetch is finished once, and when a giver comes back, all that it gave has been read.
//!
//! **Names.** The key of what device 3 gives in a scatter `w` is `w/scatter/3` (a scatter's are of who gets). So flows of
//! different names do not meet, nor those of different kinds. A name has at most so many bytes that its keys are
//! [keys](comm_store::store::MAX_KEY_BYTES), whatever the ids. It is used once between two
//! [resets](TensorStore::reset), or again by whoever has been refused, before anything was published, for what he calls with:
//! after [`Error::InvalidArgument`](comm_core::Error::InvalidArgument), and after
//! [`Unsupported`](comm_core::Error::Unsupported) or [`DeviceMismatch`](comm_core::Error::DeviceMismatch) unless these are
//! about a tensor that has come from another device.
//!
//! **Copies.** In one process tensors are handed over, and parts of a whole are views of it. To other processes those of the
//! arena of tensors go as they are, also as views, and others are copied into it once. What is gotten may then be memory of another
//! process, whose elements can be [copied out](comm_core::tensor::Tensor::to_vec) only. Parts are joined by one copy, unless one
//! of them is the whole.
//!
//! **Agreement.** There is no round in which participants compare what they are about to do. Who gets a tensor of another shape
//! or dtype than it must be gets an [`Error::Mismatch`](comm_core::Error::Mismatch); who waits for somebody that does something
//! else, an [`Error::Timeout`](comm_core::Error::Timeout). What has the right shape in spite of it, as with another operator of
//! contributions, cannot be told.
//!
//! ```
//! use comm_core::{Deadline, Result, team::Team, tensor::{DType, Tensor}};
//! use comm_group::placement::{DeviceMesh, Placement::Shard, TensorSpec, flow::Participant};
//!
//! // Devices 10 and 11 hold rows of a matrix; they are ranks 0 and 1, and device 20, which has the whole, is rank 2.
//! fn rank(rank: usize) -> Result<()> {
//!     let deadline = Deadline::default();
//!     let team = Team::join("flow-example", rank, 3, deadline)?;
//!     let store = comm_store::store::open(&team, deadline)?;
//!     let me = Participant::new(&*store, [10, 11, 20][rank]);
//!
//!     let rows = TensorSpec::new(&[3, 2], DType::I32, &DeviceMesh::new(&[2], vec![10, 11])?, &[Shard(0)])?;
//!     let whole = Tensor::from_slice(&[3, 2], &[0, 1, 2, 3, 4, 5])?;
//!     let mine = me.scatter("rows", 20, &rows, (rank == 2).then_some(&whole), deadline)?;
//!     if rank == 1 {
//!         assert_eq!(mine.as_ref().unwrap().to_vec::<i32>()?, [4, 5]);
//!     }
//!     let back = me.gather("rows", &rows, mine.as_ref(), 20, deadline)?;
//!     assert_eq!(back.is_some(), rank == 2);
//!     assert!(back.is_none_or(|back| back.bytes_equal(&whole).unwrap()));
//!     Ok(())
//! }
//! # std::thread::scope(|s| {
//! #     for r in 0..3 {
//! #         s.spawn(move || rank(r).unwrap());
//! #     }
//! # });
//! ```

mod convert;
mod copy;
mod gather;
mod handover;
mod scatter;
#[cfg(test)]
mod tests;

use std::fmt;

use comm_core::device::{DeviceKind, Stream};
use comm_store::TensorStore;

/// A device that takes part in flows. See the [module](self).
#[derive(Clone)]
pub struct Participant<'a> {
    store: &'a dyn TensorStore,
    id: usize,
    stream: Stream,
    to: Option<DeviceKind>,
}

impl<'a> Participant<'a> {
    /// The device `id`, whose work goes through this thread's [current stream](Stream::current).
    pub fn new(store: &'a dyn TensorStore, id: usize) -> Participant<'a> {
        Participant { store, id, stream: Stream::current(), to: None }
    }

    /// With another stream: what it has queued when a flow begins is what writes the tensors that are given, which are on its
    /// device; what is gotten comes to its device (see [`TensorStore::fetch_to_device`]), and may be used by what is queued in it
    /// afterwards. What is [copied](Participant::copy) comes to where it is copied to instead, and is there.
    pub fn on(self, stream: &Stream) -> Participant<'a> {
        Participant { stream: stream.clone(), ..self }
    }

    /// What it gives is brought to a kind of device before: that of those who get it. See [`TensorStore::publish`].
    #[doc(alias = "destGetDeviceKind")]
    pub fn giving_to(self, kind: DeviceKind) -> Participant<'a> {
        Participant { to: Some(kind), ..self }
    }

    /// The device that it is.
    pub fn id(&self) -> usize {
        self.id
    }
}

impl fmt::Debug for Participant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Participant(device {} by {:?})", self.id, self.store)
    }
}
