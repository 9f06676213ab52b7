//! Whether this process is a forked child of one that used the library.
//!
//! A forked child has copies of all private memory, locks in whatever state another thread had left them in
//! included, but shares the segments with its parent. A drop in the child that returned a block would punch holes
//! into memory that the parent still uses. So drops ask here first, and do nothing in a child.
//!
//! The kernel answers with a page that it wipes in children (`MADV_WIPEONFORK`); where it refuses, the pid is
//! compared.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use memmap2::{MmapMut, MmapRaw};
use rustix::mm::{Advice, madvise};

/// The word that children find wiped; null until [`arm`] was called, or where the kernel does not wipe.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// The pid at arming where there is no such page; 0 where there is.
static PID: AtomicU32 = AtomicU32::new(0);

/// Starts watching for forks. Called before there is anything that a child must leave alone; later calls do nothing.
///
/// No lock is taken, so a fork in the middle of the first call cannot leave one locked in the child.
pub(crate) fn arm() {
    if !WORD.load(Ordering::Acquire).is_null() || PID.load(Ordering::Relaxed) != 0 {
        return;
    }
    match wiped_page() {
        Some(page) => {
            let word = page.as_mut_ptr().cast::<AtomicU32>();
            // SAFETY: the page is mapped writable, its start is aligned for every primitive type, and nobody else has
            // its address yet. It stays mapped for ever if the exchange below succeeds.
            unsafe { (*word).store(1, Ordering::Relaxed) };
            if WORD.compare_exchange(ptr::null_mut(), word, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                std::mem::forget(page);
            }
        }
        None => PID.store(std::process::id(), Ordering::Relaxed),
    }
}

/// Whether this process was forked from one that had called [`arm`], and has not done so before that.
pub(crate) fn is_forked() -> bool {
    let word = WORD.load(Ordering::Acquire);
    if word.is_null() {
        let pid = PID.load(Ordering::Relaxed);
        return pid != 0 && pid != std::process::id();
    }
    // SAFETY: a pointer that was published in WORD is never unmapped, in a child neither; the word is only ever
    // accessed as an atomic after that, and the kernel's wiping happens before the child runs.
    unsafe { (*word).load(Ordering::Relaxed) == 0 }
}

fn wiped_page() -> Option<MmapRaw> {
    let page = MmapRaw::from(MmapMut::map_anon(rustix::param::page_size()).ok()?);
    // SAFETY: the range is a private mapping that is this function's own; the advice changes only what children see.
    unsafe { madvise(page.as_mut_ptr().cast(), page.len(), Advice::LinuxWipeOnFork) }.ok()?;
    Some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_not_a_child() {
        assert!(!is_forked());
        arm();
        arm();
        assert!(!is_forked());
    }
}
