use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use num_complex::Complex;

use super::*;
use crate::tensor::Element;
use crate::tensor::tests::fake_shared;

/// A header as another library would make it. It counts how often it is given back, and is freed with the test.
struct Theirs {
    elements: Vec<f32>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    returned: Arc<AtomicUsize>,
}

impl Theirs {
    fn new(shape: &[i64], strides: &[i64]) -> Theirs {
        let elements = (0..24u8).map(f32::from).collect();
        Theirs { elements, shape: shape.to_vec(), strides: strides.to_vec(), returned: Arc::default() }
    }

    fn tensor(&mut self) -> DLTensor {
        DLTensor {
            data: self.elements.as_mut_ptr().cast(),
            device: DLDevice { device_type: CPU, device_id: 0 },
            ndim: self.shape.len() as i32,
            dtype: data_type(DType::F32),
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: 0,
        }
    }

    fn count(&self) -> *mut c_void {
        Arc::into_raw(self.returned.clone()).cast_mut().cast()
    }

    fn versioned(
        &mut self,
        change: impl FnOnce(&mut DLManagedTensorVersioned),
    ) -> *mut DLManagedTensorVersioned {
        unsafe extern "C" fn delete(raw: *mut DLManagedTensorVersioned) {
            // SAFETY: made below, and given back once.
            let all = unsafe { Box::from_raw(raw) };
            // SAFETY: the count that `versioned` put there.
            let count = unsafe { Arc::from_raw(all.manager_ctx.cast::<AtomicUsize>()) };
            count.fetch_add(1, Ordering::SeqCst);
        }
        let (dl_tensor, manager_ctx) = (self.tensor(), self.count());
        let mut all = DLManagedTensorVersioned {
            version: VERSION,
            manager_ctx,
            deleter: Some(delete),
            flags: 0,
            dl_tensor,
        };
        change(&mut all);
        Box::into_raw(Box::new(all))
    }

    fn unversioned(&mut self) -> *mut DLManagedTensor {
        unsafe extern "C" fn delete(raw: *mut DLManagedTensor) {
            // SAFETY: as above.
            let all = unsafe { Box::from_raw(raw) };
            // SAFETY: as above.
            let count = unsafe { Arc::from_raw(all.manager_ctx.cast::<AtomicUsize>()) };
            count.fetch_add(1, Ordering::SeqCst);
        }
        let (dl_tensor, manager_ctx) = (self.tensor(), self.count());
        Box::into_raw(Box::new(DLManagedTensor { dl_tensor, manager_ctx, deleter: Some(delete) }))
    }

    fn returned(&self) -> usize {
        self.returned.load(Ordering::SeqCst)
    }
}

/// Makes a tensor and a buffer of a header that both refuse, each with the same error, and shows that the header is
/// still the caller's.
fn refused(theirs: &mut Theirs, change: impl Fn(&mut DLManagedTensorVersioned)) -> Error {
    for_both(theirs, change, true)
}

fn for_both(theirs: &mut Theirs, change: impl Fn(&mut DLManagedTensorVersioned), tensors: bool) -> Error {
    let before = theirs.returned();
    let raw = theirs.versioned(change);
    // SAFETY: the header is this test's, whatever it says; the elements are only reached if it is not refused.
    let (tensor, buf) =
        unsafe { (if tensors { Some(Tensor::from_dlpack(raw)) } else { None }, TensorBuf::from_dlpack(raw)) };
    assert_eq!(theirs.returned(), before, "refused, so the caller's still");
    // SAFETY: as above.
    drop(unsafe { DlPack::from_raw(raw) });
    assert_eq!(theirs.returned(), before + 1);
    let error = buf.unwrap_err();
    if let Some(tensor) = tensor {
        let text = tensor.unwrap_err().to_string();
        assert_eq!(text.replace("Tensor::", "TensorBuf::"), error.to_string());
    }
    error
}

/// Back from where it went, of our own making.
fn back(pack: DlPack) -> Tensor {
    // SAFETY: our own structure, which goes nowhere else.
    unsafe { Tensor::from_dlpack(pack.into_raw()) }.unwrap()
}

