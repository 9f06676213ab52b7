//! The synchronous stream of the host.

use std::sync::{Arc, LazyLock};

use super::{Device, Event, EventDriver, HostFn, StreamDriver};
use crate::Deadline;
use crate::error::Result;

/// Work of the host is done when the call that does it returns, so there is nothing to queue.
#[derive(Debug)]
struct Cpu;

#[derive(Debug)]
struct Complete;

static CPU: LazyLock<Arc<Cpu>> = LazyLock::new(|| Arc::new(Cpu));
static COMPLETE: LazyLock<Arc<Complete>> = LazyLock::new(|| Arc::new(Complete));

pub(super) fn driver() -> Arc<dyn StreamDriver> {
    Arc::clone(&*CPU) as Arc<dyn StreamDriver>
}

pub(super) fn complete_event() -> Event {
    Event::from_arc(Arc::clone(&*COMPLETE) as Arc<dyn EventDriver>)
}

impl EventDriver for Complete {
    fn query(&self) -> Result<bool> {
        Ok(true)
    }

    fn synchronize(&self, _deadline: Deadline) -> Result<()> {
        Ok(())
    }

    fn then(&self, f: HostFn) -> std::result::Result<(), HostFn> {
        f();
        Ok(())
    }
}

impl StreamDriver for Cpu {
    fn device(&self) -> Device {
        Device::Cpu
    }

    fn record(&self) -> Result<Event> {
        Ok(complete_event())
    }

    fn wait(&self, event: &Event) -> Result<()> {
        // What follows in this stream is whatever the caller does next, so only the caller can wait.
        if event.query()? {
            return Ok(());
        }
        event.synchronize(Deadline::default())
    }

    fn then(&self, f: HostFn) -> Result<()> {
        f();
        Ok(())
    }

    fn query(&self) -> Result<bool> {
        Ok(true)
    }

    fn synchronize(&self, _deadline: Deadline) -> Result<()> {
        Ok(())
    }
}
