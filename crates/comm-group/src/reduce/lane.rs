//! Lanes: how elements are read into accumulators, and written back.

use std::marker::PhantomData;

use super::small;

/// How the elements of a dtype go into accumulators and out of them.
pub(super) trait Lane: Send + 'static {
    /// The bytes of an element.
    type Bytes: Copy;
    /// What its values are combined in.
    type Acc: Copy + Send + 'static;

    /// The whole elements that these bytes are.
    fn elements(bytes: &[u8]) -> &[Self::Bytes];
    /// The same, to be written.
    fn elements_mut(bytes: &mut [u8]) -> &mut [Self::Bytes];
    /// The value of an element.
    fn load(bytes: Self::Bytes) -> Self::Acc;
    /// The element nearest to a value; of NaNs there is one.
    fn store(acc: Self::Acc) -> Self::Bytes;
}

/// Integers of which the sum may be larger than they are.
pub(super) struct Wide<T>(PhantomData<T>);

/// A pair of floats, the real part first.
pub(super) struct Pair<T>(PhantomData<T>);

/// A byte that is true or false.
pub(super) struct Truth;

/// The small floats; they are combined as f32.
pub(super) struct F16;
pub(super) struct BF16;
pub(super) struct F8E4M3;
pub(super) struct F8E5M2;

macro_rules! lane {
    ($lane:ty: $size:literal bytes in $acc:ty, |$bytes:ident| $load:expr, |$value:ident| $store:expr) => {
        impl Lane for $lane {
            type Bytes = [u8; $size];
            type Acc = $acc;

            fn elements(bytes: &[u8]) -> &[Self::Bytes] {
                bytes.as_chunks().0
            }

            fn elements_mut(bytes: &mut [u8]) -> &mut [Self::Bytes] {
                bytes.as_chunks_mut().0
            }

            #[inline]
            fn load($bytes: Self::Bytes) -> $acc {
                $load
            }

            #[inline]
            fn store($value: $acc) -> Self::Bytes {
                $store
            }
        }
    };
}

macro_rules! integers {
    ($($t:ty, $size:literal, $wide:ty;)*) => {$(
        lane!($t: $size bytes in $t, |bytes| <$t>::from_ne_bytes(bytes), |value| value.to_ne_bytes());
        // What is divided by the number of ranks is no larger than they are again.
        lane!(Wide<$t>: $size bytes in $wide, |bytes| <$t>::from_ne_bytes(bytes).into(), |value| (value as $t).to_ne_bytes());
    )*};
}

integers! {
    u8, 1, u64;
    i8, 1, i64;
    u16, 2, u64;
    i16, 2, i64;
    u32, 4, u64;
    i32, 4, i64;
    u64, 8, u128;
    i64, 8, i128;
}

lane!(f32: 4 bytes in f32, |bytes| f32::from_ne_bytes(bytes), |value| {
    (if value.is_nan() { f32::NAN } else { value }).to_ne_bytes()
});
lane!(f64: 8 bytes in f64, |bytes| f64::from_ne_bytes(bytes), |value| {
    (if value.is_nan() { f64::NAN } else { value }).to_ne_bytes()
});

lane!(F16: 2 bytes in f32, |bytes| small::widen::<5, 10, true>(u16::from_ne_bytes(bytes).into()), |value| {
    (small::round::<5, 10, true>(value) as u16).to_ne_bytes()
});
lane!(BF16: 2 bytes in f32, |bytes| small::widen::<8, 7, true>(u16::from_ne_bytes(bytes).into()), |value| {
    (small::round::<8, 7, true>(value) as u16).to_ne_bytes()
});
lane!(F8E4M3: 1 bytes in f32, |bytes| small::widen::<4, 3, false>(u8::from_ne_bytes(bytes).into()), |value| {
    (small::round::<4, 3, false>(value) as u8).to_ne_bytes()
});
lane!(F8E5M2: 1 bytes in f32, |bytes| small::widen::<5, 2, true>(u8::from_ne_bytes(bytes).into()), |value| {
    (small::round::<5, 2, true>(value) as u8).to_ne_bytes()
});

// A peer may have written another byte than 0 or 1; what comes out is a bool all the same.
lane!(Truth: 1 bytes in bool, |bytes| bytes != [0], |value| [u8::from(value)]);

impl<T: Lane> Lane for Pair<T> {
    type Bytes = [T::Bytes; 2];
    type Acc = [T::Acc; 2];

    fn elements(bytes: &[u8]) -> &[Self::Bytes] {
        T::elements(bytes).as_chunks().0
    }

    fn elements_mut(bytes: &mut [u8]) -> &mut [Self::Bytes] {
        T::elements_mut(bytes).as_chunks_mut().0
    }

    #[inline]
    fn load(bytes: Self::Bytes) -> Self::Acc {
        bytes.map(T::load)
    }

    #[inline]
    fn store(acc: Self::Acc) -> Self::Bytes {
        acc.map(T::store)
    }
}
