//! Reductions: how the contributions of all ranks become one, element by element.
//!
//! | file | what it holds |
//! |---|---|
//! | `op` | the operators, and which dtypes each of them takes |
//! | `identity` | the element that changes nothing |
//! | `lane` | how the elements of a dtype are read into accumulators, and written back |
//! | `small` | f32 to and from 8 and 16 bits |
//! | `fold` | what an operator does to accumulators, a block at a time |
//! | `reducer` | which lane and operator a reduction needs, and the blocks of all ranks through it |
//!
//! **Exact order.** An accumulator starts as rank 0's value, never as a zero, and takes the others in rank order. So the
//! bits depend on the inputs alone. Numbers of 8 and 16 bits are accumulated in f32 and rounded once, at the end; there is
//! no fused multiply-add. Which payload a NaN keeps is the processor's choice, so all of them come out as one.

mod fold;
mod identity;
mod lane;
mod op;
mod reducer;
mod small;
#[cfg(test)]
mod tests;

pub use op::{Factor, ReduceOp};
pub(crate) use reducer::{Reducer, reduce};
