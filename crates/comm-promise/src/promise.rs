//! The side that sets the value.

use std::fmt;
use std::sync::Arc;

use comm_core::device::{DeviceKind, Stream};
use comm_core::hub::{is_forked, refuse_forked};
use comm_core::{Deadline, Error, Kind, Result};

use crate::claim::{Attached, Claim};
use crate::error::SetError;
use crate::future::Future;
use crate::inner::{Inner, broken};
use crate::letter::Letter;
use crate::ready;
use crate::state::{End, Phase, Word};
use crate::ticket::Ticket;
use crate::value::{Codec, Value};

/// A value that somebody has asked for, to be set once.
///
/// Dropped without a value by its last holder, it is broken, and so is its future. It may be set from any thread; of several
/// who set it the first succeeds.
#[doc(alias = "TensorPromise")]
#[doc(alias = "VoidPromise")]
pub struct Promise<T: Send + 'static> {
    side: Side<T>,
}

enum Side<T: Send + 'static> {
    Home(Holder<T>),
    Away(Claim, Codec<T>),
}

/// A holder in the home process.
struct Holder<T: Send + 'static> {
    inner: Arc<Inner<T>>,
    /// Until the right to set has been handed on.
    holds: bool,
}

impl<T: Send + 'static> Drop for Holder<T> {
    fn drop(&mut self) {
        if self.holds && !is_forked() {
            let how = if std::thread::panicking() { End::Panicked } else { End::Dropped };
            self.inner.part_here(how);
        }
    }
}

/// Which kind of promise an operand asks for: one for another process exactly if each device has a process of its own.
///
/// ```
/// use comm_core::{Kind, device::DeviceKind};
/// use comm_promise::for_operand;
///
/// assert_eq!(for_operand(DeviceKind::Cpu, false), Kind::Process);
/// assert_eq!(for_operand(DeviceKind::Cpu, true), Kind::Host);
/// assert_eq!(for_operand(DeviceKind::Sim, false), Kind::Process);
/// assert_eq!(for_operand(DeviceKind::Sim, true), Kind::Host);
/// ```
#[doc(alias = "GetTensorPromiseTypeFromOperand")]
pub fn for_operand(_device: DeviceKind, per_device_per_process: bool) -> Kind {
    // DTorch keeps tensors of the CPU in the process also then, and they cannot leave it. Here they can.
    if per_device_per_process { Kind::Host } else { Kind::Process }
}

