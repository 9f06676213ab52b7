//! Descriptors that a forked child must not hold.
//!
//! `fork` copies descriptors, and a child that lives on would keep what its dead parent held: names stay taken, peers
//! see no end of a connection. So a handler that runs in each child of `fork` puts `/dev/null` in the place of every
//! descriptor that is entered here; the child may close it later, as if it were its own. `posix_spawn` and `vfork` run
//! no handlers and need none: all descriptors here are closed on `exec`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Descriptors with a higher number are not covered; `RLIMIT_NOFILE` is below that nearly everywhere.
const MOST: usize = 64 * 1024;

static ENTERED: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];
static NULL: AtomicI32 = AtomicI32::new(-1);

/// A descriptor of the hub: closed in children as they are forked.
#[derive(Debug)]
pub(crate) struct HubFd(OwnedFd);

impl From<OwnedFd> for HubFd {
    fn from(fd: OwnedFd) -> HubFd {
        arm();
        if let Some((word, bit)) = place(fd.as_raw_fd()) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        HubFd(fd)
    }
}

impl AsFd for HubFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for HubFd {
    fn drop(&mut self) {
        // Before the descriptor is closed: its number may be anybody's right after.
        if let Some((word, bit)) = place(self.0.as_raw_fd()) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((ENTERED.get(fd / 64)?, 1 << (fd % 64)))
}

/// Sees to it that the handler runs, once for the process.
fn arm() {
    static ARMED: Once = Once::new();
    ARMED.call_once(|| {
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        match rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()) {
            Ok(null) => NULL.store(std::os::fd::IntoRawFd::into_raw_fd(null), Ordering::Release),
            Err(error) => {
                tracing::warn!(%error, "/dev/null cannot be opened: forked children keep descriptors of this process");
                return;
            }
        }
        // SAFETY: the handler is a plain function that is there as long as the program, and does only what may be done
        // in a child of a process with several threads: it loads atomics and calls dup3.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if refused != 0 {
            tracing::warn!("pthread_atfork is refused: forked children keep descriptors of this process");
        }
    });
}

extern "C" fn in_child() {
    let null = NULL.load(Ordering::Acquire);
    for (i, word) in ENTERED.iter().enumerate() {
        let mut bits = word.load(Ordering::Relaxed);
        while bits != 0 {
            let fd = (i * 64) as RawFd + bits.trailing_zeros() as RawFd;
            bits &= bits - 1;
            // SAFETY: dup3 is async-signal-safe. The descriptor is the hub's, and nobody in this child uses it: its calls
            // return `Forked`. A failure changes nothing.
            unsafe { libc::dup3(null, fd, libc::O_CLOEXEC) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_forked_child_does_not_hold_them() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let (mut told, mut tell) = std::io::pipe().unwrap();
        let writer = HubFd::from(OwnedFd::from(writer));
        // SAFETY: the child calls only read and _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut byte = [0u8];
            // SAFETY: async-signal-safe calls on a descriptor that the child has and a buffer of its own.
            unsafe {
                libc::read(told.as_raw_fd(), byte.as_mut_ptr().cast(), 1);
                libc::_exit(0);
            }
        }
        drop(writer);
        // The child lives, and yet this is the end of the pipe.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        tell.write_all(&[1]).unwrap();
        let mut status = 0;
        // SAFETY: the child is ours and not yet waited for.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        let _ = told.by_ref();
    }
}
