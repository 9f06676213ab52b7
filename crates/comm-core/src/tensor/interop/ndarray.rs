//! Arrays of the crate `ndarray`, with the feature `ndarray`.
//!
//! ```
//! use comm_core::tensor::Tensor;
//! use ndarray::{array, s};
//!
//! // Any array becomes a tensor in place, and any tensor is seen as an array in place.
//! let t = Tensor::from_ndarray(array![[1, 2, 3], [4, 5, 6]])?;
//! let view = t.flip(1)?.transpose(0, 1)?;
//! let columns = view.as_ndarray::<i32>()?;
//! assert_eq!(columns.slice(s![.., 0]), array![3, 2, 1].view());
//! # Ok::<(), comm_core::tensor::TensorError>(())
//! ```

use std::ptr::NonNull;

use ::ndarray::{Array, ArrayViewD, ArrayViewMutD, Axis, Dimension, IxDyn, ShapeBuilder};

use super::super::element::check;
use super::super::foreign::Foreign;
use super::super::view::View;
use super::super::walk::Walk;
use super::super::{DType, Element, Layout, Tensor, TensorBuf, TensorError};
use crate::device::Device;

impl Tensor {
    /// The elements as an array view, without a copy, in any strides.
    ///
    /// # Errors
    /// Another element type; memory of another process or of a device; a bool that is neither 0 nor 1; misaligned
    /// foreign memory.
    pub fn as_ndarray<T: Element>(&self) -> Result<ArrayViewD<'_, T>, TensorError> {
        array("Tensor::as_ndarray", &self.view())
    }

    /// The array as a tensor, without a copy, in any strides. Its vector is dropped with the last tensor over it.
    ///
    /// # Errors
    /// More than [`MAX_DIMS`](crate::tensor::MAX_DIMS) dimensions. The array is dropped then.
    pub fn from_ndarray<T: Element, D: Dimension>(array: Array<T, D>) -> Result<Tensor, TensorError> {
        const OP: &str = "Tensor::from_ndarray";
        let (shape, strides) = (array.shape().to_vec(), array.strides().to_vec());
        let (elements, offset) = array.into_raw_vec_and_offset();
        let layout = Layout::build(OP, &shape, &strides, offset.unwrap_or(0))?;
        Tensor::from_foreign(keep(elements, 0), T::DTYPE, layout)
    }
}

impl TensorBuf {
    /// The elements as an array view.
    ///
    /// # Errors
    /// As [`TensorBuf::as_slice`].
    pub fn as_ndarray<T: Element>(&self) -> Result<ArrayViewD<'_, T>, TensorError> {
        array("TensorBuf::as_ndarray", &self.view())
    }

    /// The elements as an array view, to be written.
    ///
    /// ```
    /// use comm_core::tensor::{DType, TensorBuf};
    ///
    /// let mut buf = TensorBuf::zeros(&[2, 2], DType::F32)?;
    /// buf.as_ndarray_mut::<f32>()?[[1, 0]] = 2.5;
    /// assert_eq!(buf.as_slice::<f32>()?, [0.0, 0.0, 2.5, 0.0]);
    /// # Ok::<(), comm_core::tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// As [`TensorBuf::as_slice`].
    pub fn as_ndarray_mut<T: Element>(&mut self) -> Result<ArrayViewMutD<'_, T>, TensorError> {
        let shape = IxDyn(self.shape());
        let elements = self.as_mut_slice::<T>()?;
        ArrayViewMutD::from_shape(shape, elements)
            .map_err(|e| TensorError::invalid("TensorBuf::as_ndarray_mut", e.to_string()))
    }

    /// The array as a buffer: without a copy if its elements lie one after the other in row-major order, else with one.
    ///
    /// # Errors
    /// More than [`MAX_DIMS`](crate::tensor::MAX_DIMS) dimensions. The array is dropped then.
    pub fn from_ndarray<T: Element, D: Dimension>(array: Array<T, D>) -> Result<TensorBuf, TensorError> {
        let array = if array.is_standard_layout() { array } else { array.as_standard_layout().into_owned() };
        let shape = array.shape().to_vec();
        let (elements, offset) = array.into_raw_vec_and_offset();
        TensorBuf::from_foreign(keep(elements, offset.unwrap_or(0)), &shape, T::DTYPE)
    }
}

