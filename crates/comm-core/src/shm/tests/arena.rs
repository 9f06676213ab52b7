use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use proptest::prelude::*;

use crate::shm::{Access, Arena, Block, Budget, Segment, ShmError};

const MIB: u64 = 1 << 20;

fn arena(limit: u64) -> Arena {
    Arena::new(Access::ReadOnly, limit, |_| {})
}

fn resident(arena: &Arena) -> u64 {
    arena.segments().iter().map(|s| s.resident()).sum()
}

#[test]
fn blocks_are_aligned_apart_and_recycled_under_a_new_generation() {
    let arena = arena(64 * MIB);
    let blocks: Vec<Block> = [0, 1, 64, 65, 5000, 2 * MIB].map(|len| arena.alloc(len).unwrap()).into();
    for (i, a) in blocks.iter().enumerate() {
        assert_eq!(a.offset() % 64, 0);
        assert_eq!(a.ptr().as_ptr() as usize % 64, 0);
        assert_eq!(a.generation(), i as u64 + 1);
        assert_eq!(a.is_empty(), i == 0);
        for b in &blocks[..i] {
            assert!(b.offset() + b.len().max(1) <= a.offset() || a.offset() + a.len().max(1) <= b.offset());
        }
    }
    let at: Vec<u64> = blocks.iter().map(Block::offset).collect();
    drop(blocks);
    let next = arena.alloc(100).unwrap();
    assert!(at.contains(&next.offset()));
    assert_eq!(next.generation(), 7);
    assert_eq!(arena.stats().segments, 1);
}

#[test]
fn ranges_of_a_block_are_its_own() {
    let arena = arena(8 * MIB);
    let block = arena.alloc_zeroed(100).unwrap();
    let _behind = arena.alloc(100).unwrap();
    assert!(block.copy_in(93, &[1; 8]).is_err());
    assert!(block.copy_in(u64::MAX, &[1]).is_err());
    assert!(block.copy_out(101, &mut []).is_err());
    block.copy_in(92, &[1; 8]).unwrap();
    assert!(block.typed::<AtomicU64>(96).is_err());
    assert!(block.typed::<AtomicU64>(3).is_err());
    assert!(block.typed_slice::<AtomicU64>(0, usize::MAX).is_err());
    assert_eq!(block.typed_slice::<AtomicU64>(0, 12).unwrap().len(), 12);
    // The segment itself does not give away what belongs to a block.
    assert!(block.segment().typed::<AtomicU64>(block.offset()).is_err());
    assert!(block.segment().copy_out(block.offset(), &mut [0]).is_err());
    assert!(block.segment().copy_in(block.offset(), &[0]).is_err());
}

#[test]
fn memory_is_reserved_before_it_is_handed_out_and_goes_back() {
    let arena = arena(1024 * MIB);
    let block = arena.alloc(100 * MIB).unwrap();
    assert!(resident(&arena) >= 100 * MIB);
    assert_eq!(resident(&arena), arena.stats().reserved);
    assert_eq!(arena.budget().used(), arena.stats().reserved);
    drop(block);
    // One burst teaches nothing: only the floor stays.
    assert!(arena.stats().idle <= 16 * MIB, "{:?}", arena.stats());
    assert_eq!(resident(&arena), arena.stats().reserved);
    arena.trim();
    assert_eq!((resident(&arena), arena.budget().used()), (0, 0));
}

#[test]
fn a_loop_over_a_large_block_stops_asking_the_system() {
    let arena = arena(1024 * MIB);
    for _ in 0..5 {
        drop(arena.alloc(64 * MIB).unwrap());
    }
    let stats = arena.stats();
    assert!(stats.idle >= 64 * MIB, "{stats:?}");
    let (first, _) = (arena.alloc(64 * MIB).unwrap(), ());
    assert_eq!(arena.stats().reserved, stats.reserved);
    drop(first);
    assert_eq!(arena.stats(), stats);
}