#[test]
fn every_dtype_goes_out_and_comes_back_in_place() {
    fn round<T: Element>(a: T, b: T, code: u8) {
        let t = Tensor::from_slice(&[2, 3], &[a, b, b, a, a, b]).unwrap();
        let views = [t.clone(), t.transpose(0, 1).unwrap(), t.flip(1).unwrap(), t.step(1, 2).unwrap()];
        for view in views.iter().chain(&[t.select(0, 1).unwrap().expand(&[4, 3]).unwrap()]) {
            let pack = view.to_dlpack().unwrap();
            // SAFETY: `pack` keeps the structure.
            let header = unsafe { &*pack.as_raw() };
            assert_eq!((header.version, header.flags), (VERSION, READ_ONLY));
            let DLTensor { data, device, ndim, dtype, shape, strides, byte_offset } = header.dl_tensor;
            assert_eq!(data.cast_const().cast(), view.as_ptr());
            assert_eq!((device, byte_offset), (DLDevice { device_type: CPU, device_id: 0 }, 0));
            assert_eq!(dtype, DLDataType { code, bits: 8 * size_of::<T>() as u8, lanes: 1 });
            assert_eq!(ndim, 2);
            // SAFETY: as above; there are `ndim` of both.
            let numbers = |p: *mut i64| unsafe { std::slice::from_raw_parts(p, 2) };
            assert!(numbers(shape).iter().zip(view.shape()).all(|(&a, &b)| a == b as i64));
            assert!(numbers(strides).iter().zip(view.strides()).all(|(&a, &b)| a == b as i64));

            let back = back(pack);
            assert_eq!(back.as_ptr(), view.as_ptr());
            assert_eq!((back.shape(), back.strides()), (view.shape(), view.strides()));
            assert!(back.bytes_equal(view).unwrap());
        }
    }
    round(false, true, 6);
    round(3u8, 250, 1);
    round(-3i8, 100, 0);
    round(3u16, 60_000, 1);
    round(-3i16, 30_000, 0);
    round(3u32, u32::MAX, 1);
    round(-3i32, i32::MIN, 0);
    round(3u64, u64::MAX, 1);
    round(-3i64, i64::MIN, 0);
    round(f16::from_f32(0.5), f16::from_f32(-2.0), 2);
    round(bf16::from_f32(0.5), bf16::from_f32(-2.0), 4);
    round(0.5f32, -2.25, 2);
    round(0.5f64, -2.25, 2);
    round(F8E4M3::from_f32(0.5), F8E4M3::from_f32(-2.0), 10);
    round(F8E5M2::from_f32(0.5), F8E5M2::from_f32(-2.0), 12);
    round(Complex::new(0.5f32, 1.0), Complex::new(-1.0, 0.0), 5);
    round(Complex::new(0.5f64, 1.0), Complex::new(-1.0, 0.0), 5);
}

#[test]
fn dtypes_have_different_names_and_their_types_alignment() {
    for (i, &a) in DType::ALL.iter().enumerate() {
        assert!(DType::ALL[..i].iter().all(|&b| data_type(a) != data_type(b)), "{a}");
    }
    assert_eq!(align(DType::Complex64), align_of::<Complex<f32>>());
    assert_eq!(align(DType::Complex128), align_of::<Complex<f64>>());
    assert_eq!((align(DType::F64), align(DType::BF16)), (align_of::<f64>(), align_of::<bf16>()));
}

#[test]
fn scalars_and_empty_tensors_go_both_ways() {
    let scalar = Tensor::from_slice(&[], &[7i64]).unwrap();
    let there = back(scalar.to_dlpack().unwrap());
    assert_eq!((there.shape(), there.as_ptr()), (&[][..], scalar.as_ptr()));
    assert_eq!(there.as_slice::<i64>().unwrap(), [7]);

    let empty = Tensor::from_slice::<f64>(&[2, 0, 3], &[]).unwrap().transpose(0, 2).unwrap();
    let pack = empty.to_dlpack().unwrap();
    // SAFETY: `pack` keeps the structure.
    assert!(unsafe { (*pack.as_raw()).dl_tensor.data }.is_null());
    let there = back(pack);
    assert_eq!((there.shape(), there.strides()), (empty.shape(), empty.strides()));
    assert!(there.as_slice::<f64>().unwrap().is_empty());

    let buf = TensorBuf::zeros(&[0, 4], DType::U16).unwrap().try_into_dlpack().unwrap();
    // SAFETY: our own structure, which goes nowhere else.
    let mut buf = unsafe { TensorBuf::from_dlpack(buf.into_raw()) }.unwrap();
    assert!(buf.as_mut_slice::<u16>().unwrap().is_empty());

    // Without dimensions there need not be any sizes.
    let mut theirs = Theirs::new(&[], &[]);
    let raw = theirs.versioned(|m| {
        m.dl_tensor.shape = ptr::null_mut();
        m.dl_tensor.strides = ptr::null_mut();
    });
    // SAFETY: the elements are this test's.
    let t = unsafe { Tensor::from_dlpack(raw) }.unwrap();
    assert_eq!(t.to_vec::<f32>().unwrap(), [0.0]);
}

