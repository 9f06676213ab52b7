//! The last operations of a group: always kept, for when one of them does not end.
//!
//! A rank writes down what it does as it does it, in private memory, so what it was doing can be told after the team is over.
//! Fixed in size; an operation costs it two looks at the clock more, and no allocation unless it fails.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use comm_core::Error;
use comm_core::hub::is_forked;
use comm_core::tensor::{DType, MAX_DIMS, Tensor};
use comm_core::wait::now_ns;

use crate::reduce::ReduceOp;
use crate::request::Request;

/// How many operations are kept.
pub(crate) const KEPT: usize = 256;

/// How far an operation of this rank has come.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpState {
    /// This rank has begun; the others have not all said what they do.
    Started,
    /// All ranks have agreed on it.
    Agreed,
    /// It is over on this rank.
    Done,
    /// All ranks have refused it, for the reason of this error; the group goes on.
    Refused(String),
    /// It failed with this error.
    Failed(String),
}

impl OpState {
    /// One word for it.
    pub fn name(&self) -> &'static str {
        match self {
            OpState::Started => "started",
            OpState::Agreed => "agreed",
            OpState::Done => "done",
            OpState::Refused(_) => "refused",
            OpState::Failed(_) => "failed",
        }
    }

    /// The error, if there was one.
    pub fn error(&self) -> Option<&str> {
        match self {
            OpState::Refused(error) | OpState::Failed(error) => Some(error),
            OpState::Started | OpState::Agreed | OpState::Done => None,
        }
    }
}

/// An operation as this rank saw it. Times are of `CLOCK_MONOTONIC`, in nanoseconds: those of the ranks of a host compare.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OpRecord {
    /// Its number in the sequence of the team, the same on all ranks.
    pub seq: u64,
    /// Its name.
    pub op: &'static str,
    /// The dtype of this rank's input, if it had one.
    pub dtype: Option<DType>,
    /// The shape of this rank's input.
    pub shape: Vec<usize>,
    /// The operator, of one that reduces.
    pub operator: Option<ReduceOp>,
    /// The root, of one that has a root.
    pub root: Option<usize>,
    /// How far it has come.
    pub state: OpState,
    /// When this rank came to it.
    pub started_ns: u64,
    /// When all had agreed on it.
    pub agreed_ns: Option<u64>,
    /// When it was over on this rank.
    pub ended_ns: Option<u64>,
}

/// A record, without an allocation.
struct Kept {
    seq: u64,
    op: &'static str,
    dtype: Option<DType>,
    shape: [usize; MAX_DIMS],
    dims: usize,
    operator: Option<ReduceOp>,
    root: Option<usize>,
    state: OpState,
    started: u64,
    agreed: Option<u64>,
    ended: Option<u64>,
}

impl Kept {
    fn to_record(&self) -> OpRecord {
        OpRecord {
            seq: self.seq,
            op: self.op,
            dtype: self.dtype,
            shape: self.shape[..self.dims].to_vec(),
            operator: self.operator,
            root: self.root,
            state: self.state.clone(),
            started_ns: self.started,
            agreed_ns: self.agreed,
            ended_ns: self.ended,
        }
    }
}

#[derive(Default)]
struct Ring {
    /// The operation with number `n` is at `n % KEPT`.
    slots: Vec<Kept>,
    begun: u64,
}

/// The last operations of one rank in one group.
#[derive(Default)]
pub(crate) struct Recorder {
    ring: Mutex<Ring>,
    /// Whether what ended the group has been written down: nothing after that tells anything new.
    closed: AtomicBool,
}

