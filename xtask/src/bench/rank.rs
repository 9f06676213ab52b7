//! What one rank does: every case checked, timed, and checked again with other values.

use std::time::{Duration, Instant};

use comm_core::tensor::{Tensor, TensorBuf};
use comm_core::{Deadline, Result};
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::values::poison;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::case::{Case, Common, Memory, Op};
use super::values::{Values, Wrong};

/// How long the iterations of a row take together.
const ROW: Duration = Duration::from_millis(200);
/// How long it is called before that, so that memory is there and processors are awake.
const WARM_UP: Duration = Duration::from_millis(20);
const FEWEST: u64 = 5;
const MOST: u64 = 20_000;

/// What ranks are told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    pub common: Common,
    pub cases: Vec<Case>,
    /// Nothing is timed.
    pub check: bool,
    /// The root's first element is another rank's, so that results are wrong.
    pub spoil: bool,
}

/// What one rank has to say about a case.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Wrong elements of this rank's results.
    pub wrong: u64,
    /// The first of them, in words.
    pub first: Option<String>,
    /// Of the slowest rank, in each iteration.
    pub times: Option<Times>,
}

/// Of the iterations of a case, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Times {
    pub min_us: f64,
    pub median_us: f64,
}

/// Goes through all cases. `progress` is called after each, with how many are through.
///
/// A wrong result does not end the run: the other ranks are inside the same operations.
///
/// # Errors
/// What the library said.
pub fn run(group: &ThreadGroup, plan: &Plan, progress: &dyn Fn(u64)) -> Result<Vec<Measured>> {
    let common = &plan.common;
    let values = [0, 1].map(|round| Values::new(common.dtype, common.redop, group.size(), round));
    let mut all = Vec::with_capacity(plan.cases.len());
    for (case, through) in plan.cases.iter().zip(1..) {
        let bench = Bench { group, common, case, spoil: plan.spoil };
        let mut measured = Measured::default();
        let [first, second] = &values;
        let mut buffers = bench.checked(first, &mut measured)?;
        if !plan.check {
            measured.times = Some(bench.timed(&mut buffers)?);
        }
        // Before there are new ones, of which the memory may not have room besides.
        drop(buffers);
        bench.checked(second, &mut measured)?;
        all.push(measured);
        progress(through);
    }
    Ok(all)
}

struct Bench<'a> {
    group: &'a ThreadGroup,
    common: &'a Common,
    case: &'a Case,
    spoil: bool,
}

struct Buffers {
    input: Option<Tensor>,
    out: TensorBuf,
}

impl Bench<'_> {
    /// One call whose result is looked at.
    fn checked(&self, values: &Values, measured: &mut Measured) -> Result<Buffers> {
        let (rank, ranks) = (self.group.rank(), self.group.size());
        let expected = self.case.result(self.common, rank, ranks);
        let mut buffers = self.buffers(values, expected.iter().map(|(_, range)| range.len()).sum())?;
        let result = self.call(&mut buffers)?;
        let seen = match &result {
            Some(tensor) => tensor.bytes()?,
            None if self.fills() => buffers.out.bytes()?,
            None => &[],
        };
        let Wrong { count, first } = values.compare(seen, &expected);
        measured.wrong += count;
        if measured.first.is_none() {
            measured.first = first.map(|(at, seen, expected)| {
                format!("rank {rank}, element {at}: seen {seen:02x?}, expected {expected:02x?} (bytes)")
            });
        }
        Ok(buffers)
    }

    /// The input, and room for a result of so many elements, which holds something else.
    fn buffers(&self, values: &Values, result: usize) -> Result<Buffers> {
        let (rank, ranks) = (self.group.rank(), self.group.size());
        let input = match self.case.input(self.common, rank, ranks) {
            Some(count) => {
                let mut input = self.buffer(self.shape(count))?;
                let bytes = input.bytes_mut()?;
                values.fill(rank, bytes);
                if self.spoil && rank == self.common.root {
                    let size = self.common.dtype.size();
                    values.fill((rank + 1) % ranks, &mut bytes[..size]);
                }
                Some(input)
            }
            None => None,
        };
        if self.case.in_place
            && let Some(out) = input
        {
            return Ok(Buffers { input: None, out });
        }
        let mut out = self.buffer(self.shape(if self.fills() { result } else { 0 }))?;
        // A bool that is neither true nor false would not be one.
        let poison = if self.common.dtype == comm_core::tensor::DType::Bool { vec![0] } else { poison(4096) };
        for chunk in out.bytes_mut()?.chunks_mut(poison.len()) {
            chunk.copy_from_slice(&poison[..chunk.len()]);
        }
        Ok(Buffers { input: input.map(TensorBuf::freeze), out })
    }

    fn buffer(&self, shape: Vec<usize>) -> Result<TensorBuf> {
        match self.common.memory {
            Memory::Arena => {
                TensorBuf::zeros_in(self.group.team().hub().tensors(), &shape, self.common.dtype)
            }
            Memory::Heap => Ok(TensorBuf::zeros(&shape, self.common.dtype)?),
        }
    }

    /// One row for each rank in an exchange of rows, else one dimension.
    fn shape(&self, count: usize) -> Vec<usize> {
        let ranks = self.group.size();
        if self.case.op == Op::Alltoall { vec![ranks, count / ranks] } else { vec![count] }
    }

    /// Whether results go into a buffer of ours.
    fn fills(&self) -> bool {
        self.common.mode == super::case::Mode::Into
    }

    fn call(&self, buffers: &mut Buffers) -> Result<Option<Tensor>> {
        let Buffers { input, out } = buffers;
        Call { group: self.group, common: self.common, case: self.case, input: input.as_ref() }.run(out)
    }

    /// One call and how long it took, from when all ranks have come.
    fn once(&self, buffers: &mut Buffers) -> Result<Duration> {
        self.group.barrier(Deadline::default())?;
        let start = Instant::now();
        let result = self.call(buffers)?;
        let time = start.elapsed();
        drop(result);
        Ok(time)
    }

    fn timed(&self, buffers: &mut Buffers) -> Result<Times> {
        // The checked call has made memory ready already, so of a long one this is enough.
        let mut calls = 1;
        let each = loop {
            let start = Instant::now();
            for _ in 0..calls {
                self.once(buffers)?;
            }
            let each = self.slowest(&[nanoseconds(start.elapsed()) / calls])?[0].max(1);
            if each * calls >= nanoseconds(WARM_UP) || calls >= MOST {
                break each;
            }
            calls *= 4;
        };
        let iterations = (nanoseconds(ROW) / each).clamp(FEWEST, MOST);
        let mut times = Vec::new();
        for _ in 0..iterations {
            times.push(nanoseconds(self.once(buffers)?));
        }
        let mut times = self.slowest(&times)?;
        times.sort_unstable();
        let us = |at: usize| times.get(at).map_or(0.0, |&ns| ns as f64 / 1e3);
        Ok(Times { min_us: us(0), median_us: us(times.len() / 2) })
    }

    /// Of each of these numbers the largest that a rank has, which so all know.
    fn slowest(&self, mine: &[u64]) -> Result<Vec<u64>> {
        let mine = Tensor::from_slice(&[mine.len()], mine)?;
        Ok(self.group.all_reduce(&mine, ReduceOp::Max, Deadline::default())?.to_vec()?)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
