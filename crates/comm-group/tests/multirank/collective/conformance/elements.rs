//! What elements are: some random ones of each rank, and what an operator makes of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use comm_core::tensor::DType;
use comm_testkit::RankCtx;
use comm_testkit::oracle::reduce::reduce;
use comm_testkit::values::{SplitMix64, random_elements};

use super::operation::Subject;
use super::setup::{ALL, Cell};
use crate::support::Any;

/// How many elements there are of a rank; longer inputs repeat them, from another one on in each cell. A prime.
pub const PERIOD: usize = 127;

/// The elements of all ranks, and what they are combined to.
pub struct Elements {
    size: usize,
    ranks: Vec<Vec<u8>>,
    all: Vec<u8>,
}

impl Elements {
    /// Those of a dtype and an operator. The same in every case: the exact sums take time, so a process makes them once.
    pub fn of(ctx: &RankCtx, subject: Subject, dtype: DType) -> Any<Arc<Elements>> {
        type Made = HashMap<(String, DType), Arc<Elements>>;
        static MADE: OnceLock<Mutex<Made>> = OnceLock::new();
        let mut made = MADE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        let key = (subject.operator_name(), dtype);
        if let Some(elements) = made.get(&key) {
            return Ok(Arc::clone(elements));
        }
        let rng = SplitMix64::new(ctx.seed()).fork(u64::from(dtype.code()));
        let ranks: Vec<Vec<u8>> =
            (0..ctx.world()).map(|rank| random_elements(&mut rng.fork(rank as u64), dtype, PERIOD)).collect();
        let all = match subject.operator {
            Some((_, oracle)) => reduce(oracle, dtype, &ranks).ok_or("there is no such operator")?,
            None => Vec::new(),
        };
        let elements = Arc::new(Elements { size: dtype.size(), ranks, all });
        made.insert(key, Arc::clone(&elements));
        Ok(elements)
    }

    /// The element of a cell with a number.
    pub fn get(&self, cell: Cell, number: usize) -> &[u8] {
        let from = if cell.rank == ALL { &self.all } else { &self.ranks[cell.rank] };
        &from[(31 * cell.index + number) % PERIOD * self.size..][..self.size]
    }

    /// An element that stands where nobody looks.
    pub fn anything(&self, rank: usize) -> &[u8] {
        self.get(Cell { rank, index: 0 }, 5)
    }

    /// Of an element, in bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}
