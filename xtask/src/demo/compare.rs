//! Comparing a result with the weights, bit for bit.

use std::fmt;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use super::weights::Spec;

/// The first place in which a result is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Where the tensor stands in the file; the first one counts.
    pub index: usize,
    /// The tensor, in words.
    pub tensor: String,
    /// The conversion, in words.
    pub conversion: String,
    /// Where in the tensor.
    pub place: String,
    /// What came out.
    pub seen: String,
    /// What should have.
    pub expected: String,
}

impl Difference {
    /// The difference in words, as `rank` saw it.
    pub fn on_rank(&self, rank: usize) -> impl fmt::Display {
        let Difference { tensor, conversion, place, seen, expected, .. } = self;
        format!(
            "tensor {tensor}, conversion {conversion}, rank {rank}, {place}, seen {seen}, expected {expected}"
        )
    }
}

/// What two bit patterns must have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Equal {
    /// All bits.
    Bits,
    /// All bits, but any NaN equals any NaN: arithmetic has been at work.
    BitsOrNan,
}

/// Where a result differs first from the weights: (place, seen, expected).
pub fn first_difference(
    spec: &Spec,
    shape: &[usize],
    seen: &[u8],
    expected: &[u8],
    equal: Equal,
) -> Option<(String, String, String)> {
    if shape != spec.shape {
        return Some(("shape".to_owned(), format!("{shape:?}"), format!("{:?}", spec.shape)));
    }
    if seen.len() != expected.len() {
        let bytes = |n: usize| format!("{n} bytes");
        return Some(("length".to_owned(), bytes(seen.len()), bytes(expected.len())));
    }
    if seen == expected {
        return None;
    }
    let size = (spec.dtype.bitsize() / 8).max(1);
    let pairs = seen.chunks(size).zip(expected.chunks(size));
    pairs.enumerate().find_map(|(element, (seen, expected))| {
        if seen == expected || (equal == Equal::BitsOrNan && same_or_nan(spec.dtype, seen, expected)) {
            return None;
        }
        let byte = element * size;
        let place = format!("element {element} (byte {byte})");
        Some((place, value(spec.dtype, seen), value(spec.dtype, expected)))
    })
}

/// Whether two elements are the same, any NaN being the same as any other; so are the parts of complex numbers.
fn same_or_nan(dtype: Dtype, seen: &[u8], expected: &[u8]) -> bool {
    let (part, size) = if dtype == Dtype::C64 { (Dtype::F32, 4) } else { (dtype, seen.len().max(1)) };
    let mut parts = seen.chunks(size).zip(expected.chunks(size));
    parts.all(|(seen, expected)| seen == expected || (is_nan(part, seen) && is_nan(part, expected)))
}

/// Whether the bits of a real number say that it is none: more than those of an infinity, but for the sign.
fn is_nan(dtype: Dtype, bytes: &[u8]) -> bool {
    let mut wide = [0; 8];
    wide.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    let infinity = match dtype {
        Dtype::F32 => 0x7f80_0000,
        Dtype::F64 => 0x7ff0_0000_0000_0000,
        Dtype::F16 => 0x7c00,
        Dtype::BF16 => 0x7f80,
        Dtype::F8_E5M2 => 0x7c,
        // It has no infinity: its largest number.
        Dtype::F8_E4M3 => 0x7e,
        _ => return false,
    };
    let sign = 1 << (8 * bytes.len().clamp(1, 8) - 1);
    u64::from_le_bytes(wide) & (sign - 1) > infinity
}

