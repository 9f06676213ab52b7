//! What stands in shared memory about a published tensor.
//!
//! A record lies in the log of the rank that published it: a cell with the counts of its readers, a header, and behind that
//! layout and key. It is written before it hangs on its chain and then only its counts change, until a reset. Every word is
//! an atomic, and what a peer wrote is checked in the copy.

use std::sync::atomic::{AtomicU64, Ordering};

use comm_core::shm::{Memory, Pinned};
use comm_core::tensor::{DType, Layout, MAX_DIMS};
use comm_core::wait::Cell;
use comm_core::{Error, Result, layout};

use super::MAX_KEY_BYTES;
use crate::directory::chain::Step;

/// Words of the header, behind the cell.
pub(super) const NEXT: usize = 0;
const HASH: usize = 1;
const READERS: usize = 2;
/// Dtype, number of dimensions, length of the key.
const SHAPE_OF: usize = 3;
const SEGMENT: usize = 4;
const BASE: usize = 5;
const LOAN_SEGMENT: usize = 6;
const LOAN_OFFSET: usize = 7;
const HEADER: usize = 8;

const CELL_BYTES: u64 = size_of::<Cell>() as u64;
const WORD: usize = 8;

/// The layout of a record, which ranks of another build would misread.
pub(super) const LAYOUT: u64 = layout::hash(&[
    1, // counted up when the meaning of a word changes and its place does not
    size_of::<Cell>(),
    HEADER,
    MAX_DIMS,
]);

/// Records begin at multiples of this.
pub(super) const ALIGN: u64 = 64;

/// Where a tensor and its [loan](super::loan) lie, for readers in other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The segment of the process of the rank that published it, and where in it the tensor's memory begins.
    pub(super) segment: u64,
    pub(super) base: u64,
    pub(super) loan_segment: u64,
    pub(super) loan_offset: u64,
}

/// What is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Published {
    pub(super) readers: u32,
    pub(super) dtype: DType,
    /// Over the memory from [`Place::base`] on.
    pub(super) layout: Layout,
    /// None if there are no elements, or nobody in another process.
    pub(super) place: Option<Place>,
}

/// One record, found.
#[derive(Clone)]
pub(super) struct Record {
    pub(super) link: u64,
    memory: Memory,
    offset: u64,
}

/// A hash of a key, the same in every process: FNV-1a (Fowler, Noll, Vo 1991), mixed so that its low bits are even.
pub(super) fn hash(key: &str) -> u64 {
    let sum = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325, sum);
    (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd) ^ (hash >> 29)
}

/// How much memory a record takes.
pub(super) fn bytes(key: &str, dims: usize) -> u64 {
    let words = HEADER + 1 + 2 * dims + key.len().div_ceil(WORD);
    (CELL_BYTES + (words * WORD) as u64).next_multiple_of(ALIGN)
}

impl Record {
    pub(super) fn new(link: u64, memory: Memory, offset: u64) -> Record {
        Record { link, memory, offset }
    }

    /// The counts of its readers.
    pub(super) fn counts(&self) -> Result<&Cell> {
        let cell = self.memory.typed::<Cell>(self.offset, 1);
        Ok(&cell.map_err(|_| bad("more than there is room for"))?[0])
    }

    /// The counts, for a task.
    pub(super) fn task_counts(&self) -> Result<Pinned<Cell>> {
        self.memory.pin(self.offset)
    }

