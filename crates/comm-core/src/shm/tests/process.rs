//! What needs a process of its own: limits, users, forks, kills.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::process::Stdio;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{again, is_again, isolated};
use crate::shm::{Access, Arena, Segment, ShmError, fork};

const MIB: u64 = 1 << 20;

fn limit(resource: Resource, bytes: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(bytes), maximum }).unwrap();
}

fn out_of_memory<T: std::fmt::Debug>(result: Result<T, ShmError>) -> String {
    match result {
        Err(ShmError::OutOfMemory { what, .. }) => what,
        other => panic!("{other:?}"),
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|l| l.contains("memfd:comm")).count()
}

#[test]
fn a_limit_on_file_size_is_an_error_and_no_signal() {
    isolated("shm::tests::process::a_limit_on_file_size_is_an_error_and_no_signal", || {
        limit(Resource::Fsize, 2 * MIB + 100);
        assert!(out_of_memory(Segment::create(3 * MIB, Access::ReadOnly)).contains("RLIMIT_FSIZE"));
        assert!(out_of_memory(Segment::create_sparse(3 * MIB, Access::ReadOnly)).contains("RLIMIT_FSIZE"));
        Segment::create(2 * MIB, Access::ReadOnly).unwrap();
        let arena = Arena::new(Access::ReadOnly, 512 * MIB, |_| {});
        assert!(out_of_memory(arena.alloc(3 * MIB)).contains("RLIMIT_FSIZE"));
        let _blocks: Vec<_> = (0..10).map(|_| arena.alloc(MIB).unwrap()).collect();
        assert!(arena.segments().iter().all(|s| s.len() == 2 * MIB));
    });
}

#[test]
fn a_limit_on_address_space_is_an_error_that_says_so() {
    isolated("shm::tests::process::a_limit_on_address_space_is_an_error_that_says_so", || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
        limit(Resource::As, pages * 4096 + 40 * MIB);
        assert!(out_of_memory(Segment::create(100 * MIB, Access::ReadOnly)).contains("RLIMIT_AS"));
        // The first segment would like to be larger than that; a small one does.
        let arena = Arena::new(Access::ReadOnly, 512 * MIB, |_| {});
        arena.alloc(MIB).unwrap();
    });
}

#[test]
fn no_descriptor_left_is_an_error() {
    isolated("shm::tests::process::no_descriptor_left_is_an_error", || {
        // Input, output and error are open; the next descriptor would have the number 3.
        limit(Resource::Nofile, 3);
        let error = Segment::create(4096, Access::ReadOnly).unwrap_err();
        assert!(
            matches!(error, ShmError::Io { .. }) && error.to_string().contains("memfd_create"),
            "{error}"
        );
    });
}

#[test]
fn a_hundred_thousand_blocks_cost_no_descriptor_and_no_mapping() {
    isolated("shm::tests::process::a_hundred_thousand_blocks_cost_no_descriptor_and_no_mapping", || {
        let arena = Arena::new(Access::ReadOnly, 512 * MIB, |_| {});
        let first = arena.alloc(64).unwrap();
        let before = (descriptors(), mappings());
        assert_eq!(before.1, 1);
        let blocks: Vec<_> = (0..100_000).map(|i| arena.alloc(1 + i % 640).unwrap()).collect();
        assert_eq!((descriptors(), mappings()), before);
        let full = first.segment().resident();
        assert!(full > 30 * MIB, "{full}");
        drop(blocks);
        let kept = first.segment().resident();
        assert!(kept <= 21 * MIB, "{kept} of {full}");
        arena.trim();
        assert_eq!(first.segment().resident(), MIB, "one chunk for the block that lives");
        drop(first);
        drop(arena);
        assert_eq!((descriptors(), mappings()), (before.0 - 1, 0));
    });
}

#[test]
fn receiving_closes_the_descriptor_and_dropping_unmaps() {
    isolated("shm::tests::process::receiving_closes_the_descriptor_and_dropping_unmaps", || {
        let segment = Segment::create(8192, Access::ReadOnly).unwrap();
        let before = (descriptors(), mappings());
        let received = Segment::receive(segment.share().unwrap(), 1, 8192, Access::ReadOnly).unwrap();
        assert_eq!((descriptors(), mappings()), (before.0, before.1 + 1));
        drop(received);
        assert_eq!((descriptors(), mappings()), before);
        Segment::receive(segment.share().unwrap(), 1, 4096, Access::ReadOnly).unwrap_err();
        assert_eq!((descriptors(), mappings()), before);
    });
}