/// An element as its bits and, where that says more, as a number.
fn value(dtype: Dtype, bytes: &[u8]) -> String {
    let mut text = String::from("0x");
    for byte in bytes.iter().rev() {
        text.push_str(&format!("{byte:02x}"));
    }
    match (dtype, bytes.try_into(), bytes.try_into()) {
        (Dtype::F32, Ok(four), _) => text.push_str(&format!(" ({:?})", f32::from_le_bytes(four))),
        (Dtype::I32, Ok(four), _) => text.push_str(&format!(" ({})", i32::from_le_bytes(four))),
        (Dtype::F64, _, Ok(eight)) => text.push_str(&format!(" ({:?})", f64::from_le_bytes(eight))),
        (Dtype::I64, _, Ok(eight)) => text.push_str(&format!(" ({})", i64::from_le_bytes(eight))),
        _ => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(dtype: Dtype, shape: &[usize]) -> Spec {
        let n: usize = shape.iter().product();
        Spec { name: "w".into(), dtype, shape: shape.to_vec(), bytes: (n * dtype.bitsize() / 8) as u64 }
    }

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn the_first_difference_is_named() {
        let spec = spec(Dtype::F32, &[3]);
        let (expected, seen) = (f32s(&[1.0, 2.0, 3.0]), f32s(&[1.0, 2.5, 9.0]));
        let difference = first_difference(&spec, &[3], &seen, &expected, Equal::Bits);
        let (place, seen, expected) = difference.unwrap();
        assert_eq!(place, "element 1 (byte 4)");
        assert_eq!((seen.as_str(), expected.as_str()), ("0x40200000 (2.5)", "0x40000000 (2.0)"));
    }

    #[test]
    fn signs_of_zero_differ_and_nans_only_without_arithmetic() {
        let spec = spec(Dtype::F32, &[1]);
        let compare = |a: u32, b: u32, equal| {
            first_difference(&spec, &[1], &a.to_le_bytes(), &b.to_le_bytes(), equal).is_none()
        };
        for equal in [Equal::Bits, Equal::BitsOrNan] {
            assert!(!compare(0, 0x8000_0000, equal));
            assert!(!compare(0x7fc0_0000, 0x3f80_0000, equal));
            assert!(compare(0x7fc0_0001, 0x7fc0_0001, equal));
        }
        assert!(!compare(0x7fc0_0000, 0xffc0_1234, Equal::Bits));
        assert!(compare(0x7f80_0001, 0xffc0_1234, Equal::BitsOrNan));
        // What looks like a NaN in an integer tensor is a number.
        let int = super::tests::spec(Dtype::I32, &[1]);
        let (a, b) = (0x7fc0_0000u32.to_le_bytes(), 0x7fc0_0001u32.to_le_bytes());
        assert!(first_difference(&int, &[1], &a, &b, Equal::BitsOrNan).is_some());
    }

    #[test]
    fn nans_of_all_floats() {
        for (dtype, number, nans) in [
            (Dtype::F16, 0x7c00u64, [0x7c01u64, 0xfe00]),
            (Dtype::BF16, 0xff80, [0x7f81, 0xffc0]),
            (Dtype::F8_E5M2, 0x7c, [0x7d, 0xfe]),
            (Dtype::F8_E4M3, 0xfe, [0x7f, 0xff]),
            (Dtype::F64, 0x7ff0_0000_0000_0000, [0x7ff0_0000_0000_0001, 0xfff8_0000_0000_0000]),
            (Dtype::C64, 0x3f80_0000_7f80_0000, [0x7fc0_0000_7f80_0000, 0xffc0_0001_7f80_0000]),
        ] {
            let same = |a: u64, b: u64| {
                let size = dtype.bitsize() / 8;
                let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
                first_difference(&spec(dtype, &[1]), &[1], &a[..size], &b[..size], Equal::BitsOrNan).is_none()
            };
            assert!(same(nans[0], nans[1]) && !same(number, nans[0]) && !same(nans[1], number), "{dtype}");
        }
        // One part of a complex number may be a NaN, and the other must still be the same.
        let (a, b) = (0x7fc0_0000_3f80_0000u64.to_le_bytes(), 0x7fc0_0000_3f80_0001u64.to_le_bytes());
        assert!(first_difference(&spec(Dtype::C64, &[1]), &[1], &a, &b, Equal::BitsOrNan).is_some());
    }

    #[test]
    fn shapes_and_lengths_count() {
        let spec = spec(Dtype::U8, &[2, 3]);
        assert_eq!(first_difference(&spec, &[2, 3], &[7; 6], &[7; 6], Equal::Bits), None);
        let (place, seen, _) = first_difference(&spec, &[3, 2], &[7; 6], &[7; 6], Equal::Bits).unwrap();
        assert_eq!((place.as_str(), seen.as_str()), ("shape", "[3, 2]"));
        let (place, seen, _) = first_difference(&spec, &[2, 3], &[7; 5], &[7; 6], Equal::Bits).unwrap();
        assert_eq!((place.as_str(), seen.as_str()), ("length", "5 bytes"));
        let (place, seen, expected) =
            first_difference(&spec, &[2, 3], &[7, 7, 7, 7, 7, 8], &[7; 6], Equal::Bits).unwrap();
        assert_eq!(
            (place.as_str(), seen.as_str(), expected.as_str()),
            ("element 5 (byte 5)", "0x08", "0x07")
        );
    }

    #[test]
    fn in_words() {
        let difference = Difference {
            index: 0,
            tensor: "\"w\" (f32 [1])".into(),
            conversion: "R -> P -> R".into(),
            place: "element 0 (byte 0)".into(),
            seen: "0x0".into(),
            expected: "0x1".into(),
        };
        assert_eq!(
            difference.on_rank(2).to_string(),
            "tensor \"w\" (f32 [1]), conversion R -> P -> R, rank 2, element 0 (byte 0), seen 0x0, expected 0x1"
        );
    }
}
