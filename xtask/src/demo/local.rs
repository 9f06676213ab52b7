//! Tests of the demo's own logic, over a stand-in for the library: ranks are threads, tensors are bytes.

use std::borrow::Cow;
use std::sync::{Arc, Barrier, Mutex};

use half::{bf16, f16};
use safetensors::Dtype;

use super::convert::{Conversion, RankReport, rank_main, work};
use super::exchange::Exchange;
use super::table;
use super::weights::{Choice, Spec, Weights};

#[derive(Debug, Clone)]
struct Bytes {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Bytes {
    fn size(&self) -> usize {
        self.dtype.bitsize() / 8
    }

    /// The part of `self` that lies in `range` of `dim`.
    fn narrow(&self, dim: usize, range: std::ops::Range<usize>) -> Bytes {
        let inner: usize = self.shape[dim + 1..].iter().product::<usize>() * self.size();
        let outer: usize = self.shape[..dim].iter().product();
        let mut bytes = Vec::new();
        for o in 0..outer {
            let row = o * self.shape[dim] * inner;
            bytes.extend(&self.bytes[row + range.start * inner..row + range.end * inner]);
        }
        let mut shape = self.shape.clone();
        shape[dim] = range.len();
        Bytes { dtype: self.dtype, shape, bytes }
    }

    fn concat(parts: &[Bytes], dim: usize) -> Bytes {
        let mut whole = parts[0].clone();
        whole.shape[dim] = parts.iter().map(|p| p.shape[dim]).sum();
        let outer: usize = whole.shape[..dim].iter().product();
        whole.bytes.clear();
        for o in 0..outer {
            for part in parts {
                let row = part.bytes.len() / outer;
                whole.bytes.extend(&part.bytes[o * row..(o + 1) * row]);
            }
        }
        whole
    }

    fn add(&mut self, other: &Bytes) {
        macro_rules! sum {
            ($t:ty, $add:expr) => {
                for (a, b) in self
                    .bytes
                    .chunks_exact_mut(size_of::<$t>())
                    .zip(other.bytes.chunks_exact(size_of::<$t>()))
                {
                    let (x, y) = (
                        <$t>::from_le_bytes((&*a).try_into().unwrap()),
                        <$t>::from_le_bytes(b.try_into().unwrap()),
                    );
                    a.copy_from_slice(&$add(x, y).to_le_bytes());
                }
            };
        }
        match self.dtype {
            Dtype::F32 => sum!(f32, |x, y| x + y),
            Dtype::F64 => sum!(f64, |x, y| x + y),
            Dtype::I32 => sum!(i32, i32::wrapping_add),
            Dtype::I64 => sum!(i64, i64::wrapping_add),
            Dtype::U8 => sum!(u8, u8::wrapping_add),
            Dtype::F16 => sum!(f16, |x, y| x + y),
            Dtype::BF16 => sum!(bf16, |x, y| x + y),
            other => panic!("{other} has no sum"),
        }
    }
}

/// What the stand-in gets wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    /// One bit of what rank 2 gathers along dimension 1 of a tensor of this shape.
    Bit([usize; 2]),
    /// The identity of a float sum is 0.0 and not -0.0.
    Identity,
    /// Rank 1 fails to make a tensor of this dtype.
    Fails(Dtype),
}

struct Local {
    rank: usize,
    size: usize,
    wrong: Wrong,
    barrier: Arc<Barrier>,
    slots: Arc<Mutex<Vec<Option<Bytes>>>>,
}

impl Local {
    fn all(&self, mine: &Bytes) -> Vec<Bytes> {
        self.slots.lock().unwrap()[self.rank] = Some(mine.clone());
        self.barrier.wait();
        let all = self.slots.lock().unwrap().iter().flatten().cloned().collect();
        self.barrier.wait();
        all
    }
}

impl Exchange for Local {
    type Tensor = Bytes;

    fn barrier(&self) -> Result<(), String> {
        self.barrier.wait();
        Ok(())
    }

    fn tensor(&self, spec: &Spec, bytes: &[u8]) -> Result<Bytes, String> {
        if self.wrong == Wrong::Fails(spec.dtype) {
            return Err("no such dtype".to_owned());
        }
        Ok(Bytes { dtype: spec.dtype, shape: spec.shape.clone(), bytes: bytes.to_vec() })
    }

