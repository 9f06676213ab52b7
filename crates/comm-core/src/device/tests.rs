use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::{Deadline, Error, Result};

/// A stream that runs nothing until it is told to: implementable from the public traits alone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held(Arc<Mutex<HeldState>>);

#[derive(Default)]
struct HeldState {
    queue: VecDeque<HostFn>,
    queued: u64,
    done: u64,
    /// Pieces of memory that are out.
    memory: usize,
    /// Whether it has failed, as a device does: nothing more can be asked of it.
    broken: bool,
}

impl fmt::Debug for HeldState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} done", self.done, self.queued)
    }
}

impl Held {
    /// Runs everything that is queued.
    pub(crate) fn release(&self) {
        while self.release_one() {}
    }

    /// Runs the first thing that is queued; `false` if there is none.
    pub(crate) fn release_one(&self) -> bool {
        // Taken out first: what runs may use the stream.
        let Some(f) = self.0.lock().unwrap().queue.pop_front() else { return false };
        f();
        self.0.lock().unwrap().done += 1;
        true
    }

    /// How many pieces of its memory have not been given back.
    pub(crate) fn memory(&self) -> usize {
        self.0.lock().unwrap().memory
    }

    /// Fails, once what is queued has been copied.
    pub(crate) fn break_down(&self) {
        self.0.lock().unwrap().broken = true;
    }

    /// A stream with one piece of unfinished work in it.
    pub(crate) fn busy() -> (Held, Stream) {
        let held = Held::default();
        let stream = Stream::new(held.clone());
        stream.then(|| {}).unwrap();
        (held, stream)
    }
}

#[derive(Debug)]
struct HeldEvent(Held, u64);

impl EventDriver for HeldEvent {
    fn query(&self) -> Result<bool> {
        Ok(self.0.0.lock().unwrap().done >= self.1)
    }

    fn synchronize(&self, deadline: Deadline) -> Result<()> {
        while !self.query()? {
            if deadline.has_passed() {
                return Err(Error::Timeout {
                    what: "event".into(),
                    waited: Duration::ZERO,
                    missing: vec![],
                    seen: 0,
                    expected: 1,
                    at: Default::default(),
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl StreamDriver for Held {
    fn device(&self) -> Device {
        Device::Sim(0)
    }

    fn record(&self) -> Result<Event> {
        let state = self.0.lock().unwrap();
        if state.broken {
            return Err(Error::bad_peer("the device failed"));
        }
        Ok(Event::new(HeldEvent(self.clone(), state.queued)))
    }

    fn wait(&self, event: &Event) -> Result<()> {
        let event = event.clone();
        self.then(Box::new(move || event.synchronize(Duration::from_secs(10)).unwrap()))
    }

    fn then(&self, f: HostFn) -> Result<()> {
        let mut state = self.0.lock().unwrap();
        state.queue.push_back(f);
        state.queued += 1;
        Ok(())
    }

    fn query(&self) -> Result<bool> {
        let state = self.0.lock().unwrap();
        Ok(state.done == state.queued)
    }

    fn synchronize(&self, deadline: Deadline) -> Result<()> {
        self.record()?.synchronize(deadline)
    }

    fn alloc(&self, bytes: usize) -> Result<DeviceMemory> {
        self.0.lock().unwrap().memory += 1;
        let mut owner = vec![0xaa_u8; bytes];
        let (start, held) = (NonNull::new(owner.as_mut_ptr()).unwrap(), self.clone());
        let free = move || {
            drop(owner);
            held.0.lock().unwrap().memory -= 1;
        };
        Ok(DeviceMemory { start, free: Box::new(free) })
    }

    unsafe fn copy(&self, from: NonNull<u8>, to: NonNull<u8>, bytes: usize) -> Result<()> {
        let (from, to) = (from.as_ptr() as usize, to.as_ptr() as usize);
        self.then(Box::new(move || {
            // SAFETY: both ranges are valid and nobody else's until this has run, as whoever asked for it promised.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        }))
    }
}

#[test]
fn cpu_events_are_complete_when_recorded() {
    let event = Stream::cpu().record().unwrap();
    assert!(event.query().unwrap());
    event.synchronize(Duration::ZERO).unwrap();
    assert!(Stream::cpu().query().unwrap());
    Stream::cpu().synchronize(Duration::ZERO).unwrap();
}

#[test]
fn cpu_runs_host_functions_at_once() {
    let (tx, rx) = mpsc::channel();
    Stream::cpu().then(move || tx.send(std::thread::current().id()).unwrap()).unwrap();
    assert_eq!(rx.try_recv().unwrap(), std::thread::current().id());
}

#[test]
fn an_event_of_a_busy_stream_waits_for_what_was_before_it() {
    let (held, stream) = Held::busy();
    let event = stream.record().unwrap();
    assert!(!event.query().unwrap());
    assert!(matches!(event.synchronize(Duration::from_millis(5)), Err(Error::Timeout { .. })));
    held.release();
    assert!(event.query().unwrap());
    stream.then(|| {}).unwrap();
    assert!(event.query().unwrap(), "later work does not matter to the event");
    assert!(!stream.query().unwrap());
}

#[test]
fn the_cpu_stream_waits_for_another_streams_event() {
    let (held, stream) = Held::busy();
    let event = stream.record().unwrap();
    let waiter = std::thread::spawn(move || {
        Stream::cpu().wait(&event).unwrap();
        assert!(event.query().unwrap());
    });
    std::thread::sleep(Duration::from_millis(20));
    assert!(!waiter.is_finished());
    held.release();
    waiter.join().unwrap();
}

#[test]
fn streams_are_told_apart_and_clones_are_not() {
    let (_, a) = Held::busy();
    let (_, b) = Held::busy();
    assert_ne!(a.id(), b.id());
    assert_eq!(a, a.clone());
    assert_ne!(a, Stream::cpu());
    assert!(a.downcast_ref::<Held>().is_some());
    assert!(Stream::cpu().downcast_ref::<Held>().is_none());
    assert!(a.record().unwrap().downcast_ref::<HeldEvent>().is_some());
    assert!(Event::complete().downcast_ref::<HeldEvent>().is_none());
}

#[test]
fn the_current_stream_nests_and_survives_panics() {
    let (_, a) = Held::busy();
    let (_, b) = Held::busy();
    assert_eq!(Stream::current(), Stream::cpu());
    with_current(&a, || {
        assert_eq!(Stream::current(), a);
        let panicked = catch_unwind(AssertUnwindSafe(|| with_current(&b, || panic!("as the test asks"))));
        assert!(panicked.is_err());
        assert_eq!(Stream::current(), a);
        std::thread::scope(|s| {
            s.spawn(|| assert_eq!(Stream::current(), Stream::cpu()));
        });
    });
    assert_eq!(Stream::current(), Stream::cpu());
}
