//! What torch's `TCPStore` does besides what every rendezvous does.

use std::time::Instant;

use comm_core::Deadline;

use super::{NOT_ALL, TcpStore, wired};
use crate::error::{Error, Keys, Result};
use crate::pause::Pause;
use crate::rendezvous::{fitting, fitting_values};
use crate::tcp::client::connection::Failure;
use crate::tcp::limits::LONGEST_REQUEST;
use crate::tcp::request::{Op, Writer};

/// What only a server has.
impl TcpStore {
    /// Adds bytes to the end of a value, which is empty where nothing is.
    ///
    /// # Errors
    /// As [`Rendezvous::set`](crate::Rendezvous::set).
    pub fn append(&self, key: &str, value: &[u8], deadline: impl Into<Deadline>) -> Result<()> {
        fitting_values(key, &[value])?;
        let ask = Writer::new().op(Op::Append).text(&wired(key)).text(value);
        self.confirmed(format_args!("append to {}", Keys(&[key])), deadline.into(), ask)
    }

    /// How many keys there are, those of all clients.
    ///
    /// # Errors
    /// As [`Rendezvous::set`](crate::Rendezvous::set).
    #[doc(alias = "getNumKeys")]
    pub fn num_keys(&self, deadline: impl Into<Deadline>) -> Result<usize> {
        let deadline = deadline.into();
        let ask = Writer::new().op(Op::NumKeys);
        self.call("count keys", deadline, ask, |connection| connection.count("keys", deadline))
    }

    /// The values under all of the keys, as soon as they are there.
    ///
    /// # Errors
    /// As [`Rendezvous::get`](crate::Rendezvous::get).
    #[doc(alias = "multiGet")]
    pub fn multi_get(&self, keys: &[&str], deadline: impl Into<Deadline>) -> Result<Vec<Vec<u8>>> {
        fitting(keys)?;
        let deadline = deadline.into();
        let wired: Vec<_> = keys.iter().map(|key| wired(key)).collect();
        let op = format_args!("get {}", Keys(keys)).to_string();
        self.await_keys(&op, &wired, NOT_ALL, deadline)?;
        let ask = Writer::new().op(Op::MultiGet).texts(wired.iter().map(Vec::as_slice));
        self.call(&op, deadline, ask, |connection| keys.iter().map(|_| connection.text(deadline)).collect())
    }

    /// Puts values under keys, one after the other.
    ///
    /// # Errors
    /// As [`Rendezvous::set`](crate::Rendezvous::set).
    #[doc(alias = "multiSet")]
    pub fn multi_set(&self, values: &[(&str, &[u8])], deadline: impl Into<Deadline>) -> Result<()> {
        let keys: Vec<&str> = values.iter().map(|(key, _)| *key).collect();
        fitting(&keys)?;
        values.iter().try_for_each(|(key, value)| fitting_values(key, &[value]))?;
        let counted = Writer::new().op(Op::MultiSet).number(values.len() as i64);
        let ask = values.iter().fold(counted, |to, (key, value)| to.text(&wired(key)).text(value));
        self.confirmed(format_args!("set {}", Keys(&keys)), deadline.into(), ask)
    }

    /// Puts a value at the end of a queue.
    ///
    /// # Errors
    /// As [`Rendezvous::set`](crate::Rendezvous::set).
    #[doc(alias = "queuePush")]
    pub fn queue_push(&self, key: &str, value: &[u8], deadline: impl Into<Deadline>) -> Result<()> {
        fitting_values(key, &[value])?;
        let ask = Writer::new().op(Op::QueuePush).text(&wired(key)).text(value);
        self.confirmed(format_args!("push to {}", Keys(&[key])), deadline.into(), ask)
    }

    /// Takes the first value of a queue, if there is one now.
    ///
    /// # Errors
    /// As [`Rendezvous::set`](crate::Rendezvous::set).
    #[doc(alias = "queuePop")]
    pub fn queue_try_pop(&self, key: &str, deadline: impl Into<Deadline>) -> Result<Option<Vec<u8>>> {
        fitting(&[key])?;
        let deadline = deadline.into();
        let ask = Writer::new().op(Op::QueuePop).text(&wired(key));
        let op = format_args!("pop from {}", Keys(&[key])).to_string();
        self.call(op, deadline, ask, |connection| match connection.count("values", deadline)? {
            0 => Ok(None),
            _ => connection.text(deadline).map(Some),
        })
    }

