//! Memory that processes share: sealed segments, and the recycling arena on them.
//!
//! | what | for |
//! |---|---|
//! | [`Segment`] | one sealed memfd: made here, or received from a peer, checked and mapped |
//! | [`Shared`] | types that may be looked at in place, because they are made of atomics only |
//! | [`copy`] | the one copy routine that bears bytes changing under it |
//! | [`Memory`], [`Pinned`] | a block of this process or a range of a peer's, reached in the same way |
//! | [`Arena`], [`Block`] | tens of thousands of blocks in a few segments, recycled |
//! | [`Budget`] | the limit that all arenas of a process share (`COMM_ARENA_MAX_BYTES`) |
//!
//! ```
//! use comm_core::shm::{Access, Arena, Segment};
//!
//! // Segments are pushed to peers as they appear, so no peer ever has to ask for one.
//! let arena = Arena::new(Access::ReadOnly, 64 << 20, |segment| {
//!     let _descriptor_for_a_peer = segment.share();
//! });
//! let block = arena.alloc(1024)?;
//! assert_eq!(block.len(), 1024);
//!
//! // What a peer does with the descriptor.
//! let descriptor = block.segment().share()?;
//! let theirs = Segment::receive(descriptor, block.segment().id(), block.segment().len(), Access::ReadOnly)?;
//! let mut bytes = [0; 1024];
//! theirs.copy_out(block.offset(), &mut bytes)?;
//! # Ok::<(), comm_core::Error>(())
//! ```
//!
//! # What keeps memory from leaking, lying or killing
//!
//! - A memfd has no name in any file system: after SIGKILL of every process that has it open or mapped, the kernel has
//!   freed it. There is nothing to sweep up and nothing stale to find.
//! - A segment has its final size from the start and is sealed against shrinking, growing and further sealing, so a
//!   mapping of it cannot lose its pages to a peer that truncates. What arrives is checked before it is mapped.
//! - Memory is reserved with `fallocate` before anyone touches it: a system without memory is an
//!   [`OutOfMemory`](ShmError::OutOfMemory), not a SIGBUS at the first touch. Sparse segments are an explicit choice
//!   ([`Segment::create_sparse`]). `RLIMIT_FSIZE`, which counts for memfds too, is read before growing, for going over
//!   it would be a SIGXFSZ.
//! - The allocator's book-keeping is in private memory. Peers can write nonsense into a shared segment, but nothing that
//!   is read from one is believed.
//!
//! # What it does not do
//!
//! - **A memory limit of a cgroup is an OOM kill**, not an error: the kernel charges pages of a memfd to the cgroup that
//!   reserves them, and kills when that is over its limit. Set `COMM_ARENA_MAX_BYTES` below the cgroup's limit.
//! - Read-only sharing protects from mistakes, not from malice: the descriptor that a peer gets is open for reading and
//!   the file's mode is 0400, so neither a mapping nor reopening gives write access by accident; but a process of the
//!   same user may change the mode back, and root's capabilities pass over it.
//! - `RLIMIT_FSIZE` that another thread lowers between the look and the use still ends in SIGXFSZ.
//! - No huge pages are asked for.

mod arena;
mod block;
pub mod copy;
mod error;
pub(crate) mod fork;
mod free_list;
mod inner;
mod keep;
mod limits;
mod memory;
mod pages;
mod segment;
mod shared;

#[cfg(test)]
mod tests;

pub use arena::{Arena, Stats};
pub use block::Block;
pub use error::ShmError;
pub use limits::{Budget, check_file_size};
pub use memory::{Memory, Pinned};
pub use segment::{Access, Segment};
pub use shared::{Shared, read_pod};
