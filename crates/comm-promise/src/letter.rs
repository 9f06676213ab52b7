//! What is said of a value in a slot: which segments it needs, and the value taken apart.
//!
//! A short letter stands in the slot, a long one in a block of the arena of who sets it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use comm_core::device::Stream;
use comm_core::hub::{Hub, Peer};
use comm_core::shm::Segment;
use comm_core::{Deadline, Error, Result};

use crate::lot::Tenancy;
use crate::slot::LETTER_WORDS;
use crate::value::{Codec, Packer, Unpacker};

/// The first word: how long it is, and these.
const IN_BLOCK: u64 = 1 << 63;
/// Whoever has set it keeps memory for it, and is to be told when that is not needed any more.
const KEEPS: u64 = 1 << 62;
const LEN: u64 = KEEPS - 1;

const INLINE: usize = (LETTER_WORDS - 1) * size_of::<u64>();

/// What a letter begins with.
const VALUE: u8 = 0;
const ERROR: u8 = 1;

/// A letter that is ready to be written, and the memory that it speaks of.
pub(crate) struct Letter {
    words: Vec<u64>,
    /// The segments that the reader needs.
    pub(crate) segments: Vec<u64>,
    pub(crate) held: Vec<Box<dyn Send>>,
}

impl Letter {
    /// A value, which is brought to the host behind `through` if it is not there.
    pub(crate) fn of_value<T>(
        hub: &Arc<Hub>,
        codec: Codec<T>,
        value: &T,
        through: Option<&Stream>,
    ) -> Result<Letter> {
        let mut packer = Packer::new(hub.tensors(), through);
        (codec.pack)(value, &mut packer)?;
        Letter::seal(hub, VALUE, packer)
    }

    pub(crate) fn of_error(hub: &Arc<Hub>, error: &Error) -> Result<Letter> {
        let mut packer = Packer::new(hub.tensors(), None);
        packer.wire(&error.to_string())?;
        Letter::seal(hub, ERROR, packer)
    }

    fn seal(hub: &Arc<Hub>, kind: u8, packer: Packer<'_>) -> Result<Letter> {
        let Packer { body, mut segments, mut held, .. } = packer;
        let mut bytes = vec![kind];
        bytes.extend((segments.len() as u64).to_le_bytes());
        segments.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
        bytes.extend(body);
        let mut words = vec![bytes.len() as u64];
        if bytes.len() <= INLINE {
            let word = |chunk: &[u8]| {
                u64::from_ne_bytes(std::array::from_fn(|i| chunk.get(i).copied().unwrap_or_default()))
            };
            words.extend(bytes.chunks(size_of::<u64>()).map(word));
        } else {
            let block = hub.tensors().alloc(bytes.len() as u64)?;
            block.copy_in(0, &bytes)?;
            words[0] |= IN_BLOCK;
            words.extend([block.segment().id(), block.offset()]);
            segments.push(block.segment().id());
            held.push(Box::new(block));
        }
        if !held.is_empty() {
            words[0] |= KEEPS;
        }
        Ok(Letter { words, segments, held })
    }

