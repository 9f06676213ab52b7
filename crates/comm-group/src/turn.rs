//! What one thread at a time may hold. Others wait for it no longer than they want.

use std::time::Instant;

use comm_core::error::At;
use comm_core::team::Member;
use comm_core::{Deadline, Error, Result};
use crossbeam_channel::{Receiver, Sender, bounded};

/// A lock that can be waited for with a deadline, which the standard one cannot: its value lies in a channel, or is held.
pub(crate) struct Turn<T: Copy> {
    back: Sender<T>,
    place: Receiver<T>,
}

/// The turn of one thread; dropped, it is the next one's.
pub(crate) struct Held<'a, T: Copy> {
    pub(crate) value: T,
    turn: &'a Turn<T>,
}

impl<T: Copy> Drop for Held<'_, T> {
    fn drop(&mut self) {
        // There is room: this is what was taken out.
        let _ = self.turn.back.try_send(self.value);
    }
}

impl<T: Copy + Default> Default for Turn<T> {
    fn default() -> Turn<T> {
        let (back, place) = bounded(1);
        let _ = back.try_send(T::default());
        Turn { back, place }
    }
}

impl<T: Copy> Turn<T> {
    /// Waits for the turn.
    ///
    /// # Errors
    /// [`Error::Timeout`] if another thread has it until then: `behind` says with what.
    pub(crate) fn hold(
        &self,
        member: &Member,
        op: &'static str,
        behind: impl FnOnce() -> String,
        deadline: Deadline,
    ) -> Result<Held<'_, T>> {
        let started = Instant::now();
        loop {
            if let Ok(value) = self.place.recv_timeout(deadline.remaining()) {
                return Ok(Held { value, turn: self });
            }
            if deadline.has_passed() {
                return Err(late(member, op, &behind(), 1, started));
            }
        }
    }

    /// Takes the turn, unless another thread has it.
    pub(crate) fn try_hold(&self) -> Option<Held<'_, T>> {
        self.place.try_recv().ok().map(|value| Held { value, turn: self })
    }
}

/// The error of who has waited in vain for other threads of this process, so many of which or whose operations were before it: what
/// has ended the team, if that is why.
pub(crate) fn late(
    member: &Member,
    op: &'static str,
    behind: &str,
    before: usize,
    started: Instant,
) -> Error {
    if let Err(end) = member.check(op) {
        return end;
    }
    let elapsed = started.elapsed();
    Error::Timeout {
        what: format!("{op}: {behind}"),
        waited: elapsed,
        missing: Vec::new(),
        seen: before as i64,
        expected: 0,
        at: Box::new(At { team: member.name().into(), rank: member.rank(), op: op.into(), elapsed }),
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use comm_core::team::Team;

    use super::*;

    const AMPLE: Duration = Duration::from_secs(20);

    #[test]
    fn one_at_a_time_has_it_and_the_next_finds_what_was_left() {
        let team = Team::join("turn", 0, 1, AMPLE).unwrap();
        let turn = Turn::<u32>::default();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..1000 {
                        let held = turn.hold(&team, "test", String::new, AMPLE.into());
                        held.unwrap().value += 1;
                    }
                });
            }
        });
        assert_eq!(turn.hold(&team, "test", String::new, AMPLE.into()).unwrap().value, 4000);
    }

    #[test]
    fn who_wants_it_meanwhile_waits_no_longer_than_he_wants() {
        let team = Team::join("turn-late", 0, 1, AMPLE).unwrap();
        let turn = Turn::<()>::default();
        let held = turn.hold(&team, "test", String::new, AMPLE.into()).unwrap();
        let short = Duration::from_millis(10);
        match turn.hold(&team, "test", || "another thread".into(), short.into()) {
            Err(Error::Timeout { what, waited, at, .. }) => {
                assert_eq!((what.as_str(), at.team.as_str()), ("test: another thread", "turn-late"));
                assert!(waited >= short);
            }
            other => panic!("{:?}", other.map(drop)),
        }
        drop(held);
        turn.hold(&team, "test", String::new, short.into()).unwrap();
    }

    #[test]
    fn a_panic_gives_it_back() {
        let team = Team::join("turn-panic", 0, 1, AMPLE).unwrap();
        let turn = Turn::<u8>::default();
        let hold = || turn.hold(&team, "test", String::new, Duration::ZERO.into());
        let fall = || {
            let _held = hold().unwrap();
            panic!("on purpose");
        };
        assert!(catch_unwind(AssertUnwindSafe(fall)).is_err());
        assert!(hold().is_ok());
    }
}
