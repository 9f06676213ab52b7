use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use comm_core::Error;
use comm_core::device::{Device, Event, Stream};
use comm_core::tensor::{DType, Foreign, Tensor, TensorBuf};

use super::{SimBuffer, SimStream};

const SOON: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(20);

#[test]
fn a_queue_runs_in_order() {
    let sim = SimStream::new(3);
    assert_eq!(sim.stream().device(), Device::Sim(3));
    let order = Arc::new(Mutex::new(Vec::new()));
    for i in 0..100 {
        let order = Arc::clone(&order);
        sim.stream().then(move || order.lock().unwrap().push(i)).unwrap();
    }
    sim.stream().synchronize(SOON).unwrap();
    assert_eq!(*order.lock().unwrap(), (0..100).collect::<Vec<_>>());
}

#[test]
fn nothing_passes_a_shut_gate() {
    let sim = SimStream::new(0);
    let buffer = SimBuffer::new(2);
    sim.write(&buffer, 0, &[1]).unwrap();
    let before = sim.stream().record().unwrap();
    let gate = sim.gate().unwrap();
    sim.write(&buffer, 1, &[2]).unwrap();
    let behind = sim.stream().record().unwrap();

    gate.wait_reached(SOON).unwrap();
    assert!(before.query().unwrap());
    assert_eq!(buffer.read()[0], 1);
    assert!(!behind.query().unwrap() && !sim.stream().query().unwrap());
    assert!(matches!(behind.synchronize(SHORT), Err(Error::Timeout { .. })));
    assert!(matches!(sim.stream().synchronize(SHORT), Err(Error::Timeout { .. })));
    assert_ne!(buffer.read()[1], 2);

    gate.open();
    behind.synchronize(SOON).unwrap();
    assert_eq!(buffer.read(), [1, 2]);
}

#[test]
fn a_dropped_gate_is_open() {
    let sim = SimStream::new(0);
    drop(sim.gate().unwrap());
    sim.stream().synchronize(SOON).unwrap();
}

#[test]
fn one_stream_waits_for_an_event_of_another() {
    let (a, b) = (SimStream::new(0), SimStream::new(1));
    let (source, copy, early) = (SimBuffer::new(3), SimBuffer::new(3), SimBuffer::new(3));
    let gate = a.gate().unwrap();
    a.write(&source, 0, &[7, 8, 9]).unwrap();
    let written = a.stream().record().unwrap();

    b.copy(&source, &early).unwrap();
    let copied_early = b.stream().record().unwrap();
    b.stream().wait(&written).unwrap();
    b.copy(&source, &copy).unwrap();
    let copied = b.stream().record().unwrap();

    // The wrong order proceeds and is wrong; the right one is held back.
    copied_early.synchronize(SOON).unwrap();
    assert!(early.is_poison());
    assert!(matches!(copied.synchronize(SHORT), Err(Error::Timeout { .. })));
    gate.open();
    copied.synchronize(SOON).unwrap();
    assert_eq!(copy.read(), [7, 8, 9]);
}

#[test]
fn the_cpu_waits_for_a_simulated_event_and_back() {
    let sim = SimStream::new(0);
    let buffer = SimBuffer::new(1);
    sim.stream().wait(&Event::complete()).unwrap();
    sim.write(&buffer, 0, &[5]).unwrap();
    Stream::cpu().wait(&sim.stream().record().unwrap()).unwrap();
    assert_eq!(buffer.read(), [5]);
}

#[test]
fn the_worker_outlives_the_handles() {
    let sim = SimStream::new(0);
    let buffer = SimBuffer::new(1);
    let gate = sim.gate().unwrap();
    sim.write(&buffer, 0, &[5]).unwrap();
    let inside = sim.clone();
    sim.stream().then(move || drop(inside)).unwrap();
    let done = sim.stream().record().unwrap();
    drop(sim);
    gate.open();
    done.synchronize(SOON).unwrap();
    assert_eq!(buffer.read(), [5]);
}

#[test]
fn a_panic_in_the_queue_fails_the_stream() {
    let sim = SimStream::new(0);
    let buffer = SimBuffer::new(1);
    let gate = sim.gate().unwrap();
    sim.stream().then(|| panic!("on purpose")).unwrap();
    sim.write(&buffer, 0, &[5]).unwrap();
    let behind = sim.stream().record().unwrap();
    gate.open();
    let why = behind.synchronize(SOON).unwrap_err().to_string();
    assert!(why.contains("on purpose"), "{why}");
    assert!(buffer.is_poison());
    assert!(sim.stream().record().is_err() && sim.stream().query().is_err());
}