#[test]
fn memory_is_kept_until_the_last_one_lets_go() {
    let (returned, bytes) = (Arc::new(AtomicUsize::new(0)), vec![1u8, 2, 3, 4].leak());
    let count = returned.clone();
    // SAFETY: leaked bytes, used by nobody else.
    let memory = unsafe {
        Foreign::exclusive(NonNull::from(&mut *bytes).cast(), 4, Device::Cpu, move || {
            count.fetch_add(1, Ordering::SeqCst);
        })
    };
    let ours = TensorBuf::from_foreign(memory, &[4], DType::U8).unwrap().freeze();
    let pack = ours.to_dlpack().unwrap();
    let theirs = back(ours.to_dlpack().unwrap());
    let view = theirs.narrow(0, 1, 2).unwrap();
    drop((ours, theirs));
    let view = view.try_into_buf().unwrap_err(); // read-only
    std::thread::spawn(move || drop(pack)).join().unwrap();
    assert_eq!(returned.load(Ordering::SeqCst), 0);
    assert_eq!(view.as_slice::<u8>().unwrap(), [2, 3]);
    std::thread::spawn(move || drop(view)).join().unwrap();
    assert_eq!(returned.load(Ordering::SeqCst), 1);
}

#[test]
fn a_deleter_runs_once_and_on_any_thread() {
    let mut theirs = Theirs::new(&[4, 6], &[6, 1]);
    // SAFETY: the elements are this test's, and nobody writes them.
    let t = unsafe { Tensor::from_dlpack(theirs.versioned(|_| ())) }.unwrap();
    assert_eq!(t.as_ptr(), theirs.elements.as_ptr().cast());
    let other = t.clone();
    std::thread::spawn(move || drop(other)).join().unwrap();
    assert_eq!(theirs.returned(), 0);
    std::thread::spawn(move || drop(t)).join().unwrap();
    assert_eq!(theirs.returned(), 1);

    // SAFETY: as above.
    let t = unsafe { Tensor::from_dlpack_unversioned(theirs.unversioned()) }.unwrap();
    assert_eq!(t.as_ptr(), theirs.elements.as_ptr().cast());
    assert!(t.try_into_buf().is_err(), "read-only; and dropped");
    assert_eq!(theirs.returned(), 2);

    // SAFETY: as above; nobody reads them meanwhile, either.
    let mut buf = unsafe { TensorBuf::from_dlpack_unversioned(theirs.unversioned()) }.unwrap();
    buf.as_mut_slice::<f32>().unwrap()[23] = -1.0;
    drop(buf);
    assert_eq!((theirs.returned(), theirs.elements[23]), (3, -1.0));

    // Who needs nothing back has no deleter.
    let raw = theirs.versioned(|m| m.deleter = None);
    // SAFETY: as above.
    drop(unsafe { Tensor::from_dlpack(raw) }.unwrap());
    assert_eq!(theirs.returned(), 3);
    // SAFETY: nobody else frees it or its count.
    drop(unsafe { (Arc::from_raw((*raw).manager_ctx.cast::<AtomicUsize>()), Box::from_raw(raw)) });
}

