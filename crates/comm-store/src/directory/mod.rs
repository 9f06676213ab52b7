//! What a store of tensors is made of, without the tensors: keys that are published once, and readers that are counted.
//!
//! This module knows cells and links and nothing else, neither teams nor memory, so that loom checks the code that ships
//! (`cargo xtask test --loom`).
//!
//! Both are states of a [`Cell`](comm_core::wait::Cell), so that one wait serves them: who wants a key waits for another
//! head of its chain, and who wants to know that his value has been read waits for the count.

pub(crate) mod chain;
#[cfg(all(test, loom))]
mod model;
pub(crate) mod readers;
