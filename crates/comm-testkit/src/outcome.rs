//! What became of a rank.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a rank program or a case returns. Any error type works with `?`, and `Err("text".into())` does too.
pub type RankResult = Result<Value, Box<dyn std::error::Error + Send + Sync>>;

/// The result of a case that has nothing to hand back.
///
/// ```
/// fn case() -> comm_testkit::RankResult {
///     comm_testkit::done()
/// }
/// assert!(case().is_ok());
/// ```
pub fn done() -> RankResult {
    Ok(Value::Null)
}

/// An error that means "this cannot be checked here", with the reason. The row says `skipped`.
///
/// ```
/// use comm_testkit::{RankResult, Skip};
///
/// fn needs_root(uid: u32) -> RankResult {
///     if uid != 0 {
///         return Err(Skip::because("needs root to start a process of another user"));
///     }
///     comm_testkit::done()
/// }
/// assert!(needs_root(1000).unwrap_err().is::<Skip>());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("skipped: {0}")]
pub struct Skip(String);

impl Skip {
    /// The error, boxed, ready to be returned.
    pub fn because(why: impl Into<String>) -> Box<dyn std::error::Error + Send + Sync> {
        Box::new(Skip(why.into()))
    }

    /// The reason.
    pub fn why(&self) -> &str {
        &self.0
    }
}

/// Returns an error from a case unless the condition holds.
///
/// ```
/// fn case(sum: i32) -> comm_testkit::RankResult {
///     comm_testkit::check!(sum == 3, "the sum is {sum}");
///     comm_testkit::done()
/// }
/// assert!(case(3).is_ok());
/// assert!(case(4).unwrap_err().to_string().contains("the sum is 4"));
/// ```
#[macro_export]
macro_rules! check {
    ($cond:expr $(,)?) => {
        if !$cond {
            return Err(format!("{}:{}: not true: {}", file!(), line!(), stringify!($cond)).into());
        }
    };
    ($cond:expr, $($text:tt)+) => {
        if !$cond {
            return Err(format!("{}:{}: {}", file!(), line!(), format_args!($($text)+)).into());
        }
    };
}

/// Returns an error from a case unless both sides are equal; the error shows both.
///
/// ```
/// fn case(sum: i32) -> comm_testkit::RankResult {
///     comm_testkit::check_eq!(sum, 3);
///     comm_testkit::done()
/// }
/// assert!(case(4).unwrap_err().to_string().contains("sum is 4, expected 3"));
/// ```
#[macro_export]
macro_rules! check_eq {
    ($seen:expr, $expected:expr $(,)?) => {
        match (&$seen, &$expected) {
            (seen, expected) => {
                if *seen != *expected {
                    return Err(format!(
                        "{}:{}: {} is {:?}, expected {:?}", file!(), line!(), stringify!($seen), seen, expected
                    ).into());
                }
            }
        }
    };
    ($seen:expr, $expected:expr, $($text:tt)+) => {
        match (&$seen, &$expected) {
            (seen, expected) => {
                if *seen != *expected {
                    return Err(format!(
                        "{}:{}: {}: {} is {:?}, expected {:?}",
                        file!(), line!(), format_args!($($text)+), stringify!($seen), seen, expected
                    ).into());
                }
            }
        }
    };
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// A signal killed it.
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exited with {code}"),
            Exit::Signal(signal) => write!(f, "killed by signal {signal}"),
        }
    }
}

/// What became of a rank.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Its program returned this, and its process ended well.
    Ok(Value),
    /// Its program returned this error.
    Err(String),
    /// Its thread panicked; the message, with the place where there is one.
    Panicked(String),
    /// Its process exited on its own, before the program returned or with a code other than 0 afterwards.
    Exited(i32),
    /// A signal killed its process.
    Killed(i32),
    /// It was still going when its time was over.
    Hung,
}

impl Outcome {
    /// Whether the program returned `Ok`.
    pub fn is_ok(&self) -> bool {
        matches!(self, Outcome::Ok(_))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Ok(Value::Null) => f.write_str("ok"),
            Outcome::Ok(value) => write!(f, "ok: {value}"),
            Outcome::Err(text) => write!(f, "error: {text}"),
            Outcome::Panicked(text) => write!(f, "panicked: {text}"),
            Outcome::Exited(code) => write!(f, "process {}", Exit::Code(*code)),
            Outcome::Killed(signal) => write!(f, "process {}", Exit::Signal(*signal)),
            Outcome::Hung => f.write_str("hung"),
        }
    }
}

/// Something a rank said on its way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// When, on the clock of [`now_ns`](crate::now_ns).
    pub at_ns: u64,
    /// What.
    pub text: String,
    /// With which value; `Null` if none was given.
    #[serde(default)]
    pub value: Value,
}

/// Everything the launcher knows about one rank when the launch is over.
#[derive(Debug, Clone, PartialEq)]
pub struct RankReport {
    /// The rank.
    pub rank: usize,
    /// The number of its process within the launch.
    pub process: usize,
    /// What became of it.
    pub outcome: Outcome,
    /// From the start of its program to its end, or to the end of its process.
    pub elapsed: Duration,
    /// What it said, in order.
    pub notes: Vec<Note>,
    /// For a rank that hung: where it was (last point, open waits), or that its process is stopped.
    pub detail: Option<String>,
}

impl RankReport {
    /// The first note with this text.
    pub fn note(&self, text: &str) -> Option<&Note> {
        self.notes.iter().find(|n| n.text == text)
    }
}
