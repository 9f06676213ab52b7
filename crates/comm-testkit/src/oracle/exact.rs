//! Floats as exact numbers: integers times powers of two, with no float arithmetic at all.

use std::cmp::Ordering;

/// A number: a sign, and an integer times a power of two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Exact {
    Nan,
    Infinite {
        negative: bool,
    },
    Finite {
        negative: bool,
        /// Times two to the power `exponent`.
        integer: u128,
        exponent: i32,
        /// Whether something is missing that is smaller than 1 of the integer, which is then large.
        more: bool,
    },
}

use Exact::{Finite, Infinite, Nan};

impl Exact {
    fn finite(negative: bool, integer: u128, exponent: i32) -> Exact {
        Finite { negative, integer, exponent, more: false }
    }

    fn is_negative(self) -> bool {
        match self {
            Nan => false,
            Infinite { negative } | Finite { negative, .. } => negative,
        }
    }

    pub(super) fn negated(self) -> Exact {
        match self {
            Nan => Nan,
            Infinite { negative } => Infinite { negative: !negative },
            Finite { negative, integer, exponent, more } => {
                Finite { negative: !negative, integer, exponent, more }
            }
        }
    }

    /// The sum of two numbers of 64 bits at most.
    pub(super) fn plus(self, other: Exact) -> Exact {
        let (a, b) = match (self, other) {
            (Nan, _) | (_, Nan) => return Nan,
            (Infinite { .. }, Infinite { .. }) => return if self == other { self } else { Nan },
            (Infinite { .. }, _) => return self,
            (_, Infinite { .. }) => return other,
            (Finite { integer: a, exponent: e, .. }, Finite { integer: b, exponent: f, .. }) => {
                ((a, e), (b, f))
            }
        };
        let (negative, minus) = (self.is_negative(), other.is_negative());
        // The sign of a zero: of two negative zeros it is negative.
        if a.0 == 0 && b.0 == 0 {
            return Exact::finite(negative && minus, 0, 0);
        }
        if a.0 == 0 || b.0 == 0 {
            return if a.0 == 0 { other } else { self };
        }
        // As far up as the larger exponent allows: 60 bits of room, and one number may be far below the other.
        let ((high, at), (low, from)) = if a.1 >= b.1 { (a, b) } else { (b, a) };
        let high_is_self = a.1 >= b.1;
        let (high_negative, low_negative) = if high_is_self { (negative, minus) } else { (minus, negative) };
        let room = 60.min(at - from);
        let (high, exponent) = (high << room, at - room);
        let down = (exponent - from).min(127) as u32;
        let lost = low & ((1 << down) - 1) != 0;
        let low = low >> down;
        if high_negative == low_negative {
            return Finite { negative: high_negative, integer: high + low, exponent, more: lost };
        }
        // A bit is lost only where `low` is far smaller: then one less, and something more.
        match high.cmp(&(low + u128::from(lost))) {
            Ordering::Greater | Ordering::Equal if high > low => Finite {
                negative: high_negative,
                integer: high - low - u128::from(lost),
                exponent,
                more: lost,
            },
            Ordering::Less => Finite { negative: low_negative, integer: low - high, exponent, more: lost },
            _ => Exact::finite(false, 0, 0),
        }
    }

    /// The product of two numbers of 64 bits at most.
    pub(super) fn times(self, other: Exact) -> Exact {
        let negative = self.is_negative() != other.is_negative();
        let is_zero = |x: Exact| matches!(x, Finite { integer: 0, .. });
        match (self, other) {
            (Nan, _) | (_, Nan) => Nan,
            (Infinite { .. }, x) | (x, Infinite { .. }) => {
                if is_zero(x) {
                    Nan
                } else {
                    Infinite { negative }
                }
            }
            (Finite { integer: a, exponent: e, .. }, Finite { integer: b, exponent: f, .. }) => {
                Exact::finite(negative, a * b, e + f)
            }
        }
    }

