//! The right to set a promise, as a small value that any message can carry.

use std::fmt;
use std::marker::PhantomData;

use comm_core::hub::{Hub, Instance, Nonce};
use comm_core::{Error, Result, layout, wire};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::slot::LAYOUT;

/// The right to set a promise whose future is in another process, or in another place of this one.
///
/// It is a value like any other: serde writes it into any format, and [`to_bytes`](Ticket::to_bytes) into the shortest that is
/// here. Whoever reads it claims the promise by [`Promise::attach`](crate::Promise::attach). Until then it is nobody's: a ticket
/// that is lost on the way leaves its future waiting until its deadline.
///
/// ```
/// use comm_core::{Deadline, Kind};
/// use comm_promise::{Promise, Ticket};
///
/// let promise = Promise::<()>::new(Kind::Host)?;
/// let future = promise.future()?;
/// let bytes = promise.into_ticket()?.to_bytes();
/// // ... in whatever process of this host the bytes come to:
/// let ticket = Ticket::<()>::from_bytes(&bytes)?;
/// Promise::attach(&ticket, Deadline::default())?.set(())?;
/// future.get(Deadline::default())?;
/// # Ok::<(), comm_core::Error>(())
/// ```
#[doc(alias = "Serialize")]
#[doc(alias = "CreateTensorPromiseFromSerialized")]
#[must_use = "a ticket that is lost leaves its future waiting"]
pub struct Ticket<T> {
    pub(crate) said: Said,
    of: PhantomData<fn() -> T>,
}

/// What a ticket says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Said {
    layout: u64,
    user: u32,
    instance: u64,
    pub(crate) home: Nonce,
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    pub(crate) index: u32,
    /// Which of the promises it is that have been in this slot.
    pub(crate) generation: u64,
    form: u64,
}

impl Said {
    /// A number that says that the bits belong together. Not against malice: whoever can claim a promise is of the same user.
    fn check(&self) -> u64 {
        let nonce = self.home.as_u128();
        let words = [
            self.layout,
            self.user.into(),
            self.instance,
            nonce as u64,
            (nonce >> 64) as u64,
            self.segment,
            self.offset,
            self.index.into(),
            self.generation,
            self.form,
        ];
        layout::hash(&words.map(|word| word as usize))
    }
}

fn fold(text: &str) -> u64 {
    let bytes: Vec<usize> = text.bytes().map(usize::from).collect();
    layout::hash(&bytes)
}

impl<T> Ticket<T> {
    /// A ticket for a slot of this process.
    pub(crate) fn new(
        hub: &Hub,
        (segment, offset): (u64, u64),
        index: u32,
        generation: u64,
        form: &str,
    ) -> Ticket<T> {
        let said = Said {
            layout: LAYOUT,
            user: hub.user(),
            instance: fold(&hub.instance().id),
            home: hub.nonce(),
            segment,
            offset,
            index,
            generation,
            form: fold(form),
        };
        Ticket { said, of: PhantomData }
    }

    /// The same promise once more.
    pub(crate) fn again(said: Said) -> Ticket<T> {
        Ticket { said, of: PhantomData }
    }

    /// Whether a process can use it at all.
    pub(crate) fn check(&self, hub: &Hub, form: &str) -> Result<()> {
        let said = &self.said;
        if said.layout != LAYOUT {
            return Err(Error::bad_peer("a ticket of another build"));
        }
        if said.user != hub.user() {
            let what = format!("a ticket of user {}, and this process is of user {}", said.user, hub.user());
            return Err(Error::bad_peer(what));
        }
        if said.instance != fold(&hub.instance().id) {
            let Instance { id, source, .. } = hub.instance();
            return Err(Error::bad_peer(format!(
                "a ticket of another instance than that of this process, which is {id:?} by {source}; \
                 processes that belong together have one COMM_INSTANCE_ID"
            )));
        }
        if said.form != fold(form) {
            let why = format!("the ticket is of a promise of another type: it was attached as one of {form}");
            return Err(Error::invalid("Promise::attach", why));
        }
        Ok(())
    }

    /// Its bytes, fewer than a hundred.
    pub fn to_bytes(&self) -> Vec<u8> {
        // It is far below the limit.
        wire::encode(self).unwrap_or_default()
    }

    /// A ticket of bytes.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if they are none.
    #[doc(alias = "Deserialize")]
    pub fn from_bytes(bytes: &[u8]) -> Result<Ticket<T>> {
        wire::decode(bytes)
            .map_err(|error| Error::bad_peer(format!("{} bytes that are no ticket: {error}", bytes.len())))
    }

    /// The process with the future.
    pub fn home(&self) -> Nonce {
        self.said.home
    }
}

impl<T> Serialize for Ticket<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.said, self.said.check()).serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for Ticket<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ticket<T>, D::Error> {
        let (said, check) = <(Said, u64)>::deserialize(deserializer)?;
        if check != said.check() {
            return Err(de::Error::custom("the bits of this ticket do not belong together"));
        }
        Ok(Ticket { said, of: PhantomData })
    }
}

// Not derived: whatever the type is, the ticket is a few numbers.

impl<T> Clone for Ticket<T> {
    fn clone(&self) -> Self {
        Ticket { said: self.said, of: PhantomData }
    }
}

impl<T> PartialEq for Ticket<T> {
    fn eq(&self, other: &Self) -> bool {
        self.said == other.said
    }
}

impl<T> Eq for Ticket<T> {}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Said { home, segment, offset, index, generation, .. } = self.said;
        write!(f, "Ticket({segment}/{offset}/{index}/{generation} of {home})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_of_others_is_refused() {
        let hub = Hub::get().unwrap();
        let mine = Ticket::<()>::new(&hub, (1, 64), 0, 0, "()");
        mine.check(&hub, "()").unwrap();
        type Change = fn(&mut Said);
        let changes: [(Change, &str); 4] = [
            (|said| said.layout += 1, "another build"),
            (|said| said.user += 1, "and this process is of user"),
            (|said| said.instance += 1, "another instance"),
            (|said| said.form += 1, "another type"),
        ];
        for (change, expected) in changes {
            let mut other = mine.clone();
            change(&mut other.said);
            // Also when it has been on its way.
            let other = Ticket::<()>::from_bytes(&other.to_bytes()).unwrap();
            let said = other.check(&hub, "()").unwrap_err().to_string();
            assert!(said.contains(expected), "{said}");
        }
    }
}
