use std::sync::{Arc, Mutex};
use std::time::Duration;

use comm_core::Error;
use comm_core::device::{Device, Event, Stream};

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
