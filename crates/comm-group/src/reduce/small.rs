//! Floats of 8 and 16 bits: every one of them is an f32, and every f32 rounds to one of them.
//!
//! A format has `E` exponent and `M` mantissa bits below its sign. With infinities (`INF`) an exponent of ones is an
//! infinity or a NaN, as IEEE has it; without (e4m3fn) only all ones are a NaN, and what is too large becomes it.
//! Both directions are written without branches, for whole blocks.

/// The exponent of f32 less that of the format, for the same number.
const fn gap<const E: u32>() -> u32 {
    (127 - ((1 << (E - 1)) - 1)) << 23
}

/// All bits but the sign.
const fn ones<const E: u32, const M: u32>() -> u32 {
    (1 << (E + M)) - 1
}

const fn infinity<const E: u32, const M: u32>() -> u32 {
    ((1 << E) - 1) << M
}

/// The one NaN that comes out.
const fn nan<const E: u32, const M: u32, const INF: bool>() -> u32 {
    if INF { infinity::<E, M>() | 1 << (M - 1) } else { ones::<E, M>() }
}

/// The f32 that is the same number; a NaN is a NaN.
#[inline]
pub(super) fn widen<const E: u32, const M: u32, const INF: bool>(bits: u32) -> f32 {
    let (gap, first) = (gap::<E>(), 1 << 23);
    if gap == 0 {
        // bf16: an f32 cut short, subnormals too.
        return f32::from_bits(bits << (23 - M));
    }
    let sign = bits >> (E + M) << 31;
    let magnitude = bits & ones::<E, M>();
    let normal = (magnitude << (23 - M)) + gap;
    // The mantissa of a subnormal lacks the leading one that the f32 has here: subtracting takes it off, exactly.
    let subnormal = (f32::from_bits(normal + first) - f32::from_bits(gap + first)).to_bits();
    let special = normal | 0x7f80_0000;
    let is_special = if INF { magnitude >= infinity::<E, M>() } else { magnitude == ones::<E, M>() };
    let finite = if magnitude < 1 << M { subnormal } else { normal };
    f32::from_bits(sign | if is_special { special } else { finite })
}

/// The nearest number of the format, of two equally near ones the even; every NaN is the same.
#[inline]
pub(super) fn round<const E: u32, const M: u32, const INF: bool>(x: f32) -> u32 {
    let (gap, shift) = (gap::<E>(), 23 - M);
    let sign = x.to_bits() >> 31 << (E + M);
    let magnitude = x.to_bits() & 0x7fff_ffff;
    // Half a unit more, a bit less if the last kept bit is 0: then what is dropped carries or does not.
    let up = (1 << (shift - 1)) - 1 + ((magnitude >> shift) & 1);
    let normal = magnitude.wrapping_sub(gap).wrapping_add(up) >> shift;
    // A number whose last bit counts the format's smallest: adding rounds to that, and leaves the count in the mantissa.
    let unit = gap + ((shift + 1) << 23);
    let counted = (f32::from_bits(magnitude) + f32::from_bits(unit)).to_bits().wrapping_sub(unit);
    // Without a gap subnormals are like all others.
    let rounded = if gap > 0 && magnitude < gap + (1 << 23) { counted } else { normal };
    let is_nan = magnitude > 0x7f80_0000 || (!INF && rounded >= ones::<E, M>());
    if is_nan { nan::<E, M, INF>() } else { sign | rounded.min(infinity_or_all::<E, M, INF>()) }
}

