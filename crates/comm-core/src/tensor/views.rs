//! Views: other layouts over the same memory.

use super::layout::row_major;
use super::{Layout, MAX_DIMS, TensorError};

impl Layout {
    fn dim(&self, op: &'static str, dim: usize) -> Result<(usize, isize), TensorError> {
        match (self.shape().get(dim), self.strides().get(dim)) {
            (Some(&size), Some(&stride)) => Ok((size, stride)),
            _ => Err(TensorError::NoSuchDim { op, dim, dims: self.ndim() }),
        }
    }

    /// This layout with another size and stride in one dimension, and begun `first` steps further along it.
    fn with_dim(
        &self,
        op: &'static str,
        dim: usize,
        size: usize,
        stride: isize,
        first: usize,
    ) -> Result<Layout, TensorError> {
        let (_, old_stride) = self.dim(op, dim)?;
        let mut shape = [0; MAX_DIMS];
        let mut strides = [0; MAX_DIMS];
        shape[..self.ndim()].copy_from_slice(self.shape());
        strides[..self.ndim()].copy_from_slice(self.strides());
        shape[dim] = size;
        strides[dim] = stride;
        let shape = &shape[..self.ndim()];
        // Without elements there is no first one, and the offset stays inside the memory by staying as it is.
        let offset = if shape.contains(&0) {
            Some(self.offset())
        } else {
            isize::try_from(first)
                .ok()
                .and_then(|first| first.checked_mul(old_stride))
                .and_then(|step| self.offset().checked_add_signed(step))
        };
        let offset = offset.ok_or_else(|| TensorError::overflow(op, shape))?;
        Layout::build(op, shape, &strides[..self.ndim()], offset)
    }

