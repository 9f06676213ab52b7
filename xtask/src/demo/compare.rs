//! Comparing what a rank holds with the weights, bit for bit.

use std::fmt;
use std::ops::Range;

use comm_core::tensor::{DType, Tensor, TensorError};
use comm_group::placement::Extent;
use serde::{Deserialize, Serialize};

/// Something that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Where in the tensor, or of what.
    pub place: String,
    /// What came out.
    pub seen: String,
    /// What should have.
    pub expected: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, seen {}, expected {}", self.place, self.seen, self.expected)
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

/// Where a rank's part differs first from that of the whole. The extent says which part it is; nothing of it is sub-split.
/// Places are those in the whole.
///
/// # Errors
/// What the library said.
pub fn first_difference(
    held: &Tensor,
    whole: &Tensor,
    extent: &Extent,
    equal: Equal,
) -> Result<Option<Difference>, TensorError> {
    let run = |dim| extent.ranges(dim).and_then(<[Range<usize>]>::first).cloned().unwrap_or(0..0);
    let runs: Vec<Range<usize>> = (0..whole.shape().len()).map(run).collect();
    let mut part = whole.clone();
    for (dim, run) in runs.iter().enumerate() {
        part = part.narrow(dim, run.start, run.len())?;
    }
    let kind = |tensor: &Tensor| format!("{} {:?}", tensor.dtype(), tensor.shape());
    let (seen, expected) = (kind(held), kind(&part));
    if seen != expected {
        return Ok(Some(Difference { place: "dtype and shape".to_owned(), seen, expected }));
    }
    // Without a copy: this is how it should be.
    if held.bytes_equal(&part)? {
        return Ok(None);
    }
    let dtype = whole.dtype();
    let (seen, expected) = (bytes(held)?, bytes(&part)?);
    let mut pairs = seen.chunks(dtype.size()).zip(expected.chunks(dtype.size())).enumerate();
    let first = pairs.find(|(_, (seen, expected))| {
        seen != expected && !(equal == Equal::BitsOrNan && same_or_nan(dtype, seen, expected))
    });
    Ok(first.map(|(at, (seen, expected))| {
        let element = index_in_whole(at, whole.shape(), &runs);
        let place = format!("element {element} (byte {})", element * dtype.size());
        Difference { place, seen: value(dtype, seen), expected: value(dtype, expected) }
    }))
}

fn bytes(tensor: &Tensor) -> Result<Vec<u8>, TensorError> {
    let mut bytes = vec![0; tensor.nbytes()];
    tensor.copy_bytes_to(&mut bytes)?;
    Ok(bytes)
}

/// Which element of the whole element `at` of a part is, in row-major order of both.
fn index_in_whole(mut at: usize, shape: &[usize], runs: &[Range<usize>]) -> usize {
    let (mut index, mut stride) = (0, 1);
    for (size, run) in shape.iter().zip(runs).rev() {
        index += (run.start + at % run.len().max(1)) * stride;
        at /= run.len().max(1);
        stride *= size;
    }
    index
}

/// Whether two elements are the same, any NaN being the same as any other; so are the parts of complex numbers.
fn same_or_nan(dtype: DType, seen: &[u8], expected: &[u8]) -> bool {
    let part = match dtype {
        DType::Complex64 => DType::F32,
        DType::Complex128 => DType::F64,
        real => real,
    };
    let mut parts = seen.chunks(part.size()).zip(expected.chunks(part.size()));
    parts.all(|(seen, expected)| seen == expected || (is_nan(part, seen) && is_nan(part, expected)))
}

/// Whether the bits of a real number say that it is none: more than those of an infinity, but for the sign.
fn is_nan(dtype: DType, bytes: &[u8]) -> bool {
    let mut wide = [0; 8];
    wide.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    let infinity = match dtype {
        DType::F32 => 0x7f80_0000,
        DType::F64 => 0x7ff0_0000_0000_0000,
        DType::F16 => 0x7c00,
        DType::BF16 => 0x7f80,
        DType::F8E5M2 => 0x7c,
        // It has no infinity: its largest number.
        DType::F8E4M3 => 0x7e,
        _ => return false,
    };
    let sign = 1 << (8 * bytes.len().clamp(1, 8) - 1);
    u64::from_le_bytes(wide) & (sign - 1) > infinity
}

