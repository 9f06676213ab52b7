//! Counting outcomes and writing rows as JSON.

use std::fmt;
use std::io::Write;
use std::path::Path;

use serde::Serialize;

use crate::cli::Json;
use crate::fail::Fail;

/// The closing line of every command that runs tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tests that did what they should.
    pub passed: u64,
    /// Tests that did not, hung ones included.
    pub failed: u64,
    /// Tests that could not run here.
    pub skipped: u64,
}

impl Counts {
    /// Adds another run's numbers.
    pub fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Reads a closing line of libtest: `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; ...`.
    pub fn of_libtest_line(line: &str) -> Option<Counts> {
        let rest = line.trim().strip_prefix("test result: ")?;
        let (_, numbers) = rest.split_once(". ")?;
        let mut counts = Counts::default();
        for part in numbers.split(';') {
            let mut words = part.split_whitespace();
            let (Some(n), Some(what)) = (words.next(), words.next()) else { continue };
            let Ok(n) = n.parse::<u64>() else { continue };
            match what {
                "passed" => counts.passed = n,
                "failed" => counts.failed = n,
                "ignored" => counts.skipped = n,
                _ => {}
            }
        }
        Some(counts)
    }

    /// Reads a closing line of a test target with a harness of its own: `3 passed, 0 failed, 1 skipped`.
    pub fn of_own_line(line: &str) -> Option<Counts> {
        let mut parts = line.trim().split(", ");
        let mut next = |what: &str| parts.next()?.strip_suffix(what)?.strip_suffix(' ')?.parse::<u64>().ok();
        let counts = Counts { passed: next("passed")?, failed: next("failed")?, skipped: next("skipped")? };
        parts.next().is_none().then_some(counts)
    }

    /// How the command ends: the closing line has said it already.
    pub fn verdict(self) -> Result<(), Fail> {
        if self.failed == 0 { Ok(()) } else { Err(Fail::Check(None)) }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Fails before hours of work rather than after them if the rows could not be written.
///
/// # Errors
/// [`Fail::Usage`] naming the file.
pub fn check_writable(json: &Json) -> Result<(), Fail> {
    let Some(file) = json.file.as_deref().filter(|_| !json.is_stdout()) else { return Ok(()) };
    can_write("--json", file)
}

/// The same of the file of any flag.
///
/// # Errors
/// [`Fail::Usage`] naming it.
pub fn can_write(flag: &str, file: &Path) -> Result<(), Fail> {
    let existed = file.exists();
    let tried = std::fs::OpenOptions::new().create(true).append(true).open(file);
    tried.map_err(|e| Fail::usage(format!("{flag} {}: {e}", file.display())))?;
    if !existed {
        // What comes of it is seen when the rows are written.
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

/// Writes `rows` as one JSON array, a row to a line, to where `--json` says; does nothing without it.
///
/// # Errors
/// [`Fail::Usage`] naming the file.
pub fn write_rows<T: Serialize>(json: &Json, rows: &[T]) -> Result<(), Fail> {
    let Some(file) = json.file.as_deref() else { return Ok(()) };
    let text = array(rows).map_err(|e| Fail::usage(format!("--json: {e}")))?;
    let written = if json.is_stdout() {
        std::io::stdout().write_all(text.as_bytes())
    } else {
        std::fs::write(file, text)
    };
    written.map_err(|e| Fail::usage(format!("--json {}: {e}", file.display())))
}

fn array<T: Serialize>(rows: &[T]) -> serde_json::Result<String> {
    let mut text = String::from("[");
    for (i, row) in rows.iter().enumerate() {
        text.push_str(if i == 0 { "\n" } else { ",\n" });
        text.push_str(&serde_json::to_string(row)?);
    }
    text.push_str(if rows.is_empty() { "]\n" } else { "\n]\n" });
    Ok(text)
}

/// Reads an array of rows that a test target wrote.
///
/// # Errors
/// What is wrong with the file.
pub fn read_rows(file: &Path) -> Result<Vec<serde_json::Value>, String> {
    let text = std::fs::read_to_string(file).map_err(|e| e.to_string())?;
    if text.trim().is_empty() {
        return Err("it wrote no rows".to_owned());
    }
    serde_json::from_str(&text).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_libtest() {
        let ok =
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 1 filtered out; finished in 0.01s";
        assert_eq!(Counts::of_libtest_line(ok), Some(Counts { passed: 12, failed: 0, skipped: 3 }));
        let bad = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(Counts::of_libtest_line(bad), Some(Counts { passed: 1, failed: 2, skipped: 0 }));
        assert_eq!(Counts::of_libtest_line("running 3 tests"), None);
        let own = Counts { passed: 12, failed: 1, skipped: 3 };
        assert_eq!(Counts::of_own_line(&own.to_string()), Some(own));
        for line in [
            "",
            "12 passed",
            "1 passed, 2 failed",
            "x passed, 0 failed, 0 skipped",
            "unit: 1 passed, 0 failed, 0 skipped",
        ] {
            assert_eq!(Counts::of_own_line(line), None, "{line}");
        }
        assert_eq!(Counts::of_libtest_line("test result: "), None);
    }

    #[test]
    fn rows_are_an_array_of_lines() -> Result<(), Box<dyn std::error::Error>> {
        assert_eq!(array::<u8>(&[])?, "[]\n");
        assert_eq!(array(&[1, 2])?, "[\n1,\n2\n]\n");
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("rows.json");
        let json = Json { file: Some(file.clone()) };
        check_writable(&json).map_err(|e| format!("{e:?}"))?;
        assert!(!file.exists());
        write_rows(&json, &[serde_json::json!({"suite": "fault"})]).map_err(|e| format!("{e:?}"))?;
        assert_eq!(read_rows(&file)?.len(), 1);
        std::fs::write(&file, "")?;
        assert!(read_rows(&file).is_err());
        let nowhere = Json { file: Some(dir.path().join("no/such/dir.json")) };
        assert!(matches!(check_writable(&nowhere), Err(Fail::Usage(_))));
        Ok(())
    }
}