/// A tensor of three bytes, and whether they were given back.
fn watched() -> (Tensor, Arc<AtomicBool>) {
    let freed = Arc::new(AtomicBool::new(false));
    let mut owner = vec![1u8, 2, 3];
    let start = NonNull::new(owner.as_mut_ptr()).unwrap();
    let give_back = {
        let freed = Arc::clone(&freed);
        move || {
            drop(owner);
            freed.store(true, Ordering::Release);
        }
    };
    // SAFETY: the deleter owns the vector, so its bytes stay until it runs, and nobody else uses them.
    let memory = unsafe { Foreign::exclusive(start, 3, Device::Cpu, give_back) };
    (TensorBuf::from_foreign(memory, &[3], DType::U8).unwrap().freeze(), freed)
}

/// Queues a copy of a tensor's bytes, read by address when the stream gets there, as a device would read them.
fn copy_later(sim: &SimStream, from: &Tensor, to: &SimBuffer) {
    let (start, len, to) = (from.as_ptr() as usize, from.nbytes(), to.clone());
    let read = move || {
        // SAFETY: the use was recorded, so the memory is not given back before this stream is through, and nobody
        // may write it until then.
        let bytes = unsafe { std::slice::from_raw_parts(start as *const u8, len) };
        to.write(0, bytes);
    };
    sim.stream().then(read).unwrap();
    from.record_use(sim.stream()).unwrap();
}

#[test]
fn a_tensor_outlives_its_last_handle_until_the_stream_has_read_it() {
    let (sim, seen) = (SimStream::new(0), SimBuffer::new(3));
    let (t, freed) = watched();
    let gate = sim.gate().unwrap();
    copy_later(&sim, &t, &seen);
    drop(t);
    gate.wait_reached(SOON).unwrap();
    assert!(!freed.load(Ordering::Acquire) && seen.is_poison(), "the stream has not got there yet");
    gate.open();
    sim.stream().synchronize(SOON).unwrap();
    assert_eq!(seen.read(), [1, 2, 3]);
    assert!(freed.load(Ordering::Acquire), "given back behind what reads it");
}

#[test]
fn the_last_of_two_streams_gives_a_tensor_back() {
    let (a, b) = (SimStream::new(0), SimStream::new(1));
    let (t, freed) = watched();
    let (gate_a, gate_b) = (a.gate().unwrap(), b.gate().unwrap());
    let (seen_a, seen_b) = (SimBuffer::new(3), SimBuffer::new(3));
    copy_later(&a, &t, &seen_a);
    copy_later(&b, &t.narrow(0, 1, 2).unwrap(), &seen_b);
    drop(t);
    gate_b.open();
    b.stream().synchronize(SOON).unwrap();
    assert_eq!(seen_b.read()[..2], [2, 3]);
    assert!(!freed.load(Ordering::Acquire), "the other stream has not read it");
    gate_a.open();
    a.stream().synchronize(SOON).unwrap();
    assert_eq!(seen_a.read(), [1, 2, 3]);
    assert!(freed.load(Ordering::Acquire));
}

#[test]
fn a_tensor_is_not_written_while_a_stream_reads_it() {
    let (sim, seen) = (SimStream::new(0), SimBuffer::new(3));
    let (t, freed) = watched();
    let gate = sim.gate().unwrap();
    copy_later(&sim, &t, &seen);
    let t = t.try_into_buf().expect_err("the stream has not read it yet");
    gate.wait_reached(SOON).unwrap();
    let t = t.try_into_buf().expect_err("nor now");
    gate.open();
    sim.stream().synchronize(SOON).unwrap();
    let mut buf = t.try_into_buf().expect("the stream is through");
    buf.as_mut_slice::<u8>().unwrap().fill(9);
    assert_eq!(seen.read(), [1, 2, 3]);
    assert!(!freed.load(Ordering::Acquire));
    drop(buf);
    assert!(freed.load(Ordering::Acquire));
}

#[test]
fn a_tensor_that_a_failed_stream_may_read_is_never_given_back() {
    let sim = SimStream::new(0);
    let (t, freed) = watched();
    let gate = sim.gate().unwrap();
    sim.stream().then(|| {}).unwrap();
    t.record_use(sim.stream()).unwrap();
    sim.fail(Error::bad_peer("the device has failed"));
    gate.open();
    let t = t.try_into_buf().expect_err("nobody can tell whether it was read");
    drop(t);
    assert!(sim.stream().synchronize(SOON).is_err());
    assert!(!freed.load(Ordering::Acquire));
}