    /// Takes the first value of a queue, as soon as there is one.
    ///
    /// # Errors
    /// [`Error::Timeout`] if there is none until the deadline; as [`Rendezvous::set`](crate::Rendezvous::set).
    #[doc(alias = "queuePop")]
    pub fn queue_pop(&self, key: &str, deadline: impl Into<Deadline>) -> Result<Vec<u8>> {
        fitting(&[key])?;
        let deadline = deadline.into();
        let started = Instant::now();
        let mut pause = Pause::default();
        loop {
            let op = || format!("pop from {}", Keys(&[key]));
            self.await_keys(op(), &[wired(key)], "nobody has pushed", deadline)?;
            if let Some(value) = self.queue_try_pop(key, deadline)? {
                return Ok(value);
            }
            pause.make(deadline);
            // Another one may have taken it. Or a value is there that was set, for which no wait waits.
            if deadline.has_passed() {
                let why = "others have taken it, or what is there was set and not pushed".to_owned();
                return Err(Error::Timeout { op: op(), place: self.place(), waited: started.elapsed(), why });
            }
        }
    }

    /// How many values a queue has.
    ///
    /// # Errors
    /// As [`Rendezvous::set`](crate::Rendezvous::set).
    #[doc(alias = "queueLen")]
    pub fn queue_len(&self, key: &str, deadline: impl Into<Deadline>) -> Result<usize> {
        fitting(&[key])?;
        let deadline = deadline.into();
        let ask = Writer::new().op(Op::QueueLen).text(&wired(key));
        let op = format_args!("count {}", Keys(&[key])).to_string();
        self.call(op, deadline, ask, |connection| connection.count("values", deadline))
    }

    /// All keys, in no order. Those that other programs have set in other ways than a store does keep what these have put
    /// before them.
    ///
    /// # Errors
    /// As [`Rendezvous::set`](crate::Rendezvous::set).
    #[doc(alias = "listKeys")]
    pub fn list_keys(&self, deadline: impl Into<Deadline>) -> Result<Vec<String>> {
        let deadline = deadline.into();
        let ask = Writer::new().op(Op::ListKeys);
        self.call("list keys", deadline, ask, |connection| {
            let count = connection.count("keys", deadline)?;
            let (mut keys, mut size) = (Vec::new(), 0);
            while keys.len() < count {
                let key = connection.text(deadline)?;
                size += size_of::<u64>() + key.len();
                if size > LONGEST_REQUEST {
                    return Err(Failure::Bad(format!("it lists more than {LONGEST_REQUEST} bytes of keys")));
                }
                let key = String::from_utf8_lossy(&key);
                keys.push(key.strip_prefix('/').unwrap_or(&key).to_owned());
            }
            Ok(keys)
        })
    }

    /// Returns when so many clients have come to the barrier of this key. It is for one use: who comes when they were enough
    /// goes on at once, and one that has given up stays counted.
    ///
    /// # Errors
    /// [`Error::Timeout`] if not enough come; as [`Rendezvous::set`](crate::Rendezvous::set).
    pub fn barrier(&self, key: &str, size: usize, deadline: impl Into<Deadline>) -> Result<()> {
        fitting(&[key])?;
        let deadline = deadline.into();
        let size = i64::try_from(size).map_err(|_| Error::TooLarge {
            what: "a barrier",
            size,
            limit: i64::MAX as usize,
        })?;
        let ask = Writer::new().op(Op::Barrier).text(&wired(key)).number(size);
        let op = format_args!("barrier {} of {size}", Keys(&[key])).to_string();
        self.call(op, deadline, ask, |connection| {
            let [over] = connection.read(deadline).map_err(|failure| match failure {
                Failure::Late(_) => Failure::Late("others have not come".to_owned()),
                other => other,
            })?;
            if over == 0 { Ok(()) } else { Err(Failure::Bad(format!("it ends a barrier with {over}"))) }
        })
    }
}
