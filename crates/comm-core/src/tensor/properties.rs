//! Random views and copies against an oracle that goes index by index.

use num_complex::Complex;
use proptest::prelude::*;

use super::tests::fake_shared;
use super::*;

/// A shape and its elements in row-major order: no strides, no cleverness.
#[derive(Debug, Clone)]
struct Oracle {
    shape: Vec<usize>,
    values: Vec<usize>,
}

fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &size in shape {
        all = all
            .into_iter()
            .flat_map(|index| (0..size).map(move |i| [index.clone(), vec![i]].concat()))
            .collect();
    }
    all
}

impl Oracle {
    fn new(shape: &[usize]) -> Oracle {
        Oracle { shape: shape.to_vec(), values: (0..shape.iter().product()).collect() }
    }

    fn at(&self, index: &[usize]) -> usize {
        let mut position = 0;
        for (&i, &size) in index.iter().zip(&self.shape) {
            position = position * size + i;
        }
        self.values[position]
    }

    /// The oracle whose element at an index is this one's at `from(index)`.
    fn map(&self, shape: Vec<usize>, from: impl Fn(&[usize]) -> Vec<usize>) -> Oracle {
        let values = indices(&shape).iter().map(|index| self.at(&from(index))).collect();
        Oracle { shape, values }
    }

    /// As `map`, for a change of one dimension.
    fn map_dim(&self, dim: usize, size: usize, from: impl Fn(usize) -> usize) -> Oracle {
        let mut shape = self.shape.clone();
        shape[dim] = size;
        self.map(shape, |index| {
            let mut index = index.to_vec();
            index[dim] = from(index[dim]);
            index
        })
    }
}

/// One step of a chain; the numbers are fitted to whatever shape is there.
#[derive(Debug, Clone)]
enum Op {
    Narrow(usize, usize, usize),
    Select(usize, usize),
    Step(usize, usize),
    Flip(usize),
    Transpose(usize, usize),
    Permute(Vec<usize>),
    Unsqueeze(usize),
    Expand(usize, usize),
    Split(usize, usize),
    Merge(usize),
    Flatten,
}

fn op() -> impl Strategy<Value = Op> {
    let n = 0usize..64;
    prop_oneof![
        3 => (n.clone(), n.clone(), n.clone()).prop_map(|(d, s, l)| Op::Narrow(d, s, l)),
        1 => (n.clone(), n.clone()).prop_map(|(d, i)| Op::Select(d, i)),
        2 => (n.clone(), 1usize..5).prop_map(|(d, s)| Op::Step(d, s)),
        2 => n.clone().prop_map(Op::Flip),
        2 => (n.clone(), n.clone()).prop_map(|(a, b)| Op::Transpose(a, b)),
        2 => prop::collection::vec(n.clone(), 16).prop_map(Op::Permute),
        1 => n.clone().prop_map(Op::Unsqueeze),
        2 => (n.clone(), 0usize..4).prop_map(|(d, s)| Op::Expand(d, s)),
        1 => (n.clone(), 1usize..4).prop_map(|(d, s)| Op::Split(d, s)),
        1 => n.prop_map(Op::Merge),
        1 => Just(Op::Flatten),
    ]
}

fn shape() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![1 => Just(0usize), 3 => Just(1), 12 => 2usize..6], 0..=5)
}