#[test]
fn the_limit_is_an_error_that_names_the_variable() {
    let arena = arena(4 * MIB);
    let held = arena.alloc(3 * MIB).unwrap();
    for len in [2 * MIB, 5 * MIB, u64::MAX] {
        match arena.alloc(len) {
            Err(ShmError::OutOfMemory { asked, limit, what }) => {
                assert_eq!((asked, limit), (len, 4 * MIB));
                assert!(what.contains("COMM_ARENA_MAX_BYTES"), "{what}");
            }
            other => panic!("{other:?}"),
        }
    }
    let small = arena.alloc(MIB / 2).unwrap();
    drop(held);
    arena.alloc(3 * MIB).unwrap();
    drop(small);
    arena.trim();
    assert_eq!(arena.stats().reserved, 0);
    assert_eq!(arena.stats().blocks, 0);
}

#[test]
fn all_of_the_limit_can_be_used() {
    for limit in [4096, 10_000, MIB, 5 * MIB + 4096, 64 * MIB] {
        let arena = arena(limit);
        let whole = limit / 4096 * 4096;
        drop(arena.alloc(whole / 2).unwrap());
        assert_eq!(arena.alloc(whole).unwrap().len(), whole, "of {limit}");
        assert!(arena.alloc(limit + 1).is_err());
    }
}

#[test]
fn arenas_of_one_budget_give_back_for_each_other() {
    let budget = Budget::new(64 * MIB);
    let one = Arena::new(Access::ReadOnly, budget.clone(), |_| {});
    let two = Arena::new(Access::ReadWrite, budget.clone(), |_| {});
    for _ in 0..3 {
        drop(one.alloc(60 * MIB).unwrap());
    }
    assert!(one.stats().idle > 4 * MIB);
    let block = two.alloc(60 * MIB).unwrap();
    assert!(one.alloc(60 * MIB).is_err());
    drop(block);
    drop(two);
    assert_eq!(budget.used(), one.stats().reserved);
    drop(one);
    assert_eq!(budget.used(), 0);
}

#[test]
fn zeroed_blocks_are_zero_whether_fresh_or_recycled() {
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let arena = Arena::new(access, 64 * MIB, |_| {});
        for len in [100, 4096, 3 * MIB + 5, 10 * MIB] {
            for _ in 0..2 {
                let block = arena.alloc_zeroed(len).unwrap();
                let mut bytes = vec![1; len as usize];
                block.copy_out(0, &mut bytes).unwrap();
                assert!(bytes.iter().all(|b| *b == 0), "{len}");
                block.copy_in(0, &vec![0xFF; len as usize]).unwrap();
            }
        }
    }
}

#[test]
fn segments_grow_geometrically_and_are_shown_before_they_are_used() {
    let shown = Arc::new(std::sync::Mutex::new(Vec::<Arc<Segment>>::new()));
    let list = shown.clone();
    let arena = Arena::new(Access::ReadOnly, 1024 * MIB, move |s| list.lock().unwrap().push(s.clone()));
    let mut blocks = Vec::new();
    for len in [MIB, 63 * MIB, 2 * MIB, 300 * MIB] {
        let block = arena.alloc(len).unwrap();
        assert!(shown.lock().unwrap().iter().any(|s| s.id() == block.segment().id()));
        blocks.push(block);
    }
    let sizes: Vec<u64> = arena.segments().iter().map(|s| s.len() / MIB).collect();
    assert_eq!(sizes, [64, 128, 512]);
    assert_eq!(shown.lock().unwrap().len(), 3);
}

#[test]
fn while_a_segment_is_shown_others_allocate_and_drop() {
    let (entered, inside) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let left = std::sync::Mutex::new(left);
    let shown = AtomicUsize::new(0);
    let arena = Arena::new(Access::ReadOnly, 1024 * MIB, move |_| {
        if shown.fetch_add(1, Ordering::Relaxed) == 1 {
            entered.send(()).unwrap();
            left.lock().unwrap().recv().unwrap();
        }
    });
    let first = arena.alloc(MIB).unwrap();
    std::thread::scope(|scope| {
        let grows = scope.spawn(|| arena.alloc(100 * MIB).unwrap().segment().id());
        inside.recv().unwrap();
        // What a thread would do that holds a lock for which `on_grow` waits: recycle, reserve, drop, trim, and even
        // grow itself.
        drop(first);
        drop(arena.alloc(MIB).unwrap());
        drop(arena.alloc(30 * MIB).unwrap());
        arena.trim();
        let mine = arena.alloc(200 * MIB).unwrap();
        assert_eq!(arena.segments().len(), 3);
        leave.send(()).unwrap();
        assert_ne!(grows.join().unwrap(), mine.segment().id());
    });
}