/// An element as its bits and, where that says more, as a number.
fn value(dtype: DType, bytes: &[u8]) -> String {
    let mut text = String::from("0x");
    for byte in bytes.iter().rev() {
        text.push_str(&format!("{byte:02x}"));
    }
    match (dtype, bytes.try_into(), bytes.try_into()) {
        (DType::F32, Ok(four), _) => text.push_str(&format!(" ({:?})", f32::from_le_bytes(four))),
        (DType::I32, Ok(four), _) => text.push_str(&format!(" ({})", i32::from_le_bytes(four))),
        (DType::F64, _, Ok(eight)) => text.push_str(&format!(" ({:?})", f64::from_le_bytes(eight))),
        (DType::I64, _, Ok(eight)) => text.push_str(&format!(" ({})", i64::from_le_bytes(eight))),
        _ => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use comm_group::DeviceMesh;
    use comm_group::placement::Placement::{self, Replicate, Shard};
    use comm_group::placement::extent;

    use super::super::weights::Spec;
    use super::*;

    fn tensor(dtype: DType, shape: &[usize], bytes: &[u8]) -> Tensor {
        let spec = Spec { name: "w".into(), dtype, shape: shape.to_vec(), bytes: bytes.len() as u64 };
        spec.tensor(bytes).unwrap()
    }

    /// What is different where a rank should hold the whole.
    fn compare(held: &Tensor, whole: &Tensor, equal: Equal) -> Option<Difference> {
        let mesh = DeviceMesh::new(&[1], vec![0]).unwrap();
        let extent = extent(whole.shape(), &mesh, &[Replicate], &[0]).unwrap();
        first_difference(held, whole, &extent, equal).unwrap()
    }

    #[test]
    fn the_first_difference_is_named() {
        let whole = Tensor::from_slice(&[3], &[1.0f32, 2.0, 3.0]).unwrap();
        let held = Tensor::from_slice(&[3], &[1.0f32, 2.5, 9.0]).unwrap();
        assert_eq!(compare(&whole, &whole, Equal::Bits), None);
        assert_eq!(
            compare(&held, &whole, Equal::Bits).unwrap().to_string(),
            "element 1 (byte 4), seen 0x40200000 (2.5), expected 0x40000000 (2.0)"
        );
    }

    #[test]
    fn shards_are_compared_in_their_place() {
        // Rank [1, 0] of 2x2 has the last row and the first two columns: elements 6 and 7.
        let whole = Tensor::from_slice(&[3, 3], &[0u16, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        let mesh = DeviceMesh::new(&[2, 2], (0..4).collect()).unwrap();
        let compare = |placements: &[Placement], held: &Tensor| {
            let extent = extent(&[3, 3], &mesh, placements, &[1, 0]).unwrap();
            first_difference(held, &whole, &extent, Equal::Bits).unwrap().map(|d| d.to_string())
        };
        let shard = [Shard(0), Shard(1)];
        assert_eq!(compare(&shard, &Tensor::from_slice(&[1, 2], &[6u16, 7]).unwrap()), None);
        let wrong = Tensor::from_slice(&[1, 2], &[6u16, 9]).unwrap();
        assert_eq!(compare(&shard, &wrong).unwrap(), "element 7 (byte 14), seen 0x0009, expected 0x0007");
        // The last column, from behind.
        let column = Tensor::from_slice(&[3, 1], &[8u16, 5, 2]).unwrap().flip(0).unwrap();
        assert_eq!(compare(&[Shard(1), Replicate], &column), None);
        let column = whole.narrow(1, 1, 1).unwrap();
        let wrong = compare(&[Shard(1), Replicate], &column).unwrap();
        assert_eq!(wrong, "element 2 (byte 4), seen 0x0001, expected 0x0002");
    }

    #[test]
    fn signs_of_zero_differ_and_nans_only_without_arithmetic() {
        let compare = |a: u32, b: u32, equal| {
            let [a, b] = [a, b].map(|bits| tensor(DType::F32, &[1], &bits.to_le_bytes()));
            compare(&a, &b, equal).is_none()
        };
        for equal in [Equal::Bits, Equal::BitsOrNan] {
            assert!(!compare(0, 0x8000_0000, equal));
            assert!(!compare(0x7fc0_0000, 0x3f80_0000, equal));
            assert!(compare(0x7fc0_0001, 0x7fc0_0001, equal));
        }
        assert!(!compare(0x7fc0_0000, 0xffc0_1234, Equal::Bits));
        assert!(compare(0x7f80_0001, 0xffc0_1234, Equal::BitsOrNan));
        // What looks like a NaN in an integer tensor is a number.
        let [a, b] = [0x7fc0_0000, 0x7fc0_0001].map(|x: i32| Tensor::from_slice(&[1], &[x]).unwrap());
        assert!(super::tests::compare(&a, &b, Equal::BitsOrNan).is_some());
    }

    #[test]
    fn nans_of_all_floats() {
        for (dtype, number, nans) in [
            (DType::F16, 0x7c00u64, [0x7c01u64, 0xfe00]),
            (DType::BF16, 0xff80, [0x7f81, 0xffc0]),
            (DType::F8E5M2, 0x7c, [0x7d, 0xfe]),
            (DType::F8E4M3, 0xfe, [0x7f, 0xff]),
            (DType::F64, 0x7ff0_0000_0000_0000, [0x7ff0_0000_0000_0001, 0xfff8_0000_0000_0000]),
            (DType::Complex64, 0x3f80_0000_7f80_0000, [0x7fc0_0000_7f80_0000, 0xffc0_0001_7f80_0000]),
        ] {
            let same = |a: u64, b: u64| {
                let [a, b] = [a, b].map(|bits| tensor(dtype, &[1], &bits.to_le_bytes()[..dtype.size()]));
                compare(&a, &b, Equal::BitsOrNan).is_none()
            };
            assert!(same(nans[0], nans[1]) && !same(number, nans[0]) && !same(nans[1], number), "{dtype}");
        }
        // One part of a complex number may be a NaN, and the other must still be the same.
        let [a, b] = [0x7fc0_0000_3f80_0000u64, 0x7fc0_0000_3f80_0001]
            .map(|bits| tensor(DType::Complex64, &[1], &bits.to_le_bytes()));
        assert!(compare(&a, &b, Equal::BitsOrNan).is_some());
    }

    #[test]
    fn dtypes_and_shapes() {
        let whole = tensor(DType::U8, &[2, 3], &[7; 6]);
        let reshaped = compare(&whole.reshape(&[3, 2]).unwrap(), &whole, Equal::Bits).unwrap();
        assert_eq!(reshaped.to_string(), "dtype and shape, seen u8 [3, 2], expected u8 [2, 3]");
        let signed = compare(&tensor(DType::I8, &[2, 3], &[7; 6]), &whole, Equal::Bits).unwrap();
        assert_eq!(signed.seen, "i8 [2, 3]");
        let last = compare(&tensor(DType::U8, &[2, 3], &[7, 7, 7, 7, 7, 8]), &whole, Equal::Bits).unwrap();
        assert_eq!(last.to_string(), "element 5 (byte 5), seen 0x08, expected 0x07");
        // Nothing at all, and one element of no dimension.
        for (shape, bytes) in [(&[0, 3][..], &[][..]), (&[], &[1])] {
            let whole = tensor(DType::U8, shape, bytes);
            assert_eq!(compare(&whole, &whole, Equal::Bits), None);
        }
    }
}
