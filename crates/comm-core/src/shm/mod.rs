//! Memory that processes share: sealed segments, and the recycling arena on them.

/// Shared memory could not be had, or is not what it says it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {}