    /// A number of 64 bits at most, divided by a small one.
    pub(super) fn divided(self, by: u64) -> Exact {
        match self {
            Finite { negative, integer, exponent, .. } => {
                // 64 more bits than it has: enough to round by.
                let (wide, by) = (integer << 64, u128::from(by));
                Finite { negative, integer: wide / by, exponent: exponent - 64, more: wide % by != 0 }
            }
            other => other,
        }
    }

    /// The lesser of two numbers; NaN, if one is. -0 is less than 0.
    pub(super) fn least(self, other: Exact) -> Exact {
        if self == Nan || other == Nan {
            return Nan;
        }
        match (self.is_negative(), other.is_negative()) {
            (true, false) => self,
            (false, true) => other,
            (negative, _) => {
                // Both on one side of zero.
                let self_is_smaller = match (self, other) {
                    (Infinite { .. }, _) => false,
                    (_, Infinite { .. }) => true,
                    _ => self.plus(other.negated()).is_negative() != negative,
                };
                if self_is_smaller != negative { self } else { other }
            }
        }
    }

    /// The greater of two numbers: less the lesser of them negated.
    pub(super) fn least_of_negatives(self, other: Exact) -> Exact {
        self.negated().least(other.negated()).negated()
    }
}

/// A float format, with a sign above.
#[derive(Debug)]
pub(super) struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// Without, an exponent of ones is like any other, but for all ones, which is NaN.
    infinities: bool,
}

pub(super) const F8E4M3: Format = Format { exponent_bits: 4, mantissa_bits: 3, infinities: false };
pub(super) const F8E5M2: Format = Format { exponent_bits: 5, mantissa_bits: 2, infinities: true };
pub(super) const F16: Format = Format { exponent_bits: 5, mantissa_bits: 10, infinities: true };
pub(super) const BF16: Format = Format { exponent_bits: 8, mantissa_bits: 7, infinities: true };
pub(super) const F32: Format = Format { exponent_bits: 8, mantissa_bits: 23, infinities: true };
pub(super) const F64: Format = Format { exponent_bits: 11, mantissa_bits: 52, infinities: true };

impl Format {
    /// The exponent of the smallest number.
    fn bottom(&self) -> i32 {
        2 - (1 << (self.exponent_bits - 1)) - self.mantissa_bits as i32
    }

    pub(super) fn decode(&self, bits: u64) -> Exact {
        let Format { exponent_bits, mantissa_bits, infinities } = *self;
        let negative = bits >> (exponent_bits + mantissa_bits) & 1 == 1;
        let exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
        let mantissa = bits & ((1 << mantissa_bits) - 1);
        let is_top = exponent == (1 << exponent_bits) - 1;
        if is_top && infinities {
            return if mantissa == 0 { Infinite { negative } } else { Nan };
        }
        if is_top && mantissa == (1 << mantissa_bits) - 1 {
            return Nan;
        }
        let leading = if exponent == 0 { 0 } else { 1 << mantissa_bits };
        Exact::finite(negative, u128::from(mantissa | leading), self.bottom() + (exponent as i32 - 1).max(0))
    }

