use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::*;
use crate::device::tests::Held;
use crate::device::{Event, HostFn, StreamDriver};
use crate::tensor::{DType, TensorBuf};

const SOON: Duration = Duration::from_secs(20);
const NOT_AT_ALL: Duration = Duration::ZERO;

/// A tensor of four bytes that counts how often its memory was given back.
fn counted() -> (Tensor, Arc<AtomicUsize>) {
    let freed = Arc::new(AtomicUsize::new(0));
    let (count, mut owner) = (freed.clone(), vec![1u8, 2, 3, 4]);
    let start = std::ptr::NonNull::new(owner.as_mut_ptr()).unwrap();
    let give_back = move || {
        owner.fill(0xee);
        count.fetch_add(1, Ordering::Relaxed);
    };
    // SAFETY: the deleter owns the vector, so its bytes stay until it runs, and nobody else uses them.
    let memory = unsafe { Foreign::exclusive(start, 4, Device::Cpu, give_back) };
    (TensorBuf::from_foreign(memory, &[4], DType::U8).unwrap().freeze(), freed)
}

/// What memory of the device holds, when nothing is queued that touches it.
fn peek(t: &Tensor) -> Vec<u8> {
    assert!(t.is_contiguous());
    // SAFETY: the bytes are the tensor's, which lives, and the stream that wrote them is through.
    unsafe { std::slice::from_raw_parts(t.as_ptr(), t.nbytes()) }.to_vec()
}

fn device() -> (Held, Stream) {
    let held = Held::default();
    (held.clone(), Stream::new(held))
}

/// There and back, whatever the strides, with the strides that it had.
#[test]
fn views_go_there_and_back() {
    let (held, stream) = device();
    let whole = Tensor::from_slice(&[4, 3], &(0..12i16).collect::<Vec<_>>()).unwrap();
    let views = [
        whole.clone(),
        whole.transpose(0, 1).unwrap(),
        whole.flip(0).unwrap().flip(1).unwrap(),
        whole.narrow(0, 1, 2).unwrap().narrow(1, 1, 2).unwrap(),
        whole.narrow(0, 2, 1).unwrap().expand(&[5, 3]).unwrap(),
        whole.narrow(1, 0, 0).unwrap(),
        Tensor::from_slice(&[], &[7i16]).unwrap(),
    ];
    for view in &views {
        let there = view.to_device(Device::Sim(0), &stream, NOT_AT_ALL).unwrap();
        assert_eq!(
            (there.device(), there.shape(), there.strides()),
            (Device::Sim(0), view.shape(), view.strides())
        );
        assert!(there.to_vec::<i16>().is_err(), "the host does not look at memory of a device");
        held.release();
        let (sender, back) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(there.to_device(Device::Cpu, &stream, SOON)).unwrap());
            let back = loop {
                held.release();
                match back.try_recv() {
                    Ok(back) => break back.unwrap(),
                    Err(_) => std::thread::yield_now(),
                }
            };
            assert_eq!(back.device(), Device::Cpu);
            assert!(back.bytes_equal(view).unwrap());
            assert_eq!(back.strides(), view.strides());
        });
    }
    held.release();
    assert_eq!(held.memory(), 0, "what was there has been given back");
}

#[test]
fn where_it_is_it_is_itself() {
    let (held, stream) = device();
    let t = Tensor::from_slice(&[2], &[1u8, 2]).unwrap();
    assert!(t.to_device(Device::Cpu, &stream, NOT_AT_ALL).unwrap().shares_storage(&t));
    let there = t.to_device(Device::Sim(0), &stream, NOT_AT_ALL).unwrap();
    assert!(there.to_device(Device::Sim(0), &Stream::cpu(), NOT_AT_ALL).unwrap().shares_storage(&there));
    held.release();
    assert_eq!(peek(&there), [1, 2]);
}

/// Both ends stay as long as the copy has not been made, though nobody holds them.
#[test]
fn nothing_goes_back_before_the_copy() {
    let (held, stream) = device();
    let (t, freed) = counted();
    let there = t.to_device(Device::Sim(0), &stream, NOT_AT_ALL).unwrap();
    assert_eq!(peek(&there), [0xaa; 4], "the stream has not come to it");
    let t = t.try_into_buf().expect_err("the stream reads it");
    drop(t);
    assert_eq!(freed.load(Ordering::Relaxed), 0);
    let view = there.narrow(0, 1, 2).unwrap();
    drop(there);
    // The copy; and behind it the source.
    assert!(held.release_one());
    assert_eq!((peek(&view), freed.load(Ordering::Relaxed)), (vec![2, 3], 0));
    held.release();
    assert_eq!((freed.load(Ordering::Relaxed), held.memory()), (1, 1));
    drop(view);
    assert_eq!(held.memory(), 0, "the stream was through, so nothing was queued");

    let (t, freed) = counted();
    drop(t.to_device(Device::Sim(0), &stream, NOT_AT_ALL).unwrap());
    drop(t);
    assert_eq!(
        (freed.load(Ordering::Relaxed), held.memory()),
        (0, 1),
        "nobody wants it any more, but the stream"
    );
    held.release();
    assert_eq!((freed.load(Ordering::Relaxed), held.memory()), (1, 0));
}