    fn shard(&self, full: &Bytes, dim: usize) -> Result<Bytes, String> {
        let (n, w, r) = (full.shape[dim], self.size, self.rank);
        let start = r * (n / w) + r.min(n % w);
        Ok(full.narrow(dim, start..start + n / w + usize::from(r < n % w)))
    }

    fn gather(&self, shard: &Bytes, dim: usize) -> Result<Bytes, String> {
        let mut whole = Bytes::concat(&self.all(shard), dim);
        if dim == 1 && self.rank == 2 && matches!(self.wrong, Wrong::Bit(shape) if whole.shape == shape) {
            whole.bytes[9] ^= 4;
        }
        Ok(whole)
    }

    fn partial(&self, full: &Bytes) -> Result<Bytes, String> {
        let mut part = full.clone();
        if self.rank > 0 {
            part.bytes.fill(0);
            if self.wrong != Wrong::Identity
                && matches!(full.dtype, Dtype::F32 | Dtype::F64 | Dtype::F16 | Dtype::BF16)
            {
                part.bytes.chunks_mut(full.size()).for_each(|c| c[full.size() - 1] = 0x80);
            }
        }
        Ok(part)
    }

    fn reduce(&self, partial: &Bytes) -> Result<Bytes, String> {
        let all = self.all(partial);
        let mut sum = all[0].clone();
        all[1..].iter().for_each(|part| sum.add(part));
        Ok(sum)
    }

    fn shape(&self, tensor: &Bytes) -> Vec<usize> {
        tensor.shape.clone()
    }

    fn bytes<'a>(&self, tensor: &'a Bytes) -> Result<Cow<'a, [u8]>, String> {
        Ok(Cow::Borrowed(&tensor.bytes))
    }
}

fn run(size: usize, wrong: Wrong) -> Result<Vec<RankReport>, String> {
    let weights = Weights::open(&Choice::Block)?;
    let (barrier, slots) = (Arc::new(Barrier::new(size)), Arc::new(Mutex::new(vec![None; size])));
    let all = work(weights.specs());
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                let local = Local { rank, size, wrong, barrier: barrier.clone(), slots: slots.clone() };
                let weights = &weights;
                scope.spawn(move || {
                    let through = std::cell::Cell::new(0);
                    let report = rank_main(&local, weights, &|bytes| through.set(through.get() + bytes))?;
                    assert_eq!(through.get(), all);
                    Ok(report)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_faithful_library_is_bit_identical() -> Result<(), String> {
    for size in [1, 3, 8] {
        let reports = run(size, Wrong::Nothing)?;
        assert_eq!(table::first_difference(&reports), None);
        let weights = Weights::open(&Choice::Block)?;
        for (conversion, i) in Conversion::ALL.into_iter().zip(0..) {
            let taken: Vec<_> = weights.specs().iter().filter(|s| conversion.takes(s)).collect();
            let timing = &reports[0].timings[i];
            assert_eq!(timing.tensors, taken.len() as u64);
            assert_eq!(timing.bytes, taken.iter().map(|s| s.bytes).sum::<u64>());
            assert!(timing.tensors > 5);
        }
    }
    Ok(())
}

#[test]
fn one_wrong_bit_is_found() -> Result<(), String> {
    let reports = run(4, Wrong::Bit([7, 5]))?;
    let text = table::first_difference(&reports).unwrap_or_default();
    assert!(
        text.starts_with(
            "tensor \"odd.u8\" (u8 [7, 5]), conversion R -> S(1) -> R, rank 2, element 9 (byte 9),"
        ),
        "{text}"
    );
    Ok(())
}

#[test]
fn the_sign_of_zero_is_found() -> Result<(), String> {
    let reports = run(2, Wrong::Identity)?;
    let text = table::first_difference(&reports).unwrap_or_default();
    assert!(
        text.starts_with("tensor \"special.f32\" (f32 [7, 2]), conversion R -> P -> R, rank 0, element 1 "),
        "{text}"
    );
    assert!(text.ends_with("seen 0x00000000 (0.0), expected 0x80000000 (-0.0)"), "{text}");
    Ok(())
}

#[test]
fn an_error_names_the_tensor() {
    let error = run(2, Wrong::Fails(Dtype::BF16)).unwrap_err();
    assert!(error.starts_with("tensor \"mlp.down.weight\" (bf16 [192, 768]): no such dtype"), "{error}");
}
