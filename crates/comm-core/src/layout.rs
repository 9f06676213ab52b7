//! The layout of everything that processes share, as one number.
//!
//! Two builds meet only if they agree on it: a field that moved would be read as another one.

use std::mem::{align_of, offset_of, size_of};

use crate::team::control::{Head, ProcessLine, RankLine};
use crate::wait::{Cell, ParkWord, SLOTS};

/// Counted up by hand when the meaning of a field changes and its place does not.
pub(crate) const VERSION: u32 = 1;

/// A hash over the sizes and offsets of the shared structures.
pub(crate) const HASH: u64 = fnv(&[
    VERSION as usize,
    SLOTS,
    size_of::<usize>(),
    size_of::<Cell>(),
    align_of::<Cell>(),
    size_of::<ParkWord>(),
    size_of::<Head>(),
    offset_of!(Head, ending),
    size_of::<RankLine>(),
    offset_of!(RankLine, joined),
    offset_of!(RankLine, board),
    offset_of!(RankLine, status),
    offset_of!(RankLine, waits),
    offset_of!(RankLine, report),
    size_of::<ProcessLine>(),
]);

/// What a mismatch names.
pub(crate) fn build() -> String {
    format!("comm-core {} (layout {VERSION}, hash {HASH:016x})", env!("CARGO_PKG_VERSION"))
}

const fn fnv(words: &[usize]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut i = 0;
    while i < words.len() {
        let mut rest = words[i] as u64;
        let mut byte = 0;
        while byte < 8 {
            hash = (hash ^ (rest & 0xff)).wrapping_mul(0x0100_0000_01b3);
            rest >>= 8;
            byte += 1;
        }
        i += 1;
    }
    hash
}
