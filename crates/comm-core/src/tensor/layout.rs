//! Where the elements of a tensor lie: shape, strides and offset.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{MAX_DIMS, TensorError};

/// Shape, strides and offset over some memory; strides and offset are counted in elements.
///
/// Strides may be zero (an expanded dimension) or negative (a flipped one); there may be no dimension at all
/// (one element) or one of size zero (no element). A layout that exists is sound: its sizes and every element's
/// position fit into 63 bits and none is below zero, so walking it cannot overflow. Whether the memory is
/// large enough is the memory's question, answered by [`Layout::span`].
///
/// The methods that make views (`narrow`, `transpose`, ...) cost a few dozen bytes and touch no memory.
/// Serialisable; what is decoded is checked like any other.
///
/// ```
/// use comm_core::tensor::Layout;
///
/// let a = Layout::contiguous(&[2, 3])?;
/// assert_eq!((a.strides(), a.numel()), (&[3, 1][..], 6));
/// let t = a.transpose(0, 1)?.flip(1)?;
/// assert_eq!((t.shape(), t.strides(), t.offset()), (&[3, 2][..], &[1, -3][..], 3));
/// assert_eq!(t.span(), 0..6);
///
/// // 2^40 elements in one place, and sizes that do not fit at all
/// assert_eq!(Layout::contiguous(&[1])?.expand(&[1 << 40])?.span(), 0..1);
/// assert!(Layout::contiguous(&[1 << 40, 1 << 40]).is_err());
/// # Ok::<(), comm_core::tensor::TensorError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct Layout {
    dims: usize,
    /// Beyond `dims` all zeros, here and in `strides`, so that comparing whole arrays is right.
    shape: [usize; MAX_DIMS],
    strides: [isize; MAX_DIMS],
    offset: usize,
}

impl Layout {
    /// Elements one after the other, the last dimension fastest.
    ///
    /// # Errors
    /// [`TensorError::TooManyDims`]; [`TensorError::Overflow`] if the product of the non-zero sizes does not
    /// fit into 63 bits.
    pub fn contiguous(shape: &[usize]) -> Result<Layout, TensorError> {
        Layout::contiguous_for("Layout::contiguous", shape)
    }

    pub(super) fn contiguous_for(op: &'static str, shape: &[usize]) -> Result<Layout, TensorError> {
        volume(op, shape)?;
        Layout::build(op, shape, &row_major(shape)[..shape.len()], 0)
    }

    /// Any layout.
    ///
    /// ```
    /// use comm_core::tensor::Layout;
    ///
    /// let every_other_backwards = Layout::new(&[3], &[-2], 5)?;
    /// assert_eq!(every_other_backwards.position(&[2])?, 1);
    /// assert!(Layout::new(&[4], &[-2], 5).is_err(), "the last element would be at -1");
    /// # Ok::<(), comm_core::tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Layout::contiguous`]; also if there are not as many strides as sizes, or an element would lie
    /// before the start of the memory.
    pub fn new(shape: &[usize], strides: &[isize], offset: usize) -> Result<Layout, TensorError> {
        Layout::build("Layout::new", shape, strides, offset)
    }

    /// The only way to a layout: checks everything that the type promises.
    pub(super) fn build(
        op: &'static str,
        shape: &[usize],
        strides: &[isize],
        offset: usize,
    ) -> Result<Layout, TensorError> {
        volume(op, shape)?;
        if strides.len() != shape.len() {
            return Err(TensorError::Length {
                op,
                unit: "strides",
                seen: strides.len(),
                expected: shape.len(),
            });
        }
        let mut layout = Layout { dims: shape.len(), shape: [0; MAX_DIMS], strides: [0; MAX_DIMS], offset };
        layout.shape[..shape.len()].copy_from_slice(shape);
        layout.strides[..shape.len()].copy_from_slice(strides);
        match layout.extremes() {
            None => Err(TensorError::overflow(op, shape)),
            Some((lowest, _)) if lowest < 0 => Err(TensorError::invalid(
                op,
                format!(
                    "shape {shape:?} with strides {strides:?} at offset {offset} reaches {} elements before the start",
                    lowest.unsigned_abs()
                ),
            )),
            Some(_) => Ok(layout),
        }
    }

    /// Positions of the lowest and of one past the highest element; `None` if they do not fit.
    fn extremes(&self) -> Option<(isize, isize)> {
        let offset = isize::try_from(self.offset).ok()?;
        if self.numel() == 0 {
            return Some((offset, offset));
        }
        let (mut lowest, mut highest) = (offset, offset);
        for (&size, &stride) in self.shape().iter().zip(self.strides()) {
            let reach = isize::try_from(size - 1).ok()?.checked_mul(stride)?;
            if reach < 0 {
                lowest = lowest.checked_add(reach)?;
            } else {
                highest = highest.checked_add(reach)?;
            }
        }
        Some((lowest, highest.checked_add(1)?))
    }

