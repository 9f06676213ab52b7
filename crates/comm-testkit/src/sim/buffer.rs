//! Memory of the simulated device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::values;

/// Memory of the simulated device: bytes that a stream writes later. Cheap to clone; clones are the same memory.
///
/// The bytes are atomics, so a test that reads them too early sees old bytes and not undefined behaviour. New
/// memory is [poison](values::poison).
///
/// ```
/// let buffer = comm_testkit::sim::SimBuffer::new(3);
/// assert!(buffer.is_poison());
/// buffer.write(1, &[7]);
/// assert_eq!(buffer.read()[1], 7);
/// ```
#[derive(Debug, Clone)]
pub struct SimBuffer(Arc<[AtomicU8]>);

impl SimBuffer {
    /// So many bytes of poison.
    pub fn new(len: usize) -> SimBuffer {
        SimBuffer(values::poison(len).into_iter().map(AtomicU8::new).collect())
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What it holds at this moment, whatever its streams are doing.
    pub fn read(&self) -> Vec<u8> {
        self.0.iter().map(|b| b.load(Ordering::Relaxed)).collect()
    }

    /// Writes at this moment, whatever its streams are doing. Bytes past the end are cut off.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        for (to, from) in self.0.iter().skip(offset).zip(bytes) {
            to.store(*from, Ordering::Relaxed);
        }
    }

    /// Whether nothing has been written to it.
    pub fn is_poison(&self) -> bool {
        values::is_poison(&self.read())
    }

    /// Its address, valid while a clone of it is alive.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }
}
