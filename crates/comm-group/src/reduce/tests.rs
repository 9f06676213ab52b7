//! Every operator over every dtype against the serial oracle, bit for bit.

use comm_core::Error;
use comm_core::tensor::{DType, Element};
use comm_testkit::oracle::reduce::{Reduction, reduce};
use comm_testkit::values::{SplitMix64, poison, random_elements, special_elements};

use super::{ReduceOp, Reducer};

/// Factors of all kinds: exact and not, negative, subnormal in f32 and in f64, zero, too large for f32, none at all.
const FACTORS: [f64; 11] =
    [1.0, 0.5, -0.3, 1e-40, -5e-324, 0.0, -0.0, 3.5e38, 1e300, f64::INFINITY, f64::NAN];

/// All operators, and what the oracle calls them.
fn operators() -> Vec<(ReduceOp, Reduction)> {
    let mut all = vec![
        (ReduceOp::Sum, Reduction::Sum),
        (ReduceOp::Prod, Reduction::Prod),
        (ReduceOp::Min, Reduction::Min),
        (ReduceOp::Max, Reduction::Max),
        (ReduceOp::Avg, Reduction::Avg),
        (ReduceOp::BitAnd, Reduction::BitAnd),
        (ReduceOp::BitOr, Reduction::BitOr),
        (ReduceOp::BitXor, Reduction::BitXor),
        (ReduceOp::And, Reduction::And),
        (ReduceOp::Or, Reduction::Or),
    ];
    all.extend(FACTORS.map(|factor| (ReduceOp::premul_sum(factor), Reduction::PremulSum(factor))));
    all
}

fn library(op: ReduceOp, dtype: DType, ranks: &[Vec<u8>]) -> Vec<u8> {
    let mut reducer = Reducer::new(op, dtype, ranks.len()).unwrap();
    let mut out = poison(ranks[0].len());
    let block = reducer.block_bytes();
    for (i, out) in out.chunks_mut(block).enumerate() {
        let at = i * block;
        let copy = |rank: usize, into: &mut [u8]| {
            into.copy_from_slice(&ranks[rank][at..at + into.len()]);
            Ok(())
        };
        reducer.block(out, copy).unwrap();
    }
    out
}

fn check(op: (ReduceOp, Reduction), dtype: DType, ranks: &[Vec<u8>]) {
    let (seen, expected) = (library(op.0, dtype, ranks), reduce(op.1, dtype, ranks).unwrap());
    let size = dtype.size();
    if let Some(i) =
        (0..expected.len() / size).find(|i| seen[i * size..][..size] != expected[i * size..][..size])
    {
        let of = |bytes: &[u8]| format!("{:02x?}", &bytes[i * size..][..size]);
        let from: Vec<String> = ranks.iter().map(|rank| of(rank)).collect();
        panic!("{} of {dtype} {from:?}: {}, expected {}", op.0, of(&seen), of(&expected));
    }
    assert_eq!(seen.len(), expected.len());
}

/// The same exponents more often than random bits have them: else most sums are one of the summands.
fn numbers(rng: &mut SplitMix64, dtype: DType, n: usize) -> Vec<u8> {
    let mut draw = || (rng.below(2001) as f64 - 1000.0) / [1.0, 3.0, 7.0][rng.below(3) as usize];
    let mut bytes = Vec::new();
    for _ in 0..n {
        match dtype {
            DType::F16 => bytes.extend(half::f16::from_f64(draw()).to_ne_bytes()),
            DType::BF16 => bytes.extend(half::bf16::from_f64(draw()).to_ne_bytes()),
            DType::F32 => bytes.extend((draw() as f32).to_ne_bytes()),
            DType::F64 => bytes.extend(draw().to_ne_bytes()),
            DType::Complex64 => bytes.extend([draw() as f32, draw() as f32].map(f32::to_ne_bytes).concat()),
            DType::Complex128 => bytes.extend([draw(), draw()].map(f64::to_ne_bytes).concat()),
            // Of the others random bits are near each other as they are.
            _ => return random_elements(rng, dtype, n),
        }
    }
    bytes
}

