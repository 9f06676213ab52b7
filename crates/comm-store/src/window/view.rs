//! Typed views of a window's bytes, and what one rank does to the views of others.

use std::fmt;

use comm_core::tensor::{DType, Element, Layout, Tensor, TensorBuf, Tile};
use comm_core::{Error, Result, point};

use super::alignment::check_alignment;
use super::handshake::{Await, Notify};
use super::transfer::{Rect, StoreOp, Sub, check_dtypes, check_op, tiles};
use super::{Part, Window};

/// Bytes of a window as elements of a shape, row-major, at the same place on every rank.
///
/// Several views may lie on the same bytes. Nothing here waits for anybody: what a rank reads while another writes it
/// may be a mixture of old and new, and it is signals that say when it is not.
pub struct View<'w> {
    window: &'w Window,
    /// Where it begins in the window's bytes.
    at: usize,
    dtype: DType,
    shape: Box<[usize]>,
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({} {:?} at byte {})", self.dtype, self.shape, self.at)
    }
}

impl Window {
    /// The bytes from `at` on as elements of a shape.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they are more than the window has, or `at` is no multiple of an element's size.
    #[doc(alias = "window")]
    pub fn view(&self, at: usize, shape: &[usize], dtype: DType) -> Result<View<'_>> {
        const OP: &str = "Window::view";
        let numel = Layout::contiguous(shape)?.numel();
        if !at.is_multiple_of(dtype.size()) {
            let why = format!("byte {at}: elements of {dtype} begin at multiples of {}", dtype.size());
            return Err(Error::invalid(OP, why));
        }
        let end = dtype.bytes_of(numel).and_then(|len| len.checked_add(at));
        if end.is_none_or(|end| end as u64 > self.spec.bytes) {
            let why =
                format!("{shape:?} of {dtype} from byte {at} on: the window has {} bytes", self.spec.bytes);
            return Err(Error::invalid(OP, why));
        }
        Ok(View { window: self, at, dtype, shape: shape.into() })
    }
}

