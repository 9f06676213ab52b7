//! System calls that a sandbox may refuse, and a switch that makes a test see them refused.

/// A call with a fallback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// Fallback: look at the life words in short slices.
    FutexWaitv,
    /// Fallback: pidfds and socket ends.
    SetRobustList,
    /// Fallback: socket ends.
    PidfdOpen,
}

/// Whether a test wants this call refused: `COMM_REFUSE` lists their names. Only with the feature `points`.
#[cfg(feature = "points")]
pub(crate) fn refused(call: Call) -> bool {
    let name = match call {
        Call::FutexWaitv => "futex_waitv",
        Call::SetRobustList => "set_robust_list",
        Call::PidfdOpen => "pidfd_open",
    };
    std::env::var("COMM_REFUSE").is_ok_and(|list| list.split(',').any(|entry| entry == name))
}

#[cfg(not(feature = "points"))]
pub(crate) fn refused(_call: Call) -> bool {
    false
}
