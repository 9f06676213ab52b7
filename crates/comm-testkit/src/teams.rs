//! The only place of this crate that knows teams: what the watchdog asks them, and what a case's team is called.

/// The open waits of a rank in all live teams of this process, a line each: operation, cell, value seen, value
/// expected, and for how long.
pub(crate) fn open_waits(_rank: usize) -> Vec<String> {
    Vec::new()
}

/// The name of a case's team: the same on all ranks, and different for every case of a launch.
pub(crate) fn team_name(case: Option<usize>, name: &str) -> String {
    match case {
        Some(case) => format!("c{case}.{name}"),
        None => name.to_string(),
    }
}