/// Applies a step to both sides, if it makes sense here and the result stays small.
fn apply(op: &Op, t: &Tensor, o: &Oracle) -> Option<(Tensor, Oracle)> {
    let dims = o.shape.len();
    let pick = |d: usize| if dims == 0 { None } else { Some(d % dims) };
    let reshape = |shape: Vec<usize>| {
        // Where strides cannot express the shape, a copy must.
        let viewed = match t.reshape(&shape) {
            Err(TensorError::NoView { .. }) => t.contiguous().unwrap().reshape(&shape).unwrap(),
            viewed => viewed.unwrap(),
        };
        (viewed, Oracle { shape, values: o.values.clone() })
    };
    Some(match *op {
        Op::Narrow(d, start, len) => {
            let d = pick(d)?;
            let start = start % (o.shape[d] + 1);
            let len = len % (o.shape[d] - start + 1);
            (t.narrow(d, start, len).unwrap(), o.map_dim(d, len, |i| i + start))
        }
        Op::Select(d, i) => {
            let d = pick(d)?;
            let i = i.checked_rem(o.shape[d])?;
            let mut shape = o.shape.clone();
            shape.remove(d);
            let from = |index: &[usize]| [&index[..d], &[i], &index[d..]].concat();
            (t.select(d, i).unwrap(), o.map(shape, from))
        }
        Op::Step(d, step) => {
            let d = pick(d)?;
            (t.step(d, step).unwrap(), o.map_dim(d, o.shape[d].div_ceil(step), |i| i * step))
        }
        Op::Flip(d) => {
            let d = pick(d)?;
            let size = o.shape[d];
            (t.flip(d).unwrap(), o.map_dim(d, size, |i| size - 1 - i))
        }
        Op::Transpose(a, b) => {
            let (a, b) = (pick(a)?, pick(b)?);
            let mut shape = o.shape.clone();
            shape.swap(a, b);
            let from = |index: &[usize]| {
                let mut index = index.to_vec();
                index.swap(a, b);
                index
            };
            (t.transpose(a, b).unwrap(), o.map(shape, from))
        }
        Op::Permute(ref keys) => {
            let mut order: Vec<usize> = (0..dims).collect();
            order.sort_by_key(|&d| keys[d]);
            let shape = order.iter().map(|&d| o.shape[d]).collect();
            let from = |index: &[usize]| {
                let mut old = vec![0; dims];
                for (&d, &i) in order.iter().zip(index) {
                    old[d] = i;
                }
                old
            };
            (t.permute(&order).unwrap(), o.map(shape, from))
        }
        Op::Unsqueeze(d) => {
            let d = d % (dims + 1);
            let mut shape = o.shape.clone();
            if dims >= 7 {
                return None;
            }
            shape.insert(d, 1);
            let squeezed = t.unsqueeze(d).unwrap().squeeze(d).unwrap();
            assert_eq!(squeezed.shape(), t.shape());
            (t.unsqueeze(d).unwrap(), Oracle { shape, values: o.values.clone() })
        }
        Op::Expand(d, size) => {
            let mut shape = o.shape.clone();
            match (0..dims).cycle().skip(d).take(dims).find(|&d| shape[d] == 1) {
                Some(d) => shape[d] = size,
                None if dims < 7 => shape.insert(0, size),
                None => return None,
            }
            if shape.iter().product::<usize>() > 20_000 {
                return None;
            }
            let added = shape.len() - dims;
            let from = |index: &[usize]| {
                index[added..].iter().zip(&o.shape).map(|(&i, &size)| if size == 1 { 0 } else { i }).collect()
            };
            (t.expand(&shape).unwrap(), o.map(shape, from))
        }
        Op::Split(d, part) => {
            let d = pick(d)?;
            if dims >= 7 || !o.shape[d].is_multiple_of(part) {
                return None;
            }
            let mut shape = o.shape.clone();
            shape[d] /= part;
            shape.insert(d, part);
            reshape(shape)
        }
        Op::Merge(d) => {
            let d = pick(d)?;
            if d + 1 >= dims {
                return None;
            }
            let mut shape = o.shape.clone();
            shape[d] *= shape.remove(d + 1);
            reshape(shape)
        }
        Op::Flatten => reshape(vec![o.values.len()]),
    })
}

/// Everything that reads a tensor must agree with the oracle.
fn agree<T: Element>(t: &Tensor, o: &Oracle, element: impl Fn(usize) -> T) {
    let expected: Vec<T> = o.values.iter().map(|&v| element(v)).collect();
    assert_eq!(t.shape(), o.shape);
    assert_eq!(t.numel(), expected.len());
    assert_eq!(t.to_vec::<T>().unwrap(), expected);

    let dense = t.contiguous().unwrap();
    assert!(dense.is_contiguous());
    assert_eq!(dense.as_slice::<T>().unwrap(), expected);
    assert_eq!(t.is_contiguous(), t.as_slice::<T>().is_ok());
    assert!(t.bytes_equal(&dense).unwrap() && dense.bytes_equal(t).unwrap());

    let mut bytes = vec![0xaa; t.nbytes()];
    t.copy_bytes_to(&mut bytes).unwrap();
    assert_eq!(bytes, dense.bytes().unwrap());

    let span = t.layout().span();
    for (index, value) in indices(&o.shape).iter().zip(&expected) {
        let position = t.layout().position(index).unwrap();
        assert!(span.contains(&position));
        let mut one = t.clone();
        for &i in index {
            one = one.select(0, i).unwrap();
        }
        assert_eq!(one.layout().offset(), position);
        assert_eq!(one.as_slice::<T>().unwrap(), std::slice::from_ref(value));
    }
}

