//! What an operator does to accumulators: one value after the other, in the order in which they come.

use std::ops::{BitAnd, BitOr, BitXor};

use super::lane::Lane;

/// An operator over accumulators.
pub(super) trait Fold<A>: Copy + Send + 'static {
    /// What the first value leaves.
    fn first(self, value: A) -> A {
        value
    }

    /// What another value makes of it.
    fn next(self, acc: A, value: A) -> A;

    /// What comes out when all have been there.
    fn last(self, acc: A) -> A {
        acc
    }
}

/// A reduction of blocks. Which lane and operator is inside, is asked once for each call.
pub(super) trait Blocks: Send {
    /// The bytes of an accumulator.
    fn acc_bytes(&self) -> usize;
    /// The elements of the first rank.
    fn first(&mut self, elements: &[u8]);
    /// As many elements of the next rank.
    fn next(&mut self, elements: &[u8]);
    /// Writes what has come of them.
    fn last(&mut self, out: &mut [u8]);
}

/// Accumulators of a block; they stay allocated from one block to the next.
pub(super) struct Accumulators<L: Lane, F> {
    fold: F,
    values: Vec<L::Acc>,
}

impl<L: Lane, F: Fold<L::Acc>> Accumulators<L, F> {
    pub(super) fn boxed(fold: F) -> Box<dyn Blocks> {
        Box::new(Accumulators::<L, F> { fold, values: Vec::new() })
    }
}

impl<L: Lane, F: Fold<L::Acc>> Blocks for Accumulators<L, F> {
    fn acc_bytes(&self) -> usize {
        size_of::<L::Acc>()
    }

    fn first(&mut self, elements: &[u8]) {
        let fold = self.fold;
        self.values.clear();
        self.values.extend(L::elements(elements).iter().map(|&element| fold.first(L::load(element))));
    }

    fn next(&mut self, elements: &[u8]) {
        let fold = self.fold;
        for (acc, &element) in self.values.iter_mut().zip(L::elements(elements)) {
            *acc = fold.next(*acc, L::load(element));
        }
    }

    fn last(&mut self, out: &mut [u8]) {
        let fold = self.fold;
        for (&acc, out) in self.values.iter().zip(L::elements_mut(out)) {
            *out = L::store(fold.last(acc));
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Sum;
#[derive(Clone, Copy)]
pub(super) struct Prod;
#[derive(Clone, Copy)]
pub(super) struct Min;
#[derive(Clone, Copy)]
pub(super) struct Max;
#[derive(Clone, Copy)]
pub(super) struct And;
#[derive(Clone, Copy)]
pub(super) struct Or;
#[derive(Clone, Copy)]
pub(super) struct Xor;

/// A sum, divided by this in the end.
#[derive(Clone, Copy)]
pub(super) struct Avg<A>(pub(super) A);

/// A sum of products with this.
#[derive(Clone, Copy)]
pub(super) struct Premul<A>(pub(super) A);

impl<A: BitAnd<Output = A>> Fold<A> for And {
    fn next(self, acc: A, value: A) -> A {
        acc & value
    }
}

impl<A: BitOr<Output = A>> Fold<A> for Or {
    fn next(self, acc: A, value: A) -> A {
        acc | value
    }
}

impl<A: BitXor<Output = A>> Fold<A> for Xor {
    fn next(self, acc: A, value: A) -> A {
        acc ^ value
    }
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Fold<$t> for Sum {
            fn next(self, acc: $t, value: $t) -> $t {
                acc.wrapping_add(value)
            }
        }

        impl Fold<$t> for Prod {
            fn next(self, acc: $t, value: $t) -> $t {
                acc.wrapping_mul(value)
            }
        }

        impl Fold<$t> for Min {
            fn next(self, acc: $t, value: $t) -> $t {
                acc.min(value)
            }
        }

        impl Fold<$t> for Max {
            fn next(self, acc: $t, value: $t) -> $t {
                acc.max(value)
            }
        }
    )*};
}
integers!(u8, i8, u16, i16, u32, i32, u64, i64);

macro_rules! averages {
    ($($t:ty),*) => {$(
        impl Fold<$t> for Avg<$t> {
            fn next(self, acc: $t, value: $t) -> $t {
                acc.wrapping_add(value)
            }

            fn last(self, acc: $t) -> $t {
                // Toward zero. There is a rank at least.
                acc.checked_div(self.0).unwrap_or(acc)
            }
        }
    )*};
}
averages!(u64, i64, u128, i128);

macro_rules! floats {
    ($($t:ty, $integer:ty;)*) => {$(
        impl Fold<$t> for Sum {
            fn next(self, acc: $t, value: $t) -> $t {
                acc + value
            }
        }

        impl Fold<$t> for Prod {
            fn next(self, acc: $t, value: $t) -> $t {
                acc * value
            }
        }

        impl Fold<$t> for Min {
            fn next(self, acc: $t, value: $t) -> $t {
                let least = if key(value) < key(acc) { value } else { acc };
                if acc.is_nan() | value.is_nan() { <$t>::NAN } else { least }
            }
        }

        impl Fold<$t> for Max {
            fn next(self, acc: $t, value: $t) -> $t {
                let most = if key(value) > key(acc) { value } else { acc };
                if acc.is_nan() | value.is_nan() { <$t>::NAN } else { most }
            }
        }

        impl Fold<$t> for Avg<$t> {
            fn next(self, acc: $t, value: $t) -> $t {
                acc + value
            }

            fn last(self, acc: $t) -> $t {
                acc / self.0
            }
        }

        impl Fold<$t> for Premul<$t> {
            fn first(self, value: $t) -> $t {
                value * self.0
            }

            fn next(self, acc: $t, value: $t) -> $t {
                // Two roundings: Rust never contracts them to one.
                acc + value * self.0
            }
        }

        impl Ordered for $t {
            type Key = $integer;

            fn key(self) -> $integer {
                let bits = self.to_bits() as $integer;
                // Larger magnitudes of negative numbers are less.
                bits ^ ((bits >> (<$integer>::BITS - 1)) & <$integer>::MAX)
            }
        }

        /// Complex numbers.
        impl Fold<[$t; 2]> for Prod {
            fn next(self, [a, b]: [$t; 2], [c, d]: [$t; 2]) -> [$t; 2] {
                [a * c - b * d, a * d + b * c]
            }
        }
    )*};
}
floats! {
    f32, i32;
    f64, i64;
}

/// Floats as integers of the same order, in which -0.0 is less than 0.0.
trait Ordered: Copy {
    type Key: Ord;
    fn key(self) -> Self::Key;
}

#[inline]
fn key<T: Ordered>(x: T) -> T::Key {
    x.key()
}