    /// `len` indices of one dimension, from `start` on.
    ///
    /// # Errors
    /// No such dimension, or the range reaches outside it.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Layout, TensorError> {
        const OP: &str = "narrow";
        let (size, stride) = self.dim(OP, dim)?;
        if start.checked_add(len).is_none_or(|end| end > size) {
            return Err(TensorError::OutOfBounds { op: OP, dim, start, len, size });
        }
        self.with_dim(OP, dim, len, stride, start)
    }

    /// One index of one dimension, which disappears.
    ///
    /// # Errors
    /// No such dimension, or the index lies outside it.
    pub fn select(&self, dim: usize, index: usize) -> Result<Layout, TensorError> {
        const OP: &str = "select";
        let (size, stride) = self.dim(OP, dim)?;
        if index >= size {
            return Err(TensorError::OutOfBounds { op: OP, dim, start: index, len: 1, size });
        }
        self.with_dim(OP, dim, 1, stride, index)?.squeeze(dim)
    }

    /// Every `step`-th index of one dimension, from 0 on.
    ///
    /// # Errors
    /// No such dimension, or a step of zero.
    pub fn step(&self, dim: usize, step: usize) -> Result<Layout, TensorError> {
        const OP: &str = "step";
        let (size, stride) = self.dim(OP, dim)?;
        if step == 0 {
            return Err(TensorError::invalid(OP, "the step is zero; 1 keeps every index"));
        }
        let len = size.div_ceil(step);
        // One index or none has no neighbour, so the step may be as large as it likes.
        let stride = if len <= 1 {
            Some(stride)
        } else {
            isize::try_from(step).ok().and_then(|step| step.checked_mul(stride))
        };
        let stride = stride.ok_or_else(|| TensorError::overflow(OP, self.shape()))?;
        self.with_dim(OP, dim, len, stride, 0)
    }

    /// One dimension backwards.
    ///
    /// # Errors
    /// No such dimension.
    pub fn flip(&self, dim: usize) -> Result<Layout, TensorError> {
        const OP: &str = "flip";
        let (size, stride) = self.dim(OP, dim)?;
        if size <= 1 {
            return Ok(*self);
        }
        let back = stride.checked_neg().ok_or_else(|| TensorError::overflow(OP, self.shape()))?;
        self.with_dim(OP, dim, size, back, size - 1)
    }

    /// Two dimensions exchanged.
    ///
    /// # Errors
    /// No such dimension.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Layout, TensorError> {
        const OP: &str = "transpose";
        self.dim(OP, a)?;
        self.dim(OP, b)?;
        let mut order: [usize; MAX_DIMS] = std::array::from_fn(|dim| dim);
        order.swap(a, b);
        self.reordered(OP, &order[..self.ndim()])
    }

    /// Dimensions in another order: dimension `i` of the result is dimension `order[i]` of this one.
    ///
    /// ```
    /// use comm_core::tensor::Layout;
    ///
    /// let a = Layout::contiguous(&[2, 3, 4])?.permute(&[2, 0, 1])?;
    /// assert_eq!((a.shape(), a.strides()), (&[4, 2, 3][..], &[1, 12, 4][..]));
    /// # Ok::<(), comm_core::tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// `order` does not name every dimension once.
    pub fn permute(&self, order: &[usize]) -> Result<Layout, TensorError> {
        const OP: &str = "permute";
        let mut named = [false; MAX_DIMS];
        for &dim in order {
            self.dim(OP, dim)?;
            named[dim] = true;
        }
        let all = named.iter().filter(|&&named| named).count();
        if order.len() != self.ndim() || all != self.ndim() {
            return Err(TensorError::invalid(
                OP,
                format!("order {order:?} does not name each of {} dimensions once", self.ndim()),
            ));
        }
        self.reordered(OP, order)
    }

    fn reordered(&self, op: &'static str, order: &[usize]) -> Result<Layout, TensorError> {
        let mut shape = [0; MAX_DIMS];
        let mut strides = [0; MAX_DIMS];
        for (to, &from) in order.iter().enumerate() {
            (shape[to], strides[to]) = self.dim(op, from)?;
        }
        Layout::build(op, &shape[..order.len()], &strides[..order.len()], self.offset())
    }

    /// A dimension of size 1 removed.
    ///
    /// # Errors
    /// No such dimension, or it has another size.
    pub fn squeeze(&self, dim: usize) -> Result<Layout, TensorError> {
        const OP: &str = "squeeze";
        let (size, _) = self.dim(OP, dim)?;
        if size != 1 {
            return Err(TensorError::invalid(OP, format!("dimension {dim} has size {size}, not 1")));
        }
        let mut shape = [0; MAX_DIMS];
        let mut strides = [0; MAX_DIMS];
        for (to, from) in (0..self.ndim()).filter(|&from| from != dim).enumerate() {
            (shape[to], strides[to]) = self.dim(OP, from)?;
        }
        let dims = self.ndim() - 1;
        Layout::build(OP, &shape[..dims], &strides[..dims], self.offset())
    }

    /// A dimension of size 1 put in before `dim`, or at the end.
    ///
    /// # Errors
    /// `dim` is larger than the number of dimensions, or there are [`MAX_DIMS`] already.
    pub fn unsqueeze(&self, dim: usize) -> Result<Layout, TensorError> {
        const OP: &str = "unsqueeze";
        if dim > self.ndim() {
            return Err(TensorError::NoSuchDim { op: OP, dim, dims: self.ndim() });
        }
        let mut shape = self.shape().to_vec();
        let mut strides = self.strides().to_vec();
        // The neighbour's extent, as if an outer dimension had been cut to one index. It never matters.
        let stride =
            self.dim(OP, dim).map_or(1, |(size, stride)| stride.saturating_mul(size.max(1) as isize));
        shape.insert(dim, 1);
        strides.insert(dim, stride);
        Layout::build(OP, &shape, &strides, self.offset())
    }

    /// Another shape with the same elements in the same (row-major) order, over the same memory.
    ///
    /// ```
    /// use comm_core::tensor::{Layout, TensorError};
    ///
    /// let a = Layout::contiguous(&[4, 6])?;
    /// assert_eq!(a.step(1, 2)?.reshape(&[2, 2, 3])?.strides(), &[12, 6, 2]);
    /// assert!(matches!(a.transpose(0, 1)?.reshape(&[24]), Err(TensorError::NoView { .. })));
    /// # Ok::<(), TensorError>(())
    /// ```
    ///
    /// # Errors
    /// Another number of elements; [`TensorError::NoView`] if no strides can express it.
    pub fn reshape(&self, shape: &[usize]) -> Result<Layout, TensorError> {
        const OP: &str = "reshape";
        let target = Layout::contiguous_for(OP, shape)?;
        if target.numel() != self.numel() {
            let (seen, expected) = (target.numel(), self.numel());
            return Err(TensorError::Length { op: OP, unit: "elements", seen, expected });
        }
        if self.numel() == 0 {
            return Layout::build(OP, shape, target.strides(), self.offset());
        }
        match self.strides_for(shape) {
            Some(strides) => Layout::build(OP, shape, &strides[..shape.len()], self.offset()),
            None => Err(TensorError::NoView { op: OP, from: self.shape().into(), to: shape.into() }),
        }
    }

    /// Strides that give `shape` over the same elements; both have the same number, which is not zero.
    ///
    /// Old dimensions that lie like one are taken together, from the last on; each such run must be used up by
    /// whole new dimensions.
    fn strides_for(&self, shape: &[usize]) -> Option<[isize; MAX_DIMS]> {
        let mut strides = row_major(shape);
        let mut new = shape.len();
        let mut old =
            self.shape().iter().zip(self.strides()).rev().filter(|&(&size, _)| size != 1).peekable();
        while let Some((&size, &base)) = old.next() {
            let mut run = size;
            while let Some((&outer, _)) =
                old.next_if(|&(_, &stride)| (run as isize).checked_mul(base) == Some(stride))
            {
                run *= outer;
            }
            let mut used = 1;
            while new > 0 && used < run {
                new -= 1;
                // Saturates for sizes of 1 only, whose strides do not matter.
                strides[new] = base.saturating_mul(used as isize);
                used *= shape[new];
            }
            if used != run {
                return None;
            }
        }
        Some(strides)
    }

    /// Dimensions of size 1 repeated, and new ones put in front; nothing is copied, repeated indices have
    /// stride 0.
    ///
    /// # Errors
    /// Fewer dimensions than before, or another size where the old one is not 1.
    pub fn expand(&self, shape: &[usize]) -> Result<Layout, TensorError> {
        const OP: &str = "expand";
        let wrong = || TensorError::Shape { op: OP, seen: self.shape().into(), expected: shape.into() };
        let Some(added) = shape.len().checked_sub(self.ndim()) else { return Err(wrong()) };
        let mut strides = vec![0; shape.len()];
        for (dim, (&size, &stride)) in self.shape().iter().zip(self.strides()).enumerate() {
            if shape[added + dim] == size {
                strides[added + dim] = stride;
            } else if size != 1 {
                return Err(wrong());
            }
        }
        Layout::build(OP, shape, &strides, self.offset())
    }
}
