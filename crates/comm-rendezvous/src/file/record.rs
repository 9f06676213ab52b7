//! What a line of the log is made of.
//!
//! ```text
//! u32 length of the body | u32 checksum of these 4 bytes | u32 checksum of the body | body
//! body: u8 kind | u32 length of the key | key | value
//! ```
//!
//! Numbers are little-endian. A writer that is killed leaves the beginning of a record, so whatever else is not sound is
//! damage: the length has a checksum of its own, by which a record that has been cut is told from one that is wrong.

use crate::rendezvous::{MAX_KEY, MAX_VALUE};

/// Bytes before the body.
const HEAD: usize = 12;

/// Bytes of the body before the key.
const BODY_HEAD: usize = 5;

const LONGEST_BODY: usize = BODY_HEAD + MAX_KEY + MAX_VALUE;

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first record: its key is the run id, its value the format.
    Run,
    /// The value is under the key.
    Set,
    /// Nothing is under the key.
    Delete,
    /// One of those who take part has left.
    Left,
}

const KINDS: [Kind; 4] = [Kind::Run, Kind::Set, Kind::Delete, Kind::Left];

/// One record, in the bytes that hold it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub kind: Kind,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

/// What bytes begin with.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed<'a> {
    /// A record of so many bytes.
    Whole(Record<'a>, usize),
    /// The beginning of a record, or nothing.
    Cut,
    /// No record.
    Wrong(&'static str),
}

impl Record<'_> {
    pub fn encode(&self) -> Vec<u8> {
        let body = BODY_HEAD + self.key.len() + self.value.len();
        let mut bytes = Vec::with_capacity(HEAD + body);
        let length = (body as u32).to_le_bytes();
        bytes.extend_from_slice(&length);
        bytes.extend_from_slice(&crc32fast::hash(&length).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.push(self.kind as u8);
        bytes.extend_from_slice(&(self.key.len() as u32).to_le_bytes());
        bytes.extend_from_slice(self.key);
        bytes.extend_from_slice(self.value);
        let sum = crc32fast::hash(&bytes[HEAD..]);
        bytes[HEAD - 4..HEAD].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}

/// Reads the record that bytes begin with.
pub(super) fn parse(bytes: &[u8]) -> Parsed<'_> {
    let Some((head, rest)) = bytes.split_at_checked(HEAD) else { return Parsed::Cut };
    if crc32fast::hash(&head[..4]) != number(&head[4..]) {
        return Parsed::Wrong("the length has another checksum");
    }
    let length = number(head) as usize;
    if !(BODY_HEAD..=LONGEST_BODY).contains(&length) {
        return Parsed::Wrong("the length is none of a record");
    }
    let Some(body) = rest.get(..length) else { return Parsed::Cut };
    if crc32fast::hash(body) != number(&head[8..]) {
        return Parsed::Wrong("the record has another checksum");
    }
    let (Some(&kind), key) = (KINDS.get(usize::from(body[0])), number(&body[1..]) as usize) else {
        return Parsed::Wrong("the record is of no known kind");
    };
    match body[BODY_HEAD..].split_at_checked(key) {
        Some((key, value)) => Parsed::Whole(Record { kind, key, value }, HEAD + length),
        None => Parsed::Wrong("the key is longer than the record"),
    }
}

/// The number that bytes begin with; there are at least four.
fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_itself_and_every_beginning_of_it_is_cut() {
        for kind in KINDS {
            let record = Record { kind, key: b"a key", value: b"and its value" };
            let mut bytes = record.encode();
            let size = bytes.len();
            for cut in 0..size {
                assert_eq!(parse(&bytes[..cut]), Parsed::Cut, "cut at {cut}");
            }
            bytes.extend_from_slice(b"what comes next");
            assert_eq!(parse(&bytes), Parsed::Whole(record, size));
        }
        let empty = Record { kind: Kind::Set, key: b"", value: b"" };
        assert_eq!(parse(&empty.encode()), Parsed::Whole(empty, HEAD + BODY_HEAD));
    }

    #[test]
    fn every_wrong_bit_is_seen() {
        let bytes = Record { kind: Kind::Set, key: b"key", value: b"value" }.encode();
        for bit in 0..bytes.len() * 8 {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(parse(&wrong), Parsed::Wrong(_)), "bit {bit}: {:?}", parse(&wrong));
        }
    }

    #[test]
    fn a_sound_checksum_is_not_enough() {
        let reseal = |mut bytes: Vec<u8>| {
            let length = (bytes.len() - HEAD) as u32;
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            let sums = [crc32fast::hash(&bytes[..4]), crc32fast::hash(&bytes[HEAD..])];
            bytes[4..8].copy_from_slice(&sums[0].to_le_bytes());
            bytes[8..12].copy_from_slice(&sums[1].to_le_bytes());
            bytes
        };
        let sound = Record { kind: Kind::Set, key: b"key", value: b"value" }.encode();
        assert_eq!(reseal(sound.clone()), sound);
        let mut kind = sound.clone();
        kind[HEAD] = 4;
        assert_eq!(parse(&reseal(kind)), Parsed::Wrong("the record is of no known kind"));
        let mut key = sound.clone();
        key[HEAD + 1] = 100;
        assert_eq!(parse(&reseal(key)), Parsed::Wrong("the key is longer than the record"));
        assert_eq!(
            parse(&reseal(sound[..HEAD + 4].to_vec())),
            Parsed::Wrong("the length is none of a record")
        );
    }
}