#[test]
fn a_user_without_capabilities_cannot_reopen_for_writing() {
    isolated("shm::tests::process::a_user_without_capabilities_cannot_reopen_for_writing", || {
        // SAFETY: changes the user of this process only, which does nothing but this test.
        if unsafe { libc::getuid() } == 0 {
            // SAFETY: as above.
            assert_eq!(unsafe { libc::setuid(65534) }, 0);
        }
        let segment = Segment::create(4096, Access::ReadOnly).unwrap();
        let fd = segment.share().unwrap();
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let error = std::fs::File::options().read(true).write(true).open(path).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        let window = Segment::create(4096, Access::ReadWrite).unwrap();
        Segment::receive(window.share().unwrap(), 1, 4096, Access::ReadWrite).unwrap();
    });
}

#[test]
fn signals_do_not_keep_memory_from_being_reserved() {
    isolated("shm::tests::process::signals_do_not_keep_memory_from_being_reserved", || {
        extern "C" fn nothing(_: libc::c_int) {}
        let every = libc::timeval { tv_sec: 0, tv_usec: 500 };
        let timer = libc::itimerval { it_interval: every, it_value: every };
        // SAFETY: the handler does nothing; the action and the timer are plain values, and this process is the test's
        // own. Without SA_RESTART, so that calls are interrupted.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
            assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
            assert_eq!(libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()), 0);
        }
        let segment = Segment::create(256 * MIB, Access::ReadOnly).unwrap();
        assert_eq!(segment.resident(), 256 * MIB);
    });
}

#[test]
fn a_forked_child_leaves_the_arena_of_its_parent_alone() {
    isolated("shm::tests::process::a_forked_child_leaves_the_arena_of_its_parent_alone", || {
        let arena = Arena::new(Access::ReadOnly, 512 * MIB, |_| {});
        let (small, large) = (arena.alloc(64).unwrap(), arena.alloc(100 * MIB).unwrap());
        large.copy_in(50 * MIB, b"parent").unwrap();
        let before = (arena.stats(), large.segment().resident());
        let segment = large.segment().clone();
        // SAFETY: a raw fork in a process whose other threads only wait for this test; the child makes calls of the
        // library and ends without running anybody's exit handlers.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let calls_refuse = fork::is_forked()
                && matches!(arena.alloc(64), Err(ShmError::Forked))
                && matches!(Segment::create(64, Access::ReadOnly), Err(ShmError::Forked))
                && arena.segments().is_empty();
            arena.trim();
            drop((small, large));
            drop(arena);
            drop(segment);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if calls_refuse { 7 } else { 8 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made, with a status of its own.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status}");
        assert!(!fork::is_forked());
        assert_eq!((arena.stats(), segment.resident()), before);
        let mut bytes = [0; 6];
        large.copy_out(50 * MIB, &mut bytes).unwrap();
        assert_eq!(&bytes, b"parent");
    });
}

#[test]
fn a_killed_process_leaves_nothing_behind_but_what_was_pushed() {
    const NAME: &str = "shm::tests::process::a_killed_process_leaves_nothing_behind_but_what_was_pushed";
    if is_again(NAME) {
        let arena = Arena::new(Access::ReadOnly, 512 * MIB, |_| {});
        let blocks: Vec<_> = (0..100).map(|_| arena.alloc_zeroed(MIB / 2).unwrap()).collect();
        blocks[99].copy_in(MIB / 2 - 5, b"value").unwrap();
        let segment = blocks[99].segment();
        let fd = segment.share().unwrap();
        println!("\nready {} {} {}", fd.as_raw_fd(), segment.len(), blocks[99].offset());
        loop {
            std::thread::park();
        }
    }
    let named = || {
        let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        names.filter(|e| e.file_name().to_string_lossy().contains("comm")).count()
    };
    let before = named();
    for _ in 0..10 {
        let mut child = again(NAME).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.strip_prefix("ready ")?.to_string()))
            .unwrap();
        let numbers: Vec<u64> = ready.split(' ').map(|n| n.parse().unwrap()).collect();
        // Stands in for a descriptor that was pushed over a socket.
        let fd = File::open(format!("/proc/{}/fd/{}", child.id(), numbers[0])).unwrap().into();
        let segment = Segment::receive(fd, 1, numbers[1], Access::ReadOnly).unwrap();
        assert_eq!(named(), before, "a memfd has no name");
        child.kill().unwrap();
        // Through the death, and after it, what was pushed can be read.
        let mut bytes = vec![0; (MIB / 2) as usize];
        let mut copies = || {
            for _ in 0..10 {
                segment.copy_out(numbers[2], &mut bytes).unwrap();
                assert!(bytes.ends_with(b"\0value"));
            }
        };
        copies();
        child.wait().unwrap();
        copies();
        assert_eq!(named(), before);
    }
}
