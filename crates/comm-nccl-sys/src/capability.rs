//! What a library can do beyond what every one since 2.18 does.

use std::fmt;

use crate::version::Version;

/// Something that came with a version. A library has it if it is of that version or newer **and** has all of its functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Capability {
    /// Sub-groups of a communicator.
    Split,
    /// Memory that NCCL can register, and registering it.
    Memory,
    /// How long a group of calls would take.
    Simulate,
    /// Making a communicator from several ids.
    Scalable,
    /// `f8e4m3` and `f8e5m2`.
    Float8,
    /// Going on without some of the ranks.
    Shrink,
    /// Windows of memory that peers reach.
    Windows,
    /// All-to-all, gather and scatter as calls of their own.
    AllToAll,
    /// Stopping what a communicator does without ending it.
    Revoke,
    /// Taking more ranks in.
    Grow,
    /// One-sided puts, and signals.
    Signals,
    /// Giving a communicator's memory back for a while.
    Suspend,
    /// Collectives with settings of their own.
    CallConfig,
    /// Reading NCCL's own settings.
    Params,
    /// Encrypted sockets.
    Encryption,
}

/// A capability, the first version that has it, and its functions.
type Row = (Capability, Version, &'static [&'static str]);

const TABLE: &[Row] = &[
    (Capability::Split, Version::new(2, 18, 0), &["ncclCommSplit"]),
    (
        Capability::Memory,
        Version::new(2, 19, 0),
        &["ncclMemAlloc", "ncclMemFree", "ncclCommRegister", "ncclCommDeregister"],
    ),
    (Capability::Simulate, Version::new(2, 22, 0), &["ncclGroupSimulateEnd"]),
    (Capability::Scalable, Version::new(2, 23, 0), &["ncclCommInitRankScalable"]),
    (Capability::Float8, Version::new(2, 24, 0), &[]),
    (Capability::Shrink, Version::new(2, 27, 0), &["ncclCommShrink"]),
    (Capability::Windows, Version::new(2, 27, 0), &["ncclCommWindowRegister", "ncclCommWindowDeregister"]),
    (Capability::AllToAll, Version::new(2, 28, 3), &["ncclAlltoAll", "ncclGather", "ncclScatter"]),
    (Capability::Revoke, Version::new(2, 28, 7), &["ncclCommRevoke"]),
    (Capability::Grow, Version::new(2, 29, 2), &["ncclCommGrow", "ncclCommGetUniqueId"]),
    (
        Capability::Signals,
        Version::new(2, 29, 2),
        &["ncclPutSignal", "ncclSignal", "ncclWaitSignal", "ncclWinGetUserPtr"],
    ),
    (Capability::Suspend, Version::new(2, 29, 7), &["ncclCommSuspend", "ncclCommResume", "ncclCommMemStats"]),
    (
        Capability::CallConfig,
        Version::new(2, 31, 0),
        &[
            "ncclAllReduceConfig",
            "ncclBroadcastConfig",
            "ncclReduceConfig",
            "ncclAllGatherConfig",
            "ncclReduceScatterConfig",
            "ncclAlltoAllConfig",
            "ncclGatherConfig",
            "ncclScatterConfig",
        ],
    ),
    (
        Capability::Params,
        Version::new(2, 31, 0),
        &[
            "ncclParamBind",
            "ncclParamGetI8",
            "ncclParamGetI16",
            "ncclParamGetI32",
            "ncclParamGetI64",
            "ncclParamGetU8",
            "ncclParamGetU16",
            "ncclParamGetU32",
            "ncclParamGetU64",
            "ncclParamGetStr",
            "ncclParamGet",
            "ncclParamGetParameter",
            "ncclParamGetAllParameterKeys",
            "ncclParamDumpAll",
        ],
    ),
    (Capability::Encryption, Version::new(2, 32, 0), &["ncclSetEncryption"]),
];

impl Capability {
    /// All of them, by the version that brought them.
    pub fn all() -> impl Iterator<Item = Capability> {
        TABLE.iter().map(|row| row.0)
    }

    /// The first version that has it.
    pub fn since(self) -> Version {
        self.row().map_or(Version::new(u32::MAX, 0, 0), |row| row.1)
    }

    /// Its functions. Some have none: they are new values of what was there before.
    pub fn functions(self) -> &'static [&'static str] {
        self.row().map_or(&[], |row| row.2)
    }

    fn row(self) -> Option<&'static Row> {
        TABLE.iter().find(|row| row.0 == self)
    }

    /// The capability that a function belongs to, if it is not one of those that every library has.
    pub(crate) fn of(function: &str) -> Option<Capability> {
        TABLE.iter().find(|row| row.2.contains(&function)).map(|row| row.0)
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Capability::Split => "split",
            Capability::Memory => "memory",
            Capability::Simulate => "simulate",
            Capability::Scalable => "scalable",
            Capability::Float8 => "float8",
            Capability::Shrink => "shrink",
            Capability::Windows => "windows",
            Capability::AllToAll => "alltoall",
            Capability::Revoke => "revoke",
            Capability::Grow => "grow",
            Capability::Signals => "signals",
            Capability::Suspend => "suspend",
            Capability::CallConfig => "call-config",
            Capability::Params => "params",
            Capability::Encryption => "encryption",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Functions;

    /// What NCCL 2.18.3 has, which is the oldest that is taken.
    const OLDEST: &[&str] = &[
        "ncclAllGather",
        "ncclAllReduce",
        "ncclBcast",
        "ncclBroadcast",
        "ncclCommAbort",
        "ncclCommCount",
        "ncclCommCuDevice",
        "ncclCommDestroy",
        "ncclCommFinalize",
        "ncclCommGetAsyncError",
        "ncclCommInitAll",
        "ncclCommInitRank",
        "ncclCommInitRankConfig",
        "ncclCommSplit",
        "ncclCommUserRank",
        "ncclGetErrorString",
        "ncclGetLastError",
        "ncclGetUniqueId",
        "ncclGetVersion",
        "ncclGroupEnd",
        "ncclGroupStart",
        "ncclRecv",
        "ncclRedOpCreatePreMulSum",
        "ncclRedOpDestroy",
        "ncclReduce",
        "ncclReduceScatter",
        "ncclSend",
    ];

    #[test]
    fn every_function_is_old_or_belongs_to_one_capability() {
        for name in Functions::NAMES {
            let of = TABLE.iter().filter(|row| row.2.contains(name)).count();
            let expected = usize::from(!OLDEST.contains(name) || *name == "ncclCommSplit");
            assert_eq!(of, expected, "{name}");
        }
        for name in TABLE.iter().flat_map(|row| row.2).chain(OLDEST) {
            assert!(Functions::NAMES.contains(name), "{name} is not in the header");
        }
    }

    #[test]
    fn rows_are_in_the_order_of_versions_and_have_names_of_their_own() {
        assert!(TABLE.is_sorted_by_key(|row| row.1));
        let mut names: Vec<String> = Capability::all().map(|c| c.to_string()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
        assert_eq!(Capability::Grow.since(), Version::new(2, 29, 2));
        assert_eq!(Capability::of("ncclGather"), Some(Capability::AllToAll));
        assert_eq!(Capability::of("ncclSend"), None);
    }
}
