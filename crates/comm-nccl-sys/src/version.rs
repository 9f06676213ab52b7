//! Versions, and the two ways in which NCCL has written them as one number.

use std::fmt;

/// A version of NCCL.
///
/// ```
/// use comm_nccl_sys::Version;
///
/// assert_eq!(Version::from_code(23203), Version::new(2, 32, 3));
/// assert!(Version::new(2, 18, 3) < Version::new(2, 32, 3));
/// assert_eq!(Version::new(2, 18, 3).to_string(), "2.18.3");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    /// The version of these numbers.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Version {
        Version { major, minor, patch }
    }

    /// What `ncclGetVersion` gives. Up to 2.8 a minor version had one digit, since then it has two.
    pub const fn from_code(code: u32) -> Version {
        let unit = if code < 10_000 { 1_000 } else { 10_000 };
        Version::new(code / unit, code % unit / 100, code % 100)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_write_them() {
        let codes =
            [(2_408, "2.4.8"), (2_804, "2.8.4"), (20_906, "2.9.6"), (21_803, "2.18.3"), (30_102, "3.1.2")];
        for (code, text) in codes {
            assert_eq!(Version::from_code(code).to_string(), text);
        }
        let mut sorted = codes.map(|(code, _)| Version::from_code(code));
        sorted.sort();
        assert_eq!(sorted, codes.map(|(code, _)| Version::from_code(code)));
    }
}