/// What larger numbers become, where they are not NaN.
const fn infinity_or_all<const E: u32, const M: u32, const INF: bool>() -> u32 {
    if INF { infinity::<E, M>() } else { ones::<E, M>() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_core::tensor::DType;
    use comm_testkit::oracle::reduce as oracle;
    use half::{bf16, f16};

    /// Every bit pattern, and the f32 that lie at, between and around them, against `dtype`'s serial rounding.
    fn against_the_oracle<const E: u32, const M: u32, const INF: bool>(dtype: DType) {
        let all = 0..1u32 << (1 + E + M);
        let is_nan = |bits: u32| widen::<E, M, INF>(bits).is_nan();
        for bits in all.clone() {
            let x = widen::<E, M, INF>(bits);
            let back = if x.is_nan() { nan::<E, M, INF>() } else { bits };
            assert_eq!(round::<E, M, INF>(x), back, "{bits:#x} is {x:e}");
            assert_eq!(x.is_nan(), oracle::value(dtype, bits.into()).is_nan(), "{bits:#x}");
            assert!(x.is_nan() || f64::from(x) == oracle::value(dtype, bits.into()), "{bits:#x} is {x:e}");
        }
        let mut tried = 0;
        for bits in all.filter(|bits| bits & ones::<E, M>() != ones::<E, M>() && !is_nan(bits + 1)) {
            let (low, high) = (widen::<E, M, INF>(bits), widen::<E, M, INF>(bits + 1));
            // The step to infinity is as wide as the one before.
            let high = if high.is_finite() { high } else { low + (low - widen::<E, M, INF>(bits - 1)) };
            let tie = low + (high - low) / 2.0;
            for near in [tie, low, high, low + (tie - low) / 2.0, tie + (high - tie) / 2.0] {
                for x in [near, f32::from_bits(near.to_bits() + 1), f32::from_bits(near.to_bits().max(1) - 1)]
                {
                    let expected = oracle::round(dtype, x);
                    assert_eq!(u64::from(round::<E, M, INF>(x)), expected, "{x:e} near {bits:#x}");
                    tried += 1;
                }
            }
        }
        assert!(tried > 1000, "{tried}");
    }

    #[test]
    fn fp8_is_exact_everywhere() {
        against_the_oracle::<4, 3, false>(DType::F8E4M3);
        against_the_oracle::<5, 2, true>(DType::F8E5M2);
    }

    #[test]
    fn half_precision_is_exact_everywhere() {
        against_the_oracle::<5, 10, true>(DType::F16);
        against_the_oracle::<8, 7, true>(DType::BF16);
    }

    #[test]
    fn what_is_too_large() {
        let (e4m3, e5m2) = (round::<4, 3, false>, round::<5, 2, true>);
        assert_eq!([e4m3(448.0), e4m3(464.0), e4m3(464.0001), e4m3(480.0)], [0x7e, 0x7e, 0x7f, 0x7f]);
        assert_eq!(
            [e4m3(-464.0), e4m3(-500.0), e4m3(f32::NEG_INFINITY), e4m3(f32::MAX)],
            [0xfe, 0x7f, 0x7f, 0x7f]
        );
        assert_eq!([e5m2(57344.0), e5m2(61439.0), e5m2(61440.0), e5m2(f32::MAX)], [0x7b, 0x7b, 0x7c, 0x7c]);
        assert_eq!([e5m2(-61440.0), e5m2(f32::NEG_INFINITY), e5m2(-f32::NAN)], [0xfc, 0xfc, 0x7e]);
        assert_eq!([round::<5, 10, true>(65519.0), round::<5, 10, true>(65520.0)], [0x7bff, 0x7c00]);
        assert_eq!([round::<8, 7, true>(f32::MAX), round::<8, 7, true>(-f32::MAX)], [0x7f80, 0xff80]);
    }

    #[test]
    fn what_is_too_small() {
        let (e4m3, e5m2) = (round::<4, 3, false>, round::<5, 2, true>);
        let (half4, half5) = (2f32.powi(-10), 2f32.powi(-17));
        assert_eq!([e4m3(half4), e4m3(half4 * 1.0001), e4m3(-half4), e4m3(3.0 * half4)], [0, 1, 0x80, 2]);
        assert_eq!([e5m2(half5), e5m2(half5 * 1.0001), e5m2(-half5), e5m2(3.0 * half5)], [0, 1, 0x80, 2]);
        assert_eq!([e4m3(f32::from_bits(1)), e5m2(-f32::from_bits(1)), e4m3(-0.0)], [0, 0x80, 0x80]);
    }

    #[test]
    fn the_crates_agree_about_half_precision() {
        for bits in 0..=u16::MAX {
            let (a, b) = (widen::<5, 10, true>(bits.into()), f16::from_bits(bits).to_f32());
            assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{bits:#x}: {a:e}, {b:e}");
        }
        for bits in (0..u32::MAX).step_by(4099) {
            let x = f32::from_bits(bits);
            if !x.is_nan() {
                assert_eq!(round::<5, 10, true>(x), u32::from(f16::from_f32(x).to_bits()), "{x:e}");
                assert_eq!(round::<8, 7, true>(x), u32::from(bf16::from_f32(x).to_bits()), "{x:e}");
            }
        }
        assert_eq!(round::<5, 10, true>(f32::NAN), u32::from(f16::NAN.to_bits()));
        assert_eq!(round::<8, 7, true>(f32::NAN), u32::from(bf16::NAN.to_bits()));
        assert_eq!(round::<4, 3, false>(f32::NAN), u32::from(float8::F8E4M3::NAN.to_bits()));
        assert_eq!(round::<5, 2, true>(f32::NAN), u32::from(float8::F8E5M2::NAN.to_bits()));
    }
}