#[test]
fn a_panic_in_on_grow_leaves_the_arena_usable() {
    let calls = AtomicUsize::new(0);
    let arena = Arena::new(Access::ReadOnly, 8 * MIB, move |_| {
        assert!(calls.fetch_add(1, Ordering::Relaxed) > 0, "the first call fails");
    });
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| arena.alloc(1).map(drop)));
    assert!(caught.is_err());
    assert_eq!(arena.alloc(MIB).unwrap().generation(), 1);
}

#[test]
fn a_dropped_arena_gives_back_although_its_segments_are_held() {
    let arena = arena(64 * MIB);
    let block = arena.alloc(MIB).unwrap();
    let segment = block.segment().clone();
    drop(arena);
    assert!(segment.resident() >= MIB, "the block keeps it alive");
    drop(block);
    assert_eq!(segment.resident(), 0);
}

/// A block with a stamp in its first and last bytes, to see whether anybody else wrote to it.
fn stamped(arena: &Arena, len: u64, stamp: u8) -> Option<(Block, u8)> {
    let block = match arena.alloc(len) {
        Ok(block) => block,
        Err(ShmError::OutOfMemory { .. }) => return None,
        Err(e) => panic!("{e}"),
    };
    let n = len.min(5000);
    block.copy_in(0, &vec![stamp; n as usize]).unwrap();
    block.copy_in(len - n, &vec![stamp; n as usize]).unwrap();
    Some((block, stamp))
}

fn check((block, stamp): (Block, u8)) {
    let n = block.len().min(5000);
    let mut bytes = vec![0; n as usize];
    for at in [0, block.len() - n] {
        block.copy_out(at, &mut bytes).unwrap();
        assert!(bytes.iter().all(|b| *b == stamp), "{block:?} was written to by somebody else");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_the_order_blocks_keep_their_bytes(
        steps in prop::collection::vec((0u8..8, 1u64..600_000, any::<prop::sample::Index>()), 1..120)
    ) {
        let arena = arena(4 * MIB);
        let mut held = Vec::new();
        for (i, (kind, len, which)) in steps.into_iter().enumerate() {
            match kind {
                0..4 => held.extend(stamped(&arena, len >> (kind * 4), i as u8)),
                4..7 if !held.is_empty() => check(held.swap_remove(which.index(held.len()))),
                _ => arena.trim(),
            }
            let stats = arena.stats();
            prop_assert_eq!(stats.blocks, held.len() as u64);
            prop_assert_eq!(stats.reserved, resident(&arena));
            prop_assert_eq!(stats.reserved, arena.budget().used());
            prop_assert!(stats.reserved <= 4 * MIB);
        }
        held.into_iter().for_each(check);
        arena.trim();
        prop_assert_eq!(resident(&arena), 0);
    }
}

#[test]
fn threads_that_reserve_recycle_and_give_back_at_once_keep_their_bytes() {
    let budget = Budget::new(24 * MIB);
    let arenas = [(); 2].map(|()| Arena::new(Access::ReadOnly, budget.clone(), |_| {}));
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let (arena, refused) = (&arenas[t as usize % 2], &refused);
            scope.spawn(move || {
                let mut seed = t + 1;
                let mut held: Vec<(Block, u8)> = Vec::new();
                for i in 0..3000u64 {
                    seed =
                        seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let dice = seed >> 33;
                    if held.len() > 40 || (dice.is_multiple_of(2) && !held.is_empty()) {
                        check(held.swap_remove(dice as usize / 2 % held.len()));
                    } else {
                        match stamped(
                            arena,
                            1 + (dice >> 3) % (1 << (8 + dice % 14)),
                            (t * 64 + i % 64) as u8,
                        ) {
                            Some(block) => held.push(block),
                            None => {
                                refused.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                    if i % 500 == 499 {
                        arena.trim();
                    }
                }
                held.into_iter().for_each(check);
            });
        }
    });
    for arena in &arenas {
        arena.trim();
        assert_eq!((resident(arena), arena.stats().used), (0, 0));
    }
    assert_eq!(budget.used(), 0);
}