    /// Writes it. Nobody reads it before the promise is set.
    pub(crate) fn write(&self, to: &[AtomicU64; LETTER_WORDS]) {
        for (word, &value) in to.iter().zip(&self.words) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// A segment of who has set the value, which is still on its way.
pub(crate) struct OnItsWay(pub(crate) u64);

/// Whether whoever has set it is to be told when its memory is not needed any more.
pub(crate) fn keeps(from: &[AtomicU64; LETTER_WORDS]) -> bool {
    from[0].load(Ordering::Relaxed) & KEEPS != 0
}

/// A letter that has been fetched, with the segments that it speaks of.
pub(crate) struct Fetched {
    bytes: Vec<u8>,
    segments: Vec<Arc<Segment>>,
}

/// Fetches what another process has written, without waiting.
///
/// # Errors
/// A segment that has not come yet; inside, [`Error::BadPeer`] for a letter that cannot be.
pub(crate) fn fetch(from: &[AtomicU64; LETTER_WORDS], peer: &Peer) -> Result<Result<Fetched>, OnItsWay> {
    let segment = |id: u64| match peer.await_segment(id, Deadline::from(Duration::ZERO)) {
        Some(segment) => Ok(Ok(segment)),
        None if peer.is_link_over() => Ok(Err(bad("in a segment that has not been sent"))),
        None => Err(OnItsWay(id)),
    };
    let bytes = match place(from) {
        Ok(Place::Here(bytes)) => Ok(bytes),
        Ok(Place::Block { id, offset, len }) => segment(id)?.and_then(|block| copy(&block, offset, len)),
        Err(error) => Err(error),
    };
    let named = bytes.and_then(|bytes| {
        let id = |id: &[u8]| u64::from_le_bytes(std::array::from_fn(|i| id[i]));
        let ids: Vec<u64> = open(&bytes)?.1.chunks_exact(8).map(id).collect();
        Ok((bytes, ids))
    });
    let (bytes, ids) = match named {
        Ok(named) => named,
        Err(error) => return Ok(Err(error)),
    };
    let segments: Result<Vec<_>> =
        ids.into_iter().map(segment).collect::<Result<Vec<_>, _>>()?.into_iter().collect();
    Ok(segments.map(|segments| Fetched { bytes, segments }))
}

impl Fetched {
    /// The value, or the error that was set.
    pub(crate) fn unpack<T>(&self, codec: Codec<T>, tenancy: &Arc<Tenancy>) -> Result<T> {
        let (kind, _, body) = open(&self.bytes)?;
        let mut unpacker = Unpacker::new(body, &self.segments, tenancy);
        if kind == ERROR {
            return Err(Error::SetToError { what: unpacker.wire()? });
        }
        let value = (codec.unpack)(&mut unpacker)?;
        unpacker.end()?;
        Ok(value)
    }
}

/// Where the bytes of a letter are.
enum Place {
    Here(Vec<u8>),
    Block { id: u64, offset: u64, len: u64 },
}

fn place(from: &[AtomicU64; LETTER_WORDS]) -> Result<Place> {
    let get = |word: usize| from[word].load(Ordering::Relaxed);
    let (first, len) = (get(0), get(0) & LEN);
    if first & IN_BLOCK != 0 {
        return Ok(Place::Block { id: get(1), offset: get(2), len });
    }
    if len > INLINE as u64 {
        return Err(bad("more than there is room for"));
    }
    let words = (1..LETTER_WORDS).flat_map(|word| get(word).to_ne_bytes());
    Ok(Place::Here(words.take(len as usize).collect()))
}

fn copy(block: &Segment, offset: u64, len: u64) -> Result<Vec<u8>> {
    // Before room is made for it.
    block.range(offset, len)?;
    let mut bytes = vec![0; len as usize];
    block.copy_out(offset, &mut bytes)?;
    Ok(bytes)
}

/// What kind it is, the ids of the segments, and the value.
fn open(bytes: &[u8]) -> Result<(u8, &[u8], &[u8])> {
    let short = || bad("less than it should");
    let (&kind, rest) = bytes.split_first().ok_or_else(short)?;
    if kind > ERROR {
        return Err(bad("neither a value nor an error"));
    }
    let (count, rest) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    let len = usize::try_from(u64::from_le_bytes(*count)).ok().and_then(|n| n.checked_mul(8));
    let (ids, body) = len.and_then(|len| rest.split_at_checked(len)).ok_or_else(short)?;
    Ok((kind, ids, body))
}

fn bad(what: &str) -> Error {
    Error::bad_peer(format!("what is said of the value of a promise is {what}"))
}

#[cfg(test)]
mod tests {
    use comm_core::shm::Access;

    use super::*;

    /// No room is made for what a hostile letter claims to be.
    #[test]
    fn a_letter_is_no_longer_than_its_place() {
        let slot = |first: u64| std::array::from_fn(|word| AtomicU64::new(if word == 0 { first } else { 0 }));
        assert!(matches!(place(&slot(INLINE as u64)), Ok(Place::Here(bytes)) if bytes.len() == INLINE));
        for len in [INLINE as u64 + 1, LEN] {
            assert!(place(&slot(len)).is_err(), "{len}");
            assert!(matches!(place(&slot(IN_BLOCK | len)), Ok(Place::Block { .. })));
        }
        let segment = Segment::create(4096, Access::ReadOnly).unwrap();
        assert_eq!(copy(&segment, 4096 - 8, 8).unwrap(), [0; 8]);
        for (offset, len) in [(0, 4097), (0, LEN), (4096, 1), (u64::MAX, 1), (u64::MAX, LEN)] {
            assert!(copy(&segment, offset, len).is_err(), "{offset}, {len}");
        }
    }
}
