//! The two ways in which a command ends badly, and their exit statuses.

/// Why a command did not end well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fail {
    /// A check failed. The results on stdout say which, so there may be no line to add. Exit status 1.
    Check(Option<String>),
    /// The call is wrong, or an input that it needs is missing or broken. Exit status 2.
    Usage(String),
}

impl Fail {
    /// A failed check with a line of its own.
    pub fn check(line: impl Into<String>) -> Fail {
        Fail::Check(Some(line.into()))
    }

    /// Wrong usage or a missing input.
    pub fn usage(line: impl Into<String>) -> Fail {
        Fail::Usage(line.into())
    }

    /// The line that stderr gets; control characters (a file's tensor names may hold any) are escaped so
    /// that it is one line indeed.
    pub fn line(&self) -> Option<String> {
        match self {
            Fail::Check(line) => line.as_deref().map(one_line),
            Fail::Usage(line) => Some(one_line(line)),
        }
    }

    /// The exit status.
    pub fn status(&self) -> u8 {
        match self {
            Fail::Check(_) => 1,
            Fail::Usage(_) => 2,
        }
    }
}

/// `text` with control characters escaped and cut at a length that a terminal can show.
pub fn one_line(text: &str) -> String {
    const LONGEST: usize = 2_000;
    let mut line = String::new();
    for (n, c) in text.trim_end().chars().enumerate() {
        if n == LONGEST {
            line.push_str(" ...");
            break;
        }
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line() {
        assert_eq!(Fail::usage("a\nb\u{1b}[31m\n").line().as_deref(), Some("a\\nb\\u{1b}[31m"));
        assert_eq!(Fail::usage("é".repeat(5_000)).line().map(|l| l.chars().count()), Some(2_004));
        assert_eq!(Fail::Check(None).line(), None);
    }

    #[test]
    fn statuses() {
        assert_eq!(Fail::check("x").status(), 1);
        assert_eq!(Fail::usage("x").status(), 2);
    }
}
