//! The recycling allocator over growing segments.

use std::fmt;
use std::sync::{Arc, Weak};

use super::inner::{Inner, OnGrow};
use super::{Access, Block, Budget, Segment, ShmError, copy, fork};

/// An allocator of shared memory that recycles: segments grow geometrically, blocks are pieces of them, and what is
/// freed is used again. Clones are the same arena.
///
/// - Making and dropping a block is O(log n) in the number of free ranges, with no system call while recycled memory
///   lasts. Memory is reserved in steps of up to 1 MiB before a block that needs it is handed out.
/// - Free memory goes back to the system (holes are punched), except for what will likely be wanted again: at least
///   16 MiB or a quarter of what is in use, and more where memory that was given back keeps being taken again.
///   [`Arena::trim`] gives back all of it.
/// - A new segment is shown to `on_grow` before any block of it exists, so a peer that has been pushed its descriptor
///   there never sees a block of a segment that it does not know.
///
/// # What `on_grow` may do
///
/// It runs in the thread whose [`Arena::alloc`] needed room, with no lock of the arena held. So it may take any lock,
/// even one that other threads hold while they allocate, and blocks of the arena may be dropped meanwhile. The price:
/// two threads that need room at the same moment may each add a segment. It should not allocate from the same arena,
/// for that may need room too and call it again, without end. If it panics, the panic passes to the caller of `alloc`
/// and the segment is not used. It is dropped with the last handle of the arena; blocks do not keep it.
///
/// ```
/// use comm_core::shm::{Access, Arena, Budget};
///
/// let arena = Arena::new(Access::ReadOnly, Budget::from_config()?, |segment| {
///     // push segment.share()? to every peer
///     let _ = segment.id();
/// });
/// let blocks: Vec<_> = (0..1000).map(|_| arena.alloc(256)).collect::<Result<_, _>>()?;
/// let stats = arena.stats();
/// assert_eq!((stats.blocks, stats.segments), (1000, 1));
/// drop(blocks);
/// arena.trim();
/// assert_eq!(arena.stats().reserved, 0);
/// # Ok::<(), comm_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Arena {
    inner: Arc<Inner>,
    on_grow: Arc<OnGrow>,
}

/// How an arena stands; all but the counts in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Segments.
    pub segments: usize,
    /// Blocks alive.
    pub blocks: u64,
    /// Address space of the segments.
    pub mapped: u64,
    /// Memory that the system has given; this is what counts for the budget.
    pub reserved: u64,
    /// Held by blocks.
    pub used: u64,
    /// Reserved, and no block lies in it: kept for recycling, or about to go back.
    pub idle: u64,
}

impl Arena {
    /// An empty arena. `access` is what peers get; `budget` is a [`Budget`] that several arenas may share, or a `u64` as
    /// a limit of its own; `on_grow` is called with each new segment.
    pub fn new(
        access: Access,
        budget: impl Into<Budget>,
        on_grow: impl Fn(&Arc<Segment>) + Send + Sync + 'static,
    ) -> Arena {
        fork::arm();
        let inner = Arc::new(Inner::new(access, budget.into()));
        if !fork::is_forked() {
            let weak: Weak<Inner> = Arc::downgrade(&inner);
            inner.budget().enrol(weak);
        }
        Arena { inner, on_grow: Arc::new(on_grow) }
    }

    /// A block of `len` bytes, of any content.
    ///
    /// # Errors
    /// [`ShmError::OutOfMemory`] if the budget, `RLIMIT_FSIZE` or the system does not allow it; [`ShmError::Io`] if
    /// the system refuses a new segment (descriptors); [`ShmError::Forked`] in a forked child.
    pub fn alloc(&self, len: u64) -> Result<Block, ShmError> {
        let (place, _) = self.inner.alloc(len, false, &*self.on_grow)?;
        Ok(Block::new(self.inner.clone(), place, len))
    }

    /// A block of `len` zeros. Memory that is fresh from the system is not written again, unless peers may have.
    ///
    /// # Errors
    /// Those of [`Arena::alloc`].
    pub fn alloc_zeroed(&self, len: u64) -> Result<Block, ShmError> {
        let (place, dirty) = self.inner.alloc(len, true, &*self.on_grow)?;
        let block = Block::new(self.inner.clone(), place, len);
        for run in dirty {
            let start = block.segment().at(run.start).as_ptr();
            // SAFETY: the run is inside the block's range, which is mapped writable, and the block is not known to
            // anybody in this process yet.
            unsafe { copy::fill(start, 0, (run.end - run.start) as usize) };
        }
        Ok(block)
    }

    /// Gives all memory in which there is no block back to the system.
    pub fn trim(&self) {
        self.inner.trim_all();
    }

    /// How it stands; nothing but zeros in a forked child, whose parent's the arena is.
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// All segments so far, for a peer that comes later; none in a forked child.
    ///
    /// A segment is on this list before it is shown to `on_grow`. So who makes a peer known to `on_grow` first, and
    /// then pushes what is on the list, misses none, and may push one twice.
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        self.inner.segments()
    }

    /// The budget that it takes from.
    pub fn budget(&self) -> &Budget {
        self.inner.budget()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("access", &self.inner.access()).field("stats", &self.stats()).finish()
    }
}
