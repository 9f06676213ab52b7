//! Who a process is, and with whom it may meet.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::launch::Job;

/// A process, by 128 random bits that its hub draws: pids are reused and differ between namespaces.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Nonce([u8; 16]);

impl Nonce {
    /// Draws a new one.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no random bytes.
    pub fn draw() -> Result<Nonce> {
        let mut bytes = [0; 16];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
                .map_err(|e| Error::io("drawing a process nonce", e))?;
        }
        Ok(Nonce(bytes))
    }

    /// Its bits as a number.
    pub fn as_u128(self) -> u128 {
        u128::from_le_bytes(self.0)
    }

    pub(crate) fn bytes(self) -> [u8; 16] {
        self.0
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Nonce {
        Nonce(bytes)
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nonce({self})")
    }
}

/// The scope of all names, and whether processes other than this one can be in it.
///
/// ```
/// use comm_core::hub::{Instance, Nonce};
///
/// let instance = Instance::detect(Nonce::draw()?)?;
/// assert!(!instance.id.is_empty());
/// # Ok::<(), comm_core::Error>(())
/// ```
#[doc(alias = "GlobalCommInstanceId")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// The scope itself.
    pub id: String,
    /// Where it comes from, for error messages.
    pub source: &'static str,
    /// False if the scope is this process: then only its own threads can meet.
    pub shared: bool,
}

impl Instance {
    /// Reads `COMM_INSTANCE_ID`, else the launcher's job id, else takes the process's nonce.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the variable is set but empty.
    pub fn detect(nonce: Nonce) -> Result<Instance> {
        if let Some(Job { id, source }) = Job::detect()? {
            return Ok(Instance { id, source, shared: true });
        }
        Ok(Instance { id: format!("process={nonce}"), source: "this process alone", shared: false })
    }
}

/// The boot of this host: two processes with the same one, that can pass each other a descriptor, share it.
pub(crate) fn boot_id() -> Result<[u8; 16]> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(PATH).map_err(|e| Error::io(format!("reading {PATH}"), e))?;
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let mut id = [0; 16];
    if hex.len() != 32 {
        return Err(Error::io(
            format!("reading {PATH}"),
            io::Error::other(format!("unexpected text {text:?}")),
        ));
    }
    for (byte, pair) in id.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        let digits = std::str::from_utf8(pair).unwrap_or("00");
        *byte = u8::from_str_radix(digits, 16).unwrap_or(0);
    }
    Ok(id)
}
