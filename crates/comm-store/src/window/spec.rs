//! What a window is made of.

use std::fmt;

use comm_core::tensor::{DType, Layout};
use comm_core::{Error, Result};

/// What every rank contributes to a window: bytes, signal cells, and slots for tensors that it exposes in place.
///
/// ```
/// use comm_core::tensor::DType;
/// use comm_store::window::WindowSpec;
///
/// let plain = WindowSpec::bytes(4096);
/// let typed = WindowSpec::tensor(&[4, 256], DType::F32)?; // the same 4096 bytes
/// assert_eq!(plain, typed);
/// // Four ranks signal each other, in two rounds that must not be mixed up.
/// let with_signals = typed.signals(2 * 4);
/// # Ok::<(), comm_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowSpec {
    pub(super) bytes: u64,
    pub(super) signals: u64,
    pub(super) slots: u64,
}

/// Far more than memory holds, and small enough that no sum of the three wraps.
const MOST: u64 = 1 << 48;

/// More slots than anybody exposes tensors in at a time.
const MOST_SLOTS: u64 = 1 << 24;

const LINE: u64 = 64;

impl WindowSpec {
    /// So many bytes. (Bytes, not elements.)
    pub fn bytes(bytes: usize) -> WindowSpec {
        WindowSpec { bytes: bytes as u64, signals: 0, slots: 0 }
    }

    /// As many bytes as a tensor of this shape has.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a shape without dimensions or without elements, or with too many.
    pub fn tensor(shape: &[usize], dtype: DType) -> Result<WindowSpec> {
        let layout = Layout::contiguous(shape)?;
        if shape.is_empty() || layout.numel() == 0 {
            let why = format!("shape {shape:?}: it has at least one dimension, and none of them is 0");
            return Err(Error::invalid("WindowSpec::tensor", why));
        }
        let bytes = dtype.bytes_of(layout.numel());
        let too_large = || Error::invalid("WindowSpec::tensor", format!("{shape:?} of {dtype} is too large"));
        Ok(WindowSpec::bytes(bytes.ok_or_else(too_large)?))
    }

    /// And so many signal cells, each alone on its cache line, none of them in the bytes.
    #[must_use]
    pub fn signals(self, cells: usize) -> WindowSpec {
        WindowSpec { signals: cells as u64, ..self }
    }

    /// And so many slots, in each of which a rank can expose one tensor at a time.
    #[must_use]
    pub fn slots(self, slots: usize) -> WindowSpec {
        WindowSpec { slots: slots as u64, ..self }
    }

    pub(super) fn check(self) -> Result<()> {
        if [self.bytes, self.signals].iter().any(|&n| n > MOST) || self.slots > MOST_SLOTS {
            return Err(Error::invalid("Window::alloc", format!("{self}: that is more than there can be")));
        }
        Ok(())
    }

    // In memory: the door, the signals, the slots, the bytes, each from a multiple of 64 on.

    pub(super) fn signals_at(self) -> u64 {
        LINE
    }

    pub(super) fn slots_at(self) -> u64 {
        self.signals_at() + self.signals * LINE
    }

    pub(super) fn bytes_at(self) -> u64 {
        self.slots_at() + self.slots * LINE
    }

    pub(super) fn len(self) -> u64 {
        self.bytes_at() + self.bytes
    }
}

impl From<usize> for WindowSpec {
    fn from(bytes: usize) -> WindowSpec {
        WindowSpec::bytes(bytes)
    }
}

impl fmt::Display for WindowSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, {} signals, {} slots", self.bytes, self.signals, self.slots)
    }
}
