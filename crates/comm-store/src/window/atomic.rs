//! Atomic addition into the memory of a window, element by element.
//!
//! **Sizes.** An addition is one access of the element's size, and a copy beside it is accesses of other sizes. Rust's
//! memory model knows no such mixture in one program; the processors that this is for do (each access is whole by itself),
//! and the copies are in assembly, where no compiler sees them. So a load beside additions gets a mixture of bytes, as
//! between processes, where that model says nothing at all. Under Miri, which has no assembly, it must not be tried.
//!
//! Many ranks may add to the same elements at once, and every contribution counts once. A whole addition is no unit: a
//! peer that reads meanwhile may see some elements added to and others not yet. All accesses are relaxed; the signal
//! that follows is what publishes them.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use comm_core::shm::Shared;
use comm_core::tensor::DType;
use comm_core::{Error, Result};
use half::{bf16, f16};

use super::part::Part;

const OP: &str = "Window::add";

/// Whether elements of a dtype can be added to atomically: the processor exchanges up to 8 bytes at once, and there
/// must be an addition.
pub(super) fn can_add(dtype: DType) -> bool {
    use DType::{BF16, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    matches!(dtype, I8 | U8 | I16 | U16 | I32 | U32 | I64 | U64 | F16 | BF16 | F32 | F64)
}

/// Adds `values`, dense elements of `dtype`, to those from byte `at` of a part on.
///
/// Integers wrap. Floats are added by IEEE rules and rounded once, to nearest even; a NaN comes out as the canonical
/// one, as from a reduction. In what order ranks add is nobody's choice, so sums of floats may differ in their last bits
/// from one time to the next.
///
/// # Errors
/// [`Error::Unsupported`] if the dtype cannot be added to; [`Error::InvalidArgument`] if `values` are not whole
/// elements, the range is not inside the part, or `at` is no multiple of an element's size. Then nothing is added.
pub(super) fn add(dtype: DType, part: &Part, at: usize, values: &[u8]) -> Result<()> {
    // Bit patterns are all that the memory holds, and wrapping addition is the same for both kinds of integers.
    macro_rules! integer {
        ($atomic:ty, $t:ty) => {
            each(part, at, values, |memory: &$atomic, value| {
                memory.fetch_add(<$t>::from_ne_bytes(value), Relaxed);
            })
        };
    }
    macro_rules! float {
        ($atomic:ty, $t:ty, $sum:expr) => {
            each(part, at, values, |memory: &$atomic, value| {
                let value = <$t>::from_ne_bytes(value);
                memory.update(Relaxed, Relaxed, |bits| {
                    let sum: $t = $sum(<$t>::from_bits(bits), value);
                    if sum.is_nan() { <$t>::NAN.to_bits() } else { sum.to_bits() }
                });
            })
        };
    }
    match dtype {
        DType::I8 | DType::U8 => integer!(AtomicU8, u8),
        DType::I16 | DType::U16 => integer!(AtomicU16, u16),
        DType::I32 | DType::U32 => integer!(AtomicU32, u32),
        DType::I64 | DType::U64 => integer!(AtomicU64, u64),
        // An f32 has more than twice the digits of these: rounding its sum gives what rounding the exact one would.
        DType::F16 => float!(AtomicU16, f16, |a: f16, b: f16| f16::from_f32(a.to_f32() + b.to_f32())),
        DType::BF16 => float!(AtomicU16, bf16, |a: bf16, b: bf16| bf16::from_f32(a.to_f32() + b.to_f32())),
        DType::F32 => float!(AtomicU32, f32, |a, b| a + b),
        DType::F64 => float!(AtomicU64, f64, |a, b| a + b),
        _ => Err(Error::Unsupported {
            backend: "window",
            op: format!("atomic add of {dtype}"),
            why: "only integers, f16, bf16, f32 and f64 are added to in place".into(),
        }),
    }
}

/// Calls `f` with each element of the memory and the bytes of the value for it, once all of them are known to be there.
fn each<A: Shared, const SIZE: usize>(
    part: &Part,
    at: usize,
    values: &[u8],
    f: impl Fn(&A, [u8; SIZE]),
) -> Result<()> {
    const { assert!(size_of::<A>() == SIZE) };
    let (elements, rest) = values.as_chunks::<SIZE>();
    if !rest.is_empty() {
        return Err(Error::invalid(OP, format!("{} bytes are no elements of {SIZE} bytes", values.len())));
    }
    for (memory, value) in part.atomics(at, elements.len())?.iter().zip(elements) {
        f(memory, *value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use comm_core::shm::{Access, Arena};
    use comm_core::tensor::Element;
    use proptest::prelude::*;

    use super::super::spec::WindowSpec;
    use super::*;

    fn part(bytes: usize) -> Part {
        // A signal before the bytes, so that they do not begin where the block does.
        let spec = WindowSpec::bytes(bytes).signals(1);
        let arena = Arena::new(Access::ReadWrite, 1 << 20, |_| {});
        Part::own(Arc::new(arena.alloc_zeroed(spec.len()).unwrap()), spec).unwrap()
    }

    /// Rust types of the elements, and how they travel as bytes.
    trait Bytes: Element + PartialEq + std::fmt::Debug {
        fn bytes(self) -> Vec<u8>;
        fn of(bytes: &[u8]) -> Self;
    }

    macro_rules! bytes {
        ($($t:ty),*) => {$(
            impl Bytes for $t {
                fn bytes(self) -> Vec<u8> { self.to_ne_bytes().to_vec() }
                fn of(bytes: &[u8]) -> $t { <$t>::from_ne_bytes(bytes.try_into().unwrap()) }
            }
        )*};
    }
    bytes!(i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64);

    fn all<T: Bytes>(values: &[T]) -> Vec<u8> {
        values.iter().flat_map(|value| value.bytes()).collect()
    }

    fn read<T: Bytes>(part: &Part, at: usize, count: usize) -> Vec<T> {
        let mut bytes = vec![0; count * size_of::<T>()];
        part.read(at, &mut bytes).unwrap();
        bytes.chunks(size_of::<T>()).map(T::of).collect()
    }

    /// The memory after `values` were added to `before`, and that nothing around it has changed.
    #[track_caller]
    fn sum<T: Bytes>(before: &[T], values: &[T]) -> Vec<T> {
        let (len, at) = (size_of_val(before), size_of::<T>() * 3);
        let part = part(at + len + 16);
        part.write(0, &vec![0xa5; at + len + 16]).unwrap();
        part.write(at, &all(before)).unwrap();
        assert!(can_add(T::DTYPE));
        add(T::DTYPE, &part, at, &all(values)).unwrap();
        assert!(read::<u8>(&part, 0, at).iter().chain(&read::<u8>(&part, at + len, 16)).all(|&b| b == 0xa5));
        read(&part, at, before.len())
    }

    macro_rules! same_as_plain {
        ($($name:ident, $t:ty, $strategy:expr, $plain:expr;)*) => {
            proptest! {$(
                #[test]
                fn $name(pairs in prop::collection::vec(($strategy, $strategy), 0..9)) {
                    let (a, b): (Vec<$t>, Vec<$t>) = pairs.iter().copied().unzip();
                    let plain: fn($t, $t) -> $t = $plain;
                    let expected: Vec<$t> = pairs.iter().map(|&(a, b)| plain(a, b)).collect();
                    prop_assert_eq!(all(&sum(&a, &b)), all(&expected), "{:?}", pairs);
                }
            )*}
        };
    }

    /// Every bit pattern, and of those that differ little in size enough to see roundings.
    fn bits16() -> impl Strategy<Value = u16> {
        prop_oneof![
            any::<u16>(),
            0x3c00u16..0x4800,
            (0x3c00u16..0x4800).prop_map(|bits| bits | 0x8000),
            0u16..0x500
        ]
    }

    /// The nearest of all finite values to the exact sum, the even one of two; by search, for lack of a shorter truth.
    fn nearest(exact: f64, up: impl Fn(u16) -> f64, infinity: u16, past_largest: f64) -> u16 {
        let size = exact.abs();
        let (mut low, mut high) = (0, infinity);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if up(middle) <= size { low = middle } else { high = middle }
        }
        let above = if high == infinity { past_largest } else { up(high) };
        let (down, up) = (size - up(low), above - size);
        let bits = if down < up || (down == up && low % 2 == 0) { low } else { high };
        // A sum of zero is negative only if both are, which is not asked here.
        bits | if exact < 0.0 { 0x8000 } else { 0 }
    }

    fn plain_f16(a: f16, b: f16) -> f16 {
        let exact = a.to_f64() + b.to_f64();
        if exact == 0.0 || !exact.is_finite() {
            return if exact.is_nan() { f16::NAN } else { f16::from_f64(exact) };
        }
        f16::from_bits(nearest(exact, |bits| f16::from_bits(bits).to_f64(), f16::INFINITY.to_bits(), 65536.0))
    }

    fn plain_bf16(a: bf16, b: bf16) -> bf16 {
        // Not always exact, but then one of the two is so small that the other is the nearest either way.
        let exact = a.to_f64() + b.to_f64();
        if exact == 0.0 || !exact.is_finite() {
            return if exact.is_nan() { bf16::NAN } else { bf16::from_f64(exact) };
        }
        let infinity = bf16::INFINITY.to_bits();
        bf16::from_bits(nearest(exact, |bits| bf16::from_bits(bits).to_f64(), infinity, 2f64.powi(128)))
    }

    fn canonical<T: Copy>(sum: T, is_nan: bool, nan: T) -> T {
        if is_nan { nan } else { sum }
    }

    same_as_plain! {
        i8_is_plain_addition, i8, any::<i8>(), |a, b| a.wrapping_add(b);
        u8_is_plain_addition, u8, any::<u8>(), |a, b| a.wrapping_add(b);
        i16_is_plain_addition, i16, any::<i16>(), |a, b| a.wrapping_add(b);
        u16_is_plain_addition, u16, any::<u16>(), |a, b| a.wrapping_add(b);
        i32_is_plain_addition, i32, any::<i32>(), |a, b| a.wrapping_add(b);
        u32_is_plain_addition, u32, any::<u32>(), |a, b| a.wrapping_add(b);
        i64_is_plain_addition, i64, any::<i64>(), |a, b| a.wrapping_add(b);
        u64_is_plain_addition, u64, any::<u64>(), |a, b| a.wrapping_add(b);
        f16_is_the_nearest_to_the_sum, f16, bits16().prop_map(f16::from_bits), plain_f16;
        bf16_is_the_nearest_to_the_sum, bf16, bits16().prop_map(bf16::from_bits), plain_bf16;
        f32_is_plain_addition, f32, any::<u32>().prop_map(f32::from_bits),
            |a, b| canonical(a + b, (a + b).is_nan(), f32::NAN);
        f64_is_plain_addition, f64, any::<u64>().prop_map(f64::from_bits),
            |a, b| canonical(a + b, (a + b).is_nan(), f64::NAN);
    }

    #[test]
    fn integers_wrap() {
        assert_eq!(sum(&[i8::MAX, -128, -1], &[1, -1, 1]), [i8::MIN, i8::MAX, 0]);
        assert_eq!(sum(&[u16::MAX, 0], &[2, 1]), [1, 1], "and nothing is carried into the neighbour");
        assert_eq!(sum(&[i64::MIN], &[-1]), [i64::MAX]);
    }

    #[test]
    fn halves_are_rounded_once_to_the_even_one() {
        let halves = |values: &[f32]| values.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>();
        let bfs = |values: &[f32]| values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>();
        assert_eq!(sum(&halves(&[2048.0, 2050.0]), &halves(&[1.0, 1.0])), halves(&[2048.0, 2052.0]));
        assert_eq!(sum(&bfs(&[256.0, 258.0]), &bfs(&[1.0, 1.0])), bfs(&[256.0, 260.0]));
        assert_eq!(sum(&halves(&[65504.0, 65504.0]), &halves(&[16.0, 8.0])), [f16::INFINITY, f16::MAX]);
    }

    #[test]
    fn nans_come_out_the_same_and_zero_keeps_its_sign() {
        macro_rules! check {
            ($($t:ty, $one:expr, $odd:expr;)*) => {$(
                let (one, odd) = ($one, <$t>::from_bits($odd));
                assert!(odd.is_nan() && odd.to_bits() != <$t>::NAN.to_bits());
                let (inf, minus) = (<$t>::INFINITY, <$t>::NEG_INFINITY);
                let out = sum(&[odd, one, inf, odd], &[one, odd, minus, odd]);
                assert!(out.iter().all(|x| x.to_bits() == <$t>::NAN.to_bits()), "{out:?}");
                let zero = one - one;
                let out = sum(&[-zero, -zero, zero], &[-zero, zero, -zero]);
                assert_eq!(out.map_bits(), [-zero, zero, zero].map(|x| x.to_bits()));
            )*};
        }
        trait MapBits<B> {
            fn map_bits(&self) -> Vec<B>;
        }
        macro_rules! map_bits {
            ($($t:ty, $bits:ty;)*) => {$(
                impl MapBits<$bits> for Vec<$t> {
                    fn map_bits(&self) -> Vec<$bits> { self.iter().map(|x| x.to_bits()).collect() }
                }
            )*};
        }
        map_bits! { f16, u16; bf16, u16; f32, u32; f64, u64; }
        check! {
            f16, f16::ONE, 0xfc01;
            bf16, bf16::ONE, 0xff81;
            f32, 1.0f32, 0xff80_1234;
            f64, 1.0f64, 0x7ff0_0000_0000_0001;
        }
    }

    #[test]
    fn nothing_is_lost_among_many_who_add_to_the_same_elements() {
        const THREADS: i8 = 4;
        const ROUNDS: usize = 10_001;
        fn check<T: Bytes>(number: fn(i8) -> T) {
            // The first and the last element have neighbours in the same words.
            let part = part(13 * size_of::<T>());
            let start = Barrier::new(THREADS as usize);
            std::thread::scope(|scope| {
                for thread in 1..=THREADS {
                    let (part, start) = (&part, &start);
                    scope.spawn(move || {
                        let values = |sign: i8| all(&[1, 2, 1, 2, 1].map(|n| number(sign * n * thread)));
                        // Back and forth, so that sums stay where every float is exact; at last once forth.
                        let values = [values(1), values(-1)];
                        start.wait();
                        for round in 0..ROUNDS {
                            add(T::DTYPE, part, 3 * size_of::<T>(), &values[round % 2]).unwrap();
                        }
                    });
                }
            });
            let expected = [0, 0, 0, 10, 20, 10, 20, 10, 0, 0, 0, 0, 0].map(number);
            assert_eq!(read::<T>(&part, 0, 13), expected, "{}", T::DTYPE);
        }
        check::<i8>(|n| n);
        check::<u8>(|n| n as u8);
        check::<i16>(i16::from);
        check::<u16>(|n| n as u16);
        check::<i32>(i32::from);
        check::<u32>(|n| n as u32);
        check::<i64>(i64::from);
        check::<u64>(|n| n as u64);
        check::<f16>(f16::from);
        check::<bf16>(bf16::from);
        check::<f32>(f32::from);
        check::<f64>(f64::from);
    }

    #[test]
    fn what_cannot_be_added_changes_nothing() {
        let part = part(22);
        let before = [1; 22];
        part.write(0, &before).unwrap();
        let invalid = |dtype, at, len: usize| {
            let outcome = add(dtype, &part, at, &vec![1; len]);
            assert!(
                matches!(outcome, Err(Error::InvalidArgument { .. })),
                "{dtype}, {len} at {at}: {outcome:?}"
            );
        };
        for (dtype, size) in [(DType::I16, 2), (DType::BF16, 2), (DType::F32, 4), (DType::U64, 8)] {
            (1..size).for_each(|off| invalid(dtype, off, size));
            invalid(dtype, 0, size + 1);
            invalid(dtype, 24, size);
            invalid(dtype, 24, 0);
            invalid(dtype, 16, 2 * size.max(4));
            invalid(dtype, usize::MAX - 7, size);
        }
        invalid(DType::U8, 22, 1);
        // The part says so, not only the memory that it is in, which may go on.
        let text = add(DType::I32, &part, 20, &[0; 4]).unwrap_err().to_string();
        assert!(text.contains("ends at byte 24") && text.contains("22 bytes"), "{text}");
        let text = add(DType::I32, &part, 2, &[0; 4]).unwrap_err().to_string();
        assert!(text.contains("byte 2") && text.contains("multiple of 4"), "{text}");
        for &dtype in DType::ALL.iter().filter(|&&dtype| !can_add(dtype)) {
            let outcome = add(dtype, &part, 0, &vec![1; dtype.size()]);
            assert!(matches!(outcome, Err(Error::Unsupported { .. })), "{dtype}: {outcome:?}");
        }
        assert_eq!(read::<u8>(&part, 0, 22), before);
        add(DType::I32, &part, 16, &[]).unwrap();
        add(DType::I32, &part, 16, &[1; 4]).unwrap();
        assert_eq!(read::<u8>(&part, 16, 6), [2, 2, 2, 2, 1, 1], "the last whole element");
    }

    #[test]
    fn can_add_knows_what_add_does() {
        let part = part(16);
        for &dtype in DType::ALL {
            assert_eq!(add(dtype, &part, 0, &vec![0; dtype.size()]).is_ok(), can_add(dtype), "{dtype}");
        }
        let not: Vec<_> =
            DType::ALL.iter().filter(|&&dtype| !can_add(dtype)).map(|dtype| dtype.name()).collect();
        assert_eq!(not, ["bool", "f8e4m3", "f8e5m2", "complex64", "complex128"]);
    }
}
