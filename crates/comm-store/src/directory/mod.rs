//! What a store of tensors is made of, without the tensors: keys that are published once, readers that are counted, and
//! memory that comes back when it has been lent.
//!
//! This module knows cells and links and nothing else, neither teams nor memory, so that loom checks the code that ships
//! (`cargo xtask test --loom`).
//!
//! Keys and counts are states of a [`Cell`](comm_core::wait::Cell), so that one wait serves them: who wants a key waits for another
//! head of its chain, and who wants to know that his value has been read waits for the count.

pub(crate) mod chain;
#[cfg(all(test, loom))]
mod model;
pub(crate) mod readers;
pub(crate) mod recall;