    /// To the nearest, of two to the even one.
    pub(super) fn encode(&self, x: Exact) -> u64 {
        let Format { exponent_bits, mantissa_bits, infinities } = *self;
        let sign = |negative: bool| u64::from(negative) << (exponent_bits + mantissa_bits);
        let top = ((1 << exponent_bits) - 1) << mantissa_bits;
        let nan = if infinities { top | 1 << (mantissa_bits - 1) } else { top | ((1 << mantissa_bits) - 1) };
        let (negative, integer, exponent, more) = match x {
            Nan => return nan,
            Infinite { negative } => return if infinities { sign(negative) | top } else { nan },
            Finite { negative, integer, exponent, more } => (negative, integer, exponent, more),
        };
        if integer == 0 {
            return sign(negative);
        }
        // What the last bit counts: the leading one must fit, and nothing is smaller than the smallest number.
        let length = 128 - integer.leading_zeros() as i32;
        let unit = (exponent + length - (mantissa_bits as i32 + 1)).max(self.bottom());
        let down = unit - exponent;
        let rounded = if down <= 0 {
            integer << -down
        } else if down > 127 {
            0
        } else {
            let (kept, dropped, half) = (integer >> down, integer & ((1 << down) - 1), 1 << (down - 1));
            let up = dropped > half || (dropped == half && (more || kept % 2 == 1));
            kept + u128::from(up)
        };
        // One more for each step of the exponent, which the leading one counts once itself. A carry does as well.
        let steps = (unit - self.bottom()) as u64;
        let bits = (steps << mantissa_bits) + rounded as u64;
        let largest = if infinities { top - 1 } else { nan - 1 };
        match bits {
            bits if bits <= largest => sign(negative) | bits,
            _ if infinities => sign(negative) | top,
            _ => nan,
        }
    }

    /// The number of this format that is nearest.
    pub(super) fn rounded(&self, x: Exact) -> Exact {
        self.decode(self.encode(x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{SplitMix64, special_elements};
    use comm_core::tensor::DType;

    /// Bits with exponents close to each other, and special ones: so that sums meet.
    fn draw(rng: &mut SplitMix64, near: u64, special: &[u64]) -> u64 {
        match rng.below(4) {
            0 => special[rng.below(special.len() as u64) as usize],
            1 => rng.next_u64(),
            _ => (rng.next_u64() >> 12) | ((near + rng.below(70)) << 52) | (rng.below(2) << 63),
        }
    }

    #[test]
    fn exact_arithmetic_is_that_of_the_processor() {
        let mut rng = SplitMix64::new(8);
        let special: Vec<u64> = special_elements(DType::F64)
            .iter()
            .map(|bytes| u64::from_le_bytes(bytes.as_slice().try_into().unwrap()))
            .collect();
        let same = |seen: u64, expected: f64, what: &str| {
            let both_nan = expected.is_nan() && f64::from_bits(seen).is_nan();
            assert!(both_nan || seen == expected.to_bits(), "{what}: {seen:#x}, {expected:e}");
        };
        for _ in 0..200_000 {
            let near = [0, 500, 1000, 1900][rng.below(4) as usize];
            let (a, b) = (draw(&mut rng, near, &special), draw(&mut rng, near, &special));
            let (x, y) = (F64.decode(a), F64.decode(b));
            let (p, q) = (f64::from_bits(a), f64::from_bits(b));
            same(F64.encode(x.plus(y)), p + q, &format!("{p:e} + {q:e}"));
            same(F64.encode(x.times(y)), p * q, &format!("{p:e} * {q:e}"));
            let n = 1 + rng.below(9);
            same(F64.encode(x.divided(n)), p / n as f64, &format!("{p:e} / {n}"));
            let narrow = u64::from((p as f32).to_bits());
            assert!(F32.encode(x) == narrow || p.is_nan(), "{p:e}");
            let (s, t) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
            let sum = F32.encode(F32.decode(s.to_bits().into()).plus(F32.decode(t.to_bits().into())));
            assert!(sum == u64::from((s + t).to_bits()) || (s + t).is_nan(), "{s:e} + {t:e}");
            let [least, most] = [x.least(y), x.least_of_negatives(y)].map(|x| f64::from_bits(F64.encode(x)));
            if p.is_nan() || q.is_nan() {
                assert!(least.is_nan() && most.is_nan());
            } else {
                let (low, high) = if p.total_cmp(&q).is_le() { (p, q) } else { (q, p) };
                assert_eq!(
                    (least.to_bits(), most.to_bits()),
                    (low.to_bits(), high.to_bits()),
                    "{p:e}, {q:e}"
                );
            }
        }
    }
}