#[test]
fn every_pair_on_random_elements() {
    let mut pairs = 0;
    for op in operators() {
        for &dtype in DType::ALL.iter().filter(|dtype| op.0.check(**dtype).is_ok()) {
            for ranks in 1..=8u64 {
                let mut rng = SplitMix64::new(u64::from(dtype.code()) * 100 + ranks);
                let n = if dtype.name().starts_with("f8") { 150 } else { 500 };
                let draw =
                    |_| [numbers(&mut rng, dtype, n), random_elements(&mut rng, dtype, n / 2)].concat();
                let ranks: Vec<_> = (0..ranks).map(draw).collect();
                check(op, dtype, &ranks);
            }
            pairs += 1;
        }
    }
    assert_eq!(pairs, 16 + 16 + 14 + 14 + 16 + 8 * 3 + 2 + 8 * FACTORS.len());
}

#[test]
fn every_pair_on_special_elements() {
    for op in operators() {
        for &dtype in DType::ALL.iter().filter(|dtype| op.0.check(**dtype).is_ok()) {
            let special = special_elements(dtype);
            let k = special.len();
            for ranks in 1..=3u32 {
                let of = |rank: u32| {
                    (0..k.pow(ranks)).flat_map(|i| special[i / k.pow(rank) % k].clone()).collect::<Vec<u8>>()
                };
                check(op, dtype, &(0..ranks).map(of).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn every_two_numbers_of_fp8() {
    for dtype in [DType::F8E4M3, DType::F8E5M2] {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg] {
            let all: Vec<u8> = (0..=255).collect();
            let op = operators().into_iter().find(|(mine, _)| *mine == op).unwrap();
            for first in 0..=255 {
                // The oracle is slow; each pair comes in one order at least.
                let second = all[usize::from(first)..].to_vec();
                check(op, dtype, &[vec![first; second.len()], second]);
            }
        }
    }
}

#[test]
fn blocks_of_any_length() {
    for (op, dtype) in [
        (ReduceOp::Sum, DType::F32),
        (ReduceOp::Avg, DType::U8),
        (ReduceOp::Avg, DType::I64),
        (ReduceOp::Prod, DType::Complex128),
        (ReduceOp::Max, DType::BF16),
    ] {
        let block = Reducer::new(op, dtype, 3).unwrap().block_bytes();
        assert!(
            block.is_multiple_of(dtype.size()) && (8 * 1024..=32 * 1024).contains(&block),
            "{op} {dtype} {block}"
        );
        let op = operators().into_iter().find(|(mine, _)| *mine == op).unwrap();
        for n in [0, 1, block / dtype.size() - 1, block / dtype.size() + 1] {
            let mut rng = SplitMix64::new(n as u64);
            check(op, dtype, &[0, 1, 2].map(|_| random_elements(&mut rng, dtype, n)));
        }
    }
}

#[test]
fn the_order_shows() {
    fn of<T: Element>(op: ReduceOp, ranks: &[T]) -> Vec<u8> {
        library(op, T::DTYPE, &ranks.iter().map(|x| T::bytes_of(&[*x]).to_vec()).collect::<Vec<_>>())
    }
    assert_eq!(of(ReduceOp::Sum, &[1e8f32, 1.0, -1e8]), 0f32.to_ne_bytes(), "the 1 is rounded away first");
    assert_eq!(of(ReduceOp::Sum, &[1e8f32, -1e8, 1.0]), 1f32.to_ne_bytes());
    assert_eq!(of(ReduceOp::Prod, &[1e300f64, 1e300, 0.0]), f64::NAN.to_ne_bytes());
    assert_eq!(of(ReduceOp::Prod, &[0.0f64, 1e300, 1e300]), 0f64.to_ne_bytes());
    // 2048 + 1 is no f16, but an f32: what is rounded once is more than what is rounded twice.
    let f16s = [2048.0, 1.0, 1.0].map(half::f16::from_f32);
    assert_eq!(of(ReduceOp::Sum, &f16s), half::f16::from_f32(2050.0).to_ne_bytes());
}

#[test]
fn a_peer_s_byte_that_is_no_bool() {
    for op in [ReduceOp::And, ReduceOp::Or] {
        for ranks in 1..=3 {
            let out = library(op, DType::Bool, &vec![vec![2, 255, 1]; ranks]);
            assert_eq!(out, [1; 3]);
        }
    }
    assert_eq!(library(ReduceOp::And, DType::Bool, &[vec![2], vec![4]]), [1], "bits do not count");
}

#[test]
fn an_input_that_fails_ends_the_block() {
    let mut reducer = Reducer::new(ReduceOp::Sum, DType::U8, 3).unwrap();
    let mut asked = Vec::new();
    let error = reducer.block(&mut [0; 4], |rank, _| {
        asked.push(rank);
        if rank == 1 { Err(Error::invalid("test", "no")) } else { Ok(()) }
    });
    assert!(error.is_err() && asked == [0, 1]);
    assert!(Reducer::new(ReduceOp::Sum, DType::U8, 0).is_err());
}

#[test]
fn what_is_not_there_says_why() {
    let mut not_there = 0;
    for (op, oracle) in operators() {
        for &dtype in DType::ALL {
            let there = reduce(oracle, dtype, &[vec![0; dtype.size()]]).is_some();
            assert_eq!(op.check(dtype).is_ok(), there, "{op} of {dtype}");
            assert_eq!(super::reducer::has(op, dtype), there, "{op} of {dtype}");
            if let Err(error) = op.check(dtype) {
                let Error::Unsupported { backend, op: what, why } = error else { panic!("{error}") };
                assert_eq!((backend, what), ("same-device", format!("{op} of {dtype}")));
                let listed = why.rsplit(" of ").next().unwrap();
                assert!(
                    !listed.is_empty() && listed.split(", ").all(|d| op.check(d.parse().unwrap()).is_ok())
                );
                assert!(op.identity(dtype).is_err());
                not_there += 1;
            }
        }
    }
    assert_eq!(not_there, 17 * (10 + FACTORS.len()) - (16 + 16 + 14 + 14 + 16 + 24 + 2 + 8 * FACTORS.len()));
}

#[test]
fn the_table_in_the_documentation_is_what_check_says() {
    let rows: Vec<Vec<&str>> = include_str!("op.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("/// | ")?.strip_suffix('|'))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let (header, rows) = rows.split_first().unwrap();
    let listed: Vec<&str> = header[1..].iter().flat_map(|kind| kind.split(", ")).collect();
    assert_eq!(listed.len(), DType::ALL.len());
    assert_eq!(rows.len(), ReduceOp::ALL.len());
    for (op, row) in ReduceOp::ALL.into_iter().zip(rows) {
        assert_eq!(row[0], ReduceOp::name_of(op.code()));
        for (kinds, cell) in header[1..].iter().zip(&row[1..]) {
            for dtype in kinds.split(", ") {
                let there = op.check(dtype.parse().unwrap()).is_ok();
                assert_eq!(*cell, if there { "yes" } else { "" }, "{op} of {dtype}");
            }
        }
    }
}

#[test]
fn an_identity_changes_nothing() {
    let mut without = 0;
    for op in ReduceOp::ALL {
        for &dtype in DType::ALL.iter().filter(|dtype| op.check(**dtype).is_ok()) {
            let Some(identity) = op.identity(dtype).unwrap() else {
                assert!(matches!(op, ReduceOp::Avg | ReduceOp::PremulSum(_)));
                without += 1;
                continue;
            };
            let mut rng = SplitMix64::new(7);
            let mut values =
                [special_elements(dtype).concat(), random_elements(&mut rng, dtype, 300)].concat();
            if op == ReduceOp::Prod && matches!(dtype, DType::Complex64 | DType::Complex128) {
                // Not of zeros, infinities and NaNs; half of the numbers have no zero in them.
                values = numbers(&mut rng, dtype, 300);
                let is_whole =
                    |e: &&[u8]| e.chunks(dtype.size() / 2).all(|part| part.iter().any(|b| *b != 0));
                values = values.chunks(dtype.size()).filter(is_whole).collect::<Vec<_>>().concat();
            }
            let others = identity.repeat(values.len() / dtype.size());
            let alone = library(op, dtype, &[values.clone()]);
            assert_eq!(library(op, dtype, &[values, others.clone(), others]), alone, "{op} of {dtype}");
        }
    }
    assert_eq!(without, 16 + 8);
}

#[test]
fn codes_names_and_factors() {
    let codes: std::collections::HashSet<u32> = ReduceOp::ALL.into_iter().map(ReduceOp::code).collect();
    assert!(codes.len() == ReduceOp::ALL.len() && !codes.contains(&0));
    assert_eq!(ReduceOp::name_of(99), "operator 99");
    assert_eq!(ReduceOp::name_of(ReduceOp::premul_sum(3.0).code()), "premul_sum");
    assert_eq!(ReduceOp::premul_sum(-0.5).factor_bits(), (-0.5f64).to_bits());
    assert_eq!(ReduceOp::Sum.factor_bits(), 0);
    assert_eq!(format!("{:?}", ReduceOp::premul_sum(2.0)), "PremulSum(Factor(2.0))");
}
