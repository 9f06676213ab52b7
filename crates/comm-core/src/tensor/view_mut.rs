//! Elements of a buffer in any order, to be written.

use std::fmt;

use super::{DType, Layout, Tensor, TensorBuf, TensorError};
use crate::device::Device;

/// Elements of a [`TensorBuf`], in any shape and strides without overlap, to be written: where results go that a caller has
/// room for.
///
/// ```
/// use comm_core::tensor::{DType, Layout, Tensor, TensorBuf};
///
/// // The columns of a buffer of two rows, one after the other.
/// let mut buf = TensorBuf::zeros(&[2, 3], DType::U8)?;
/// let turned = Layout::contiguous(&[2, 3])?.transpose(0, 1)?;
/// buf.view_mut(turned)?.copy_from(&Tensor::from_slice(&[3, 2], &[1u8, 2, 3, 4, 5, 6])?)?;
/// assert_eq!(buf.as_slice::<u8>()?, [1, 3, 5, 2, 4, 6]);
/// # Ok::<(), comm_core::tensor::TensorError>(())
/// ```
pub struct TensorMut<'a> {
    buf: &'a mut TensorBuf,
    layout: Layout,
}

impl TensorBuf {
    /// Some of the elements, to be written in another shape and order. The layout counts from the buffer's first element.
    ///
    /// # Errors
    /// A layout that reaches outside of the buffer, or in which two indices may be the same element.
    pub fn view_mut(&mut self, layout: Layout) -> Result<TensorMut<'_>, TensorError> {
        const OP: &str = "view_mut";
        self.check_layout(OP, &layout)?;
        if !is_injective(&layout) {
            let (shape, strides) = (layout.shape(), layout.strides());
            let why = format!("shape {shape:?} with strides {strides:?} may reach an element twice");
            return Err(TensorError::Invalid { op: OP, why });
        }
        Ok(TensorMut { buf: self, layout })
    }
}

/// Whether no two indices are the same element: each stride steps over all that the smaller ones can reach. There are
/// other layouts without overlap, which nobody needs.
fn is_injective(layout: &Layout) -> bool {
    if layout.numel() == 0 {
        return true;
    }
    let dims = layout.shape().iter().zip(layout.strides()).filter(|&(&size, _)| size > 1);
    let mut dims: Vec<(usize, usize)> = dims.map(|(&size, stride)| (stride.unsigned_abs(), size)).collect();
    dims.sort_unstable();
    let mut reach = 0u128;
    dims.into_iter().all(|(stride, size)| {
        let steps_over = stride as u128 > reach;
        reach += stride as u128 * (size as u128 - 1);
        steps_over
    })
}

impl<'a> TensorMut<'a> {
    /// The sizes of the dimensions.
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.buf.dtype()
    }

    /// Where the memory is.
    pub fn device(&self) -> Device {
        self.buf.device()
    }

    /// The bytes, if the elements lie one after the other and from the buffer's first on; else none.
    ///
    /// # Errors
    /// Memory of a device.
    pub fn bytes_mut(&mut self) -> Result<Option<&mut [u8]>, TensorError> {
        let is_whole = self.layout.is_contiguous() && self.layout.numel() == self.buf.numel();
        if is_whole { self.buf.bytes_mut().map(Some) } else { Ok(None) }
    }

    /// Copies a tensor of the same shape and element type.
    ///
    /// # Errors
    /// Another shape or element type, or memory of a device.
    pub fn copy_from(&mut self, src: &Tensor) -> Result<(), TensorError> {
        const OP: &str = "TensorMut::copy_from";
        if src.shape() != self.shape() {
            let (seen, expected) = (src.shape().into(), self.shape().into());
            return Err(TensorError::Shape { op: OP, seen, expected });
        }
        let layout = self.layout;
        self.buf.write(OP, layout, src)
    }
}

impl<'a> From<&'a mut TensorBuf> for TensorMut<'a> {
    fn from(buf: &'a mut TensorBuf) -> TensorMut<'a> {
        let layout = *buf.layout();
        TensorMut { buf, layout }
    }
}

impl fmt::Debug for TensorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorMut({} {:?})", self.dtype(), self.layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(shape: &[usize], strides: &[isize], offset: usize) -> Layout {
        Layout::new(shape, strides, offset).unwrap()
    }

    #[test]
    fn overlap_and_outside_are_refused() {
        let mut buf = TensorBuf::zeros(&[12], DType::I16).unwrap();
        for bad in [
            layout(&[3, 4], &[1, 1], 0),
            layout(&[2], &[0], 0),
            layout(&[2, 2], &[3, 3], 0),
            layout(&[13], &[1], 0),
            layout(&[2], &[1], 11),
        ] {
            assert!(buf.view_mut(bad).is_err(), "{bad:?}");
        }
        for good in [
            layout(&[3, 4], &[4, 1], 0),
            layout(&[4, 3], &[1, 4], 0),
            layout(&[6], &[-2], 11),
            layout(&[1, 5], &[0, 2], 1),
            layout(&[0, 9], &[0, 0], 3),
            layout(&[], &[], 11),
        ] {
            assert!(buf.view_mut(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn only_its_elements_are_written() {
        let mut buf = TensorBuf::from_slice(&[8], &[9u8; 8]).unwrap();
        let src = Tensor::from_slice(&[3], &[1u8, 2, 3]).unwrap();
        buf.view_mut(layout(&[3], &[-2], 6)).unwrap().copy_from(&src).unwrap();
        assert_eq!(buf.as_slice::<u8>().unwrap(), [9, 9, 3, 9, 2, 9, 1, 9]);
        assert!(buf.view_mut(layout(&[3], &[1], 0)).unwrap().bytes_mut().unwrap().is_none());
        let mut whole = TensorMut::from(&mut buf);
        assert_eq!(whole.bytes_mut().unwrap().unwrap().len(), 8);
        assert!(whole.copy_from(&src).is_err());
    }
}
