use std::ptr::NonNull;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use num_complex::Complex;

use super::shared::SharedBytes;
use super::*;
use crate::device::Device;

/// Bytes that play the part of a mapped segment.
#[derive(Debug)]
pub(super) struct FakeShared {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the bytes are leaked on purpose and used like a mapping, from any thread.
unsafe impl Send for FakeShared {}
// SAFETY: as above.
unsafe impl Sync for FakeShared {}
// SAFETY: leaked bytes stay, initialised, readable and writable.
unsafe impl SharedBytes for FakeShared {
    fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }
    fn len(&self) -> usize {
        self.len
    }
    fn writable(&self) -> bool {
        self.writable
    }
    fn location(&self) -> Option<(u64, u64, u64)> {
        Some((5, 4096, 2))
    }
}

pub(super) fn fake_shared(bytes: &[u8], writable: bool) -> Box<FakeShared> {
    // Words, for blocks are aligned; a `Vec<u8>` need not be.
    let leaked: &'static mut [u128] = vec![0; bytes.len().div_ceil(16)].leak();
    let start = NonNull::from(leaked).cast::<u8>();
    // SAFETY: the words have room for as many bytes, and nobody else has them.
    unsafe { start.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    Box::new(FakeShared { start, len: bytes.len(), writable })
}

fn import(bytes: &[u8], dtype: DType, shape: &[usize]) -> Tensor {
    Tensor::from_import("t", fake_shared(bytes, false), dtype, Layout::contiguous(shape).unwrap()).unwrap()
}

#[test]
fn tensors_can_be_sent_and_shared() {
    fn both<T: Send + Sync>() {}
    both::<Tensor>();
    both::<TensorBuf>();
    both::<Foreign>();
    both::<TensorError>();
}

#[test]
fn every_dtype_goes_in_and_comes_out() {
    fn round<T: Element>(a: T, b: T) {
        let t = Tensor::from_slice(&[2, 2], &[a, b, b, a]).unwrap();
        assert_eq!(t.dtype(), T::DTYPE);
        assert_eq!(t.nbytes(), 4 * T::DTYPE.size());
        assert_eq!(t.as_slice::<T>().unwrap(), [a, b, b, a]);
        assert_eq!(t.transpose(0, 1).unwrap().flip(0).unwrap().to_vec::<T>().unwrap(), [b, a, a, b]);
        let mut buf = t.to_buf().unwrap();
        buf.fill(b).unwrap();
        buf.as_mut_slice::<T>().unwrap()[3] = a;
        assert_eq!(buf.as_slice::<T>().unwrap(), [b, b, b, a]);
        let shown = format!("{:?}", buf.freeze());
        assert!(shown.contains(&format!("dtype: {}", T::DTYPE.name())), "{shown}");
        assert!(shown.contains(&format!("{a:?}")), "{shown}");
        let wrong = if T::DTYPE == DType::U8 { t.as_slice::<i8>().err() } else { t.as_slice::<u8>().err() };
        assert!(matches!(wrong, Some(TensorError::DType { .. })));
    }
    round(false, true);
    round(3u8, 250);
    round(-3i8, 100);
    round(3u16, 60_000);
    round(-3i16, 30_000);
    round(3u32, u32::MAX);
    round(-3i32, i32::MIN);
    round(3u64, u64::MAX);
    round(-3i64, i64::MIN);
    round(f16::from_f32(0.5), f16::from_f32(-2.0));
    round(bf16::from_f32(0.5), bf16::from_f32(-2.0));
    round(0.5f32, -2.25);
    round(0.5f64, -2.25);
    round(F8E4M3::from_f32(0.5), F8E4M3::from_f32(-2.0));
    round(F8E5M2::from_f32(0.5), F8E5M2::from_f32(-2.0));
    round(Complex::new(0.5f32, 1.0), Complex::new(-1.0, 0.0));
    round(Complex::new(0.5f64, 1.0), Complex::new(-1.0, 0.0));
}

#[test]
fn scalars_and_empty_tensors_are_ordinary() {
    let scalar = Tensor::from_slice(&[], &[7i64]).unwrap();
    assert_eq!((scalar.numel(), scalar.nbytes()), (1, 8));
    assert_eq!(scalar.as_slice::<i64>().unwrap(), [7]);
    assert_eq!(scalar.expand(&[3]).unwrap().to_vec::<i64>().unwrap(), [7; 3]);
    assert!(Tensor::concat(&[scalar], 0).is_err());

    let empty = Tensor::from_slice::<f64>(&[2, 0, 3], &[]).unwrap();
    assert!(empty.as_slice::<f64>().unwrap().is_empty());
    assert!(empty.to_vec::<f64>().unwrap().is_empty());
    assert!(empty.bytes().unwrap().is_empty());
    empty.copy_bytes_to(&mut []).unwrap();
    assert!(empty.bytes_equal(&empty.flip(0).unwrap()).unwrap());
    assert_eq!(empty.transpose(0, 1).unwrap().contiguous().unwrap().shape(), &[0, 2, 3]);
    let mut buf = empty.try_into_buf().unwrap();
    assert!(buf.as_mut_slice::<f64>().unwrap().is_empty());
    buf.fill(1.0).unwrap();
    buf.copy_from(&Tensor::from_slice::<f64>(&[2, 0, 3], &[]).unwrap()).unwrap();
}

#[test]
fn heap_memory_is_aligned_and_zero() {
    for n in [1, 3, 1000] {
        let buf = TensorBuf::zeros(&[n], DType::F64).unwrap();
        assert_eq!(buf.as_ptr().addr() % 64, 0);
        assert!(buf.bytes().unwrap().iter().all(|&b| b == 0));
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri really allocates")]
fn sizes_that_do_not_fit_are_errors() {
    assert!(matches!(TensorBuf::zeros(&[1 << 61], DType::F64), Err(TensorError::Overflow { .. })));
    assert!(matches!(TensorBuf::zeros(&[usize::MAX], DType::U8), Err(TensorError::Overflow { .. })));
    assert!(matches!(TensorBuf::zeros(&[1 << 60], DType::U8), Err(TensorError::OutOfMemory { .. })));
    // An expansion occupies nothing, but its dense size must still be a number.
    let one = Tensor::from_slice(&[1], &[1.0f64]).unwrap();
    assert!(matches!(one.expand(&[1 << 60]), Err(TensorError::Overflow { .. })));
    let wide = one.expand(&[1 << 59]).unwrap();
    assert!(matches!(wide.to_vec::<f64>(), Err(TensorError::OutOfMemory { .. })));
    assert!(matches!(wide.contiguous(), Err(TensorError::OutOfMemory { .. })));
    assert!(Tensor::concat(&[wide.clone(), wide], 0).is_err());
}

#[test]
#[cfg_attr(miri, ignore = "Miri really allocates")]
fn offsets_past_2_to_31_reach_the_right_bytes() {
    // Zeroed pages are not touched before they are written, so this takes a few pages and no more.
    let n = (1usize << 31) + 5;
    let mut buf = TensorBuf::zeros(&[n], DType::U16).unwrap();
    let last = buf.bytes_mut().unwrap();
    assert_eq!(last.len(), 2 * n);
    last[2 * n - 2] = 7;
    let t = buf.freeze();
    assert_eq!(t.narrow(0, n - 2, 2).unwrap().to_vec::<u16>().unwrap(), [0, u16::from_ne_bytes([7, 0])]);
    assert_eq!(t.flip(0).unwrap().narrow(0, 0, 1).unwrap().bytes().unwrap(), [7, 0]);
    assert_eq!(t.step(0, n - 1).unwrap().to_vec::<u16>().unwrap(), [0, u16::from_ne_bytes([7, 0])]);
}

#[test]
fn bools_are_checked_wherever_bytes_become_bools() {
    let mut buf = TensorBuf::zeros(&[2, 2], DType::Bool).unwrap();
    buf.bytes_mut().unwrap()[2] = 2;
    let bad = TensorError::InvalidBool { op: "as_slice", index: 2, value: 2 };
    assert_eq!(buf.as_slice::<bool>().unwrap_err(), bad);
    assert!(buf.as_mut_slice::<bool>().is_err());
    let t = buf.freeze();
    assert_eq!(t.as_slice::<bool>().unwrap_err(), bad);
    assert!(matches!(
        t.transpose(0, 1).unwrap().to_vec::<bool>(),
        Err(TensorError::InvalidBool { index: 1, value: 2, .. })
    ));
    assert_eq!(t.select(0, 0).unwrap().as_slice::<bool>().unwrap(), [false, false]);
    assert!(format!("{t:?}").contains("0x02"));
    let mut buf = t.try_into_buf().unwrap();
    buf.fill(true).unwrap();
    assert_eq!(buf.as_slice::<bool>().unwrap(), [true; 4]);
}

#[test]
fn views_share_memory_and_copies_do_not() {
    let t = Tensor::from_slice(&[2, 3], &[1, 2, 3, 4, 5, 6]).unwrap();
    let row = t.select(0, 1).unwrap();
    assert!(row.shares_storage(&t));
    assert!(row.contiguous().unwrap().shares_storage(&t), "contiguous already");
    assert_eq!(row.as_slice::<i32>().unwrap().as_ptr(), &t.as_slice::<i32>().unwrap()[3]);
    let columns = t.transpose(0, 1).unwrap();
    assert!(!columns.contiguous().unwrap().shares_storage(&t));
    assert!(matches!(columns.bytes(), Err(TensorError::NotContiguous { .. })));
    assert!(t.with_layout(Layout::new(&[2], &[1], 5).unwrap()).is_err());
    assert!(t.with_layout(Layout::new(&[0], &[1], 7).unwrap()).is_err());
}

#[test]
fn a_buffer_comes_back_only_to_its_last_holder() {
    let t = Tensor::from_slice(&[4], &[1, 2, 3, 4]).unwrap();
    let view = t.narrow(0, 1, 2).unwrap();
    let t = t.try_into_buf().unwrap_err();
    assert!(t.shares_storage(&view));
    drop(t);
    let mut buf = view.try_into_buf().unwrap();
    buf.as_mut_slice::<i32>().unwrap().fill(9);
    assert_eq!(buf.freeze().as_slice::<i32>().unwrap(), [9, 9]);
    let strided = Tensor::from_slice(&[4], &[1, 2, 3, 4]).unwrap().step(0, 2).unwrap();
    let strided = strided.try_into_buf().unwrap_err();
    assert_eq!(strided.to_vec::<i32>().unwrap(), [1, 3]);
}

#[test]
fn regions_are_written_in_place() {
    let src = Tensor::from_slice(&[3, 2], &[1u8, 2, 3, 4, 5, 6]).unwrap().transpose(0, 1).unwrap();
    let mut buf = TensorBuf::zeros(&[3, 4], DType::U8).unwrap();
    buf.write_at(&[1, 1], &src).unwrap();
    assert_eq!(buf.as_slice::<u8>().unwrap(), [0, 0, 0, 0, 0, 1, 3, 5, 0, 2, 4, 6]);
    assert!(matches!(buf.write_at(&[2, 1], &src), Err(TensorError::OutOfBounds { dim: 0, .. })));
    assert!(matches!(buf.write_at(&[0], &src), Err(TensorError::Length { .. })));
    assert!(matches!(buf.copy_from(&src), Err(TensorError::Shape { .. })));
    let other = Tensor::from_slice(&[2, 3], &[0i8; 6]).unwrap();
    assert!(matches!(buf.write_at(&[0, 0], &other), Err(TensorError::DType { .. })));
    assert!(matches!(src.copy_bytes_to(&mut [0; 5]), Err(TensorError::Length { seen: 5, expected: 6, .. })));
}

#[test]
fn concat_says_who_does_not_fit() {
    let a = Tensor::from_slice(&[2, 2], &[1, 2, 3, 4]).unwrap();
    let b = Tensor::from_slice(&[1, 3], &[1, 2, 3]).unwrap();
    let c = Tensor::from_slice(&[2, 2], &[1u8, 2, 3, 4]).unwrap();
    assert!(matches!(Tensor::concat(&[], 0), Err(TensorError::Invalid { .. })));
    assert!(matches!(Tensor::concat(std::slice::from_ref(&a), 2), Err(TensorError::NoSuchDim { .. })));
    assert!(matches!(Tensor::concat(&[a.clone(), b], 0), Err(TensorError::Shape { .. })));
    assert!(matches!(Tensor::concat(&[a.clone(), c], 0), Err(TensorError::DType { .. })));
    let empty = a.narrow(0, 0, 0).unwrap();
    let whole = Tensor::concat(&[empty.clone(), a.flip(0).unwrap(), empty], 0).unwrap();
    assert_eq!(whole.as_slice::<i32>().unwrap(), [3, 4, 1, 2]);
}

#[test]
fn imports_are_only_copied() {
    let bytes: Vec<u8> = (0..24).collect();
    let t = import(&bytes, DType::U16, &[3, 4]);
    assert!(!t.is_ours());
    assert_eq!(t.block(), None);
    assert!(matches!(t.bytes(), Err(TensorError::NotOurs { .. })));
    assert!(matches!(t.as_slice::<u16>(), Err(TensorError::NotOurs { .. })));
    let t = t.try_into_buf().unwrap_err();
    let ours = t.to_buf().unwrap().freeze();
    assert_eq!(ours.bytes().unwrap(), bytes);
    assert!(t.bytes_equal(&ours).unwrap() && ours.bytes_equal(&t).unwrap());
    for view in [|t: &Tensor| t.transpose(0, 1).unwrap(), |t: &Tensor| t.step(1, 3).unwrap().flip(0).unwrap()]
    {
        assert_eq!(view(&t).to_vec::<u16>().unwrap(), view(&ours).to_vec::<u16>().unwrap());
        assert!(view(&t).bytes_equal(&view(&ours)).unwrap());
        assert!(view(&t).contiguous().unwrap().is_ours());
    }
    assert!(!t.flip(0).unwrap().bytes_equal(&ours).unwrap());
    assert!(format!("{t:?}").contains("values"));
    let flags = import(&[0, 1, 3], DType::Bool, &[3]);
    assert!(matches!(flags.to_vec::<bool>(), Err(TensorError::InvalidBool { index: 2, .. })));
    let layout = Layout::contiguous(&[13]).unwrap();
    let small = Tensor::from_import("t", fake_shared(&bytes, false), DType::U16, layout);
    assert!(matches!(small, Err(TensorError::OutsideStorage { needs: 26, has: 24, .. })));
}

#[test]
fn own_blocks_are_ours_and_say_where_they_are() {
    let mut buf = TensorBuf::from_shared("t", fake_shared(&[1; 16], true), &[8], DType::U16).unwrap();
    assert_eq!(buf.as_slice::<u16>().unwrap(), [0x0101; 8]);
    buf.fill(5u16).unwrap();
    assert_eq!(buf.block(), Some((5, 4096, 2)));
    let t = buf.freeze();
    assert_eq!(t.narrow(0, 3, 2).unwrap().block(), Some((5, 4102, 2)));
    assert_eq!(t.as_slice::<u16>().unwrap(), [5; 8]);
    assert!(t.try_into_buf().is_ok());
    let sealed = fake_shared(&[1; 16], false);
    assert!(TensorBuf::from_shared("t", sealed, &[8], DType::U16).is_err());
}

#[test]
fn foreign_memory_is_read_only_unless_it_is_exclusive() {
    let bytes: &'static mut [u8] = vec![1, 2, 3, 4, 5].leak();
    let start = NonNull::from(&mut *bytes).cast::<u8>();
    // SAFETY: leaked bytes, written by nobody.
    let foreign = |device| unsafe { Foreign::read_only(start, 5, device, || ()) };
    let buf = TensorBuf::from_foreign(foreign(Device::Cpu), &[5], DType::U8);
    assert!(matches!(buf, Err(TensorError::Invalid { .. })));
    let two = Layout::contiguous(&[2]).unwrap();
    let t = Tensor::from_foreign(foreign(Device::Cpu), DType::U8, two).unwrap();
    assert_eq!(t.as_slice::<u8>().unwrap(), [1, 2]);
    assert!(t.try_into_buf().is_err());

    // SAFETY: as above; an address one further on is still inside.
    let (odd, even) = unsafe { (start.add(1), start) };
    let skewed = if odd.addr().get() % 2 == 1 { odd } else { even };
    // SAFETY: as above.
    let foreign = unsafe { Foreign::read_only(skewed, 4, Device::Cpu, || ()) };
    let t = Tensor::from_foreign(foreign, DType::U16, two).unwrap();
    assert!(matches!(t.as_slice::<u16>(), Err(TensorError::Misaligned { align: 2, .. })));
    assert_eq!(t.to_vec::<u16>().unwrap().len(), 2);
}

#[test]
fn memory_of_a_device_is_not_touched_by_the_host() {
    let dangling = NonNull::<u64>::dangling().cast();
    // SAFETY: the host does not use the address, as this test shows.
    let memory = unsafe { Foreign::exclusive(dangling, 8, Device::Sim(3), || ()) };
    let mut buf = TensorBuf::from_foreign(memory, &[1], DType::U64).unwrap();
    let seen = |e: TensorError| matches!(e, TensorError::Device { seen: Device::Sim(3), .. });
    assert!(buf.bytes().is_err_and(seen));
    assert!(buf.bytes_mut().is_err_and(seen));
    assert!(buf.as_mut_slice::<u64>().is_err_and(seen));
    assert!(buf.fill(1u64).is_err_and(seen));
    assert!(buf.copy_from(&Tensor::from_slice(&[1], &[1u64]).unwrap()).is_err_and(seen));
    let t = buf.freeze();
    assert!(t.as_slice::<u64>().is_err_and(seen));
    assert!(t.to_vec::<u64>().is_err_and(seen));
    assert!(t.to_buf().is_err_and(seen));
    assert!(t.bytes_equal(&t).is_err_and(seen));
    assert!(Tensor::concat(std::slice::from_ref(&t), 0).is_err_and(seen));
    assert_eq!(format!("{t:?}"), "Tensor { dtype: u64, shape: [1], strides: [1], device: sim:3, .. }");
}

#[test]
fn debug_shows_a_few_values() {
    let t = Tensor::from_slice(&[2, 2], &[1u8, 2, 3, 4]).unwrap().transpose(0, 1).unwrap();
    assert_eq!(
        format!("{t:?}"),
        "Tensor { dtype: u8, shape: [2, 2], strides: [1, 2], values: [1, 3, 2, 4] }"
    );
    let long = format!("{:?}", TensorBuf::zeros(&[1 << 20], DType::U8).unwrap());
    assert!(long.contains("[0, 0, 0, 0, 0, 0, 0, 0], .."), "{long}");
}
