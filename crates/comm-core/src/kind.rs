//! How far a thing reaches: three words, the same for stores and promises.

use std::fmt;

/// How far something reaches that is handed over.
///
/// ```
/// assert_eq!(comm_core::Kind::Host.to_string(), "host");
/// ```
#[doc(alias = "TensorStoreType")]
#[doc(alias = "TensorPromiseType")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Threads of one process: tensors of any device, handed over as they are.
    #[doc(alias = "kMemory")]
    Process,
    /// Processes of one machine, and threads in them: between processes tensors of host memory.
    #[doc(alias = "kFile")]
    Host,
    /// Several machines. There is nothing of this kind yet.
    #[doc(alias = "kNetwork")]
    Network,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Process => "process",
            Kind::Host => "host",
            Kind::Network => "network",
        })
    }
}