/// Which of its operations; the first was number zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordId(u64);

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This rank has come to an operation.
    pub(crate) fn start(&self, seq: u64, request: &Request) -> RecordId {
        let mut shape = [0; MAX_DIMS];
        let dims = request.input.as_ref().map_or(&[][..], Tensor::shape);
        shape.iter_mut().zip(dims).for_each(|(to, &from)| *to = from);
        let kept = Kept {
            seq,
            op: request.op.name(),
            dtype: request.input.as_ref().map(Tensor::dtype),
            shape,
            dims: dims.len().min(MAX_DIMS),
            operator: request.op.reduce(),
            root: request.op.root(),
            state: OpState::Started,
            started: now_ns(),
            agreed: None,
            ended: None,
        };
        let mut ring = self.lock();
        let id = ring.begun;
        ring.begun += 1;
        match ring.slots.get_mut((id % KEPT as u64) as usize) {
            Some(slot) => *slot = kept,
            None => ring.slots.push(kept),
        }
        RecordId(id)
    }

    /// All ranks have agreed on it.
    pub(crate) fn agree(&self, id: RecordId) {
        self.change(id, |kept| {
            kept.state = OpState::Agreed;
            kept.agreed = Some(now_ns());
        });
    }

    /// It is over.
    pub(crate) fn end(&self, id: RecordId, state: OpState) {
        self.change(id, |kept| {
            kept.state = state;
            kept.ended = Some(now_ns());
        });
    }

    fn change(&self, RecordId(id): RecordId, change: impl FnOnce(&mut Kept)) {
        let mut ring = self.lock();
        // Another may stand there by now, if a rank began so many from other threads.
        if ring.begun - id <= KEPT as u64
            && let Some(kept) = ring.slots.get_mut((id % KEPT as u64) as usize)
        {
            change(kept);
        }
    }

    /// An operation that could not begin, since the team is over.
    pub(crate) fn refuse(&self, seq: u64, request: &Request, error: &Error) {
        if !self.closed.load(Ordering::Acquire) {
            let id = self.start(seq, request);
            self.end(id, OpState::Failed(error.to_string()));
        }
    }

    /// Says, once, that what ended the group has been written down.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// The last operations, oldest first; none in a forked child, whose parent they are of.
    pub(crate) fn recent(&self) -> Vec<OpRecord> {
        if is_forked() {
            return Vec::new();
        }
        let ring = self.lock();
        let oldest = ring.begun.saturating_sub(KEPT as u64);
        let at = |n: u64| ring.slots.get((n % KEPT as u64) as usize);
        (oldest..ring.begun).filter_map(at).map(Kept::to_record).collect()
    }
}

#[cfg(test)]
mod tests {
    use comm_core::tensor::Tensor;

    use super::*;
    use crate::request::Op;

    #[test]
    fn the_last_are_kept_in_order() {
        let recorder = Recorder::default();
        assert_eq!(recorder.recent(), []);
        let input = Tensor::from_slice(&[2, 3], &[0f32; 6]).unwrap();
        for seq in 0..3 * KEPT as u64 + 7 {
            let op = if seq % 2 == 0 { Op::Barrier } else { Op::Reduce { op: ReduceOp::Max, root: 4 } };
            let id = recorder.start(seq, &Request::new(op, (seq % 2 == 1).then_some(&input)));
            recorder.agree(id);
            recorder.end(id, OpState::Done);
            let recent = recorder.recent();
            assert_eq!(recent.len(), KEPT.min(seq as usize + 1));
            assert!(recent.iter().rev().zip((0..=seq).rev()).all(|(record, seq)| record.seq == seq));
        }
        let recent = recorder.recent();
        let [barrier, reduce] = [0, 1].map(|odd| recent.iter().find(|r| r.seq % 2 == odd).unwrap());
        assert_eq!((barrier.op, barrier.dtype, barrier.shape.len()), ("barrier", None, 0));
        assert_eq!((reduce.op, reduce.dtype), ("reduce", Some(DType::F32)));
        assert_eq!(
            (&reduce.shape[..], reduce.operator, reduce.root),
            (&[2, 3][..], Some(ReduceOp::Max), Some(4))
        );
        assert!(recent.windows(2).all(|two| two[0].ended_ns.unwrap() <= two[1].started_ns));
        assert!(recent.iter().all(|r| r.started_ns <= r.agreed_ns.unwrap() && r.agreed_ns <= r.ended_ns));
    }

    #[test]
    fn what_has_made_room_is_not_changed_any_more() {
        let recorder = Recorder::default();
        let request = Request::new(Op::Barrier, None);
        let first = recorder.start(0, &request);
        for seq in 1..=KEPT as u64 {
            recorder.start(seq, &request);
        }
        recorder.end(first, OpState::Done);
        assert!(recorder.recent().iter().all(|record| record.state == OpState::Started));
    }

    #[test]
    fn after_the_end_nothing_is_written_down() {
        let recorder = Recorder::default();
        let (request, error) = (Request::new(Op::Barrier, None), Error::bad_peer("over"));
        recorder.refuse(9, &request, &error);
        assert!(recorder.close() && !recorder.close());
        (0..1000).for_each(|seq| recorder.refuse(seq, &request, &error));
        let recent = recorder.recent();
        assert_eq!(recent.len(), 1);
        assert_eq!((recent[0].seq, recent[0].state.error()), (9, Some("bad peer: over")));
    }
}
