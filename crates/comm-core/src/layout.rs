//! The layout of everything that processes share, as one number.
//!
//! Two builds meet only if they agree on it: a field that moved would be read as another one. A crate above that shares
//! structures of its own makes a number of them in the same way ([`hash`]), and has it compared where its ranks meet.

use std::mem::{align_of, offset_of, size_of};

use crate::team::control::{Head, ProcessLine, RankLine};
use crate::wait::{Cell, ParkWord, SLOTS};

/// Counted up by hand when the meaning of a field changes and its place does not.
pub(crate) const VERSION: u32 = 1;

/// A hash over the sizes and offsets of the shared structures.
pub(crate) const HASH: u64 = hash(&[
    VERSION as usize,
    SLOTS,
    size_of::<usize>(),
    size_of::<Cell>(),
    align_of::<Cell>(),
    size_of::<ParkWord>(),
    size_of::<Head>(),
    offset_of!(Head, ending),
    offset_of!(Head, successor),
    size_of::<RankLine>(),
    offset_of!(RankLine, joined),
    offset_of!(RankLine, coming),
    offset_of!(RankLine, board),
    offset_of!(RankLine, saying),
    offset_of!(RankLine, status),
    offset_of!(RankLine, waits),
    offset_of!(RankLine, report),
    offset_of!(RankLine, proposals),
    size_of::<ProcessLine>(),
]);

/// What a mismatch names.
pub(crate) fn build() -> String {
    format!("comm-core {} (layout {VERSION}, hash {HASH:016x})", env!("CARGO_PKG_VERSION"))
}

/// One number of many: sizes, offsets and a version that is counted up by hand.
///
/// ```
/// use comm_core::layout::hash;
///
/// #[repr(C)]
/// struct Shared { round: u64, len: u32 }
/// const LAYOUT: u64 = hash(&[1, size_of::<Shared>(), std::mem::offset_of!(Shared, len)]);
/// assert_ne!(LAYOUT, hash(&[2, 16, 8]), "another version");
/// ```
pub const fn hash(words: &[usize]) -> u64 {
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
