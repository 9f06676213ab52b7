//! The greeting, field by field.

use super::*;
use crate::error::Error;

const BODY: &[u8] = b"what is said";

fn valid() -> Vec<u8> {
    greet(Purpose::Join, Nonce::from_bytes([7; 16]), BODY)
}

fn verdict(packet: &[u8]) -> Result<(Nonce, Vec<u8>), String> {
    match hello::check(packet, Purpose::Join, hub().boot()) {
        Ok((nonce, body)) => Ok((nonce, body.to_vec())),
        Err(Error::BadPeer { what }) => Err(what),
        Err(other) => panic!("not the error of a bad peer: {other}"),
    }
}

fn field(name: &str) -> std::ops::Range<usize> {
    let (_, at, len) = FIELDS.into_iter().find(|(other, ..)| *other == name).unwrap();
    at..at + len
}

#[test]
fn a_greeting_of_ours_is_taken() {
    let bytes = valid();
    assert_eq!(bytes.len(), field("build").end + BODY.len());
    assert_eq!(verdict(&bytes), Ok((Nonce::from_bytes([7; 16]), BODY.to_vec())));
}

#[test]
fn every_number_at_its_edges_is_refused_with_its_name() {
    for (name, said) in [
        ("magic", "magic"),
        ("wire", "another build"),
        ("layout_version", "another build"),
        ("layout_hash", "another build"),
        ("purpose", "purpose"),
        ("body", "body length"),
    ] {
        let place = field(name);
        let mut wide = [0; 8];
        wide[..place.len()].copy_from_slice(&valid()[place.clone()]);
        let right = u64::from_le_bytes(wide);
        let most = u64::MAX >> (64 - 8 * place.len());
        for value in [0, 1, most, most - 1, right.wrapping_add(1) & most, right.wrapping_sub(1) & most] {
            if value == right {
                continue;
            }
            let mut bytes = valid();
            bytes[place.clone()].copy_from_slice(&value.to_le_bytes()[..place.len()]);
            let why = verdict(&bytes).unwrap_err();
            assert!(why.contains(said), "{name} = {value}: {why}");
        }
    }
}

#[test]
fn a_nonce_of_zeros_and_another_boot_are_refused() {
    let mut bytes = valid();
    bytes[field("nonce")].fill(0);
    assert!(verdict(&bytes).unwrap_err().contains("nonce"));
    for value in [0, 1, 0xff] {
        let mut bytes = valid();
        bytes[field("boot")].fill(value);
        assert!(verdict(&bytes).unwrap_err().contains("boot id"));
    }
}

#[test]
fn another_build_is_named_and_so_is_ours() {
    for name in ["wire", "layout_version", "layout_hash"] {
        let mut bytes = valid();
        bytes[field(name).start] ^= 0x40;
        bytes[field("build")].fill(0);
        bytes[field("build")][..20].copy_from_slice(b"comm-core 9.9 (other");
        let why = verdict(&bytes).unwrap_err();
        assert!(why.contains("comm-core 9.9 (other"), "{why}");
        assert!(why.contains(&crate::layout::build()), "{why}");
    }
}

#[test]
fn the_words_of_another_build_may_be_anything() {
    for words in [[0xff; 64], [b'\n'; 64], [0x1b; 64], [0; 64]] {
        let mut bytes = valid();
        bytes[field("wire").start] ^= 1;
        bytes[field("build")].copy_from_slice(&words);
        let why = verdict(&bytes).unwrap_err();
        assert!(!why.contains(['\n', '\x1b']), "{why:?}");
    }
}

#[test]
fn every_cut_and_every_flip_is_refused_or_harmless() {
    let (nonce, build, body) = (field("nonce"), field("build"), field("build").end..);
    let right = valid();
    let mut seen = 0;
    for bytes in mutations(&right) {
        seen += 1;
        let harmless = bytes.len() == right.len() && {
            let at = (0..bytes.len()).find(|&i| bytes[i] != right[i]).unwrap();
            nonce.contains(&at) || build.contains(&at) || body.contains(&at)
        };
        assert_eq!(verdict(&bytes).is_ok(), harmless, "{bytes:02x?}");
    }
    assert!(seen > 140 * 9, "{seen}");
}
