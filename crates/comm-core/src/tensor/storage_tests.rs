use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::device::tests::Held;
use crate::device::{HostFn, StreamDriver};
use crate::tensor::{DType, Tensor, TensorBuf};
use crate::{Deadline, Error, Result};

/// A tensor of four bytes that counts how often its memory was given back.
fn counted() -> (Tensor, Arc<AtomicUsize>) {
    let freed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&freed);
    let mut owner = vec![1u8, 2, 3, 4];
    let start = NonNull::new(owner.as_mut_ptr()).unwrap();
    // SAFETY: the deleter owns the vector, so its bytes stay until it runs, and nobody else uses them.
    let memory = unsafe {
        Foreign::exclusive(start, 4, Device::Cpu, move || {
            drop(owner);
            count.fetch_add(1, Ordering::Relaxed);
        })
    };
    (TensorBuf::from_foreign(memory, &[4], DType::U8).unwrap().freeze(), freed)
}

#[test]
fn unused_memory_goes_back_at_once() {
    let (t, freed) = counted();
    let view = t.narrow(0, 1, 2).unwrap();
    t.record_use(&Stream::cpu()).unwrap();
    drop(t);
    assert_eq!(freed.load(Ordering::Relaxed), 0, "a view still holds it");
    drop(view);
    assert_eq!(freed.load(Ordering::Relaxed), 1);
}

#[test]
fn memory_goes_back_behind_the_stream_that_reads_it() {
    let (t, freed) = counted();
    let (held, stream) = Held::busy();
    t.record_use(&stream).unwrap();
    drop(t);
    assert_eq!(freed.load(Ordering::Relaxed), 0);
    held.release(); // what the tensor was used in, and the release that was queued behind it
    assert_eq!(freed.load(Ordering::Relaxed), 1);
}

#[test]
fn the_last_of_several_streams_gives_it_back() {
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let (t, freed) = counted();
        let streams: Vec<_> = (0..3).map(|_| Held::busy()).collect();
        for (_, stream) in &streams {
            t.record_use(stream).unwrap();
        }
        drop(t);
        for (i, at) in order.into_iter().enumerate() {
            assert_eq!(freed.load(Ordering::Relaxed), 0, "after {i} streams of {order:?}");
            streams[at].0.release();
        }
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn one_event_per_stream_is_kept_and_the_latest_counts() {
    let (t, freed) = counted();
    let (held, stream) = Held::busy();
    t.record_use(&stream).unwrap();
    stream.then(|| {}).unwrap();
    t.record_use(&stream).unwrap();
    assert_eq!(t.view().storage.uses.lock().unwrap().len(), 1);
    held.release_one();
    let t = t.try_into_buf().expect_err("the second use is not over");
    held.release();
    t.record_use(&stream).unwrap();
    assert_eq!(t.view().storage.uses.lock().unwrap().len(), 0, "a complete event needs no record");
    drop(t);
    assert_eq!(freed.load(Ordering::Relaxed), 1, "the stream is through, so nothing was queued");
}

#[test]
fn a_tensor_that_a_stream_reads_cannot_be_written() {
    let (t, _) = counted();
    let (held, stream) = Held::busy();
    t.record_use(&stream).unwrap();
    let t = t.try_into_buf().unwrap_err();
    held.release();
    let mut buf = t.try_into_buf().unwrap();
    buf.as_mut_slice::<u8>().unwrap()[0] = 9;
    assert_eq!(buf.freeze().as_slice::<u8>().unwrap(), [9, 2, 3, 4]);
}

/// A device that has failed: it cannot say whether its work is done, and takes no more.
#[derive(Debug)]
struct Broken(std::sync::atomic::AtomicBool);

impl crate::device::EventDriver for Broken {
    fn query(&self) -> Result<bool> {
        // The first query, by `record_use`, still works.
        if self.0.swap(true, Ordering::Relaxed) {
            Err(Error::bad_peer("the device failed"))
        } else {
            Ok(false)
        }
    }
    fn synchronize(&self, _: Deadline) -> Result<()> {
        Err(Error::bad_peer("the device failed"))
    }
}

impl StreamDriver for Broken {
    fn device(&self) -> Device {
        Device::Sim(7)
    }
    fn record(&self) -> Result<Event> {
        Ok(Event::new(Broken(false.into())))
    }
    fn wait(&self, _: &Event) -> Result<()> {
        Ok(())
    }
    fn then(&self, f: HostFn) -> Result<()> {
        drop(f);
        Err(Error::bad_peer("the device failed"))
    }
    fn query(&self) -> Result<bool> {
        Ok(false)
    }
    fn synchronize(&self, _: Deadline) -> Result<()> {
        Ok(())
    }
}

#[test]
fn memory_that_a_broken_stream_may_still_read_is_never_freed() {
    let (t, freed) = counted();
    t.record_use(&Stream::new(Broken(false.into()))).unwrap();
    drop(t);
    assert_eq!(freed.load(Ordering::Relaxed), 0);
}

#[test]
fn two_threads_that_record_the_same_stream_keep_one_event() {
    let (t, freed) = counted();
    let (held, stream) = Held::busy();
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                for _ in 0..100 {
                    stream.then(|| {}).unwrap();
                    t.record_use(&stream).unwrap();
                }
            });
        }
    });
    assert_eq!(t.view().storage.uses.lock().unwrap().len(), 1);
    drop(t);
    held.release();
    assert_eq!(freed.load(Ordering::Relaxed), 1);
}