    /// Writes all of it but what is behind it. Nobody else knows of it yet.
    pub(super) fn write(&self, key: &str, published: &Published) -> Result<()> {
        let header = self.header()?;
        let layout = &published.layout;
        let dims = layout.shape().len();
        let put = |word: usize, value: u64| header[word].store(value, Ordering::Relaxed);
        put(HASH, hash(key));
        put(READERS, published.readers.into());
        put(SHAPE_OF, u64::from(published.dtype.code()) | (dims as u64) << 8 | (key.len() as u64) << 16);
        let place = published.place;
        put(SEGMENT, place.map_or(0, |place| place.segment));
        put(BASE, place.map_or(0, |place| place.base));
        put(LOAN_SEGMENT, place.map_or(0, |place| place.loan_segment));
        put(LOAN_OFFSET, place.map_or(0, |place| place.loan_offset));
        let sizes = layout.shape().iter().map(|&n| n as u64);
        let strides = layout.strides().iter().map(|&n| n as u64);
        let letters = key.as_bytes().chunks(WORD).map(word_of);
        let tail = [layout.offset() as u64].into_iter().chain(sizes).chain(strides).chain(letters);
        for (word, value) in self.tail(1 + 2 * dims + key_words(key.len()))?.iter().zip(tail) {
            word.store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Says what is behind it. Nobody else knows of it yet.
    pub(super) fn set_next(&self, link: u64) -> Result<()> {
        self.header()?[NEXT].store(link, Ordering::Relaxed);
        Ok(())
    }

    /// Whether it is of this key.
    pub(super) fn look(&self, hash: u64, key: &str) -> Result<Step> {
        let header = self.header()?;
        if header[HASH].load(Ordering::Relaxed) == hash && self.key_is(key)? {
            return Ok(Step::Found);
        }
        Ok(Step::Behind(header[NEXT].load(Ordering::Relaxed)))
    }

    fn key_is(&self, key: &str) -> Result<bool> {
        let shape_of = self.header()?[SHAPE_OF].load(Ordering::Relaxed);
        if key_len(shape_of) != key.len() {
            return Ok(false);
        }
        let skip = 1 + 2 * dims(shape_of);
        let words = self.tail(skip + key_words(key.len()))?;
        let mut chunks = key.as_bytes().chunks(WORD).map(word_of);
        Ok(words[skip..].iter().all(|word| Some(word.load(Ordering::Relaxed)) == chunks.next()))
    }

    /// What it says.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if that cannot be.
    pub(super) fn read(&self) -> Result<Published> {
        let header = self.header()?;
        let get = |word: usize| header[word].load(Ordering::Relaxed);
        let shape_of = get(SHAPE_OF);
        let dims = dims(shape_of);
        let tail: Vec<u64> =
            self.tail(1 + 2 * dims)?.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let sizes: Vec<usize> = tail[1..1 + dims].iter().map(|&n| n as usize).collect();
        let strides: Vec<isize> = tail[1 + dims..].iter().map(|&n| n as isize).collect();
        let layout = Layout::new(&sizes, &strides, tail[0] as usize);
        let layout = layout.map_err(|error| bad(format!("a tensor that cannot be: {error}")))?;
        let dtype = DType::from_code(shape_of as u8).ok_or_else(|| bad("a dtype that does not exist"))?;
        let readers = u32::try_from(get(READERS)).map_err(|_| bad("more readers than there can be"))?;
        let place = Place {
            segment: get(SEGMENT),
            base: get(BASE),
            loan_segment: get(LOAN_SEGMENT),
            loan_offset: get(LOAN_OFFSET),
        };
        Ok(Published { readers, dtype, layout, place: (place.segment != 0).then_some(place) })
    }

    fn header(&self) -> Result<&[AtomicU64]> {
        self.words(HEADER)
    }

    fn tail(&self, words: usize) -> Result<&[AtomicU64]> {
        Ok(&self.words(HEADER + words)?[HEADER..])
    }

    /// Words behind the cell.
    fn words(&self, count: usize) -> Result<&[AtomicU64]> {
        let words = self.memory.typed(self.offset + CELL_BYTES, count);
        words.map_err(|_| bad("more than there is room for"))
    }

    /// All of them, for tests that scribble over them.
    #[cfg(test)]
    pub(super) fn all_words(&self) -> Result<&[AtomicU64]> {
        let shape_of = self.header()?[SHAPE_OF].load(Ordering::Relaxed);
        self.words(HEADER + 1 + 2 * dims(shape_of) + key_words(key_len(shape_of)))
    }
}

fn dims(shape_of: u64) -> usize {
    // A number of dimensions that cannot be makes a layout that cannot be.
    ((shape_of >> 8) as u8).min(MAX_DIMS as u8) as usize
}

fn key_len(shape_of: u64) -> usize {
    ((shape_of >> 16) as usize).min(MAX_KEY_BYTES)
}

fn key_words(bytes: usize) -> usize {
    bytes.div_ceil(WORD)
}

fn word_of(chunk: &[u8]) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| chunk.get(i).copied().unwrap_or_default()))
}

