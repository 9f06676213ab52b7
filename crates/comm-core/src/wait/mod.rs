//! The one way to wait.

mod deadline;

pub use deadline::Deadline;