/// The elements of a vector from one on, as memory that the vector's drop gives back.
fn keep<T: Element>(mut elements: Vec<T>, from: usize) -> Foreign {
    let part = elements.get_mut(from..).unwrap_or(&mut []);
    let (start, len) = (NonNull::from(&mut *part).cast(), size_of_val(part));
    // SAFETY: the deleter owns the vector, whose elements are initialised without padding and do not move with it.
    // Nobody else has it, and no slice is longer than `isize::MAX` bytes.
    unsafe { Foreign::exclusive(start, len, Device::Cpu, move || drop(elements)) }
}

fn array<'a, T: Element>(op: &'static str, view: &View<'a>) -> Result<ArrayViewD<'a, T>, TensorError> {
    view.on_cpu(op)?;
    if !view.storage.is_ours() {
        return Err(TensorError::NotOurs { op });
    }
    view.typed::<T>(op)?;
    let layout = view.layout;
    let shape = IxDyn(layout.shape());
    if layout.numel() == 0 {
        return ArrayViewD::from_shape(shape, &[]).map_err(|e| TensorError::invalid(op, e.to_string()));
    }
    check_all::<T>(op, view)?;
    // An array is made with strides that are not negative, over the same elements; then axes are turned.
    let strides = layout.shape().iter().zip(layout.strides());
    let strides: Vec<usize> =
        strides.map(|(&size, &stride)| if size == 1 { 0 } else { stride.unsigned_abs() }).collect();
    // SAFETY: the lowest element lies inside the storage, which was checked.
    let lowest = unsafe { view.storage.as_ptr().add(layout.span().start * size_of::<T>()) };
    // SAFETY: by these shape and strides, from the lowest element on, the same elements are reached as by the layout.
    // They lie inside the storage, which is one allocation of less than `isize::MAX` bytes, lives for `'a`, and is written
    // by nobody meanwhile. They are aligned, as the element at index 0 is, and values of `T`.
    let mut array =
        unsafe { ArrayViewD::from_shape_ptr(shape.strides(IxDyn(&strides)), lowest.as_ptr().cast::<T>()) };
    for (axis, _) in layout.strides().iter().enumerate().filter(|&(_, &stride)| stride < 0) {
        array.invert_axis(Axis(axis));
    }
    Ok(array)
}

/// Says whether all elements, of which there are some, are values of `T`.
fn check_all<T: Element>(op: &'static str, view: &View<'_>) -> Result<(), TensorError> {
    if T::DTYPE != DType::Bool {
        return Ok(());
    }
    let (start, mut seen, mut verdict) = (view.start().as_ptr(), 0, Ok(()));
    Walk::new(view.layout, view.layout).runs(|at, _, n| {
        // SAFETY: positions of a walk are those of elements, of one byte each, which lie inside the storage and are written
        // by nobody while the view exists.
        let run = unsafe { std::slice::from_raw_parts(start.offset(at), n) };
        verdict = check::<T>(op, run).map_err(|e| match e {
            TensorError::InvalidBool { op, index, value } => {
                TensorError::InvalidBool { op, index: index + seen, value }
            }
            other => other,
        });
        seen += n;
        verdict.is_ok()
    });
    verdict
}

#[cfg(test)]
mod tests {
    use ::ndarray::{Array1, Array2, ArrayD, array, s};
    use half::bf16;
    use num_complex::Complex;

    use super::*;
    use crate::tensor::tests::fake_shared;

