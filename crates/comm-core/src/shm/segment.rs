//! One sealed memfd: made here and pushed to peers, or received from one.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, FileType, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use super::{ShmError, copy, fork, limits};

/// What the peers that a segment is pushed to may do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Look at it: tensors, keys, slots.
    ReadOnly,
    /// Write into it too: windows and control blocks.
    ReadWrite,
}

/// Who else touches the bytes of a segment, and so what safe code may do with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Made here for shared types and copies alone.
    Own,
    /// Made here for an arena: its blocks may be behind `&mut [u8]`, so only their owners touch them.
    Arena,
    /// Another process made it.
    Received,
}

/// A shared memory segment of fixed size, mapped.
///
/// The one who makes it keeps the descriptor, to push it to peers and to give memory back; the one who receives it
/// closes the descriptor when it is mapped. Dropping it unmaps, also in a forked child, where that touches only the
/// child's own address space.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use comm_core::shm::{Access, Segment};
///
/// let mine = Segment::create(4096, Access::ReadWrite)?;
/// let theirs = Segment::receive(mine.share()?, mine.id(), mine.len(), Access::ReadWrite)?;
/// theirs.typed::<AtomicU64>(64)?.store(7, Ordering::Release);
/// assert_eq!(mine.typed::<AtomicU64>(64)?.load(Ordering::Acquire), 7);
/// # Ok::<(), comm_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Segment {
    id: u64,
    len: u64,
    access: Access,
    role: Role,
    /// Kept by the one who made it.
    fd: Option<OwnedFd>,
    map: MmapRaw,
}

/// What every segment is sealed with. Not F_SEAL_FUTURE_WRITE: under it no hole could be punched, and memory would
/// never go back.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// `TMPFS_MAGIC`: where memfds live that are not made of huge pages.
const TMPFS: u64 = 0x0102_1994;
/// How much one `fallocate` call reserves at most. A signal makes the call undo everything and start again, so one
/// call for everything might never end under a profiler's timer.
const RESERVE_STEP: u64 = 16 << 20;
const RESERVE_STEP_LEAST: u64 = 64 << 10;