impl<T: Send + 'static> Promise<T> {
    /// A promise among threads of this process, of any type: the value comes out as it was put in. (In a forked child of a process
    /// that has a hub nothing can be done with it: what can be said is [`Error::Forked`], by its [`future`](Promise::future).)
    ///
    /// ```
    /// use comm_core::Deadline;
    /// use comm_promise::Promise;
    ///
    /// let promise = Promise::process();
    /// let future = promise.future()?;
    /// std::thread::scope(|s| {
    ///     s.spawn(|| promise.set(7));
    ///     assert_eq!(future.get(Deadline::default())?, 7);
    ///     Ok::<(), comm_core::Error>(())
    /// })?;
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn process() -> Promise<T> {
        Promise::home(Inner::own())
    }

    fn home(inner: Arc<Inner<T>>) -> Promise<T> {
        Promise { side: Side::Home(Holder { inner, holds: true }) }
    }

    /// How far it reaches.
    #[doc(alias = "GetType")]
    pub fn kind(&self) -> Kind {
        match &self.side {
            Side::Home(holder) => holder.inner.kind(),
            Side::Away(..) => Kind::Host,
        }
    }

    /// Its future: once, in the process that made the promise.
    ///
    /// # Errors
    /// [`Error::FutureTaken`].
    #[doc(alias = "GetFuture")]
    pub fn future(&self) -> Result<Future<T>> {
        refuse_forked()?;
        match &self.side {
            Side::Home(holder) if holder.inner.take_future() => Ok(Future::new(holder.inner.clone())),
            Side::Home(_) | Side::Away(..) => Err(Error::FutureTaken { what: self.name() }),
        }
    }

    /// Whether it has a value or an error. A promise of another process whose future has read the value has none any more.
    pub fn is_set(&self) -> bool {
        match &self.side {
            Side::Home(holder) => holder.inner.is_set(),
            Side::Away(claim, _) => claim.is_set(),
        }
    }

    /// Sets the value, and wakes whoever waits for it, whom it does not wait for.
    ///
    /// To another process a tensor goes by its place, if it lies in the arena of this process's hub
    /// ([`Hub::tensors`](comm_core::hub::Hub::tensors)); any other is copied there once. When this returns, the value outlives this
    /// process: a segment that the home has not been sent yet, for want of descriptors or because it is stopped and its queue full, is
    /// sent first.
    ///
    /// # Errors
    /// [`SetError`], with the value. When the future has read its value, which another has set, that is
    /// [`Broken`](SetError::Broken) in another process: nobody reads it any more.
    #[doc(alias = "SetValue")]
    pub fn set(&self, value: T) -> Result<(), SetError<T>> {
        match &self.side {
            // It was a value, so it is one that comes back.
            Side::Home(holder) => set_here(&holder.inner, Ok(value)).or_else(SetError::value_only),
            Side::Away(claim, codec) => {
                if let Err(error) = claim.check() {
                    return Err(error.map(|()| value));
                }
                match claim.pack(*codec, &value, None) {
                    Ok(letter) => claim.set(letter).map_err(|error| error.map(|()| value)),
                    Err(why) => Err(SetError::failed(value, why)),
                }
            }
        }
    }

    /// Sets it to an error, which is what its future gets. In another process that is [`Error::SetToError`] with the text of
    /// this one.
    ///
    /// # Errors
    /// [`SetError`], with the error.
    #[doc(alias = "SetException")]
    #[allow(clippy::result_large_err, reason = "what is given back is the error itself")]
    pub fn set_error(&self, error: Error) -> Result<(), SetError<Error>> {
        match &self.side {
            Side::Home(holder) => {
                let copy = error.clone();
                set_here(&holder.inner, Err(error)).map_err(|refused| refused.map(|_| copy))
            }
            Side::Away(claim, _) => match Letter::of_error(claim.hub(), &error) {
                Ok(letter) => claim.set(letter).map_err(|refused| refused.map(|()| error)),
                Err(why) => Err(SetError::failed(error, why)),
            },
        }
    }

    /// Sets the value when `stream` has done all that it has queued until now, and returns at once. No other stream is waited for,
    /// nor what is queued later. If the stream fails, its error is that of the future, and so is any other that there is.
    ///
    /// Tensors of the stream's device that go to another process are copied to the host behind the stream. That of the CPU is
    /// synchronous: its values are set before this returns, as by [`set`](Promise::set).
    ///
    /// ```
    /// use comm_core::{Deadline, device::Stream, tensor::Tensor};
    /// use comm_promise::Promise;
    ///
    /// let promise = Promise::process();
    /// let future = promise.future()?;
    /// promise.set_when_ready(Tensor::from_slice(&[2], &[1, 2])?, &Stream::current());
    /// assert_eq!(future.get(Deadline::default())?.to_vec::<i32>()?, [1, 2]);
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    pub fn set_when_ready(self, value: T, stream: &Stream) {
        ready::set_when_ready(self, value, stream);
    }

    /// What it is to be set to, in the form in which that is done.
    pub(crate) fn prepare(&self, value: T, through: &Stream) -> Result<Prepared<T>> {
        match &self.side {
            Side::Home(_) => Ok(Prepared::Here(value)),
            Side::Away(claim, codec) => Ok(Prepared::There(claim.pack(*codec, &value, Some(through))?)),
        }
    }

    pub(crate) fn set_prepared(&self, value: Prepared<T>) -> Result<(), SetError<()>> {
        match (&self.side, value) {
            (Side::Home(holder), Prepared::Here(value)) => {
                set_here(&holder.inner, Ok(value)).map_err(|error| error.map(drop))
            }
            (Side::Away(claim, _), Prepared::There(letter)) => claim.set(letter),
            // It was prepared by this promise.
            _ => Ok(()),
        }
    }

    /// What errors call it.
    pub(crate) fn name(&self) -> String {
        match &self.side {
            Side::Home(holder) => holder.inner.name(),
            Side::Away(claim, _) => claim.name(),
        }
    }

    /// The right to set it, as a value that a message can carry. This promise is no holder from here on: the future waits for
    /// whoever [attaches](Promise::attach) the ticket.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a promise of kind [`Process`](Kind::Process), which is dropped then.
    #[doc(alias = "Serialize")]
    pub fn into_ticket(self) -> Result<Ticket<T>> {
        refuse_forked()?;
        match self.side {
            Side::Home(mut holder) => {
                let ticket = ticket_of(&holder.inner)?;
                holder.inner.hand_on_here();
                holder.holds = false;
                Ok(ticket)
            }
            Side::Away(claim, _) => Ok(claim.hand_on()),
        }
    }
}

