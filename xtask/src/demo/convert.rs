//! What one rank does: every tensor through every conversion that it can take, timed and compared.

use std::time::{Duration, Instant};

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use super::compare::{Difference, Equal, first_difference};
use super::exchange::Exchange;
use super::weights::{Spec, Weights};

/// A way from replicated through another placement back to replicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conversion {
    /// Cut along this dimension and gathered.
    Shard(usize),
    /// Taken apart into partial sums and reduced.
    Partial,
}

impl Conversion {
    /// All of them, in the order of the table.
    pub const ALL: [Conversion; 3] = [Conversion::Shard(0), Conversion::Shard(1), Conversion::Partial];

    /// The name in tables and rows.
    pub fn name(self) -> String {
        match self {
            Conversion::Shard(dim) => format!("R -> S({dim}) -> R"),
            Conversion::Partial => "R -> P -> R".to_owned(),
        }
    }

    /// Whether a tensor can go this way: it needs the dimension, or a dtype that has a sum.
    pub fn takes(self, spec: &Spec) -> bool {
        match self {
            Conversion::Shard(dim) => dim < spec.shape.len(),
            Conversion::Partial => reducible(spec.dtype),
        }
    }

    fn equal(self) -> Equal {
        match self {
            Conversion::Shard(_) => Equal::Bits,
            Conversion::Partial => Equal::BitsOrNan,
        }
    }

    fn run<E: Exchange>(self, exchange: &E, full: &E::Tensor) -> Result<E::Tensor, String> {
        match self {
            Conversion::Shard(dim) => exchange.gather(&exchange.shard(full, dim)?, dim),
            Conversion::Partial => exchange.reduce(&exchange.partial(full)?),
        }
    }
}

/// Whether there are sums of the dtype: of all numbers.
pub fn reducible(dtype: Dtype) -> bool {
    dtype != Dtype::BOOL
}

/// What one rank has to say at the end.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RankReport {
    /// One entry per conversion, in the order of [`Conversion::ALL`].
    pub timings: Vec<ConversionTiming>,
    /// The first result that was not as it should be.
    pub difference: Option<Difference>,
}

/// How long one rank was inside one conversion.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ConversionTiming {
    /// Tensors that went through it.
    pub tensors: u64,
    /// Their bytes, each tensor's counted once.
    pub bytes: u64,
    /// Time inside the conversion, without the comparing.
    pub time: Duration,
}

/// Bytes that go through all conversions together, for the progress bar.
pub fn work(specs: &[Spec]) -> u64 {
    let takes = |spec: &Spec| Conversion::ALL.iter().filter(|c| c.takes(spec)).count() as u64;
    specs.iter().map(|spec| takes(spec) * spec.bytes).sum()
}

/// Takes all tensors through all conversions. `progress` is called with the bytes that are through.
///
/// A difference does not end the run: the other ranks are inside the same collectives.
///
/// # Errors
/// What the library or the file said, with the tensor and the conversion.
pub fn rank_main<E: Exchange>(
    exchange: &E,
    weights: &Weights,
    progress: &dyn Fn(u64),
) -> Result<RankReport, String> {
    let mut report =
        RankReport { timings: vec![ConversionTiming::default(); Conversion::ALL.len()], difference: None };
    for (index, spec) in weights.specs().iter().enumerate() {
        let expected = weights.read(index)?;
        let full = exchange.tensor(spec, &expected).map_err(|e| format!("tensor {spec}: {e}"))?;
        for (conversion, timing) in Conversion::ALL.into_iter().zip(&mut report.timings) {
            if !conversion.takes(spec) {
                continue;
            }
            let said = |e: String| format!("tensor {spec}, {}: {e}", conversion.name());
            // So that the time of comparing on a slower rank does not count as the library's.
            exchange.barrier().map_err(said)?;
            let start = Instant::now();
            let back = conversion.run(exchange, &full).map_err(said)?;
            timing.time += start.elapsed();
            timing.tensors += 1;
            timing.bytes += spec.bytes;
            if report.difference.is_none() {
                let seen = exchange.bytes(&back).map_err(said)?;
                let shape = exchange.shape(&back);
                let found = first_difference(spec, &shape, &seen, &expected, conversion.equal());
                report.difference = found.map(|(place, seen, expected)| Difference {
                    index,
                    tensor: spec.to_string(),
                    conversion: conversion.name(),
                    place,
                    seen,
                    expected,
                });
            }
            progress(spec.bytes);
        }
    }
    Ok(report)
}
