//! The greeting in front of a connection's first message, fixed in size and checked field by field.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::identity::Nonce;
use crate::error::{Error, Result};
use crate::layout;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Purpose {
    /// To push segments to a peer.
    Link = 1,
    /// To join a team.
    Join = 2,
    /// A join's answer.
    Answer = 3,
}

const MAGIC: u64 = u64::from_le_bytes(*b"comm\r\n\x1a\0");
/// The version of the messages themselves.
const WIRE: u32 = 2;

/// The greeting. Both ends are on one host, so numbers are in its byte order.
#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Hello {
    magic: u64,
    wire: u32,
    layout_version: u32,
    layout_hash: u64,
    purpose: u32,
    /// Length of the message behind the greeting.
    body: u32,
    nonce: [u8; 16],
    boot: [u8; 16],
    /// The build in words, padded with zeros: what a mismatch is told with.
    build: [u8; 64],
}

/// Puts a greeting in front of a message.
pub(crate) fn greet(purpose: Purpose, nonce: Nonce, boot: [u8; 16], body: &[u8]) -> Vec<u8> {
    let mut build = [0; 64];
    let text = layout::build();
    let n = text.len().min(build.len());
    build[..n].copy_from_slice(&text.as_bytes()[..n]);
    let hello = Hello {
        magic: MAGIC,
        wire: WIRE,
        layout_version: layout::VERSION,
        layout_hash: layout::HASH,
        purpose: purpose as u32,
        body: body.len() as u32,
        nonce: nonce.bytes(),
        boot,
        build,
    };
    [hello.as_bytes(), body].concat()
}

/// Checks a greeting and gives the sender's nonce and its message.
///
/// # Errors
/// [`Error::BadPeer`] that says which field was wrong; if the builds differ, it names both.
pub(crate) fn check(packet: &[u8], purpose: Purpose, boot: [u8; 16]) -> Result<(Nonce, &[u8])> {
    let (hello, body) = Hello::read_from_prefix(packet).map_err(|_| {
        Error::bad_peer(format!("greeting of {} bytes, expected {}", packet.len(), size_of::<Hello>()))
    })?;
    let wrong = |field: &str, seen: String, expected: String| {
        Err(Error::bad_peer(format!("greeting with {field} {seen}, expected {expected}")))
    };
    if hello.magic != MAGIC {
        return wrong("magic", format!("{:#x}", hello.magic), format!("{MAGIC:#x}"));
    }
    if (hello.wire, hello.layout_version, hello.layout_hash) != (WIRE, layout::VERSION, layout::HASH) {
        let end = hello.build.iter().position(|&b| b == 0).unwrap_or(hello.build.len());
        let theirs: String =
            String::from_utf8_lossy(&hello.build[..end]).chars().filter(|c| !c.is_control()).collect();
        return Err(Error::bad_peer(format!(
            "another build: theirs is {theirs:?} (wire {}, layout {}, hash {:016x}), ours {:?} (wire {WIRE}, layout {}, hash {:016x})",
            hello.wire,
            hello.layout_version,
            hello.layout_hash,
            layout::build(),
            layout::VERSION,
            layout::HASH
        )));
    }
    if hello.purpose != purpose as u32 {
        return wrong("purpose", hello.purpose.to_string(), (purpose as u32).to_string());
    }
    if hello.body as usize != body.len() {
        return wrong("body length", hello.body.to_string(), body.len().to_string());
    }
    if hello.boot != boot {
        return wrong("boot id", "of another host".into(), "ours".into());
    }
    if hello.nonce == [0; 16] {
        return wrong("nonce", "0".into(), "random bits".into());
    }
    Ok((Nonce::from_bytes(hello.nonce), body))
}
