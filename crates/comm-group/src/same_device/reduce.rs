//! Reductions: of a rectangle of all inputs by one rank, or of everything by all together.

use comm_core::tensor::{DType, Tensor, TensorBuf, Tile};
use comm_core::{Result, point};

use super::collective::{Collective, numel};
use super::{Input, Outcome, Slot, Target, produce};
use crate::reduce::{ReduceOp, Reducer};
use crate::shard::shard_range;

impl Collective<'_> {
    /// Reduces the same rectangle of all inputs, each of so many bytes, in rank order.
    pub(super) fn reduce_tile(
        &mut self,
        op: ReduceOp,
        dtype: DType,
        bytes: usize,
        tile: &Tile,
        out: &mut [u8],
    ) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let inputs: Vec<Input<'_>> =
            (0..self.size()).map(|rank| self.input(rank, bytes)).collect::<Result<_>>()?;
        let mut reducer = Reducer::new(op, dtype, inputs.len())?;
        let mut runs = Chunks::new(tile, dtype.size());
        let block = reducer.block_bytes();
        let mut pieces = Vec::new();
        for out in out.chunks_mut(block) {
            runs.take(out.len(), &mut pieces);
            reducer.block(out, |rank, into| {
                let mut done = 0;
                for &(at, len) in &pieces {
                    inputs[rank].read(at, &mut into[done..done + len])?;
                    done += len;
                }
                Ok(())
            })?;
        }
        inputs.iter().try_for_each(Input::verify)
    }

    /// Reduces everything, for all ranks or for the root.
    ///
    /// What has come in letters is here already: to reduce all of it is less than to wait for the parts of others. Otherwise
    /// each rank reduces a part and exposes it, and who gets the result pulls the parts.
    pub(super) fn reduce_all(
        &mut self,
        op: ReduceOp,
        dtype: DType,
        input: &[usize],
        result: Option<Vec<usize>>,
        root: Option<usize>,
        target: Target<'_>,
    ) -> Result<Outcome> {
        let (elements, size) = (numel(input), dtype.size());
        let bytes = elements * size;
        let flat = |start: usize, len: usize| Tile::new("reduce", &[elements], &[start], &[len]);
        if !self.any_exposed() {
            let Some(shape) = result else { return Ok(Outcome::Nothing) };
            let whole = flat(0, elements)?;
            return produce(target, &shape, dtype, |out| self.reduce_tile(op, dtype, bytes, &whole, out));
        }
        let (start, len) = shard_range(elements, self.size(), self.rank());
        let mut part = if self.abroad() {
            TensorBuf::zeros_in(self.arena(), &[len], dtype)?
        } else {
            TensorBuf::zeros(&[len], dtype)?
        };
        self.reduce_tile(op, dtype, bytes, &flat(start, len)?, part.bytes_mut()?)?;
        let part = part.freeze();
        if root != Some(self.rank()) {
            self.expose(Slot::Partial, &part)?;
        }
        point!("group.reduced");
        self.meet("the others to have reduced their parts")?;
        let Some(shape) = result else { return Ok(Outcome::Nothing) };
        produce(target, &shape, dtype, |out| self.pull_parts(elements, size, &part, out))
    }

    /// The whole, from the parts of all ranks.
    fn pull_parts(&mut self, elements: usize, size: usize, own: &Tensor, out: &mut [u8]) -> Result<()> {
        for rank in 0..self.size() {
            let (start, len) = shard_range(elements, self.size(), rank);
            let out = &mut out[start * size..(start + len) * size];
            if rank == self.rank() {
                own.copy_bytes_to(out)?;
            } else if len > 0 {
                let part = self.region(rank, Slot::Partial)?;
                part.expect_len(out.len())?;
                part.read(0, out)?;
                part.verify()?;
            }
        }
        Ok(())
    }
}

/// The runs of a tile as bytes, in pieces that add up to blocks.
struct Chunks<'a> {
    runs: comm_core::tensor::Runs<'a>,
    size: usize,
    /// What is left of a run: its first byte, and how many.
    rest: (usize, usize),
}

impl<'a> Chunks<'a> {
    fn new(tile: &'a Tile, size: usize) -> Chunks<'a> {
        Chunks { runs: tile.runs(), size, rest: (0, 0) }
    }

    /// The pieces of the next block of so many bytes.
    fn take(&mut self, mut bytes: usize, pieces: &mut Vec<(usize, usize)>) {
        pieces.clear();
        while bytes > 0 {
            if self.rest.1 == 0 {
                let Some((start, len)) = self.runs.next() else { return };
                self.rest = (start * self.size, len * self.size);
            }
            let (at, len) = (self.rest.0, self.rest.1.min(bytes));
            pieces.push((at, len));
            self.rest = (at + len, self.rest.1 - len);
            bytes -= len;
        }
    }
}
