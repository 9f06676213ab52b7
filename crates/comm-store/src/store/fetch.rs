//! To fetch: to find the record of a key, or to wait for it, and to reach its tensor.

use std::sync::{Arc, PoisonError};

use comm_core::device::{Device, Event, Stream};
use comm_core::hub::is_forked;
use comm_core::shm::Memory;
use comm_core::tensor::{Tensor, TensorBuf};
use comm_core::{Deadline, Error, Result, point};

use super::fetched::Fetched;
use super::loan::Lease;
use super::order::{order, waiting_for};
use super::record::Published;
use super::team_store::{Entry, Inner, Key, counting, over_finished};
use crate::directory::readers;

const FETCH: &str = "TensorStore::fetch";

/// A tensor, the event behind which it is written, and whose stream's event that is.
pub(super) struct Taken {
    tensor: Tensor,
    written: Event,
    by: Stream,
}

impl Inner {
    /// Begins a read of a key, if it is published and there is one left; else gives the head of the chain on which it will hang.
    ///
    /// The head is read in the round in which the chain is looked at: where that of an earlier one leads, others write by now.
    pub(super) fn begin_read(
        &self,
        key: &Key<'_>,
        deadline: Deadline,
    ) -> Result<std::result::Result<Begun<'_>, u64>> {
        let begun = {
            let round = self.round.read().unwrap_or_else(PoisonError::into_inner);
            let head = self.window.cell(key.home.0, key.home.1)?.load();
            let Some(record) = self.find(key, head, *round, deadline)? else { return Ok(Err(head)) };
            let published = record.read()?;
            readers::enter(record.counts()?, published.readers)
                .map_err(|counts| over_finished(FETCH, key.text, published.readers, counts))?;
            Begun { store: self, entry: Entry::new(record, &published, *round), published, open: true }
        };
        point!("store.found");
        Ok(Ok(begun))
    }

    /// A read that has been begun, and its tensor, as a guard.
    fn guard(self: &Arc<Self>, key: &Key<'_>, entry: Entry, stream: &Stream, tensor: Tensor) -> Fetched {
        if let Ok(_same) = self.same_round(FETCH, &entry) {
            *self.reading().entry(entry.record.link).or_default() += 1;
        }
        self.counters.fetched();
        point!("store.fetched");
        let (store, by, text) = (self.clone(), stream.clone(), key.text.to_owned());
        Fetched::new(tensor, stream, move || store.finish(&text, &entry, &by))
    }

    /// Fetches, and brings the tensor to a device if it is to be on one.
    pub(super) fn fetch(
        self: &Arc<Self>,
        text: &str,
        stream: &Stream,
        to: Option<Device>,
        deadline: Deadline,
    ) -> Result<Fetched> {
        let key = self.key(FETCH, text)?;
        let head = self.window.cell(key.home.0, key.home.1)?;
        let what = format!("key {text:?} to be published");
        loop {
            let seen = match self.begin_read(&key, deadline)? {
                Ok(begun) => {
                    let taken = self.take(&begun, deadline).and_then(|taken| {
                        order(stream, &taken.written, deadline)?;
                        match to {
                            Some(device) => self.brought_here(taken.tensor, stream, device, deadline),
                            None => Ok(taken.tensor),
                        }
                    });
                    let tensor = taken.map_err(|error| waiting_for(&written(text), error))?;
                    return Ok(self.guard(&key, begun.go_on(), stream, tensor));
                }
                Err(seen) => seen,
            };
            let another = |now: u64| (now != seen).then_some(());
            let waited = self.member().wait(&what, head, None, 1, another, deadline);
            waited.map_err(|error| counting(error, |_| 0))?;
        }
    }

    pub(super) async fn fetch_task(
        self: Arc<Self>,
        text: String,
        stream: Stream,
        deadline: Deadline,
    ) -> Result<Fetched> {
        let key = self.key(FETCH, &text)?;
        let what = format!("key {text:?} to be published");
        loop {
            let seen = match self.begin_read(&key, deadline)? {
                Ok(begun) => {
                    let Taken { tensor, written: event, by } = self.take(&begun, deadline)?;
                    self.order_task(&written(&text), &stream, &by, &event, deadline).await?;
                    return Ok(self.guard(&key, begun.go_on(), &stream, tensor));
                }
                Err(seen) => seen,
            };
            let head = self.window.task_cell(key.home.0, key.home.1)?;
            let waited =
                self.member().wait_task(&what, head, None, 1, move |now| now != seen, deadline).await;
            waited.map_err(|error| counting(error, |_| 0))?;
        }
    }

    /// A tensor that has been fetched for `stream`, brought to a device.
    fn brought_here(
        &self,
        tensor: Tensor,
        stream: &Stream,
        device: Device,
        deadline: Deadline,
    ) -> Result<Tensor> {
        if tensor.device() == device {
            return Ok(tensor);
        }
        let far = if device.is_cpu() { tensor.device() } else { device };
        let through = if stream.device() == far { stream.clone() } else { Stream::current() };
        if through.device() != far {
            let why = format!(
                "neither the stream nor this thread's current stream is of {far}; see device::with_current"
            );
            return Err(Error::Unsupported { backend: "store", op: format!("fetch to {device}"), why });
        }
        order(&through, &stream.record()?, deadline)?;
        let moved = tensor.to_device(device, &through, deadline)?;
        self.counters.copied(moved.nbytes());
        // The read ends behind the copy.
        if through != *stream {
            order(stream, &through.record()?, deadline)?;
        }
        Ok(moved)
    }

    /// The tensor of a read, as this process reaches it.
    pub(super) fn take(&self, begun: &Begun<'_>, deadline: Deadline) -> Result<Taken> {
        let Begun { entry, published, .. } = begun;
        let rank = entry.rank();
        if self.member().shares_process(rank) {
            let _same = self.same_round(FETCH, entry)?;
            let held = self.held(rank)?;
            let held = held.get(&entry.record.link).ok_or_else(|| {
                Error::bad_peer(format!("rank {rank} has let go of a tensor that is still to be read"))
            })?;
            let (tensor, written) = (held.tensor.clone(), held.written.clone());
            return Ok(Taken { tensor, written, by: held.stream.clone() });
        }
        let Some(place) = published.place else {
            if published.layout.numel() > 0 {
                return Err(Error::bad_peer(format!("rank {rank} tells of a tensor that is nowhere")));
            }
            let none = TensorBuf::zeros(published.layout.shape(), published.dtype)?.freeze();
            return Ok(Taken { tensor: none, written: Event::complete(), by: Stream::cpu() });
        };
        let loan = self.member().peer_segment(rank, place.loan_segment, deadline)?;
        let segment = self.member().peer_segment(rank, place.segment, deadline)?;
        let owner = self.member().process_of(rank).unwrap_or_default();
        let lease = {
            // No reset until it is taken: what the record tells of is there, and stays until the lease is given back.
            let _same = self.same_round(FETCH, entry)?;
            Lease::take(Memory::There(loan, place.loan_offset), self.member(), owner)?
        };
        let Published { dtype, layout, .. } = *published;
        let there = comm_core::tensor::Place { segment: place.segment, base: place.base, dtype, layout };
        let tensor = there.import(&segment, lease).map_err(|error| match error {
            Error::BadPeer { what } => Error::bad_peer(format!("rank {rank} tells of {what}")),
            error => error,
        })?;
        // What goes to another process is of the host, and written when it is published.
        Ok(Taken { tensor, written: Event::complete(), by: Stream::cpu() })
    }
}

/// A read that has been begun and is not a guard yet: taken back when it is dropped, be it that its tensor was not to be had,
/// or that a task was dropped which waited for it.
pub(super) struct Begun<'s> {
    store: &'s Inner,
    entry: Entry,
    published: Published,
    open: bool,
}

impl Begun<'_> {
    /// It is somebody else's from here on.
    fn go_on(mut self) -> Entry {
        self.open = false;
        self.entry.clone()
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.open || is_forked() {
            return;
        }
        // A reset has taken it back otherwise.
        let Ok(_same) = self.store.same_round(FETCH, &self.entry) else { return };
        if let Ok(counts) = self.entry.record.counts() {
            readers::turn_back(counts);
        }
    }
}

fn written(key: &str) -> String {
    format!("the value of key {key:?} to be written by its stream")
}