fn check<T: Element>(start: &[usize], ops: &[Op], cut: (usize, usize), element: impl Fn(usize) -> T) {
    let mut o = Oracle::new(start);
    let values: Vec<T> = o.values.iter().map(|&v| element(v)).collect();
    let mut t = Tensor::from_slice(start, &values).unwrap();
    for op in ops {
        if let Some((next, oracle)) = apply(op, &t, &o) {
            (t, o) = (next, oracle);
            assert_eq!(t.shape(), o.shape, "{op:?}");
        }
    }
    agree(&t, &o, &element);

    // The same layout over another process's memory, when it is still over what we know.
    let base = Tensor::from_slice(start, &values).unwrap();
    if base.with_layout(*t.layout()).is_ok_and(|again| again.bytes_equal(&t).unwrap()) {
        let shared = fake_shared(base.bytes().unwrap(), false);
        let import = Tensor::from_import("t", shared, T::DTYPE, *t.layout()).unwrap();
        assert_eq!(import.to_vec::<T>().unwrap(), t.to_vec::<T>().unwrap());
        assert!(import.bytes_equal(&t).unwrap() && t.bytes_equal(&import).unwrap());
    }

    // Cut in three along one dimension and put together again.
    if let Some(dim) = cut.0.checked_rem(o.shape.len()) {
        let size = o.shape[dim];
        let a = cut.1 % (size + 1);
        let b = a + (size - a) / 2;
        let part = |from, to| t.narrow(dim, from, to - from).unwrap();
        let whole = Tensor::concat(&[part(0, a), part(a, b), part(b, size)], dim).unwrap();
        assert!(whole.bytes_equal(&t).unwrap());
        assert_eq!(whole.bytes_equal(&whole.flip(dim).unwrap()).unwrap(), {
            let back = o.map_dim(dim, size, |i| size - 1 - i);
            back.values.iter().zip(&o.values).all(|(&x, &y)| element(x) == element(y))
        });
    }

    // Written into the middle of something larger.
    let frame: Vec<usize> = o.shape.iter().map(|&size| size + 2).collect();
    if frame.iter().product::<usize>() < 50_000 {
        let mut buf = TensorBuf::zeros(&frame, T::DTYPE).unwrap();
        buf.write_at(&vec![1; frame.len()], &t).unwrap();
        let framed = buf.freeze();
        let inside = |index: &[usize]| index.iter().zip(&o.shape).all(|(&i, &size)| i >= 1 && i <= size);
        let got = framed.to_vec::<T>().unwrap();
        for (index, got) in indices(&frame).iter().zip(got) {
            let expected = if inside(index) {
                element(o.at(&index.iter().map(|i| i - 1).collect::<Vec<_>>()))
            } else {
                T::default()
            };
            assert_eq!(got, expected);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 200 }, ..ProptestConfig::default() })]

    #[test]
    fn views_and_copies_agree_with_the_oracle(
        start in shape(),
        ops in prop::collection::vec(op(), 0..8),
        cut in (0usize..64, 0usize..64),
        size in 0usize..5,
    ) {
        match size {
            0 => check(&start, &ops, cut, |v| (v % 251) as u8),
            1 => check(&start, &ops, cut, |v| v as u16),
            2 => check(&start, &ops, cut, |v| v as f32 - 7.0),
            3 => check(&start, &ops, cut, |v| v as i64 * -1_000_000_007),
            _ => check(&start, &ops, cut, |v| Complex::new(v as f64, -(v as f64))),
        }
    }

    #[test]
    fn any_layout_is_refused_or_sound(
        shape in prop::collection::vec(prop_oneof![0usize..6, any::<usize>()], 0..5),
        strides in prop::collection::vec(prop_oneof![-8isize..8, any::<isize>()], 5),
        offset in prop_oneof![0usize..64, any::<usize>()],
        ops in prop::collection::vec((0usize..5, any::<usize>(), any::<usize>()), 0..6),
    ) {
        let Ok(mut layout) = Layout::new(&shape, &strides[..shape.len()], offset) else { return Ok(()) };
        for (what, a, b) in ops {
            let dim = a % 5;
            let next = match what {
                0 => layout.narrow(dim, a % 7, b % 7),
                1 => layout.step(dim, b),
                2 => layout.flip(dim),
                3 => layout.expand(&[layout.shape(), &[b]].concat()),
                _ => layout.transpose(dim, b % 5),
            };
            layout = next.unwrap_or(layout);
        }
        let span = layout.span();
        prop_assert!(isize::try_from(span.end).is_ok());
        if layout.numel() > 0 {
            // The corners are the extremes of all positions.
            for corner in 0..1usize << layout.ndim() {
                let index: Vec<usize> = layout
                    .shape()
                    .iter()
                    .enumerate()
                    .map(|(dim, &size)| if corner >> dim & 1 == 1 { size - 1 } else { 0 })
                    .collect();
                prop_assert!(span.contains(&layout.position(&index).unwrap()));
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "slow; the code is the same as for small ones")]
fn large_transposes_agree_with_the_oracle() {
    // Several tiles, with edges that are not whole ones.
    for (rows, columns, depth) in [(33, 65, 1), (64, 32, 2), (100, 3, 5), (1, 500, 1), (70, 70, 3)] {
        let n = rows * columns * depth;
        let values: Vec<u32> = (0..n as u32).collect();
        let t = Tensor::from_slice(&[rows, columns, depth], &values).unwrap();
        for order in [[1, 0, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1], [0, 2, 1]] {
            let p = t.permute(&order).unwrap();
            let got = p.to_vec::<u32>().unwrap();
            for (index, got) in indices(p.shape()).iter().zip(got) {
                let mut old = [0; 3];
                for (&d, &i) in order.iter().zip(index) {
                    old[d] = i;
                }
                assert_eq!(got as usize, (old[0] * columns + old[1]) * depth + old[2]);
            }
        }
    }
}
