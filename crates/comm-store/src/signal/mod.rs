//! Signals: small numbers that a rank leaves in a peer's cell, and that the peer waits for.
//!
//! A signal is the low 32 bits of a [`Cell`], read as `i32`. A peer notifies my cell, and I wait on my own until the
//! signal compares to a number as I want it to. To notify releases and to look acquires: what a rank wrote before it
//! notified is visible to whoever has seen the signal. With several adders on one cell that holds for each of them,
//! because an addition carries on what the ones before it released.
//!
//! This module knows cells and nothing else, neither teams nor windows, so that loom checks the code that ships
//! (`cargo xtask test --loom`). `credits.rs` is the barrier that is made of signals.

pub(crate) mod credits;
#[cfg(all(test, loom))]
mod model;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use std::fmt;

use comm_core::wait::{Bell, Cell};

/// What a notification does to the signal.
///
/// ```
/// use comm_store::NotifyOp;
///
/// assert_eq!(NotifyOp::Set.to_string(), "set");
/// assert_eq!(NotifyOp::Add.to_string(), "add");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotifyOp {
    /// The signal becomes the value, whatever it was. Of several at once one stays.
    Set,
    /// The value is added to the signal, in one step, and wraps as `i32` does. None of several at once is lost.
    #[doc(alias = "AtomicAdd")]
    Add,
}

impl fmt::Display for NotifyOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotifyOp::Set => "set",
            NotifyOp::Add => "add",
        })
    }
}

/// How the signal must compare to the number that a wait expects.
///
/// ```
/// use comm_store::Cmp;
///
/// assert!(Cmp::Ge.holds(3, 2), "saw 3, expected at least 2");
/// assert!(!Cmp::Lt.holds(2, -2), "signals have a sign");
/// assert_eq!(Cmp::Ge.to_string(), ">=");
/// ```
#[doc(alias = "WaitCmp")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cmp {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// At least.
    Ge,
    /// Greater.
    Gt,
    /// At most.
    Le,
    /// Less.
    Lt,
}

impl Cmp {
    /// Whether the signal `seen` is what was `expected`.
    pub fn holds(self, seen: i32, expected: i32) -> bool {
        match self {
            Cmp::Eq => seen == expected,
            Cmp::Ne => seen != expected,
            Cmp::Ge => seen >= expected,
            Cmp::Gt => seen > expected,
            Cmp::Le => seen <= expected,
            Cmp::Lt => seen < expected,
        }
    }
}

impl fmt::Display for Cmp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cmp::Eq => "==",
            Cmp::Ne => "!=",
            Cmp::Ge => ">=",
            Cmp::Gt => ">",
            Cmp::Le => "<=",
            Cmp::Lt => "<",
        })
    }
}

/// The signal in a cell, with everything that was written before it was notified.
pub(crate) fn value(cell: &Cell) -> i32 {
    low_half(cell.load())
}

/// Changes the signal in a cell and wakes those who wait for it.
pub(crate) fn notify(cell: &Cell, value: i32, op: NotifyOp, bell: &impl Bell) {
    match op {
        NotifyOp::Set => cell.set(i64::from(value) as u64, bell),
        NotifyOp::Add => {
            add(cell, value, bell);
        }
    }
}

/// Adds to the signal and returns what it was before. With its sign extended, a value makes the low half wrap as `i32`
/// does; what is carried goes into the upper half, which nobody reads.
fn add(cell: &Cell, value: i32, bell: &impl Bell) -> i32 {
    low_half(cell.add(i64::from(value) as u64, bell))
}

/// The signal that the word of a cell holds.
pub(crate) fn low_half(word: u64) -> i32 {
    word as i32
}