    /// Size of each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape[..self.dims]
    }

    /// Distance between neighbours in each dimension, in elements.
    pub fn strides(&self) -> &[isize] {
        &self.strides[..self.dims]
    }

    /// Position of the element at index 0, in elements.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of dimensions.
    pub fn ndim(&self) -> usize {
        self.dims
    }

    /// Number of elements: the product of the sizes, 1 without dimensions.
    pub fn numel(&self) -> usize {
        // Cannot overflow: `volume` bounded the product of the non-zero sizes.
        if self.shape().contains(&0) { 0 } else { self.shape().iter().product() }
    }

    /// Whether the elements lie one after the other in row-major order (from the offset on). Strides of
    /// dimensions of size 1 do not matter; without elements the answer is yes.
    ///
    /// ```
    /// use comm_core::tensor::Layout;
    ///
    /// let a = Layout::contiguous(&[4, 3])?;
    /// assert!(a.narrow(0, 1, 2)?.is_contiguous());
    /// assert!(!a.narrow(1, 1, 2)?.is_contiguous());
    /// assert!(a.narrow(1, 1, 0)?.is_contiguous());
    /// # Ok::<(), comm_core::tensor::TensorError>(())
    /// ```
    pub fn is_contiguous(&self) -> bool {
        if self.shape().contains(&0) {
            return true;
        }
        let mut expected = 1isize;
        for (&size, &stride) in self.shape().iter().zip(self.strides()).rev() {
            if size == 1 {
                continue;
            }
            if stride != expected {
                return false;
            }
            // Fits: the product of the sizes does.
            expected *= size as isize;
        }
        true
    }

    /// Positions of the elements, from the lowest to one past the highest: the memory must have these. Empty
    /// (at the offset) without elements.
    pub fn span(&self) -> Range<usize> {
        // Both fit and are not negative: `build` refuses other layouts.
        let (lowest, end) = self.extremes().unwrap_or_default();
        lowest as usize..end as usize
    }

    /// Position of one element.
    ///
    /// # Errors
    /// The index has another number of dimensions, or reaches outside one.
    pub fn position(&self, index: &[usize]) -> Result<usize, TensorError> {
        const OP: &str = "position";
        if index.len() != self.dims {
            return Err(TensorError::Length {
                op: OP,
                unit: "indices",
                seen: index.len(),
                expected: self.dims,
            });
        }
        for (dim, (&i, &size)) in index.iter().zip(self.shape()).enumerate() {
            if i >= size {
                return Err(TensorError::OutOfBounds { op: OP, dim, start: i, len: 1, size });
            }
        }
        // Neither product nor any partial sum leaves the extremes that `build` computed.
        let steps = index.iter().zip(self.strides()).map(|(&i, &stride)| i as isize * stride);
        Ok((self.offset as isize + steps.sum::<isize>()) as usize)
    }
}

/// Checks the number of dimensions and that no product of sizes, in any order, can overflow.
fn volume(op: &'static str, shape: &[usize]) -> Result<(), TensorError> {
    if shape.len() > MAX_DIMS {
        return Err(TensorError::TooManyDims { op, dims: shape.len() });
    }
    // Zeros count as one, so that strides fit as well.
    let product = shape.iter().try_fold(1usize, |all, &size| all.checked_mul(size.max(1)));
    match product {
        Some(product) if isize::try_from(product).is_ok() => Ok(()),
        _ => Err(TensorError::overflow(op, shape)),
    }
}

/// Row-major strides of a shape that [`volume`] accepted.
pub(super) fn row_major(shape: &[usize]) -> [isize; MAX_DIMS] {
    let mut strides = [0; MAX_DIMS];
    let mut next = 1isize;
    for (stride, &size) in strides[..shape.len()].iter_mut().zip(shape).rev() {
        *stride = next;
        next *= size.max(1) as isize;
    }
    strides
}

/// What goes over the wire: unlike the layout itself it promises nothing.
#[derive(Serialize, Deserialize)]
struct Raw {
    shape: Vec<usize>,
    strides: Vec<isize>,
    offset: usize,
}

impl From<Layout> for Raw {
    fn from(layout: Layout) -> Raw {
        Raw { shape: layout.shape().to_vec(), strides: layout.strides().to_vec(), offset: layout.offset }
    }
}

impl TryFrom<Raw> for Layout {
    type Error = TensorError;

    fn try_from(raw: Raw) -> Result<Layout, TensorError> {
        Layout::new(&raw.shape, &raw.strides, raw.offset)
    }
}

impl std::fmt::Debug for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Layout")
            .field("shape", &self.shape())
            .field("strides", &self.strides())
            .field("offset", &self.offset)
            .finish()
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