impl<'w> View<'w> {
    /// The window.
    pub fn window(&self) -> &'w Window {
        self.window
    }

    /// The shape, the same on every rank.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// One element of this rank's own part.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an index outside or another type; a bool that is neither 0 nor 1, which a peer may
    /// have written.
    pub fn read<T: Element>(&self, index: &[usize]) -> Result<T> {
        let at = self.element::<T>("View::read", index)?;
        let mut bytes = [0; 16];
        let bytes = &mut bytes[..self.dtype.size()];
        self.own()?.read(at, bytes)?;
        Ok(T::value_of(bytes)?)
    }

    /// Sets one element of this rank's own part.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an index outside or another type.
    pub fn write<T: Element>(&self, index: &[usize], value: T) -> Result<()> {
        let at = self.element::<T>("View::write", index)?;
        self.own()?.write(at, T::bytes_of(&[value]))
    }

    /// A copy of a rectangle of this rank's own part, as a kernel loads a tile: its rows or its columns are a multiple of
    /// 32 bytes. Narrower ones are read element by element.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rectangle that is not inside, or that is too narrow.
    #[doc(alias = "alloc_tile")]
    #[doc(alias = "tile.load")]
    pub fn load_tile(&self, offsets: &[usize], shape: &[usize]) -> Result<Tensor> {
        const OP: &str = "View::load_tile";
        self.window.reached(self.window.rank())?;
        let tile = Tile::new(OP, &self.shape, offsets, shape)?;
        check_alignment(OP, shape, self.dtype.size())?;
        self.load(self.window.rank(), &tile, shape)
    }

    /// Stores a tensor into this rank's own part, from `offsets` on: what peers are to read.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it does not fit there or has another dtype; memory of a device; what ended the team.
    #[doc(alias = "tile.store")]
    pub fn store(&self, tensor: &Tensor, offsets: &[usize]) -> Result<()> {
        self.store_at("View::store", tensor, self.window.rank(), offsets, StoreOp::Set)
    }

    /// A copy of a rectangle of a rank's part.
    ///
    /// ```
    /// # use comm_core::{Deadline, team::Team, tensor::{DType, Tensor}};
    /// # use comm_store::{Window, window::WindowSpec};
    /// let team = Team::join("load-example", 0, 1, Deadline::default())?;
    /// let window = Window::alloc(&team, WindowSpec::tensor(&[3, 4], DType::U8)?, Deadline::default())?;
    /// let view = window.view(0, &[3, 4], DType::U8)?;
    /// view.store(&Tensor::from_slice(&[2, 2], &[1u8, 2, 3, 4])?, &[1, 1])?;
    /// let seen = view.remote_load(0, &[0, 1], &[3, 2])?;
    /// assert_eq!(seen.as_slice::<u8>()?, [0, 0, 1, 2, 3, 4]);
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rank that is not there or a rectangle that is not inside; what ended the team.
    #[doc(alias = "tile.remote_load")]
    pub fn remote_load(&self, peer: usize, offsets: &[usize], shape: &[usize]) -> Result<Tensor> {
        const OP: &str = "View::remote_load";
        self.window.alive(OP)?;
        let tile = Tile::new(OP, &self.shape, offsets, shape)?;
        self.load(peer, &tile, shape)
    }

    /// As [`remote_load`](View::remote_load), of which only `valid` elements along each dimension are read; the rest is
    /// zero. For the last tile of a dimension that does not divide evenly: only what is read must be inside.
    ///
    /// # Errors
    /// Those of [`remote_load`](View::remote_load).
    #[doc(alias = "valid_shape")]
    pub fn remote_load_valid(
        &self,
        peer: usize,
        offsets: &[usize],
        shape: &[usize],
        valid: &[usize],
    ) -> Result<Tensor> {
        const OP: &str = "View::remote_load_valid";
        self.window.alive(OP)?;
        if valid.len() != shape.len() {
            let why = format!("valid {valid:?} of a tile of shape {shape:?}: one number for each dimension");
            return Err(Error::invalid(OP, why));
        }
        let valid: Vec<usize> = shape.iter().zip(valid).map(|(&n, &v)| n.min(v)).collect();
        let from = Tile::new(OP, &self.shape, offsets, &valid)?;
        let into = Tile::new(OP, shape, &vec![0; shape.len()], &valid)?;
        let part = self.window.part(peer)?;
        let mut tile = TensorBuf::zeros(shape, self.dtype)?;
        let (bytes, size) = (tile.bytes_mut()?, self.dtype.size());
        for (to, from, len) in Tile::pair(OP, &into, &from)? {
            part.read(self.at + from * size, &mut bytes[to * size..(to + len) * size])?;
        }
        self.moved(peer, &from);
        Ok(tile.freeze())
    }

    /// Stores a tensor into a rank's part, from `offsets` on, or adds it to what is there.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rank that is not there, if it does not fit there or has another dtype;
    /// [`Error::Unsupported`] for an addition to elements that have no atomic one; memory of a device; what ended the
    /// team.
    #[doc(alias = "tile.remote_store")]
    pub fn remote_store(&self, tensor: &Tensor, peer: usize, offsets: &[usize], op: StoreOp) -> Result<()> {
        self.store_at("View::remote_store", tensor, peer, offsets, op)
    }

    /// Pushes a part of a view of this rank's own part into the same rank's or a peer's part of this view, then sends
    /// the peer a signal, if there is one to send: whoever has waited for that sees what was pushed.
    ///
    /// Without `sub` the whole goes, and both views have the same shape.
    ///
    /// ```
    /// use comm_core::{Deadline, team::Team, tensor::DType};
    /// use comm_store::{Cmp, Window, window::{Await, Notify, StoreOp, WindowSpec}};
    ///
    /// // Every rank pushes its row to the next one, which waits for it.
    /// fn rank(rank: usize, size: usize) -> comm_core::Result<()> {
    ///     let deadline = Deadline::default();
    ///     let team = Team::join("put-example", rank, size, deadline)?;
    ///     let window = Window::alloc(&team, WindowSpec::bytes(64).signals(size), deadline)?;
    ///     let signals = window.signals(&[size])?;
    ///     let (source, target) = (window.view(0, &[8], DType::I32)?, window.view(32, &[8], DType::I32)?);
    ///     (0..8).try_for_each(|j| source.write(&[j], (100 * rank + j) as i32))?;
    ///     let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);
    ///     target.put(right, &source, None, StoreOp::Set, Some(Notify::add(&signals, &[rank], 1)))?;
    ///     Await::ge(&signals, &[left], 1).from(left).by(deadline).now()?;
    ///     assert_eq!(target.read::<i32>(&[7])?, (100 * left + 7) as i32);
    ///     Ok(())
    /// }
    /// # std::thread::scope(|s| {
    /// #     for r in 0..3 {
    /// #         s.spawn(move || rank(r, 3).unwrap());
    /// #     }
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rank that is not there, parts that are not inside or overlap, another dtype;
    /// [`Error::Unsupported`] for an addition to elements that have no atomic one; what ended the team. Nothing is
    /// signalled then.
    #[doc(alias = "tensor.put")]
    pub fn put(
        &self,
        peer: usize,
        source: &View<'_>,
        sub: Option<Sub<'_>>,
        op: StoreOp,
        then: Option<Notify<'_>>,
    ) -> Result<()> {
        const OP: &str = "View::put";
        self.window.alive(OP)?;
        check_dtypes(OP, self.dtype, source.dtype)?;
        check_op(OP, op, self.dtype)?;
        let (to, from) = tiles(OP, &self.shape, &source.shape, sub)?;
        let part = self.window.part(peer)?;
        if let Some(notify) = &then {
            notify.check(OP, self.window, peer)?;
        }
        if peer == self.window.rank() {
            self.refuse_overlap(OP, &to, source, &from)?;
        }
        point!("window.put");
        let (own, size) = (source.own()?, self.dtype.size());
        let place = Rect { part, at: self.at, dtype: self.dtype, tile: &to };
        place.store_from(OP, op, &from, |element, bytes| own.read(source.at + element * size, bytes))?;
        self.moved(peer, &to);
        then.map_or(Ok(()), |notify| notify.send(peer))
    }

    /// Waits for a signal, if there is one to wait for, and then pulls a part of a rank's part of this view into a view
    /// of this rank's own part: what was written before the signal was sent is what comes.
    ///
    /// Without `sub` the whole comes, and both views have the same shape.
    ///
    /// # Errors
    /// Those of [`put`](View::put), and of [`Signals::wait`](super::Signals::wait).
    #[doc(alias = "tensor.get")]
    pub fn get(
        &self,
        peer: usize,
        target: &View<'_>,
        sub: Option<Sub<'_>>,
        after: Option<Await<'_>>,
    ) -> Result<()> {
        const OP: &str = "View::get";
        self.window.alive(OP)?;
        check_dtypes(OP, target.dtype, self.dtype)?;
        let (to, from) = tiles(OP, &target.shape, &self.shape, sub)?;
        let part = self.window.part(peer)?;
        if peer == self.window.rank() {
            target.refuse_overlap(OP, &to, self, &from)?;
        }
        if let Some(signal) = after {
            signal.check(OP, self.window)?;
            signal.now()?;
        }
        point!("window.get");
        let place = target.place(&to)?;
        let size = self.dtype.size();
        place.store_from(OP, StoreOp::Set, &from, |element, bytes| {
            part.read(self.at + element * size, bytes)
        })?;
        self.moved(peer, &from);
        Ok(())
    }

    /// A rectangle of this rank's own part.
    pub(super) fn place<'a>(&'a self, tile: &'a Tile) -> Result<Rect<'a>> {
        Ok(Rect { part: self.own()?, at: self.at, dtype: self.dtype, tile })
    }

    fn own(&self) -> Result<&'w Part> {
        self.window.reached(self.window.rank())
    }

    fn element<T: Element>(&self, op: &'static str, index: &[usize]) -> Result<usize> {
        check_dtypes(op, self.dtype, T::DTYPE)?;
        let one = vec![1; index.len()];
        let start = Tile::new(op, &self.shape, index, &one)?.runs().next().map_or(0, |(start, _)| start);
        Ok(self.at + start * self.dtype.size())
    }

    fn load(&self, peer: usize, tile: &Tile, shape: &[usize]) -> Result<Tensor> {
        let part = self.window.part(peer)?;
        let mut copy = TensorBuf::zeros(shape, self.dtype)?;
        let (bytes, size) = (copy.bytes_mut()?, self.dtype.size());
        let mut done = 0;
        for (start, len) in tile.runs() {
            part.read(self.at + start * size, &mut bytes[done..done + len * size])?;
            done += len * size;
        }
        self.moved(peer, tile);
        Ok(copy.freeze())
    }

    fn store_at(
        &self,
        call: &'static str,
        tensor: &Tensor,
        peer: usize,
        offsets: &[usize],
        op: StoreOp,
    ) -> Result<()> {
        self.window.alive(call)?;
        check_dtypes(call, self.dtype, tensor.dtype())?;
        check_op(call, op, self.dtype)?;
        let tile = Tile::new(call, &self.shape, offsets, tensor.shape())?;
        let part = self.window.part(peer)?;
        // Bytes that another process may change are copied once and looked at in the copy.
        let dense = if tensor.is_ours() { tensor.contiguous()? } else { tensor.to_buf()?.freeze() };
        let place = Rect { part, at: self.at, dtype: self.dtype, tile: &tile };
        place.store(op, dense.bytes()?)?;
        self.moved(peer, &tile);
        Ok(())
    }

    /// A transfer within one part must not read what it writes.
    fn refuse_overlap(&self, op: &'static str, to: &Tile, source: &View<'_>, from: &Tile) -> Result<()> {
        let same = std::ptr::eq(self.window, source.window)
            && to
                .at(self.at as u64, self.dtype.size())
                .overlaps(from.at(source.at as u64, source.dtype.size()));
        if same {
            return Err(Error::invalid(op, "what is read and what is written overlap"));
        }
        Ok(())
    }

    fn moved(&self, peer: usize, tile: &Tile) {
        if peer != self.window.rank() {
            self.window.counters.moved(tile.numel() * self.dtype.size());
        }
    }
}
