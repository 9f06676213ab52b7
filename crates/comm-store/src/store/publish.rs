//! To publish: the tensor is brought to where its readers can reach it, and its record hung up under its key.

use std::sync::PoisonError;

use comm_core::device::{Device, DeviceKind, Stream};
use comm_core::tensor::{Layout, Tensor};
use comm_core::{Deadline, Error, Result, point};

use super::held::Held;
use super::loan::Loan;
use super::log;
use super::record::{self, Place, Published};
use super::team_store::{Inner, Walk};
use crate::directory::chain;

const PUBLISH: &str = "TensorStore::publish";

impl Inner {
    pub(super) fn publish(
        &self,
        text: &str,
        tensor: &Tensor,
        stream: &Stream,
        readers: usize,
        to: Option<DeviceKind>,
    ) -> Result<()> {
        let key = self.key(PUBLISH, text)?;
        self.member().check(PUBLISH)?;
        let _turn = self.no_reset(PUBLISH)?;
        let most = || Error::invalid(PUBLISH, format!("{readers} readers: that is more than there can be"));
        let readers = u32::try_from(readers).map_err(|_| most())?;
        tensor.device().expect(stream.device(), PUBLISH)?;
        let round = self.round.read().unwrap_or_else(PoisonError::into_inner);
        // Before anything is copied; whether it still holds is settled when the record is hung up.
        let head = self.window.cell(key.home.0, key.home.1)?;
        let known = head.load();
        if let Some(there) = self.find(&key, known, *round, Deadline::default())? {
            return Err(duplicate(text, there.link));
        }
        let (tensor, stream) = self.brought_to(to, tensor, stream)?;
        let (tensor, place, loan) = self.reachable(&tensor)?;
        let (layout, place) = match place {
            Some((place, layout)) => (layout, Some(place)),
            None => (*tensor.layout(), None),
        };
        let written = stream.record()?;
        let record = self.log.append(&self.window, &self.shelf, record::bytes(text, layout.shape().len()))?;
        record.write(text, &Published { readers, dtype: tensor.dtype(), layout, place })?;
        let counts = record.counts()?;
        counts.set_tag(record.link as u32);
        counts.set(0, self.member().bell());
        let held = Held { round: *round, tensor, written, stream, reads: Vec::new(), loan };
        self.held(self.rank())?.insert(record.link, held);
        self.note_used(key.home)?;
        point!("store.publish");
        let mut walk = Walk::in_round(*round);
        let hung = chain::push(
            (head, known),
            record.link,
            self.member().bell(),
            |link| self.look(&key, link, &mut walk, Deadline::default()),
            // It is in memory of this process.
            |next| drop(record.set_next(next)),
        );
        let refused = match hung {
            Ok(None) => None,
            Ok(Some(there)) => Some(duplicate(text, there)),
            Err(error) => Some(error),
        };
        if let Some(error) = refused {
            let held = self.held(self.rank())?.remove(&record.link);
            drop(held);
            return Err(error);
        }
        drop(round);
        self.counters.published();
        point!("store.published");
        Ok(())
    }

    /// The tensor on the kind of device on which its readers want it, and the stream that orders it there.
    fn brought_to(
        &self,
        to: Option<DeviceKind>,
        tensor: &Tensor,
        stream: &Stream,
    ) -> Result<(Tensor, Stream)> {
        let Some(kind) = to.filter(|&kind| kind != tensor.device().into()) else {
            return Ok((tensor.clone(), stream.clone()));
        };
        let target = if kind == DeviceKind::Cpu { Stream::cpu() } else { Stream::current() };
        if DeviceKind::from(target.device()) != kind {
            let why = format!("this thread has no current stream of kind {kind}; see device::with_current");
            return Err(Error::invalid(PUBLISH, why));
        }
        let through = if kind == DeviceKind::Cpu { stream } else { &target };
        if through != stream {
            through.wait(&stream.record()?)?;
        }
        let moved = if kind == DeviceKind::Cpu && self.is_abroad() {
            tensor.to_host_in(self.member().hub().tensors(), through, Deadline::default())?
        } else {
            tensor.to_device(target.device(), through, Deadline::default())?
        };
        self.counters.copied(moved.nbytes());
        Ok((moved, target))
    }

    /// The tensor where its readers can reach it: as it is if they are all in this process, else in a block of the arena of
    /// tensors, and its place there.
    #[allow(clippy::type_complexity, reason = "three things that are made together")]
    fn reachable(&self, tensor: &Tensor) -> Result<(Tensor, Option<(Place, Layout)>, Option<Loan>)> {
        if !self.is_abroad() || tensor.numel() == 0 && tensor.device().is_cpu() {
            return Ok((tensor.clone(), None, None));
        }
        tensor.device().expect(Device::Cpu, PUBLISH)?;
        let (held, place) = tensor.placed_in(self.member().hub().tensors())?;
        if !held.shares_storage(tensor) {
            self.counters.copied(held.nbytes());
        }
        let there = place.ok_or_else(|| Error::invalid(PUBLISH, "a tensor without a place"))?;
        let loan = Loan::new(self.member())?;
        let (loan_segment, loan_offset) = loan.place();
        let place = Place { segment: there.segment, base: there.base, loan_segment, loan_offset };
        Ok((held, Some((place, there.layout)), Some(loan)))
    }
}

fn duplicate(key: &str, link: u64) -> Error {
    Error::DuplicateKey { op: PUBLISH, key: key.to_owned(), rank: log::rank_of(link) }
}
