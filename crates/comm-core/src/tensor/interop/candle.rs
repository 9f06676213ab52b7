//! Tensors of candle, with the feature `candle`.
//!
//! candle keeps elements in a vector of its own and lets any holder of a tensor write them, behind a lock. Hence:
//!
//! - [`Tensor::from_candle`] copies nothing, and is `unsafe`: nobody may write the candle tensor meanwhile, and nothing
//!   but the caller can see to that. (To hold candle's lock instead, a tensor would have to stay on one thread.)
//! - [`Tensor::to_candle`] copies once, into the vector that becomes candle's.
//!
//! ```
//! use candle_core::{Device, Tensor as Candle};
//! use comm_core::tensor::Tensor;
//!
//! let weights = Candle::new(&[[1.0f32, 2.0], [3.0, 4.0]], &Device::Cpu)?;
//! // SAFETY: nobody writes `weights`.
//! let t = unsafe { Tensor::from_candle(&weights.t()?)? };
//! assert_eq!(t.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
//! let back = t.to_candle()?;
//! assert_eq!(back.to_vec2::<f32>()?, [[1.0, 3.0], [2.0, 4.0]]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ptr::NonNull;

use candle_core::{CpuStorage, Storage, WithDType};
use float8::F8E4M3;
use half::{bf16, f16};

use super::super::foreign::Foreign;
use super::super::{DType, Element, Layout, Tensor, TensorError};
use crate::device::Device;
use crate::error::{Error, Result};

impl Tensor {
    /// A candle tensor's elements, without a copy, in any strides. It is kept as long as there are tensors over it.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`] if it is not on the CPU; [`Error::Unsupported`] for candle's floats of 4 and 6 bits and
    /// exponents of 8; [`Error::InvalidArgument`] for more than [`MAX_DIMS`](crate::tensor::MAX_DIMS) dimensions.
    ///
    /// # Safety
    /// As long as there are tensors over it, nobody writes the elements of `tensor` or of another candle tensor that
    /// shares them: there is no `Var::set`, `slice_set`, `scatter_set`, `const_set`, `inplace_op1` or the like of them.
    pub unsafe fn from_candle(tensor: &candle_core::Tensor) -> Result<Tensor> {
        const OP: &str = "Tensor::from_candle";
        let keep = tensor.clone();
        let (storage, place) = tensor.storage_and_layout();
        let Storage::Cpu(elements) = &*storage else {
            let seen = format!("candle's {:?}", tensor.device().location());
            return Err(Error::DeviceMismatch { op: OP, seen, expected: Device::Cpu.to_string() });
        };
        let (start, len, dtype) = match elements {
            CpuStorage::U8(v) => part(v),
            CpuStorage::U32(v) => part(v),
            CpuStorage::I16(v) => part(v),
            CpuStorage::I32(v) => part(v),
            CpuStorage::I64(v) => part(v),
            CpuStorage::BF16(v) => part(v),
            CpuStorage::F16(v) => part(v),
            CpuStorage::F32(v) => part(v),
            CpuStorage::F64(v) => part(v),
            CpuStorage::F8E4M3(v) => part(v),
            CpuStorage::F6E2M3(_) | CpuStorage::F6E3M2(_) | CpuStorage::F4(_) | CpuStorage::F8E8M0(_) => {
                return Err(unsupported(OP, format!("no dtype is candle's {:?}", tensor.dtype())));
            }
        };
        let strides = place.stride().iter().map(|&stride| isize::try_from(stride));
        let strides = strides
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(|_| TensorError::overflow(OP, place.dims()))?;
        let layout = Layout::build(OP, place.dims(), &strides, place.start_offset())?;
        // SAFETY: the deleter owns a handle to the vector, whose elements are initialised without padding; it is neither
        // written nor replaced until then, as the caller promised. No slice is longer than `isize::MAX` bytes.
        let memory = unsafe { Foreign::read_only(start, len, Device::Cpu, move || drop(keep)) };
        Ok(Tensor::from_foreign(memory, dtype, layout)?)
    }

    /// A candle tensor on the CPU with these elements, copied once. Any strides, any host memory.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for element types that candle does not have: bool, i8, u16, u64, f8e5m2 and complex ones;
    /// [`Error::DeviceMismatch`] for memory of a device; no memory.
    pub fn to_candle(&self) -> Result<candle_core::Tensor> {
        const OP: &str = "Tensor::to_candle";
        match self.dtype() {
            DType::U8 => self.copied::<u8>(OP),
            DType::U32 => self.copied::<u32>(OP),
            DType::I16 => self.copied::<i16>(OP),
            DType::I32 => self.copied::<i32>(OP),
            DType::I64 => self.copied::<i64>(OP),
            DType::BF16 => self.copied::<bf16>(OP),
            DType::F16 => self.copied::<f16>(OP),
            DType::F32 => self.copied::<f32>(OP),
            DType::F64 => self.copied::<f64>(OP),
            DType::F8E4M3 => self.copied::<F8E4M3>(OP),
            DType::Bool
            | DType::I8
            | DType::U16
            | DType::U64
            | DType::F8E5M2
            | DType::Complex64
            | DType::Complex128 => {
                Err(unsupported(OP, format!("it has no {}; convert it first", self.dtype())))
            }
        }
    }

    fn copied<T: Element + WithDType>(&self, op: &'static str) -> Result<candle_core::Tensor> {
        own(op, self.view().to_vec::<T>(op)?, self.shape())
    }
}