fn bad(what: impl std::fmt::Display) -> Error {
    Error::bad_peer(format!("a record in the store tells of {what}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use comm_core::shm::{Access, Arena};
    use proptest::prelude::*;

    use super::*;

    /// A record somewhere in a block of noise.
    fn room(bytes: u64, noise: u8) -> Record {
        let arena = Arena::new(Access::ReadWrite, 8 << 20, |_| {});
        let block = arena.alloc(bytes + 2 * ALIGN).unwrap();
        block.copy_in(0, &vec![noise; bytes as usize]).unwrap();
        Record::new(7, Memory::Here(Arc::new(block)), ALIGN)
    }

    fn layouts() -> impl Strategy<Value = Layout> {
        let far = 1_u64 << 40;
        let dims = prop::collection::vec((0..5_usize, -(far as isize)..far as isize), 0..=MAX_DIMS);
        (dims, any::<u64>()).prop_filter_map("no such layout", move |(dims, offset)| {
            let (sizes, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
            Layout::new(&sizes, &strides, (offset % (1 << 50)) as usize).ok()
        })
    }

    proptest! {
        /// Whatever is published is what is read, also beyond 2^32, and its key is its own.
        #[test]
        fn what_is_written_is_read(
            layout in layouts(),
            dtype in 0..DType::ALL.len(),
            readers in any::<u32>(),
            words in any::<Option<[u64; 4]>>(),
            key in "\\PC{1,40}",
            other in "\\PC{1,40}",
            noise in any::<u8>(),
        ) {
            let place = words.map(|[segment, base, loan_segment, loan_offset]| {
                Place { segment: segment.max(1), base, loan_segment, loan_offset }
            });
            let published = Published { readers, dtype: DType::ALL[dtype], layout, place };
            let bytes = bytes(&key, layout.shape().len());
            let record = room(bytes, noise);
            record.set_next(99).unwrap();
            record.write(&key, &published).unwrap();
            prop_assert_eq!(record.read().unwrap(), published);
            prop_assert!(matches!(record.look(hash(&key), &key).unwrap(), Step::Found));
            if key != other {
                prop_assert!(matches!(record.look(hash(&other), &other).unwrap(), Step::Behind(99)));
                // Also if their hashes were the same.
                prop_assert!(matches!(record.look(hash(&key), &other).unwrap(), Step::Behind(99)));
            }
            // It keeps to its room.
            let words = record.all_words().unwrap().len() as u64;
            prop_assert!(CELL_BYTES + words * WORD as u64 <= bytes);
        }

        /// Whatever somebody writes instead is an error at the worst.
        #[test]
        fn noise_is_read_as_something_or_refused(words in prop::collection::vec(any::<u64>(), HEADER + 40)) {
            let record = room(2048, 0xff);
            for (to, from) in record.words(words.len()).unwrap().iter().zip(&words) {
                to.store(*from, Ordering::Relaxed);
            }
            let is_refused = |error: Error| matches!(error, Error::BadPeer { .. });
            prop_assert!(record.read().err().is_none_or(is_refused));
            prop_assert!(record.look(words[HASH], "key").err().is_none_or(is_refused));
        }
    }

    #[test]
    fn a_record_that_its_chunk_cuts_off_is_refused() {
        let key = "k".repeat(MAX_KEY_BYTES);
        let len = 4096;
        let all = room(len - 2 * ALIGN, 0);
        for fits in [0, CELL_BYTES, CELL_BYTES + (HEADER * WORD) as u64] {
            let record = Record::new(7, all.memory.clone(), len - fits);
            assert_eq!(record.counts().is_ok(), fits > 0);
            if let Ok(header) = record.header() {
                header[HASH].store(hash(&key), Ordering::Relaxed);
                header[SHAPE_OF].store(u64::MAX >> 8 << 8, Ordering::Relaxed);
            }
            assert!(matches!(record.read(), Err(Error::BadPeer { .. })), "{fits} bytes of it are there");
            assert!(matches!(record.look(hash(&key), &key), Err(Error::BadPeer { .. })), "{fits} bytes");
        }
    }

    #[test]
    fn hashes_are_the_same_in_every_process() {
        assert_eq!(hash("a"), 0xed8170db14c7f846);
        assert_eq!(hash("model.layers.0"), 0xd3c6c04d4f1dfcf4);
        let different: std::collections::HashSet<u64> = (0..10_000).map(|i| hash(&i.to_string())).collect();
        assert_eq!(different.len(), 10_000);
    }
}
