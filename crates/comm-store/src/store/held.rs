//! What a rank holds ready for its readers.

use comm_core::Result;
use comm_core::device::{Event, Stream};
use comm_core::team::Member;
use comm_core::tensor::Tensor;

use super::loan::Loan;

/// A published tensor, in the process of the rank that published it.
pub(super) struct Held {
    /// In which it was published: the reset that ends it lets go of this.
    pub(super) round: u64,
    pub(super) tensor: Tensor,
    /// Behind what the producer had queued when it published.
    pub(super) written: Event,
    /// The producer's stream, or that of the device to which the tensor was brought.
    pub(super) stream: Stream,
    /// The streams of readers of this process, and behind what each had queued when it finished.
    pub(super) reads: Vec<(Stream, Event)>,
    /// If there may be readers in other processes.
    pub(super) loan: Option<Loan>,
}

impl Held {
    /// Asks for the memory back.
    pub(super) fn recall(&self) -> Option<Loan> {
        let loan = self.loan.clone()?;
        loan.recall();
        Some(loan)
    }

    /// Makes the producer's stream go on behind what readers of this process had queued when they finished. Nobody waits here:
    /// memory of the host is not written as long as a stream reads it.
    pub(super) fn go_behind_readers(&self) -> Result<()> {
        if self.stream.device().is_cpu() {
            return Ok(());
        }
        self.reads.iter().try_for_each(|(_, event)| self.stream.wait(event))
    }

    /// Lets go of it: at once, or when whoever in other processes still has the memory has given it back.
    pub(super) fn release(self, member: &Member) {
        let Some(loan) = self.recall() else { return };
        if !loan.is_all_back() {
            member.keep(self, move |process| loan.is_back(process));
        }
    }
}
