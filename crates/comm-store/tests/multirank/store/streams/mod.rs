//! Streams: readers go on behind the producer's writes, and the producer behind the readers' reads, without anybody
//! waiting for a stream. On a simulated device, whose streams stand at gates for as long as a case wants.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use comm_core::device::Device;
use comm_core::tensor::{DType, Foreign, Layout as Elements, Tensor};
use comm_store::store::Kind;
use comm_testkit::sim::{SimBuffer, SimStream};
use comm_testkit::{Case, Layout};

use super::{Run, of};
use crate::support::Any;

mod devices;
mod order;
mod tasks;

pub use devices::ABROAD;

pub fn cases() -> Vec<Case> {
    [order::CASES, tasks::CASES, devices::CASES]
        .concat()
        .into_iter()
        .flat_map(|(name, run)| threads(name, run))
        .collect()
}

/// Simulated devices have no memory that goes to another process.
fn threads(name: &str, run: Run) -> [Case; 2] {
    [Kind::Process, Kind::Host].map(|kind| of(kind, name, run).layouts(&[Layout::Threads]))
}

const OLD: [u8; 8] = [1; 8];
const NEW: [u8; 8] = [2; 8];

/// Memory of a simulated device, and whether it has been given back.
struct Memory {
    buffer: SimBuffer,
    given_back: Arc<AtomicBool>,
}

impl Memory {
    fn new() -> Memory {
        Memory { buffer: SimBuffer::new(8), given_back: Arc::default() }
    }

    /// The tensor over it. There is one at a time.
    fn tensor(&self, device: u32) -> Any<Tensor> {
        let (owner, given_back) = (self.buffer.clone(), self.given_back.clone());
        let start = NonNull::new(self.buffer.as_ptr()).ok_or("memory is somewhere")?;
        let give_back = move || {
            // From here on it is somebody else's.
            owner.write(0, &[0xee; 8]);
            given_back.store(true, Ordering::Release);
        };
        // SAFETY: the deleter owns a handle of the buffer, so its bytes stay until it runs. They are atomics, read and
        // written as such alone, by streams of the device and by the checks of these cases.
        let memory = unsafe { Foreign::exclusive(start, 8, Device::Sim(device), give_back) };
        Ok(Tensor::from_foreign(memory, DType::U8, Elements::contiguous(&[8])?)?)
    }

    fn is_given_back(&self) -> bool {
        self.given_back.load(Ordering::Acquire)
    }
}

/// What the memory of a tensor holds now, whatever its streams are doing.
fn look(tensor: &Tensor) -> Vec<u8> {
    read(tensor.as_ptr() as usize, tensor.nbytes())
}

fn read(start: usize, len: usize) -> Vec<u8> {
    // SAFETY: whoever asks has a tensor, or has queued this behind one and has told the store of the stream; the bytes are
    // those of a simulated device, which everybody touches as atomics.
    let byte = |i| unsafe { AtomicU8::from_ptr((start + i) as *mut u8) };
    (0..len).map(|i| byte(i).load(Ordering::Relaxed)).collect()
}

/// Queues a read of a tensor, by address when the stream gets there, as a device reads. Nobody notes that it does.
fn read_later(stream: &SimStream, from: &Tensor) -> Any<SimBuffer> {
    let (start, len, to) = (from.as_ptr() as usize, from.nbytes(), SimBuffer::new(from.nbytes()));
    let seen = to.clone();
    stream.stream().then(move || to.write(0, &read(start, len)))?;
    Ok(seen)
}
