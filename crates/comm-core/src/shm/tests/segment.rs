use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::MmapOptions;
use rustix::fs::{MemfdFlags, OFlags, SealFlags};

use crate::shm::{Access, Segment, ShmError, read_pod};

fn bad_peer(result: Result<Segment, ShmError>) -> String {
    match result {
        Err(ShmError::BadPeer { what }) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_is_reserved_unless_asked_otherwise() {
    let full = Segment::create(4 << 20, Access::ReadOnly).unwrap();
    assert_eq!(full.resident(), 4 << 20);
    full.punch(1 << 20, 1 << 20).unwrap();
    assert_eq!(full.resident(), 3 << 20);
    let sparse = Segment::create_sparse(4 << 20, Access::ReadOnly).unwrap();
    assert_eq!(sparse.resident(), 0);
    sparse.copy_in(5 << 19, &[1]).unwrap();
    assert_eq!(sparse.resident(), 4096);
    assert!(matches!(Segment::create(0, Access::ReadOnly), Err(ShmError::Invalid { .. })));
    assert!(matches!(Segment::create(u64::MAX, Access::ReadOnly), Err(ShmError::Invalid { .. })));
    assert!(Segment::create_sparse(i64::MAX as u64, Access::ReadOnly).is_err());
}

#[test]
fn a_segment_has_its_name_its_seals_and_an_id_of_its_own() {
    let one = Segment::create(100, Access::ReadOnly).unwrap();
    let two = Segment::create(100, Access::ReadOnly).unwrap();
    assert_ne!(one.id(), two.id());
    let fd = one.share().unwrap();
    let seals = rustix::fs::fcntl_get_seals(&fd).unwrap();
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
    assert!(!seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains("/memfd:comm (deleted)"));
    assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn ranges_and_types_are_checked() {
    let segment = Segment::create(100, Access::ReadWrite).unwrap();
    assert!(segment.range(0, 100).is_ok() && segment.range(100, 0).is_ok());
    for (offset, len) in [(0, 101), (100, 1), (u64::MAX, 1), (1, u64::MAX), (101, 0)] {
        assert!(matches!(segment.range(offset, len), Err(ShmError::Invalid { .. })), "{offset} {len}");
    }
    assert!(segment.typed::<AtomicU64>(96).is_err(), "past the end");
    assert!(segment.typed::<AtomicU64>(4).is_err(), "not aligned");
    assert!(segment.typed_slice::<AtomicU64>(0, usize::MAX).is_err(), "more bytes than there are numbers");
    assert_eq!(segment.typed_slice::<AtomicU32>(4, 24).unwrap().len(), 24);

    let received = Segment::receive(segment.share().unwrap(), 7, 100, Access::ReadWrite).unwrap();
    assert_eq!((received.id(), received.len()), (7, 100));
    assert!(matches!(received.range(64, 37), Err(ShmError::BadPeer { .. })));
    assert!(matches!(read_pod::<u64>(&received, 93), Err(ShmError::BadPeer { .. })));
    assert!(received.share().is_err(), "not ours to pass on");
}

#[test]
fn both_sides_see_the_same_bytes() {
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let mine = Segment::create(8192, access).unwrap();
        let theirs = Segment::receive(mine.share().unwrap(), mine.id(), mine.len(), access).unwrap();
        mine.copy_in(4000, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        assert_eq!(read_pod::<[u8; 8]>(&theirs, 4000).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
        let mut copy = [0; 3];
        theirs.copy_out(4001, &mut copy).unwrap();
        assert_eq!(copy, [2, 3, 4]);
        match access {
            Access::ReadOnly => {
                assert!(matches!(theirs.copy_in(0, &[1]), Err(ShmError::Invalid { .. })));
                assert!(matches!(theirs.typed::<AtomicU64>(0), Err(ShmError::Invalid { .. })));
            }
            Access::ReadWrite => {
                theirs.typed::<AtomicU64>(0).unwrap().store(9, Ordering::Release);
                assert_eq!(mine.typed::<AtomicU64>(0).unwrap().load(Ordering::Acquire), 9);
            }
        }
    }
}

#[test]
fn read_only_is_read_only_by_the_system() {
    let segment = Segment::create(8192, Access::ReadOnly).unwrap();
    let fd = segment.share().unwrap();
    assert_eq!(rustix::fs::fcntl_getfl(&fd).unwrap() & OFlags::RWMODE, OFlags::RDONLY);
    let error = MmapOptions::new().len(8192).map_raw(&fd).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    let map = MmapOptions::new().len(8192).map_raw_read_only(&fd).unwrap();
    // SAFETY: the whole mapping is this test's own, and nobody uses it.
    let changed = unsafe {
        rustix::mm::mprotect(
            map.as_mut_ptr().cast(),
            8192,
            rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
        )
    };
    assert_eq!(changed, Err(rustix::io::Errno::ACCESS));
    assert!(rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, 8192).is_err());
    assert!(rustix::fs::ftruncate(&fd, 0).is_err());
    assert_eq!(rustix::fs::fstat(&fd).unwrap().st_mode & 0o777, 0o400);
    assert!(bad_peer(Segment::receive(fd, 1, 8192, Access::ReadWrite)).contains("does not allow ReadWrite"));
}

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("other", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn what_is_no_sealed_segment_is_refused_by_name() {
    let receive = |fd: OwnedFd, len| bad_peer(Segment::receive(fd, 3, len, Access::ReadOnly));
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    assert!(Segment::receive(memfd(4096, all), 3, 4096, Access::ReadOnly).is_ok());

    let what = receive(memfd(4096, SealFlags::empty()), 4096);
    assert!(what.contains("segment 3") && what.contains("SHRINK") && what.contains("SEAL"), "{what}");
    let what = receive(memfd(4096, SealFlags::GROW | SealFlags::SEAL), 4096);
    assert!(what.contains("SHRINK") && !what.contains("GROW"), "{what}");
    let what = receive(memfd(4096, all), 8192);
    assert!(what.contains("4096 bytes, not 8192"), "{what}");
    assert!(receive(memfd(4096, all), 4095).contains("not 4095"));
    assert!(receive(memfd(4096, all), u64::MAX).contains("bytes, not"));
    assert!(receive(memfd(0, all), 0).contains("no bytes"));

    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let what = receive(reader, 4096);
    assert!(what.contains("Fifo"), "{what}");
    let what = receive(File::open("/dev/null").unwrap().into(), 4096);
    assert!(what.contains("CharacterDevice"), "{what}");
    let what = receive(File::open("/proc/self/exe").unwrap().into(), 4096);
    assert!(what.contains("not a memfd"), "{what}");
    let what = receive(File::open("/").unwrap().into(), 4096);
    assert!(what.contains("Directory"), "{what}");
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    assert!(receive(file.into(), 4096).contains("memfd"));
    let path = rustix::fs::open("/dev/null", OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    receive(path, 4096);
    let socket = std::os::unix::net::UnixStream::pair().unwrap().0;
    assert!(receive(socket.into(), 4096).contains("Socket"));
}

#[test]
fn a_memfd_that_can_only_be_written_is_refused() {
    let fd = memfd(4096, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    let write_only = rustix::fs::open(path, OFlags::WRONLY, rustix::fs::Mode::empty()).unwrap();
    assert!(
        bad_peer(Segment::receive(write_only, 1, 4096, Access::ReadOnly)).contains("does not allow ReadOnly")
    );
}