/// Ids of the segments that this process makes.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Segment {
    /// Makes a segment of `len` bytes, zeroed, all of its memory reserved.
    ///
    /// # Errors
    /// [`ShmError::OutOfMemory`] if `RLIMIT_FSIZE`, the address space or the system's memory does not allow it;
    /// [`ShmError::Io`] if the system refuses otherwise (descriptors); [`ShmError::Invalid`] if `len` is zero;
    /// [`ShmError::Forked`] in a forked child.
    pub fn create(len: u64, access: Access) -> Result<Segment, ShmError> {
        let segment = Segment::make(len, access, Role::Own)?;
        segment.reserve(0, len)?;
        Ok(segment)
    }

    /// Makes a segment of `len` bytes, zeroed, whose memory is taken from the system as it is touched: **when there
    /// is none left then, the process that touches it dies of SIGBUS or is killed**.
    ///
    /// # Errors
    /// As [`Segment::create`].
    pub fn create_sparse(len: u64, access: Access) -> Result<Segment, ShmError> {
        Segment::make(len, access, Role::Own)
    }

    /// Makes the sparse segment that an arena then reserves piece by piece.
    pub(super) fn for_arena(len: u64, access: Access) -> Result<Segment, ShmError> {
        Segment::make(len, access, Role::Arena)
    }

    fn make(len: u64, access: Access, role: Role) -> Result<Segment, ShmError> {
        if len == 0 || i64::try_from(len).is_err() {
            return Err(ShmError::invalid("Segment::create", format!("a length of {len} bytes")));
        }
        if fork::is_forked() {
            return Err(ShmError::Forked);
        }
        fork::arm();
        if let Some(limit) = limits::file_size_limit()
            && len > limit
        {
            return Err(limits::over_file_size(len, limit));
        }
        let fd = memfd()?;
        // A mode that does not invite: peers of the same user cannot get write access by reopening what they were
        // given. Not fatal where it is refused, for the descriptor that is pushed is read-only anyhow.
        let mode = if access == Access::ReadOnly { Mode::RUSR } else { Mode::RUSR | Mode::WUSR };
        if let Err(e) = rustix::fs::fchmod(&fd, mode) {
            tracing::debug!(error = %e, "a segment keeps the mode of a new memfd");
        }
        rustix::fs::ftruncate(&fd, len)
            .map_err(|e| ShmError::io(format!("giving a shared segment its size of {len} bytes"), e))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(|e| ShmError::io("sealing a shared segment", e))?;
        let map = map(&fd, len, true).map_err(|e| match e.raw_os_error() {
            Some(libc::ENOMEM) => no_address_space(len),
            _ => ShmError::io(format!("mapping a shared segment of {len} bytes"), e),
        })?;
        // Relaxed: only uniqueness matters.
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Ok(Segment { id, len, access, role, fd: Some(fd), map })
    }

    /// Checks and maps a segment that a peer pushed, and closes the descriptor. `id` and `len` are what the peer said,
    /// `access` is what this kind of segment allows.
    ///
    /// # Errors
    /// [`ShmError::BadPeer`] if the descriptor is not a memfd, lacks a seal, has another size, or does not allow
    /// the access; [`ShmError::OutOfMemory`] if the address space is full; [`ShmError::Io`] if the system refuses
    /// to look.
    pub fn receive(fd: OwnedFd, id: u64, len: u64, access: Access) -> Result<Segment, ShmError> {
        check_received(&fd, len, access).map_err(|e| match e {
            ShmError::BadPeer { what } => ShmError::bad_peer(format!("segment {id}: {what}")),
            other => other,
        })?;
        let map = map(&fd, len, access == Access::ReadWrite).map_err(|e| match e.raw_os_error() {
            Some(libc::ENOMEM) => no_address_space(len),
            _ => ShmError::bad_peer(format!("segment {id} cannot be mapped: {e}")),
        })?;
        Ok(Segment { id, len, access, role: Role::Received, fd: None, map })
    }

    /// A descriptor to push to a peer: opened again for reading only, or a duplicate if peers may write.
    ///
    /// # Errors
    /// [`ShmError::Invalid`] if the segment was itself received; [`ShmError::Io`] if the system refuses (descriptors, no
    /// `/proc`).
    pub fn share(&self) -> Result<OwnedFd, ShmError> {
        let Some(fd) = &self.fd else {
            return Err(ShmError::invalid(
                "Segment::share",
                "a received segment belongs to the peer that made it",
            ));
        };
        if self.access == Access::ReadWrite {
            return fd.try_clone().map_err(|e| ShmError::io("duplicating the descriptor of a segment", e));
        }
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(|e| {
            ShmError::io(format!("opening a segment read-only through {path} (is /proc mounted?)"), e)
        })
    }

    /// The number that the maker gave it: unique among the segments that one process makes.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// What peers may do with it.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Whether this process may write to it: always if it made it.
    pub fn is_writable(&self) -> bool {
        self.role != Role::Received || self.access == Access::ReadWrite
    }

    /// The address of `len` bytes at `offset`. For reading only unless [`Segment::is_writable`]; whoever uses it
    /// must bear that the bytes change, or know that they do not.
    ///
    /// # Errors
    /// [`ShmError::BadPeer`] (received) or [`ShmError::Invalid`] (own) if the range is not inside the segment.
    pub fn range(&self, offset: u64, len: u64) -> Result<NonNull<u8>, ShmError> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            let why =
                format!("{len} bytes at offset {offset} of segment {}, which has {}", self.id, self.len);
            return Err(match self.role {
                Role::Received => ShmError::bad_peer(why),
                Role::Own | Role::Arena => ShmError::invalid("Segment::range", why),
            });
        }
        Ok(self.at(offset))
    }

    /// The address at `offset`; past the end it is some address that must not be used.
    pub(super) fn at(&self, offset: u64) -> NonNull<u8> {
        // No truncation: the segment is mapped, so every offset in it is a usize.
        let ptr = self.map.as_mut_ptr().wrapping_add(offset.min(self.len) as usize);
        // SAFETY: the map is not at address zero, where the system puts nothing unasked (memmap2 makes slices of it on
        // the same ground), and its end does not wrap around.
        unsafe { NonNull::new_unchecked(ptr) }
    }

    /// Copies out the bytes at `offset`. They may be torn if somebody writes at the same time.
    ///
    /// # Errors
    /// Those of [`Segment::range`]; [`ShmError::Invalid`] for a segment of an arena of this process, whose bytes
    /// belong to the blocks.
    pub fn copy_out(&self, offset: u64, dst: &mut [u8]) -> Result<(), ShmError> {
        let src = self.range(offset, dst.len() as u64)?;
        self.exposed("Segment::copy_out")?;
        // SAFETY: the range is mapped readable for as long as `self` is borrowed. Other processes may write it, which
        // the routine bears; in this process nobody writes it but through that routine or as atomics, for it is no
        // arena's.
        unsafe { copy::copy_from_shared(src.as_ptr(), dst) };
        Ok(())
    }

    /// Copies bytes in at `offset`. Who reads at the same time may see a mixture.
    ///
    /// # Errors
    /// Those of [`Segment::copy_out`]; [`ShmError::Invalid`] for a segment that this process may only read.
    pub fn copy_in(&self, offset: u64, src: &[u8]) -> Result<(), ShmError> {
        let dst = self.range(offset, src.len() as u64)?;
        self.exposed("Segment::copy_in")?;
        self.writable("Segment::copy_in")?;
        // SAFETY: the range is mapped writable for as long as `self` is borrowed; as in `copy_out`, nobody in this
        // process holds a reference to these bytes other than to atomics.
        unsafe { copy::copy_to_shared(src, dst.as_ptr()) };
        Ok(())
    }

    /// Refuses segments whose bytes may be behind plain references in this process.
    pub(crate) fn exposed(&self, op: &'static str) -> Result<(), ShmError> {
        match self.role {
            Role::Own | Role::Received => Ok(()),
            Role::Arena => {
                Err(ShmError::invalid(op, "the bytes of an arena belong to its blocks; ask the block"))
            }
        }
    }

    /// Refuses segments that are mapped read-only.
    pub(super) fn writable(&self, op: &'static str) -> Result<(), ShmError> {
        if self.is_writable() {
            return Ok(());
        }
        Err(ShmError::invalid(op, "the segment is another process's and may only be read; copy instead"))
    }

    /// Reserves memory for a range that has none, or takes nothing.
    pub(super) fn reserve(&self, offset: u64, len: u64) -> Result<(), ShmError> {
        let Some(fd) = &self.fd else { return Err(ShmError::invalid("Segment::reserve", "not the maker")) };
        let (mut at, end, mut step) = (offset, offset + len, RESERVE_STEP);
        while at < end {
            let n = step.min(end - at);
            match rustix::fs::fallocate(fd, FallocateFlags::empty(), at, n) {
                Ok(()) => at += n,
                Err(Errno::INTR) => step = (step / 2).max(RESERVE_STEP_LEAST),
                Err(e) => {
                    // Best effort: what is not given back here is found reserved by the next who asks.
                    let _ = self.punch(offset, at - offset);
                    return Err(match e {
                        Errno::NOSPC | Errno::NOMEM => ShmError::OutOfMemory {
                            asked: len,
                            limit: limits::available().unwrap_or(0),
                            what: format!("the system has no memory for it; fallocate says: {e}"),
                        },
                        other => ShmError::io(format!("reserving {len} bytes of a shared segment"), other),
                    });
                }
            }
        }
        Ok(())
    }

    /// Gives the memory of a range back to the system; it reads as zeros afterwards, and is not reserved.
    pub(super) fn punch(&self, offset: u64, len: u64) -> Result<(), ShmError> {
        let Some(fd) = &self.fd else { return Err(ShmError::invalid("Segment::punch", "not the maker")) };
        if len == 0 || fork::is_forked() {
            return Ok(());
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(fd, hole, offset, len))
            .map_err(|e| ShmError::io(format!("giving {len} bytes of a shared segment back"), e))
    }

    /// Bytes of memory that the system has given to the segment.
    #[cfg(test)]
    pub(super) fn resident(&self) -> u64 {
        let stat = rustix::fs::fstat(self.fd.as_ref().unwrap()).unwrap();
        stat.st_blocks as u64 * 512
    }
}

