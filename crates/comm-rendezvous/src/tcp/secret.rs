//! A key that both ends have, and how each shows the other that it does.
//!
//! ```text
//! client -> server   "comm-key", 32 random bytes c
//! server -> client   32 random bytes s
//! client -> server   HMAC-SHA256(key, "client" c s)
//! server -> client   HMAC-SHA256(key, "server" c s)
//! ```
//!
//! These are of fixed size, and nothing else is looked at before. What follows is neither encrypted nor signed: whoever can
//! read or change what goes over the network can do so. The key keeps out who can only connect.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::error::{Error, Result};

pub(crate) const HELLO: &[u8; 8] = b"comm-key";

/// Random bytes, or a proof.
pub(crate) type Words = [u8; 32];

/// A secret that servers and clients share, of at least 16 bytes.
#[derive(Clone)]
pub struct SharedKey(Hmac<Sha256>);

impl SharedKey {
    /// The key of these bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for less than 16 bytes: whoever has heard a proof could find it by trying.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<SharedKey> {
        const LEAST: usize = 16;
        let bytes = bytes.into();
        match Hmac::new_from_slice(&bytes) {
            Ok(keyed) if bytes.len() >= LEAST => Ok(SharedKey(keyed)),
            _ => {
                let what = format!("a shared key of {} bytes, where one has at least {LEAST}", bytes.len());
                Err(Error::Invalid { what })
            }
        }
    }

    pub(crate) fn client_proof(&self, client: &Words, server: &Words) -> Words {
        self.mac(b"client", client, server).finalize().into_bytes().into()
    }

    pub(crate) fn server_proof(&self, client: &Words, server: &Words) -> Words {
        self.mac(b"server", client, server).finalize().into_bytes().into()
    }

    /// Compares in a time that does not depend on where they differ.
    pub(crate) fn is_client_proof(&self, client: &Words, server: &Words, proof: &[u8]) -> bool {
        self.mac(b"client", client, server).verify_slice(proof).is_ok()
    }

    pub(crate) fn is_server_proof(&self, client: &Words, server: &Words, proof: &[u8]) -> bool {
        self.mac(b"server", client, server).verify_slice(proof).is_ok()
    }

    fn mac(&self, who: &[u8], client: &Words, server: &Words) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        for part in [who, client, server] {
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedKey(..)")
    }
}

/// Random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(|e| Error::io("drawing random bytes", e))?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_shows_the_other_that_it_has_the_key() -> Result<()> {
        let key = SharedKey::new(*b"sixteen bytes or")?;
        let (c, s) = (random()?, random()?);
        let (client, server) = (key.client_proof(&c, &s), key.server_proof(&c, &s));
        assert!(key.is_client_proof(&c, &s, &client) && key.is_server_proof(&c, &s, &server));
        // One is not the other, nor one of other words, of another key, or of another length.
        assert!(!key.is_client_proof(&c, &s, &server) && !key.is_server_proof(&c, &s, &client));
        assert!(!key.is_client_proof(&s, &c, &client) && !key.is_client_proof(&c, &s, &client[..31]));
        assert!(!SharedKey::new(*b"sixteen bytes os")?.is_client_proof(&c, &s, &client));
        assert_ne!(c, s);
        Ok(())
    }

    #[test]
    fn a_key_is_long_and_not_shown() {
        assert!(SharedKey::new(*b"fifteen bytes..").is_err());
        let key = SharedKey::new(*b"sixteen bytes or").unwrap();
        assert_eq!(format!("{key:?}"), "SharedKey(..)");
    }
}
