//! What a group is known by.

use std::collections::BTreeSet;
use std::fmt;

use comm_core::device::DeviceKind;
use comm_core::{Error, Result};

use super::OP;

/// What a group is known by: a kind of device and a list of ids, whole and in order. The rank of an id is its place in the
/// list, so `[0, 1]` and `[1, 0]` are two groups, of the same members with other ranks.
///
/// ```
/// use comm_group::{DeviceKind, ThreadGroupKey};
///
/// let key = ThreadGroupKey::new(DeviceKind::Cpu, [4, 0, 2]);
/// assert_eq!(key.to_string(), "cpu:3[4,0,2]");
/// assert_eq!(key, ThreadGroupKey::from([4, 0, 2]), "on the CPU, if nothing else is said");
/// assert_ne!(key, ThreadGroupKey::from([0, 2, 4]));
/// assert_eq!(key.rank_of(2), Some(2));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ThreadGroupKey {
    kind: DeviceKind,
    ids: Vec<usize>,
}

impl ThreadGroupKey {
    /// A key of so many ids, in this order.
    pub fn new(kind: impl Into<DeviceKind>, ids: impl Into<Vec<usize>>) -> ThreadGroupKey {
        ThreadGroupKey { kind: kind.into(), ids: ids.into() }
    }

    /// The kind of device.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// The ids, by rank.
    pub fn ids(&self) -> &[usize] {
        &self.ids
    }

    /// The rank of an id; `None` if it is not in the list.
    pub fn rank_of(&self, id: usize) -> Option<usize> {
        self.ids.iter().position(|&other| other == id)
    }

    /// The rank of an id in a group that can be made.
    pub(super) fn rank_in_group(&self, id: usize) -> Result<usize> {
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.ids.iter().find(|&&id| !seen.insert(id)) {
            return Err(Error::invalid(OP, format!("the id {twice} comes twice in {self}")));
        }
        self.rank_of(id).ok_or_else(|| Error::invalid(OP, format!("the caller's id {id} is not in {self}")))
    }
}

impl fmt::Display for ThreadGroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}[", self.kind, self.ids.len())?;
        for (i, id) in self.ids.iter().enumerate() {
            write!(f, "{}{id}", if i == 0 { "" } else { "," })?;
        }
        f.write_str("]")
    }
}

impl From<&ThreadGroupKey> for ThreadGroupKey {
    fn from(key: &ThreadGroupKey) -> ThreadGroupKey {
        key.clone()
    }
}

impl From<Vec<usize>> for ThreadGroupKey {
    fn from(ids: Vec<usize>) -> ThreadGroupKey {
        ThreadGroupKey::new(DeviceKind::default(), ids)
    }
}

impl From<&[usize]> for ThreadGroupKey {
    fn from(ids: &[usize]) -> ThreadGroupKey {
        ids.to_vec().into()
    }
}

impl<const N: usize> From<[usize; N]> for ThreadGroupKey {
    fn from(ids: [usize; N]) -> ThreadGroupKey {
        ids.to_vec().into()
    }
}

impl<const N: usize> From<&[usize; N]> for ThreadGroupKey {
    fn from(ids: &[usize; N]) -> ThreadGroupKey {
        ids.to_vec().into()
    }
}
