//! A pause between two tries.

use std::time::Duration;

use comm_core::Deadline;

/// A pause that is longer each time, and never longer than there is time.
pub(crate) struct Pause {
    next: Duration,
    longest: Duration,
}

impl Pause {
    /// The first one, and the longest.
    pub fn new(first: Duration, longest: Duration) -> Pause {
        Pause { next: first, longest }
    }

    pub fn make(&mut self, deadline: Deadline) {
        std::thread::sleep(self.next.min(deadline.remaining()));
        self.next = (self.next * 2).min(self.longest);
    }
}

impl Default for Pause {
    /// For what somebody does who is at work already.
    fn default() -> Pause {
        Pause::new(Duration::from_millis(1), Duration::from_millis(20))
    }
}
