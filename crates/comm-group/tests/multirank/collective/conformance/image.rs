//! The bytes of a combination: what this rank brings, and what it must get.

use comm_testkit::oracle::Dense;
use comm_testkit::values::Strided;

use super::elements::{Elements, PERIOD};
use super::factors::{Combination, Size, View};
use super::setup::{Cell, Setup, repeated};
use crate::call::{Expected, positions};
use crate::support::Any;

/// What a letter carries, and what is reduced or copied at once, in bytes.
const CARRIED: usize = 512;
const BLOCK: usize = 32 * 1024;

/// What a rank brings, and what it must get.
pub struct Image {
    pub view: Strided,
    pub storage: Vec<u8>,
    pub expected: Vec<Expected>,
}

impl Image {
    pub fn of(c: &Combination, setup: &Setup, elements: &Elements, rank: usize) -> Any<Image> {
        let (world, size) = (setup.inputs.len(), c.dtype.size());
        let most = setup.most() * size;
        let many = match c.size {
            Size::Letter => None,
            Size::Exposed => Some(CARRIED / most + 1),
            Size::Blocks if c.subject.operation.cuts() => Some(BLOCK * world / most + 1),
            Size::Blocks => Some(BLOCK / most + 1),
        };
        if many.is_none() && most > CARRIED {
            return Err(format!("{most} bytes do not go in a letter").into());
        }
        let input = &setup.inputs[rank];
        let view = lay(c.view, &shape(&input.shape, many));
        let storage = stored(&view, &bytes(input, many, elements), elements.anything(rank));
        let result = |result: &Dense<Cell>| Expected {
            shape: shape(&result.shape, many),
            bytes: bytes(result, many, elements),
        };
        Ok(Image { view, storage, expected: setup.expected[rank].iter().map(result).collect() })
    }
}

/// The shape of cells of so many elements: they are a second dimension.
fn shape(cells: &[usize], many: Option<usize>) -> Vec<usize> {
    let mut shape = cells.to_vec();
    if let Some(many) = many {
        shape.insert(1, many);
    }
    shape
}

/// The bytes of cells of so many elements, in row-major order.
fn bytes(cells: &Dense<Cell>, many: Option<usize>, elements: &Elements) -> Vec<u8> {
    let outer = cells.shape.first().copied().unwrap_or(1);
    let inner = cells.data.len().checked_div(outer).unwrap_or(0);
    let mut bytes = Vec::new();
    for i in 0..outer {
        let cells = &cells.data[i * inner..][..inner];
        let begin = bytes.len();
        let many = many.unwrap_or(1);
        for number in 0..many.min(PERIOD) {
            cells.iter().for_each(|&cell| bytes.extend_from_slice(elements.get(cell, number)));
        }
        // From here on they are the same again.
        let (period, all) = (bytes.len() - begin, inner * many * elements.size());
        while period > 0 && bytes.len() < begin + all {
            let rest = period.min(begin + all - bytes.len());
            bytes.extend_from_within(bytes.len() - period..bytes.len() - period + rest);
        }
    }
    bytes
}

/// The storage of a view of these elements; what lies between them is something else.
fn stored(view: &Strided, bytes: &[u8], anything: &[u8]) -> Vec<u8> {
    let numel = view.numel();
    let Some(size) = bytes.len().checked_div(numel) else {
        return anything.repeat(view.storage);
    };
    if view.storage == numel && is_dense(view) {
        return bytes.to_vec();
    }
    let mut storage = anything.repeat(view.storage);
    let places = positions(&view.shape, &view.strides, view.offset);
    for (place, element) in places.zip(bytes.chunks_exact(size)) {
        storage[place * size..][..size].copy_from_slice(element);
    }
    storage
}

fn is_dense(view: &Strided) -> bool {
    let mut step = 1;
    view.shape.iter().zip(&view.strides).rev().all(|(&n, &stride)| {
        let fits = stride == step;
        step *= n as isize;
        fits
    })
}

/// A view of a kind and a shape.
fn lay(view: View, shape: &[usize]) -> Strided {
    let dims = shape.len();
    let columns_first = matches!(view, View::Transposed | View::Mixed);
    let order: Vec<usize> = if columns_first { (0..dims).collect() } else { (0..dims).rev().collect() };
    let backwards = matches!(view, View::Flipped | View::Mixed);
    let mut strides = vec![0isize; dims];
    let mut step = if matches!(view, View::Stepped | View::Mixed) { 2 } else { 1 };
    for dim in order.into_iter().filter(|&dim| repeated(view, dims) != Some(dim)) {
        strides[dim] = if backwards { -step } else { step };
        step *= shape[dim].max(1) as isize;
    }
    let reach: usize = shape.iter().zip(&strides).map(|(&n, s)| n.saturating_sub(1) * s.unsigned_abs()).sum();
    let before = if matches!(view, View::Offset | View::Mixed) { 3 } else { 0 };
    let storage = if shape.contains(&0) { before } else { before + reach + 1 + before };
    let offset = if backwards && !shape.contains(&0) { before + reach } else { before };
    Strided { name: "", shape: shape.to_vec(), strides, offset, storage }
}