/// The vector as a candle tensor, without a copy.
fn own<T: WithDType>(op: &'static str, elements: Vec<T>, shape: &[usize]) -> Result<candle_core::Tensor> {
    candle_core::Tensor::from_vec(elements, shape, &candle_core::Device::Cpu)
        .map_err(|e| unsupported(op, e.to_string()))
}

fn part<T: Element>(elements: &[T]) -> (NonNull<u8>, usize, DType) {
    (NonNull::from(elements).cast(), size_of_val(elements), T::DTYPE)
}

fn unsupported(op: &'static str, why: String) -> Error {
    Error::Unsupported { backend: "candle", op: op.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use candle_core::Tensor as Candle;

    use super::*;
    use crate::tensor::tests::fake_shared;

    /// Address of the element at index 0 of a candle tensor.
    fn address<T: WithDType>(tensor: &Candle) -> *const u8 {
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cpu(elements) = &*storage else { panic!("not on the CPU") };
        elements.as_slice::<T>().unwrap()[layout.start_offset()..].as_ptr().cast()
    }

    #[test]
    fn candle_tensors_come_in_in_place() {
        fn round<T: Element + WithDType>() {
            let elements: Vec<T> = (0..24).map(|i| T::from_f64(f64::from(i) / 2.0)).collect();
            let whole = Candle::from_vec(elements, (4, 6), &candle_core::Device::Cpu).unwrap();
            let views = [
                whole.clone(),
                whole.t().unwrap(),
                whole.narrow(1, 2, 3).unwrap().narrow(0, 1, 2).unwrap(),
                whole.get(3).unwrap(),
                whole.get(3).unwrap().get(5).unwrap(),
                whole.narrow(1, 5, 1).unwrap().broadcast_as((4, 3)).unwrap(),
            ];
            for view in views {
                // SAFETY: nobody writes them.
                let t = unsafe { Tensor::from_candle(&view) }.unwrap();
                assert_eq!((t.dtype(), t.shape()), (<T as Element>::DTYPE, view.dims()));
                assert_eq!(t.as_ptr(), address::<T>(&view));
                let flat = view.flatten_all().unwrap().to_vec1::<T>().unwrap();
                drop(view);
                assert_eq!(t.to_vec::<T>().unwrap(), flat);
                assert!(t.try_into_buf().is_err(), "candle's, so read-only");
            }
        }
        round::<u8>();
        round::<u32>();
        round::<i16>();
        round::<i32>();
        round::<i64>();
        round::<bf16>();
        round::<f16>();
        round::<f32>();
        round::<f64>();
        round::<F8E4M3>();
    }

    #[test]
    fn the_vector_is_kept_and_dropped_on_any_thread() {
        let theirs = Candle::new(&[1i64, 2, 3], &candle_core::Device::Cpu).unwrap();
        // SAFETY: nobody writes it.
        let t = unsafe { Tensor::from_candle(&theirs) }.unwrap();
        drop(theirs);
        assert_eq!(t.as_slice::<i64>().unwrap(), [1, 2, 3]);
        std::thread::spawn(move || drop(t)).join().unwrap();
    }

    #[test]
    fn tensors_go_out_with_one_copy() {
        // The one copy is the vector; candle takes that one as it is.
        let elements = vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        let at = elements.as_ptr().cast();
        assert_eq!(address::<f32>(&own("t", elements, &[2, 3]).unwrap()), at);

        let t = Tensor::from_slice(&[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let view = t.transpose(0, 1).unwrap().flip(0).unwrap();
        let out = view.to_candle().unwrap();
        assert!(out.is_contiguous());
        assert_eq!(out.to_vec2::<f32>().unwrap(), [[3.0, 6.0], [2.0, 5.0], [1.0, 4.0]]);
        let scalar = Tensor::from_slice(&[], &[7u8]).unwrap().to_candle().unwrap();
        assert_eq!(scalar.to_scalar::<u8>().unwrap(), 7);
        let empty = Tensor::from_slice::<i64>(&[2, 0], &[]).unwrap().to_candle().unwrap();
        assert_eq!(empty.dims(), [2, 0]);
        // SAFETY: nobody writes it.
        assert_eq!(unsafe { Tensor::from_candle(&empty) }.unwrap().shape(), [2, 0]);
        let layout = Layout::contiguous(&[4]).unwrap();
        let import = Tensor::from_import("t", fake_shared(&[1, 2, 3, 4], false), DType::U8, layout).unwrap();
        assert_eq!(import.to_candle().unwrap().to_vec1::<u8>().unwrap(), [1, 2, 3, 4]);
    }

    #[test]
    fn what_one_side_does_not_have_is_refused() {
        let known = DType::ALL.iter().filter(|&&dtype| {
            let t = crate::tensor::TensorBuf::zeros(&[2], dtype).unwrap().freeze();
            match t.to_candle() {
                Ok(there) => {
                    // SAFETY: nobody writes it.
                    assert_eq!(unsafe { Tensor::from_candle(&there) }.unwrap().dtype(), dtype);
                    true
                }
                Err(e) => {
                    assert!(matches!(e, Error::Unsupported { backend: "candle", .. }), "{e}");
                    assert!(e.to_string().contains(dtype.name()), "{e}");
                    false
                }
            }
        });
        assert_eq!(known.count(), 10);
        let many = Candle::zeros(vec![1; 17], candle_core::DType::U8, &candle_core::Device::Cpu).unwrap();
        // SAFETY: nobody writes it.
        assert!(matches!(unsafe { Tensor::from_candle(&many) }, Err(Error::InvalidArgument { .. })));
    }
}