/// Out of time on the way to the host: the copy is still made, into memory that is nobody's.
#[test]
fn a_copy_to_the_host_that_comes_too_late() {
    let (held, stream) = device();
    let (t, _) = counted();
    let there = t.to_device(Device::Sim(0), &stream, NOT_AT_ALL).unwrap();
    for _ in 0..2 {
        let late = there.to_device(Device::Cpu, &stream, Duration::from_millis(2));
        assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    }
    drop(there);
    held.release();
    assert_eq!(held.memory(), 0);
}

#[test]
fn into_an_arena_where_peers_can_read_it() {
    let (held, stream) = device();
    let arena = Arena::new(Access::ReadOnly, 8 << 20, |_| {});
    let (t, _) = counted();
    let there = t.to_device(Device::Sim(0), &stream, NOT_AT_ALL).unwrap().flip(0).unwrap();
    let late = there.to_host_in(&arena, &stream, NOT_AT_ALL);
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    assert_eq!(arena.stats().blocks, 1, "the stream will write there");
    held.release();
    assert_eq!(arena.stats().blocks, 0);

    let (sender, back) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| sender.send(there.to_host_in(&arena, &stream, SOON)).unwrap());
        let back = loop {
            held.release();
            match back.try_recv() {
                Ok(back) => break back.unwrap(),
                Err(_) => std::thread::yield_now(),
            }
        };
        assert_eq!(back.to_vec::<u8>().unwrap(), [4, 3, 2, 1]);
        assert_eq!(back.block().map(|(id, ..)| id), Some(arena.segments()[0].id()));
        let again = back.flip(0).unwrap().to_host_in(&arena, &stream, NOT_AT_ALL).unwrap();
        assert_eq!(again.to_vec::<u8>().unwrap(), [1, 2, 3, 4], "what is on the host needs no stream");
    });
    let shared = Arena::new(Access::ReadWrite, 8 << 20, |_| {});
    let refused = there.to_host_in(&shared, &stream, NOT_AT_ALL);
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
}

#[test]
fn it_takes_a_stream_of_the_device() {
    let (held, stream) = device();
    let t = Tensor::from_slice(&[2], &[1u8, 2]).unwrap();
    for (device, through, expected) in
        [(Device::Sim(0), Stream::cpu(), "sim:0"), (Device::Sim(1), stream.clone(), "sim:1")]
    {
        match t.to_device(device, &through, NOT_AT_ALL) {
            Err(Error::DeviceMismatch { seen, expected: said, .. }) => {
                assert_eq!(seen, through.device().to_string());
                assert!(said.contains(expected), "{said}");
            }
            other => panic!("{other:?}"),
        }
    }
    let there = t.to_device(Device::Sim(0), &stream, NOT_AT_ALL).unwrap();
    assert!(matches!(there.to_device(Device::Cpu, &Stream::cpu(), SOON), Err(Error::DeviceMismatch { .. })));
    held.release();
}

/// A driver that says nothing about memory has none.
#[derive(Debug)]
struct Plain;

impl StreamDriver for Plain {
    fn device(&self) -> Device {
        Device::Sim(4)
    }
    fn record(&self) -> Result<Event> {
        Ok(Event::complete())
    }
    fn wait(&self, _: &Event) -> Result<()> {
        Ok(())
    }
    fn then(&self, f: HostFn) -> Result<()> {
        f();
        Ok(())
    }
    fn query(&self) -> Result<bool> {
        Ok(true)
    }
    fn synchronize(&self, _: Deadline) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_driver_that_does_not_copy_is_an_error() {
    let (plain, (t, freed)) = (Stream::new(Plain), counted());
    match t.to_device(Device::Sim(4), &plain, NOT_AT_ALL) {
        Err(Error::Unsupported { why, .. }) => assert!(why.contains("sim:4"), "{why}"),
        other => panic!("{other:?}"),
    }
    let memory = [5u8, 6];
    let start = std::ptr::NonNull::from(&memory).cast();
    // SAFETY: the array outlives the tensor, and nobody writes it.
    let foreign = unsafe { Foreign::read_only(start, 2, Device::Sim(4), || {}) };
    let there = Tensor::from_foreign(foreign, DType::U8, Layout::contiguous(&[2]).unwrap()).unwrap();
    assert!(matches!(there.to_device(Device::Cpu, &plain, SOON), Err(Error::Unsupported { .. })));
    drop(t);
    assert_eq!(freed.load(Ordering::Relaxed), 1);
}

/// It copies, and then cannot say when it is through: neither end is ever given back.
#[test]
fn a_device_that_fails_with_a_copy_in_its_queue_keeps_both_ends() {
    let (held, stream) = device();
    let (t, freed) = counted();
    held.break_down();
    assert!(t.to_device(Device::Sim(0), &stream, NOT_AT_ALL).is_err());
    drop(t);
    assert_eq!((freed.load(Ordering::Relaxed), held.memory()), (0, 1));
}