    /// Row-major elements of both, and that the array reads the tensor's own memory.
    fn same<T: Element>(t: &Tensor) {
        let view = t.as_ndarray::<T>().unwrap();
        assert_eq!(view.shape(), t.shape());
        if t.numel() != 0 {
            assert_eq!(view.as_ptr().cast(), t.as_ptr());
        }
        assert_eq!(view.iter().copied().collect::<Vec<T>>(), t.to_vec::<T>().unwrap());
    }

    fn views(t: &Tensor) -> Vec<Tensor> {
        vec![
            t.clone(),
            t.transpose(0, 1).unwrap(),
            t.flip(0).unwrap(),
            t.flip(1).unwrap().flip(0).unwrap().transpose(0, 1).unwrap(),
            t.step(1, 2).unwrap().flip(1).unwrap(),
            t.narrow(0, 1, 2).unwrap().narrow(1, 2, 2).unwrap().flip(0).unwrap(),
            t.select(0, 2).unwrap(),
            t.select(0, 2).unwrap().select(0, 3).unwrap(),
            t.narrow(1, 4, 0).unwrap(),
            t.narrow(1, 3, 1).unwrap().expand(&[2, 3, 5]).unwrap(),
            t.unsqueeze(1).unwrap().flip(1).unwrap().flip(2).unwrap(),
            t.with_layout(Layout::new(&[1, 4], &[isize::MIN, -1], 7).unwrap()).unwrap(),
        ]
    }

    #[test]
    fn tensors_of_any_strides_are_seen_in_place() {
        let numbers: Vec<i32> = (0..15).collect();
        views(&Tensor::from_slice(&[3, 5], &numbers).unwrap()).iter().for_each(same::<i32>);
        let halves: Vec<bf16> = (0..15u8).map(|i| bf16::from_f32(i.into())).collect();
        views(&Tensor::from_slice(&[3, 5], &halves).unwrap()).iter().for_each(same::<bf16>);
        let pairs: Vec<Complex<f64>> = (0..15u8).map(|i| Complex::new(i.into(), -1.0)).collect();
        views(&Tensor::from_slice(&[3, 5], &pairs).unwrap()).iter().for_each(same::<Complex<f64>>);
        let flags: Vec<bool> = (0..15).map(|i| i % 4 == 0).collect();
        views(&Tensor::from_slice(&[3, 5], &flags).unwrap()).iter().for_each(same::<bool>);
    }

    #[test]
    fn what_cannot_be_borrowed_is_not_seen() {
        let t = Tensor::from_slice(&[4], &[1.0f32; 4]).unwrap();
        assert!(matches!(t.as_ndarray::<f64>(), Err(TensorError::DType { .. })));
        let layout = Layout::contiguous(&[4]).unwrap();
        let import = Tensor::from_import("t", fake_shared(&[1; 4], false), DType::U8, layout).unwrap();
        assert!(matches!(import.as_ndarray::<u8>(), Err(TensorError::NotOurs { .. })));
        let bytes = vec![0u64; 4].leak();
        let start = NonNull::from(&mut *bytes).cast::<u8>();
        for (at, device) in [(1, Device::Cpu), (0, Device::Sim(0))] {
            // SAFETY: leaked bytes, used by nobody else, and not at all where they play a device's.
            let memory = unsafe { Foreign::read_only(start.add(at), 16, device, || ()) };
            let e = Tensor::from_foreign(memory, DType::U32, layout).unwrap();
            let e = e.as_ndarray::<u32>().unwrap_err();
            assert!(matches!(e, TensorError::Misaligned { .. } | TensorError::Device { .. }), "{e}");
        }
    }

    #[test]
    fn bools_are_checked_in_any_strides() {
        let mut buf = TensorBuf::zeros(&[2, 3], DType::Bool).unwrap();
        buf.bytes_mut().unwrap()[4] = 7;
        let bad = |t: &Tensor, at| {
            let e = t.as_ndarray::<bool>().unwrap_err();
            assert_eq!(e, TensorError::InvalidBool { op: "Tensor::as_ndarray", index: at, value: 7 });
        };
        assert!(buf.as_ndarray::<bool>().is_err() && buf.as_ndarray_mut::<bool>().is_err());
        let t = buf.freeze();
        bad(&t, 4);
        bad(&t.transpose(0, 1).unwrap(), 3);
        bad(&t.flip(0).unwrap(), 1);
        same::<bool>(&t.step(1, 2).unwrap());
    }

