//! Writing to stdout and stderr without dying when nobody reads them any more (`cargo xtask test | head`).

use std::io::Write;

/// One line of results, to stdout.
pub fn line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Text as it is, to stdout.
pub fn text(text: &str) {
    let _ = write!(std::io::stdout(), "{text}");
}

/// One line of progress or a note, to stderr.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Where a command's table and closing line go: stdout, or stderr while stdout carries JSON alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum People {
    /// The usual case.
    Stdout,
    /// With `--json -`.
    Stderr,
}

impl People {
    /// One line for people.
    pub fn line(self, text: &str) {
        match self {
            People::Stdout => line(text),
            People::Stderr => note(text),
        }
    }
}
