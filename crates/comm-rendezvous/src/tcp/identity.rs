//! Who a server of ours is: what its clients find under a key that no client's key can be, since those begin with a slash.

use std::fmt;

use crate::error::Result;
use crate::tcp::secret::random;

/// The key, which is not among those that are counted and listed.
pub(crate) const KEY: &[u8] = b"comm/server";

const WORD: &str = "comm-server-1";

/// A server, and the run that it serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// 128 random bits that a server draws when it starts.
    incarnation: u128,
    pub run: String,
}

impl Identity {
    pub fn draw(run: String) -> Result<Identity> {
        Ok(Identity { incarnation: u128::from_le_bytes(random()?), run })
    }

    pub fn encode(&self) -> Vec<u8> {
        format!("{WORD} {:032x} {}", self.incarnation, self.run).into_bytes()
    }

    /// What a server's text says; `None` if it is none of ours.
    pub fn decode(text: &[u8]) -> Option<Identity> {
        let text = std::str::from_utf8(text).ok()?;
        let (incarnation, run) = text.strip_prefix(WORD)?.strip_prefix(' ')?.split_once(' ')?;
        let incarnation = u128::from_str_radix(incarnation, 16).ok()?;
        Some(Identity { incarnation, run: run.to_owned() })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server {:08x} of run {:?}", self.incarnation >> 96, self.run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_it_says() -> Result<()> {
        for run in ["", "a run", "of two  words\n"] {
            let identity = Identity::draw(run.to_owned())?;
            assert_eq!(Identity::decode(&identity.encode()), Some(identity.clone()));
            assert_ne!(Identity::draw(run.to_owned())?, identity);
        }
        for text in [&b""[..], b"comm-server-1", b"comm-server-1 zz run", b"comm-server-2 00 run", b"\xff"] {
            assert_eq!(Identity::decode(text), None);
        }
        Ok(())
    }
}