    #[test]
    fn buffers_are_written_as_arrays() {
        let mut buf = TensorBuf::zeros(&[2, 3], DType::I16).unwrap();
        let at = buf.as_ptr();
        let mut view = buf.as_ndarray_mut::<i16>().unwrap();
        assert_eq!(view.as_ptr().cast(), at);
        view.slice_mut(s![.., 1]).fill(4);
        assert_eq!(buf.as_slice::<i16>().unwrap(), [0, 4, 0, 0, 4, 0]);
        assert_eq!(buf.as_ndarray::<i16>().unwrap(), array![[0, 4, 0], [0, 4, 0]].into_dyn());
        assert!(buf.as_ndarray_mut::<u16>().is_err());
        let mut none = TensorBuf::zeros(&[0, 3], DType::I16).unwrap();
        assert_eq!(none.as_ndarray_mut::<i16>().unwrap().shape(), [0, 3]);
        assert_eq!(none.as_ndarray::<i16>().unwrap().shape(), [0, 3]);
    }

    #[test]
    fn arrays_of_any_strides_become_tensors_in_place() {
        let make = || Array2::from_shape_fn((4, 6), |(i, j)| (6 * i + j) as u32);
        let arrays: [ArrayD<u32>; 6] = [
            make().into_dyn(),
            make().reversed_axes().into_dyn(),
            make().slice_move(s![1..;2, ..;-1]).into_dyn(),
            make().slice_move(s![3, 2..5]).into_dyn(),
            make().slice_move(s![2.., 5..5]).into_dyn(),
            Array1::from_elem(1, 7u32).slice_move(s![0]).into_dyn(),
        ];
        for array in arrays {
            let (copy, at) = (array.clone(), array.as_ptr());
            let t = Tensor::from_ndarray(array).unwrap();
            assert_eq!((t.shape(), t.dtype()), (copy.shape(), DType::U32));
            if t.numel() != 0 {
                assert_eq!(t.as_ptr(), at.cast());
            }
            assert_eq!(t.as_ndarray::<u32>().unwrap(), copy);
            assert_eq!(t.to_vec::<u32>().unwrap(), copy.iter().copied().collect::<Vec<_>>());
        }
        // Nobody else has the vector.
        assert!(Tensor::from_ndarray(make()).unwrap().try_into_buf().is_ok());
        let many = ArrayD::from_elem(IxDyn(&[1; 17]), 1u8);
        assert!(matches!(Tensor::from_ndarray(many.clone()), Err(TensorError::TooManyDims { dims: 17, .. })));
        assert!(matches!(TensorBuf::from_ndarray(many), Err(TensorError::TooManyDims { dims: 17, .. })));
    }

    #[test]
    fn arrays_become_buffers_in_place_if_they_are_dense() {
        let make = || Array2::from_shape_fn((4, 6), |(i, j)| (6 * i + j) as u32);
        for (array, in_place) in [
            (make(), true),
            (make().slice_move(s![1..3, ..]), true),
            (make().slice_move(s![3..4, 2..5]), true),
            (make().slice_move(s![1..;2, ..]), false),
            (make().slice_move(s![.., ..;-1]), false),
            (make().reversed_axes(), false),
            (make().slice_move(s![.., 6..]), true),
        ] {
            let (copy, at) = (array.clone(), array.as_ptr());
            let mut buf = TensorBuf::from_ndarray(array).unwrap();
            if !copy.is_empty() {
                assert_eq!(buf.as_ptr() == at.cast(), in_place, "{copy}");
            }
            assert_eq!(buf.as_ndarray::<u32>().unwrap(), copy.into_dyn());
            buf.fill(1u32).unwrap();
        }
    }
}
