//! The kernel's promise to say that a thread is gone, and the way to sleep until it says so.
//!
//! The kernel keeps a list of futexes per thread; when the thread is gone it sets `FUTEX_OWNER_DIED` in those that
//! carry the thread's id, and wakes one sleeper. It does so before it tears down the memory of the process, which is
//! what makes it faster than sockets and pidfds (measured: 0.2 ms against 300 ms with 4 GiB touched), and neither a
//! forked child nor an `exec` delays it.

use std::ffi::c_long;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use rustix::io::Errno;

use super::refuse::{Call, refused};

/// Set in the word when its owner died.
const OWNER_DIED: u32 = 0x4000_0000;
/// Always set in a living word, so that the kernel wakes a sleeper.
const WAITERS: u32 = 0x8000_0000;

/// Most words that one `futex_waitv` takes.
pub(super) const MAX_WORDS: usize = 128;

/// `struct robust_list` of linux/futex.h.
#[repr(C)]
struct Entry {
    next: *const Entry,
}

/// `struct robust_list_head` of linux/futex.h.
#[repr(C)]
struct Head {
    first: *const Entry,
    futex_offset: c_long,
    pending: *const Entry,
}

/// Makes `word` say when the calling thread is gone, and marks it alive. `false` if the kernel does not offer it.
///
/// The thread must not use robust mutexes otherwise: its list, of which the C library keeps one too, is replaced.
///
/// # Safety
/// The word is mapped writable and stays so until the thread has ended: the kernel writes it then.
pub(super) unsafe fn mark_alive(word: NonNull<AtomicU32>) -> bool {
    // One entry, in private memory: peers that map the word do not reach the list.
    let entry = Box::leak(Box::new(Entry { next: std::ptr::null() }));
    let offset = (word.as_ptr() as isize).wrapping_sub(std::ptr::from_ref::<Entry>(entry) as isize);
    let head =
        Box::leak(Box::new(Head { first: entry, futex_offset: offset as c_long, pending: std::ptr::null() }));
    entry.next = std::ptr::from_ref::<Head>(head).cast();
    let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    // SAFETY: the word is mapped (the caller's promise); it is an atomic.
    unsafe { word.as_ref() }.store(id | WAITERS, Ordering::SeqCst);
    if refused(Call::SetRobustList) {
        return false;
    }
    // SAFETY: the head and its one entry are leaked, so they live as long as the thread; the list is circular, as the
    // kernel expects; it follows it when the thread is gone and writes only to `word`, which stays mapped.
    let outcome =
        unsafe { libc::syscall(libc::SYS_set_robust_list, std::ptr::from_ref(head), size_of::<Head>()) };
    outcome == 0
}

/// Loads a word that may be mapped read-only: there only relaxed loads are sure to be plain ones.
fn look(word: &AtomicU32) -> u32 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}

/// Whether a word, whose living value was `alive`, says that its owner is gone. A word that changed in any other way
/// says so too: its owner is not one of ours any more.
pub(super) fn is_dead(word: &AtomicU32, alive: u32) -> bool {
    look(word) != alive
}

/// What a word says when it is first seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Its owner lives, and this is the value as long as he does.
    Alive(u32),
    /// The kernel says that its owner is gone.
    Died,
    /// It was never marked.
    Never(u32),
}

/// See [`State`].
pub(super) fn state(word: &AtomicU32) -> State {
    let value = look(word);
    if value & OWNER_DIED != 0 {
        State::Died
    } else if value & WAITERS != 0 && value & !WAITERS != 0 {
        State::Alive(value)
    } else {
        State::Never(value)
    }
}

/// A word to sleep on, and the value it has as long as there is nothing to see.
#[derive(Clone, Copy)]
pub(super) struct Watched<'a> {
    pub(super) word: &'a AtomicU32,
    pub(super) value: u32,
}

/// `struct futex_waitv` of linux/futex.h.
#[repr(C)]
struct WaitVector {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// Sleeps until one of the words changes, at most `at_most`. `false` if the kernel does not offer this.
pub(super) fn sleep_on(words: &[Watched<'_>], at_most: Duration) -> bool {
    const FUTEX_32: u32 = 2;
    if refused(Call::FutexWaitv) {
        return false;
    }
    let vector: Vec<WaitVector> = words
        .iter()
        .take(MAX_WORDS)
        .map(|w| WaitVector {
            value: u64::from(w.value),
            address: w.word.as_ptr() as u64,
            flags: FUTEX_32,
            reserved: 0,
        })
        .collect();
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanos = now.tv_nsec + i64::from(at_most.subsec_nanos());
    let until = libc::timespec {
        tv_sec: now.tv_sec + at_most.as_secs().min(3600) as i64 + nanos / 1_000_000_000,
        tv_nsec: nanos % 1_000_000_000,
    };
    // SAFETY: the vector and the time are valid for the call, the vector has as many entries as it is said to have; the
    // kernel reads the words, which are borrowed atomics, and writes nothing.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            vector.as_ptr(),
            vector.len(),
            0,
            std::ptr::from_ref(&until),
            libc::CLOCK_MONOTONIC,
        )
    };
    if outcome >= 0 {
        return true;
    }
    let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    !matches!(Errno::from_raw_os_error(error), Errno::NOSYS | Errno::PERM | Errno::ACCESS | Errno::INVAL)
}
