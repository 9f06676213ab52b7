//! Control messages as bytes: one way in, one way out, always limited.
//!
//! Messages between processes are serde types in bincode's standard encoding. A decoder that is not limited
//! lets a few hostile bytes ask for all memory, so the only decoder here carries the limit. Tensor bytes never
//! pass through it.

use serde::{Serialize, de::DeserializeOwned};

use crate::error::Error;

/// The largest message, in bytes, in either direction.
pub const LIMIT: usize = 64 * 1024;

/// A message could not be written or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The value does not fit in [`LIMIT`] bytes, or cannot be encoded.
    #[error("cannot encode a control message: {0}")]
    Encode(String),
    /// The bytes are not a message of the expected type.
    #[error("cannot decode a control message: {0}")]
    Decode(String),
}

impl From<WireError> for Error {
    fn from(e: WireError) -> Self {
        Error::BadPeer { what: e.to_string() }
    }
}

fn format() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<LIMIT>()
}

/// Encodes a message.
///
/// # Errors
/// [`WireError::Encode`] if the message is larger than [`LIMIT`].
///
/// ```
/// let bytes = comm_core::wire::encode(&("join", 3u32)).unwrap();
/// let back: (String, u32) = comm_core::wire::decode(&bytes).unwrap();
/// assert_eq!(back, ("join".to_string(), 3));
/// ```
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    let bytes =
        bincode::serde::encode_to_vec(message, format()).map_err(|e| WireError::Encode(e.to_string()))?;
    if bytes.len() > LIMIT {
        return Err(WireError::Encode(format!("{} bytes, the limit is {LIMIT}", bytes.len())));
    }
    Ok(bytes)
}

/// Decodes a message that fills the bytes exactly.
///
/// # Errors
/// [`WireError::Decode`] if the bytes are too many, too few, or not of this type.
///
/// ```
/// use comm_core::wire::{decode, encode};
///
/// let bytes = encode(&7u32).unwrap();
/// assert!(decode::<u32>(&[&bytes[..], &[0]].concat()).is_err(), "one byte too many");
/// // A length of 2^64 - 1 is refused before a byte is reserved for it.
/// assert!(decode::<Vec<u64>>(&[253, 255, 255, 255, 255, 255, 255, 255, 255]).is_err());
/// ```
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let (message, used) =
        bincode::serde::decode_from_slice(bytes, format()).map_err(|e| WireError::Decode(e.to_string()))?;
    if used != bytes.len() {
        return Err(WireError::Decode(format!("{} bytes follow the message", bytes.len() - used)));
    }
    Ok(message)
}

/// Encodes a value of any size, for [`decode_value`]: no control message, but something that a user hands over.
///
/// # Errors
/// [`WireError::Encode`] if it cannot be encoded.
///
/// ```
/// use comm_core::wire::{decode_value, encode_value};
///
/// let text = "long ".repeat(100_000);
/// assert_eq!(decode_value::<String>(&encode_value(&text)?)?, text);
/// # Ok::<(), comm_core::wire::WireError>(())
/// ```
pub fn encode_value<T: Serialize>(value: &T) -> Result<Vec<u8>, WireError> {
    bincode::serde::encode_to_vec(value, bincode::config::standard())
        .map_err(|e| WireError::Encode(e.to_string()))
}

/// Decodes a value that fills the bytes exactly. What it may ask for is limited by their number, so a few hostile bytes do not
/// ask for all memory.
///
/// # Errors
/// [`WireError::Decode`] if the bytes are too many, too few, or not of this type.
pub fn decode_value<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    fn limited<T: DeserializeOwned, const LIMIT: usize>(bytes: &[u8]) -> Result<T, WireError> {
        let format = bincode::config::standard().with_limit::<LIMIT>();
        let (value, used) =
            bincode::serde::decode_from_slice(bytes, format).map_err(|e| WireError::Decode(e.to_string()))?;
        if used != bytes.len() {
            return Err(WireError::Decode(format!("{} bytes follow the value", bytes.len() - used)));
        }
        Ok(value)
    }
    // One encoded byte stands for sixteen at most: a small number of 128 bits.
    match bytes.len().saturating_mul(16) {
        n if n <= 1 << 16 => limited::<T, { 1 << 16 }>(bytes),
        n if n <= 1 << 20 => limited::<T, { 1 << 20 }>(bytes),
        n if n <= 1 << 24 => limited::<T, { 1 << 24 }>(bytes),
        n if n <= 1 << 28 => limited::<T, { 1 << 28 }>(bytes),
        n if n <= 1 << 32 => limited::<T, { 1 << 32 }>(bytes),
        n if n <= 1 << 36 => limited::<T, { 1 << 36 }>(bytes),
        _ => limited::<T, { 1 << 48 }>(bytes),
    }
}
