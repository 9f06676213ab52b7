//! Letters: what each rank writes to every other one before an operation begins.

use comm_core::tensor::Tensor;
use comm_core::{Error, Result, point};
use zerocopy::{FromBytes, IntoBytes};

use super::{Collective, Input, Slot};
pub(super) use crate::agreement::CARRIED;
use crate::agreement::{Descriptor, Letter, Saying};
use crate::request::Request;
use std::sync::atomic::Ordering;

/// Bytes of a letter among `n` ranks: the descriptor, two sizes for each rank, and the input. Whole cache lines.
pub(super) fn bytes(n: usize) -> usize {
    (Descriptor::BYTES + 2 * n * 8).next_multiple_of(64) + CARRIED
}

impl<'a> Collective<'a> {
    /// Tells all ranks what this one does, and reads what they do.
    pub(super) fn exchange(&mut self, request: Request, invalid: bool, out: u64) -> Result<()> {
        let mut saying = Saying { invalid, carried: Some(0), out };
        // What is wrong, or on a device that this is not, nobody looks at.
        let counts =
            |tensor: &&Tensor| !invalid && tensor.device().is_cpu() && request.op.takes_input(self.rank());
        let input = request.input.as_ref().filter(counts);
        if let Some(tensor) = input {
            let is_small = tensor.nbytes() <= CARRIED;
            saying.carried = is_small.then_some(tensor.nbytes());
            let dense = self.device.dense(tensor, is_small)?;
            if !is_small {
                self.expose(Slot::Input, &dense)?;
            }
            self.input = Some(dense);
        }
        // A list that is too long says so by its length, and the rest of it to nobody.
        let sizes = &request.sizes()[..request.sizes().len().min(2 * self.size())];
        let own =
            Letter { descriptor: Descriptor::new(self.op.seq(), &request, saying), sizes: sizes.to_vec() };
        let mut head = own.descriptor.as_bytes().to_vec();
        head.extend(sizes.iter().flat_map(|size| size.to_ne_bytes()));
        let carried = saying.carried.unwrap_or_default();
        point!("group.described");
        let (device, at, carried_at) = (self.device, self.letter_at(self.rank()), self.carried_at());
        let signals = device.window.signals(&[self.size()])?;
        let dense = self.input.as_ref();
        signals.meet(&mut self.op, &"the others to say what they do", |peer| {
            device.window.write_bytes(peer, at, &head)?;
            if let Some(dense) = dense.filter(|_| carried > 0 && request.op.gives_result(peer)) {
                device.window.write_bytes(peer, at + carried_at, &dense.bytes()?[..carried])?;
                device.carried.fetch_add(carried as u64, Ordering::Relaxed);
            }
            Ok(())
        })?;
        let read = |rank| if rank == self.rank() { Ok(own.clone()) } else { self.read_letter(rank) };
        self.letters = (0..self.size()).map(read).collect::<Result<_>>()?;
        Ok(())
    }

    fn read_letter(&self, rank: usize) -> Result<Letter> {
        let (window, at) = (&self.device.window, self.letter_at(rank));
        let mut bytes = [0; Descriptor::BYTES];
        window.read_bytes(self.rank(), at, &mut bytes)?;
        let descriptor = Descriptor::read_from_bytes(&bytes);
        let descriptor = descriptor.map_err(|_| Error::bad_peer("a descriptor of another size"))?;
        let mut sizes = vec![0; 8 * descriptor.sizes().min(2 * self.size())];
        window.read_bytes(self.rank(), at + Descriptor::BYTES, &mut sizes)?;
        let sizes = sizes.as_chunks::<8>().0.iter().map(|&word| u64::from_ne_bytes(word)).collect();
        Ok(Letter { descriptor, sizes })
    }

    /// Where the letter of a rank lies in every part but its own.
    fn letter_at(&self, rank: usize) -> usize {
        (self.turn * self.size() + rank) * bytes(self.size())
    }

    /// Where the input begins in a letter.
    fn carried_at(&self) -> usize {
        bytes(self.size()) - CARRIED
    }

    /// What a rank contributes: so many bytes, as all have agreed.
    pub(super) fn input(&mut self, rank: usize, len: usize) -> Result<Input<'a>> {
        if rank == self.rank() {
            let own = self.input.clone().filter(|own| own.nbytes() == len);
            let missing = || Error::bad_peer("this rank's input has another size");
            return own.map(|own| Input::Own(Box::new(own))).ok_or_else(missing);
        }
        let Some(carried) = self.letters.get(rank).map(|letter| letter.descriptor.carried()) else {
            return Err(Error::bad_peer(format!("rank {rank} has sent no letter")));
        };
        let Some(carried) = carried else {
            let region = self.region(rank, Slot::Input)?;
            region.expect_len(len)?;
            return Ok(Input::Region(region));
        };
        if carried != len as u64 || len > CARRIED {
            return Err(Error::bad_peer(format!("rank {rank} sends {carried} bytes, not {len}")));
        }
        let mut bytes = vec![0; len];
        self.device.window.read_bytes(self.rank(), self.letter_at(rank) + self.carried_at(), &mut bytes)?;
        Ok(Input::Letter(bytes))
    }
}