/// What a promise is to be set to.
pub(crate) enum Prepared<T> {
    Here(T),
    There(Letter),
}

impl<T: Value> Promise<T> {
    /// A promise of a kind.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for [`Kind::Network`]; no shared memory; [`Error::Forked`].
    #[doc(alias = "CreateTensorPromise")]
    #[doc(alias = "CreateVoidPromise")]
    pub fn new(kind: Kind) -> Result<Promise<T>> {
        refuse_forked()?;
        match kind {
            Kind::Process => Ok(Promise::process()),
            Kind::Host => Ok(Promise::home(Inner::shared(Codec::OF)?)),
            _ => Err(Error::Unsupported {
                backend: "promise",
                op: format!("kind {kind}"),
                why: "promises across machines are not there yet".into(),
            }),
        }
    }

    /// Claims the promise of a ticket, in any process of this host. A ticket may be attached several times: then the first who
    /// sets the promise succeeds, and it breaks when the last who has attached it is gone.
    ///
    /// A promise that has its value already can be attached, and says so.
    ///
    /// # Errors
    /// [`Error::BrokenPromise`] if it is broken, or nobody reads it any more, or its home is gone; [`Error::BadPeer`] for a ticket
    /// of another user, build or instance, or of something that does not exist; [`Error::InvalidArgument`] for one of another
    /// type (all that serde writes is one), or if it is held seven times by other processes; [`Error::Timeout`].
    #[doc(alias = "Deserialize")]
    #[doc(alias = "CreateTensorPromiseFromSerialized")]
    pub fn attach(ticket: &Ticket<T>, deadline: impl Into<Deadline>) -> Result<Promise<T>> {
        refuse_forked()?;
        match Claim::attach(ticket, &T::form(), deadline.into())? {
            Attached::There(claim) => Ok(Promise { side: Side::Away(claim, Codec::OF) }),
            Attached::Here(site) => {
                let other =
                    |_| Error::invalid("Promise::attach", "the ticket is of a promise of another type");
                let inner = site.into_any().downcast::<Inner<T>>().map_err(other)?;
                match inner.claim_here() {
                    Ok(()) => Ok(Promise::home(inner)),
                    Err(word) if word.phase() == Phase::Broken || word.is_given_up() => {
                        Err(broken(inner.name(), word, None))
                    }
                    Err(_) => Ok(Promise { side: Side::Home(Holder { inner, holds: false }) }),
                }
            }
        }
    }
}

fn ticket_of<T: Send + 'static>(inner: &Inner<T>) -> Result<Ticket<T>> {
    let Some((lot, codec)) = inner.lot() else {
        return Err(Error::Unsupported {
            backend: "promise",
            op: "tickets".into(),
            why: "a promise of kind process does not leave its process; make one of kind host".into(),
        });
    };
    let place = crate::home::place(lot.slot.chunk());
    let index = lot.slot.index() as u32;
    Ok(Ticket::new(lot.home.hub(), place, index, lot.generation, &(codec.form)()))
}

#[allow(clippy::result_large_err, reason = "what is given back is the value itself, moved")]
fn set_here<T: Send + 'static>(inner: &Inner<T>, value: Result<T>) -> Result<(), SetError<Result<T>>> {
    if is_forked() {
        return Err(SetError::failed(value, Error::Forked));
    }
    inner.set(value).map_err(|(value, word): (Result<T>, Word)| match word.phase() {
        Phase::Broken => SetError::broken(value, broken(inner.name(), word, None)),
        Phase::Writing if word.is_given_up() => SetError::broken(value, broken(inner.name(), word, None)),
        _ => SetError::AlreadySet { value, what: inner.name() },
    })
}

impl<T: Send + 'static> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Promise({}, {})", self.kind(), self.name())
    }
}