fn memfd() -> Result<OwnedFd, ShmError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Some systems refuse memfds that could be executed (vm.memfd_noexec); older ones do not know the flag.
    match rustix::fs::memfd_create("comm", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create("comm", flags),
        made => made,
    }
    .map_err(|e| ShmError::io("making a shared segment (memfd_create)", e))
}

fn map(fd: &OwnedFd, len: u64, writable: bool) -> std::io::Result<MmapRaw> {
    let len = usize::try_from(len).map_err(|_| std::io::Error::from_raw_os_error(libc::ENOMEM))?;
    let mut options = MmapOptions::new();
    options.len(len);
    if writable { options.map_raw(fd) } else { options.map_raw_read_only(fd) }
}

fn no_address_space(len: u64) -> ShmError {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    ShmError::OutOfMemory {
        asked: len,
        limit: limit.unwrap_or(u64::MAX),
        what: "address space: RLIMIT_AS (ulimit -v) or vm.max_map_count".to_string(),
    }
}

/// Everything that must hold before a descriptor from elsewhere is mapped.
fn check_received(fd: &OwnedFd, len: u64, access: Access) -> Result<(), ShmError> {
    if len == 0 {
        return Err(ShmError::bad_peer("it is said to have no bytes"));
    }
    let stat = rustix::fs::fstat(fd).map_err(|e| ShmError::io("looking at a received descriptor", e))?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::RegularFile {
        return Err(ShmError::bad_peer(format!("the descriptor is a {kind:?}, not a memfd")));
    }
    let seals = match rustix::fs::fcntl_get_seals(fd) {
        Ok(seals) => seals,
        Err(Errno::INVAL) => return Err(ShmError::bad_peer("the descriptor is a file, not a memfd")),
        Err(Errno::BADF) => return Err(ShmError::bad_peer("the descriptor is not open for reading")),
        Err(e) => return Err(ShmError::io("reading the seals of a received descriptor", e)),
    };
    if !seals.contains(SEALS) {
        return Err(ShmError::bad_peer(format!("the memfd lacks the seals {:?}", SEALS.difference(seals))));
    }
    if u64::try_from(stat.st_size) != Ok(len) {
        return Err(ShmError::bad_peer(format!("the memfd has {} bytes, not {len}", stat.st_size)));
    }
    // A page of a huge-page memfd that is not there is a SIGBUS for the one who looks.
    let system = rustix::fs::fstatfs(fd).map_err(|e| ShmError::io("looking at a received memfd", e))?;
    if system.f_type as u64 != TMPFS {
        return Err(ShmError::bad_peer("the memfd is made of huge pages"));
    }
    check_mode(fd, access)
}

fn check_mode(fd: impl std::os::fd::AsFd, access: Access) -> Result<(), ShmError> {
    let fd: BorrowedFd<'_> = fd.as_fd();
    let flags =
        rustix::fs::fcntl_getfl(fd).map_err(|e| ShmError::io("looking at a received descriptor", e))?;
    let mode = flags & OFlags::RWMODE;
    let fits = match access {
        Access::ReadOnly => mode == OFlags::RDONLY || mode == OFlags::RDWR,
        Access::ReadWrite => mode == OFlags::RDWR,
    };
    if fits && !flags.contains(OFlags::PATH) {
        return Ok(());
    }
    Err(ShmError::bad_peer(format!("the descriptor does not allow {access:?} access")))
}