#[test]
fn strides_offsets_and_their_absence_mean_what_they_say() {
    let mut theirs = Theirs::new(&[2, 3], &[0, 0]);
    let mut seen = |strides: Option<[i64; 2]>, data: usize, byte_offset: u64| {
        if let Some(strides) = strides {
            theirs.strides = strides.to_vec();
        }
        let raw = theirs.versioned(|m| {
            m.dl_tensor.data = m.dl_tensor.data.wrapping_byte_add(data);
            m.dl_tensor.byte_offset = byte_offset;
            if strides.is_none() {
                m.dl_tensor.strides = ptr::null_mut();
            }
        });
        // SAFETY: all elements are among those of this test.
        let t = unsafe { Tensor::from_dlpack(raw) }.unwrap();
        assert_eq!(
            t.as_ptr(),
            theirs.elements.as_ptr().cast::<u8>().wrapping_add(data + byte_offset as usize)
        );
        t.to_vec::<f32>().unwrap()
    };
    assert_eq!(seen(None, 0, 0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(seen(None, 8, 4), [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    assert_eq!(seen(Some([1, 2]), 0, 4), [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
    assert_eq!(seen(Some([-3, -1]), 20, 4), [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]);
    assert_eq!(seen(Some([6, -1]), 8, 0), [2.0, 1.0, 0.0, 8.0, 7.0, 6.0]);
    assert_eq!(seen(Some([0, 0]), 40, 0), [10.0; 6]);
    // The last element that there is.
    assert_eq!(seen(Some([11, 6]), 0, 0), [0.0, 6.0, 12.0, 11.0, 17.0, 23.0]);
}

#[test]
fn only_memory_that_is_nobody_elses_becomes_writable() {
    let mut theirs = Theirs::new(&[24], &[1]);
    for (flags, writable) in
        [(0, false), (READ_ONLY, false), (READ_ONLY | IS_COPIED, false), (IS_COPIED, true)]
    {
        let raw = theirs.versioned(|m| m.flags = flags);
        // SAFETY: the elements are this test's, and nobody uses them meanwhile.
        let t = unsafe { Tensor::from_dlpack(raw) }.unwrap();
        assert_eq!(t.try_into_buf().is_ok(), writable, "{flags}");
    }
    for flags in [READ_ONLY, READ_ONLY | IS_COPIED] {
        let e = for_both(&mut theirs, |m| m.flags = flags, false);
        assert!(e.to_string().contains("read-only"), "{e}");
    }
    (theirs.shape, theirs.strides) = (vec![4, 3], vec![6, 1]);
    let e = for_both(&mut theirs, |_| (), false);
    assert!(e.to_string().contains("not contiguous"), "{e}");
    // The stride of one index does not matter.
    (theirs.shape, theirs.strides) = (vec![1, 3], vec![i64::MIN, 1]);
    // SAFETY: the elements are this test's, and nobody uses them meanwhile.
    let mut buf = unsafe { TensorBuf::from_dlpack(theirs.versioned(|_| ())) }.unwrap();
    buf.as_mut_slice::<f32>().unwrap().fill(5.0);
    assert_eq!(buf.freeze().strides(), [3, 1]);
    assert_eq!(theirs.elements[..4], [5.0, 5.0, 5.0, 3.0]);
}

#[test]
fn buffers_go_out_to_be_written() {
    let buf = TensorBuf::from_slice(&[2, 2], &[1u8, 2, 3, 4]).unwrap();
    let at = buf.as_ptr();
    let pack = buf.try_into_dlpack().unwrap();
    // SAFETY: `pack` keeps the structure and its elements, which this test alone has.
    unsafe {
        assert_eq!((*pack.as_raw()).flags, IS_COPIED);
        *(*pack.as_raw()).dl_tensor.data.cast::<u8>() = 9;
    }
    let t = back(pack);
    assert_eq!((t.as_ptr(), t.as_slice::<u8>().unwrap()), (at, &[9, 2, 3, 4][..]));
    assert!(t.try_into_buf().is_ok());
}

#[test]
fn what_others_cannot_use_is_not_exported() {
    let layout = Layout::contiguous(&[4]).unwrap();
    let import = Tensor::from_import("t", fake_shared(&[1; 8], false), DType::U16, layout).unwrap();
    assert!(matches!(import.to_dlpack(), Err(TensorError::NotOurs { .. })));
    let copy = import.to_buf().unwrap().freeze();
    assert_eq!(back(copy.to_dlpack().unwrap()).as_slice::<u16>().unwrap(), [0x0101; 4]);

    let bytes = vec![0u64; 2].leak();
    let start = NonNull::from(&mut *bytes).cast::<u8>();
    // SAFETY: leaked bytes, used by nobody else, and not at all where they play a device's.
    let memory = |at: usize, device| unsafe { Foreign::exclusive(start.add(at), 8, device, || ()) };
    let buf = |at, device| TensorBuf::from_foreign(memory(at, device), &[2], DType::F32).unwrap();
    assert!(matches!(buf(0, Device::Sim(1)).freeze().to_dlpack(), Err(TensorError::Device { .. })));
    assert!(matches!(
        buf(2, Device::Cpu).freeze().to_dlpack(),
        Err(TensorError::Misaligned { align: 4, .. })
    ));
    assert_eq!(buf(0, Device::Sim(1)).try_into_dlpack().unwrap_err().device(), Device::Sim(1));
    let skewed = buf(2, Device::Cpu).try_into_dlpack().unwrap_err();
    assert_eq!(skewed.as_ptr(), start.as_ptr().wrapping_add(2).cast_const());
    assert!(buf(4, Device::Cpu).try_into_dlpack().is_ok());
}

#[test]
fn misaligned_elements_come_in_to_be_copied() {
    let mut theirs = Theirs::new(&[3], &[1]);
    // SAFETY: the elements are among those of this test.
    let t = unsafe { Tensor::from_dlpack(theirs.versioned(|m| m.dl_tensor.byte_offset = 2)) }.unwrap();
    assert!(matches!(t.as_slice::<f32>(), Err(TensorError::Misaligned { align: 4, .. })));
    assert_eq!(t.to_vec::<f32>().unwrap().len(), 3);
}

#[test]
fn wrong_headers_are_refused_and_stay_the_callers() {
    // SAFETY: null is allowed.
    unsafe {
        assert!(matches!(Tensor::from_dlpack(ptr::null_mut()), Err(Error::InvalidArgument { .. })));
        assert!(matches!(
            TensorBuf::from_dlpack_unversioned(ptr::null_mut()),
            Err(Error::InvalidArgument { .. })
        ));
        assert!(DlPack::from_raw(ptr::null_mut()).is_none());
    }
    let t = &mut Theirs::new(&[4, 6], &[6, 1]);
    for major in [0, 2, u32::MAX] {
        let e = refused(t, |m| m.version.major = major);
        assert!(matches!(e, Error::Unsupported { backend: "DLPack", .. }), "{e}");
        assert!(e.to_string().contains(&format!("{major}.1")), "{e}");
    }
    let e = refused(t, |m| m.flags = READ_ONLY << 3);
    assert!(matches!(e, Error::Unsupported { .. }) && e.to_string().contains("0x8"), "{e}");
    for device_type in [0, 2, 3, 13, -1] {
        let e = refused(t, |m| m.dl_tensor.device.device_type = device_type);
        assert!(matches!(e, Error::DeviceMismatch { .. }), "{e}");
    }
    for (code, bits, lanes) in [
        (2, 32, 2),
        (2, 32, 0),
        (2, 24, 1),
        (3, 64, 1),
        (6, 1, 1),
        (8, 8, 1),
        (17, 4, 1),
        (255, 255, u16::MAX),
    ] {
        let e = refused(t, |m| m.dl_tensor.dtype = DLDataType { code, bits, lanes });
        assert!(matches!(e, Error::Unsupported { .. }), "{e}");
    }
    let invalid = |t: &mut Theirs, change: &dyn Fn(&mut DLTensor), text: &str| {
        let e = refused(t, |m| change(&mut m.dl_tensor));
        assert!(matches!(e, Error::InvalidArgument { .. }), "{e}");
        assert!(e.to_string().contains(text), "{e}");
    };
    invalid(t, &|t| t.ndim = -1, "-1 dimensions");
    invalid(t, &|t| t.ndim = 17, "17 dimensions");
    invalid(t, &|t| t.ndim = i32::MAX, "2147483647 dimensions");
    invalid(t, &|t| t.shape = ptr::null_mut(), "without sizes");
    invalid(t, &|t| t.data = ptr::null_mut(), "null");
    invalid(t, &|t| t.byte_offset = u64::MAX, "address space");
    invalid(t, &|t| t.data = ptr::without_provenance_mut(usize::MAX - 3), "address space");
    // In elements, in bytes, and as addresses.
    for (shape, strides, text) in [
        ([-1, 6], [6, 1], "size -1 in dimension 0"),
        ([0, i64::MIN], [6, 1], "in dimension 1"),
        ([i64::MAX, 2], [6, 1], "63 bits"),
        ([1 << 31, 1 << 32], [0, 0], "63 bits"),
        ([1 << 62, 1], [0, 1], "63 bits"),
        ([2, 2], [i64::MAX, 1], "63 bits"),
        ([2, 2], [i64::MIN, 1], "63 bits"),
        ([2, 2], [i64::MIN + 1, i64::MIN + 1], "63 bits"),
        ([3, 1], [i64::MIN, 1], "63 bits"),
        ([2, 2], [1 << 61, 1], "63 bits"),
        ([2, 2], [-(1 << 61), 1], "63 bits"),
        ([2, 2], [-(1 << 60), 1], "address space"),
    ] {
        (t.shape, t.strides) = (shape.to_vec(), strides.to_vec());
        invalid(t, &|_| (), text);
    }
}
