//! To finish a read, and to wait until all reads of a key are finished.

use std::sync::{Arc, PoisonError};

use comm_core::device::{Event, Stream};
use comm_core::hub::is_forked;
use comm_core::{Deadline, Error, Result, point};

use super::order::{order, used_by, waiting_for};
use super::team_store::{Entry, Inner, counting, over_finished};
use crate::directory::readers::{self, Counts};

const FINISH: &str = "TensorStore::finish";
const WAIT: &str = "TensorStore::wait_consumed";

impl Inner {
    /// Finishes a read.
    pub(super) fn finish(&self, text: &str, entry: &Entry, stream: &Stream) -> Result<()> {
        if is_forked() {
            return Err(Error::Forked);
        }
        // A reset has finished it otherwise.
        let Ok(_same) = self.same_round(FINISH, entry) else { return Ok(()) };
        if !self.is_reading(entry) {
            let counts = Counts::of(entry.record.counts()?.load());
            return Err(over_finished(FINISH, text, entry.readers, counts));
        }
        let mut noted = Ok(());
        if self.member().shares_process(entry.rank()) {
            noted = self.note_read(entry, stream);
        }
        point!("store.finish");
        readers::finish(entry.record.counts()?, entry.readers, self.member().bell())
            .map_err(|counts| over_finished(FINISH, text, entry.readers, counts))?;
        noted
    }

    /// Takes one of the reads of this rank. Those of others are theirs to finish: they may not have their tensors yet, whose
    /// memory could then be used for something else.
    fn is_reading(&self, entry: &Entry) -> bool {
        let mut reading = self.reading();
        let Some(reads) = reading.get_mut(&entry.record.link) else { return false };
        *reads -= 1;
        if *reads == 0 {
            reading.remove(&entry.record.link);
        }
        true
    }

    /// Notes behind what the reader's stream is through, before it says that it is.
    fn note_read(&self, entry: &Entry, stream: &Stream) -> Result<()> {
        if stream.device().is_cpu() {
            return Ok(());
        }
        let event = stream.record()?;
        if event.query()? {
            return Ok(());
        }
        let tensor = {
            let mut held = self.held(entry.rank())?;
            let Some(held) = held.get_mut(&entry.record.link) else { return Ok(()) };
            held.reads.push((stream.clone(), event));
            held.tensor.clone()
        };
        used_by(&tensor, stream)
    }

    pub(super) fn finish_by_name(&self, text: &str, stream: &Stream) -> Result<()> {
        let key = self.key(FINISH, text)?;
        let entry = {
            let round = self.round.read().unwrap_or_else(PoisonError::into_inner);
            let record = self.known(FINISH, &key, *round, Deadline::default())?;
            let published = record.read()?;
            Entry::new(record, &published, *round)
        };
        self.finish(text, &entry, stream)
    }

    /// The record of a key that this rank has published.
    fn own(&self, text: &str, deadline: Deadline) -> Result<Entry> {
        let key = self.key(WAIT, text)?;
        let round = self.round.read().unwrap_or_else(PoisonError::into_inner);
        let record = self.known(WAIT, &key, *round, deadline)?;
        let published = record.read()?;
        let entry = Entry::new(record, &published, *round);
        if entry.rank() != self.rank() {
            let why = format!(
                "key {text:?} has been published by rank {}: only that one waits for it",
                entry.rank()
            );
            return Err(Error::invalid(WAIT, why));
        }
        Ok(entry)
    }

    /// The producer's stream, and behind what its readers of this process are through; none if it has been waited for
    /// before.
    #[allow(clippy::type_complexity, reason = "a stream, and other streams with an event of each")]
    fn reads(&self, entry: &Entry) -> Result<Option<(Stream, Vec<(Stream, Event)>)>> {
        let _same = self.same_round(WAIT, entry)?;
        let held = self.held(self.rank())?;
        Ok(held.get(&entry.record.link).map(|held| (held.stream.clone(), held.reads.clone())))
    }

    /// The tensor goes, unless a reset has taken it away.
    fn let_go(&self, entry: &Entry) -> Result<()> {
        let held = {
            let Ok(_same) = self.same_round(WAIT, entry) else { return Ok(()) };
            self.held(self.rank())?.remove(&entry.record.link)
        };
        if let Some(held) = held {
            held.release(self.member());
        }
        Ok(())
    }

    pub(super) fn wait_consumed(&self, text: &str, deadline: Deadline) -> Result<()> {
        let _turn = self.no_reset(WAIT)?;
        let entry = self.own(text, deadline)?;
        point!("store.wait");
        let through = |word: u64| readers::are_through(word, entry.readers).then_some(());
        let (what, cell, expected) = (finished_of(text), entry.record.counts()?, entry.readers.into());
        let waited = self.member().wait(&what, cell, None, expected, through, deadline);
        waited.map_err(|error| counting(error, finished))?;
        if let Some((stream, reads)) = self.reads(&entry)? {
            let ordered = reads.iter().try_for_each(|(_, event)| order(&stream, event, deadline));
            ordered.map_err(|error| waiting_for(&read_of(text), error))?;
            self.let_go(&entry)?;
        }
        Ok(())
    }

    pub(super) async fn wait_consumed_task(self: Arc<Self>, text: String, deadline: Deadline) -> Result<()> {
        let _turn = self.no_reset(WAIT)?;
        let entry = self.own(&text, deadline)?;
        let readers = entry.readers;
        let through = move |word| readers::are_through(word, readers);
        let (what, cell) = (finished_of(&text), entry.record.task_counts()?);
        let waited = self.member().wait_task(&what, cell, None, readers.into(), through, deadline).await;
        waited.map_err(|error| counting(error, finished))?;
        if let Some((stream, reads)) = self.reads(&entry)? {
            for (by, event) in &reads {
                self.order_task(&read_of(&text), &stream, by, event, deadline).await?;
            }
            self.let_go(&entry)?;
        }
        Ok(())
    }
}

/// How many readers have finished, by the word that was waited for.
fn finished(word: i64) -> i64 {
    Counts::of(word as u64).finished.into()
}

fn finished_of(key: &str) -> String {
    format!("the readers of key {key:?} to finish")
}

fn read_of(key: &str) -> String {
    format!("the streams of the readers of key {key:?} to have read")
}
