//! Which ranges of a segment are free: best fit, merged with their neighbours on return.
//!
//! Pure arithmetic on offsets in private memory. Every step is O(log n) in the number of free ranges.

use std::collections::{BTreeMap, BTreeSet};

/// The free ranges of `0..len`. No two of them touch.
#[derive(Debug, Default)]
pub(super) struct FreeList {
    /// Offset to length, to find a neighbour.
    by_offset: BTreeMap<u64, u64>,
    /// (length, offset), to find the smallest that fits; of equal ones the lowest, so that the front stays warm.
    by_len: BTreeSet<(u64, u64)>,
}

impl FreeList {
    /// All of `0..len` is free.
    pub(super) fn new(len: u64) -> FreeList {
        let mut list = FreeList::default();
        if len > 0 {
            list.insert(0, len);
        }
        list
    }

    /// Where [`FreeList::take`] would take `len` bytes from.
    pub(super) fn best_fit(&self, len: u64) -> Option<u64> {
        self.fits(len).next()
    }

    /// The starts of all ranges that hold `len` bytes, the tightest first.
    pub(super) fn fits(&self, len: u64) -> impl Iterator<Item = u64> + '_ {
        self.by_len.range((len, 0)..).map(|(_, offset)| *offset)
    }

    /// Takes `len` bytes from the front of the free range that starts at `offset`. `false`: there is no such range.
    pub(super) fn take(&mut self, offset: u64, len: u64) -> bool {
        let Some(free) = self.by_offset.get(&offset).copied().filter(|free| *free >= len) else {
            return false;
        };
        self.remove(offset, free);
        if free > len {
            self.insert(offset + len, free - len);
        }
        true
    }

    /// Returns a range that was taken.
    pub(super) fn give(&mut self, mut offset: u64, mut len: u64) {
        if let Some((&before, &before_len)) = self.by_offset.range(..offset).next_back() {
            debug_assert!(before + before_len <= offset, "a range was returned twice");
            if before + before_len == offset {
                self.remove(before, before_len);
                offset = before;
                len += before_len;
            }
        }
        if let Some((&after, &after_len)) = self.by_offset.range(offset + len..).next()
            && after == offset + len
        {
            self.remove(after, after_len);
            len += after_len;
        }
        self.insert(offset, len);
    }

    fn insert(&mut self, offset: u64, len: u64) {
        self.by_offset.insert(offset, len);
        self.by_len.insert((len, offset));
    }

    fn remove(&mut self, offset: u64, len: u64) {
        self.by_offset.remove(&offset);
        self.by_len.remove(&(len, offset));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same by brute force: one flag a unit.
    struct Oracle(Vec<bool>);

    impl Oracle {
        fn runs(&self) -> Vec<(u64, u64)> {
            let mut runs = Vec::new();
            let mut i = 0;
            while i < self.0.len() {
                let len = self.0[i..].iter().take_while(|free| **free).count();
                if len > 0 {
                    runs.push((i as u64, len as u64));
                }
                i += len.max(1);
            }
            runs
        }

        fn best_fit(&self, len: u64) -> Option<u64> {
            let fitting = self.runs().into_iter().filter(|run| run.1 >= len);
            fitting.min_by_key(|run| (run.1, run.0)).map(|run| run.0)
        }

        fn set(&mut self, offset: u64, len: u64, free: bool) {
            for unit in &mut self.0[offset as usize..(offset + len) as usize] {
                assert_ne!(*unit, free, "a unit was handed out or returned twice");
                *unit = free;
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_oracle(
            steps in prop::collection::vec((any::<bool>(), 1u64..40, any::<prop::sample::Index>()), 1..200)
        ) {
            let mut list = FreeList::new(256);
            let mut oracle = Oracle(vec![true; 256]);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (take, len, which) in steps {
                if take {
                    let at = list.best_fit(len);
                    prop_assert_eq!(at, oracle.best_fit(len));
                    if let Some(offset) = at {
                        prop_assert!(list.take(offset, len));
                        oracle.set(offset, len, false);
                        taken.push((offset, len));
                    }
                } else if !taken.is_empty() {
                    let (offset, len) = taken.swap_remove(which.index(taken.len()));
                    list.give(offset, len);
                    oracle.set(offset, len, true);
                }
                let ranges: Vec<(u64, u64)> = list.by_offset.iter().map(|(o, l)| (*o, *l)).collect();
                prop_assert_eq!(&ranges, &oracle.runs());
                let mut by_len: Vec<(u64, u64)> = list.by_len.iter().map(|(l, o)| (*o, *l)).collect();
                by_len.sort_unstable();
                prop_assert_eq!(&by_len, &ranges);
            }
            for (offset, len) in taken {
                list.give(offset, len);
            }
            prop_assert_eq!(list.best_fit(256), Some(0));
        }
    }

    #[test]
    fn what_is_not_there_is_not_taken() {
        let mut list = FreeList::new(64);
        assert!(!list.take(8, 8));
        assert!(!list.take(0, 65));
        assert!(list.take(0, 64));
        assert_eq!(list.best_fit(1), None);
        assert_eq!(FreeList::new(0).best_fit(1), None);
    }
}
