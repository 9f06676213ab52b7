//! Plans from letters: shapes, what goes where, and verdicts that are the same on all ranks whatever is in the letters.

use comm_core::Error;
use comm_core::tensor::{DType, TensorBuf};
use comm_testkit::oracle::indices;
use comm_testkit::values::SplitMix64;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::agreement::{Descriptor, Saying, agree};
use crate::reduce::ReduceOp;
use crate::request::Request;

const ANY: DType = DType::U8;

fn letter_of(op: Op, shape: Option<&[usize]>, sizes: &[usize], out: u64) -> Letter {
    // One byte stands for all of them: shapes may be larger than memory.
    let tensor = shape.map(|shape| match shape.iter().product::<usize>() {
        0 => TensorBuf::zeros(shape, ANY).unwrap().freeze(),
        _ => TensorBuf::zeros(&vec![1; shape.len()], ANY).unwrap().freeze().expand(shape).unwrap(),
    });
    let request = Request::new(op, tensor.as_ref()).with_sizes(sizes.iter().copied());
    let saying = Saying { out, ..Saying::default() };
    Letter { descriptor: Descriptor::new(3, &request, saying), sizes: request.sizes().to_vec() }
}

fn letters(op: Op, shapes: &[&[usize]], sizes: &[usize]) -> Vec<Letter> {
    shapes.iter().map(|shape| letter_of(op, Some(shape), sizes, 0)).collect()
}

/// The schedules of all ranks; if one cannot, none can, and all for the same reason.
fn schedules(op: Op, letters: &[Letter]) -> Result<Vec<Schedule>> {
    let all: Vec<Result<Option<Schedule>>> =
        (0..letters.len()).map(|rank| schedule(op, letters, rank)).collect();
    let refused: Vec<String> = all.iter().filter_map(|p| p.as_ref().err().map(Error::to_string)).collect();
    assert!(refused.is_empty() || refused.len() == letters.len(), "{op:?}: some refuse: {refused:?}");
    assert!(refused.windows(2).all(|two| two[0] == two[1]), "{refused:?}");
    all.into_iter().map(|p| p.map(|p| p.expect("no barrier"))).collect()
}

fn shapes(op: Op, letters: &[Letter]) -> Vec<Option<Vec<usize>>> {
    schedules(op, letters).unwrap().into_iter().map(|p| p.shape).collect()
}

fn why(op: Op, letters: &[Letter]) -> String {
    match schedules(op, letters) {
        Err(Error::InvalidArgument { why, .. }) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it can be done"),
    }
}

/// What a rank's moves make of inputs whose elements are `(rank, index)`, as a list in row-major order. Every element of the
/// result is written once.
fn moved(schedule: &Schedule) -> Vec<(usize, Vec<usize>)> {
    let Action::Copy(moves) = &schedule.action else { panic!("not a copy") };
    let shape = schedule.shape.as_ref().unwrap();
    let mut out = vec![None; shape.iter().product()];
    for Move { rank, from, to } in moves {
        let of = indices(&schedule.inputs[*rank]);
        for (to, from, len) in Tile::pair("test", to, from).unwrap() {
            for i in 0..len {
                let before = out[to + i].replace((*rank, of[from + i].clone()));
                assert_eq!(before, None, "element {} comes twice", to + i);
            }
        }
    }
    out.into_iter().map(|x| x.expect("every element comes")).collect()
}

/// The element of the whole at this index, of shards along `dim`.
fn owner(shapes: &[&[usize]], dim: usize, mut index: Vec<usize>) -> (usize, Vec<usize>) {
    for (rank, shape) in shapes.iter().enumerate() {
        if index[dim] < shape[dim] {
            return (rank, index);
        }
        index[dim] -= shape[dim];
    }
    panic!("outside")
}

#[test]
fn gathering_and_exchanging_move_every_element_once() {
    let uneven: &[&[usize]] = &[&[2, 3], &[0, 3], &[4, 3]];
    for op in [Op::AllGather { dim: 0 }, Op::Gather { dim: 0, root: 1 }] {
        for (rank, schedule) in schedules(op, &letters(op, uneven, &[])).unwrap().iter().enumerate() {
            if op.root().is_some_and(|root| root != rank) {
                assert!(schedule.shape.is_none() && matches!(schedule.action, Action::Nothing));
                continue;
            }
            assert_eq!(schedule.shape.as_deref(), Some(&[6, 3][..]));
            let expected: Vec<_> = indices(&[6, 3]).into_iter().map(|i| owner(uneven, 0, i)).collect();
            assert_eq!(moved(schedule), expected);
        }
    }
    for (to, sizes, given) in
        [(1, [1, 1, 1], &[][..]), (1, [0, 3, 0], &[0, 3, 0]), (0, [2, 2, 2], &[]), (0, [5, 0, 1], &[5, 0, 1])]
    {
        let op = Op::AllToAll { from: 0, to };
        let mut start = 0;
        for (rank, schedule) in schedules(op, &letters(op, uneven, given)).unwrap().iter().enumerate() {
            let mut shape = vec![6, 3];
            shape[to] = sizes[rank];
            assert_eq!(schedule.shape.as_ref(), Some(&shape));
            let expected: Vec<_> = indices(&shape)
                .into_iter()
                .map(|mut index| {
                    index[to] += start;
                    owner(uneven, 0, index)
                })
                .collect();
            assert_eq!(moved(schedule), expected, "to {to}, rank {rank}");
            start += sizes[rank];
        }
    }
}

#[test]
fn rows_go_where_the_sizes_say() {
    let send = [[1, 0, 2], [0, 0, 0], [3, 1, 1]];
    let op = Op::AllToAllRows;
    let all: Vec<Letter> = (0..3)
        .map(|rank| {
            let receive = send.iter().map(|row| row[rank]);
            let sizes: Vec<usize> = send[rank].into_iter().chain(receive).collect();
            letter_of(op, Some(&[send[rank].iter().sum(), 2]), &sizes, 0)
        })
        .collect();
    for (rank, schedule) in schedules(op, &all).unwrap().iter().enumerate() {
        let mut expected = Vec::new();
        for (peer, row) in send.iter().enumerate() {
            let start: usize = row[..rank].iter().sum();
            expected
                .extend((start..start + row[rank]).flat_map(|i| [(peer, vec![i, 0]), (peer, vec![i, 1])]));
        }
        assert_eq!(moved(schedule), expected, "rank {rank}");
    }
}

#[test]
fn a_wrong_number_of_rows_names_the_odd_rank_and_both_values() {
    let op = Op::AllToAllRows;
    let even = [1usize, 1, 1, 1, 1, 1];
    for odd in 0..3 {
        // It awaits two rows from each: at odds with all others, who agree among themselves.
        let sizes = |rank: usize| if rank == odd { [1, 1, 1, 2, 2, 2] } else { even };
        let all: Vec<Letter> = (0..3).map(|rank| letter_of(op, Some(&[3]), &sizes(rank), 0)).collect();
        match schedules(op, &all).map(drop).unwrap_err() {
            Error::Mismatch { rank, field: "sizes", theirs, others, .. } => {
                assert_eq!(rank, odd);
                assert!(theirs.contains("awaits 2") && others.contains("sends 1"), "{theirs}; {others}");
            }
            other => panic!("{other}"),
        }
    }
    // What is sent is not what there is.
    let all: Vec<Letter> = (0..3).map(|rank| letter_of(op, Some(&[3 + rank % 2]), &even, 0)).collect();
    assert!(why(op, &all).contains("rank 1 sends"), "{}", why(op, &all));
    // Not a list for each rank.
    let all: Vec<Letter> = (0..3).map(|_| letter_of(op, Some(&[3]), &even[..5], 0)).collect();
    assert!(matches!(schedules(op, &all).map(drop), Err(Error::BadPeer { .. })));
    // A sum that does not fit, of a tensor that has no rows at all.
    let all: Vec<Letter> = (0..2).map(|_| letter_of(op, Some(&[]), &[usize::MAX; 4], 0)).collect();
    why(op, &all);
}

#[test]
fn shapes_of_results() {
    let [a, b]: [&[usize]; 2] = [&[4, 5], &[4, 5]];
    let s = |shape: &[usize]| Some(shape.to_vec());
    let sum = ReduceOp::Sum;
    let shapes_of = |op, sizes: &[usize]| shapes(op, &letters(op, &[a, b], sizes));
    assert_eq!(shapes_of(Op::AllReduce(sum), &[]), [s(&[4, 5]), s(&[4, 5])]);
    assert_eq!(shapes_of(Op::Reduce { op: sum, root: 1 }, &[]), [None, s(&[4, 5])]);
    assert_eq!(shapes_of(Op::ReduceScatter { op: sum, dim: 1 }, &[]), [s(&[4, 3]), s(&[4, 2])]);
    assert_eq!(shapes_of(Op::ReduceScatter { op: sum, dim: 1 }, &[0, 5]), [s(&[4, 0]), s(&[4, 5])]);
    assert_eq!(shapes_of(Op::AllGatherEqual, &[]), [s(&[8, 5]), s(&[8, 5])]);
    assert_eq!(shapes_of(Op::AllGatherVec, &[]), [None, None]);
    assert_eq!(shapes_of(Op::Broadcast { root: 1 }, &[]), [s(&[4, 5]), s(&[4, 5])]);
    assert_eq!(shapes_of(Op::Scatter { dim: 0, root: 0 }, &[1, 3]), [s(&[1, 5]), s(&[3, 5])]);
    assert_eq!(shapes_of(Op::AllToAll { from: 1, to: 0 }, &[]), [s(&[2, 10]), s(&[2, 10])]);
    // Only the root says a shape.
    let op = Op::Broadcast { root: 1 };
    let all = [letter_of(op, None, &[], 0), letter_of(op, Some(&[7]), &[], 0)];
    assert_eq!(shapes(op, &all), [s(&[7]), s(&[7])]);
    let op = Op::Scatter { dim: 0, root: 1 };
    let all = [letter_of(op, None, &[], 0), letter_of(op, Some(&[7]), &[], 0)];
    assert_eq!(shapes(op, &all), [s(&[4]), s(&[3])]);
    assert!(schedule(Op::Barrier, &[], 0).unwrap().is_none());
}

#[test]
fn scalars_have_no_dimension_and_one_element() {
    let scalar: [&[usize]; 2] = [&[], &[]];
    let sum = ReduceOp::Sum;
    for op in [Op::AllReduce(sum), Op::Broadcast { root: 0 }] {
        assert_eq!(shapes(op, &letters(op, &scalar, &[])), [Some(vec![]), Some(vec![])]);
    }
    for op in [
        Op::AllGather { dim: 0 },
        Op::AllGatherEqual,
        Op::ReduceScatter { op: sum, dim: 0 },
        Op::Gather { dim: 0, root: 1 },
        Op::Scatter { dim: 0, root: 0 },
        Op::AllToAll { from: 0, to: 0 },
    ] {
        why(op, &letters(op, &scalar, &[]));
    }
    why(Op::AllToAllRows, &letters(Op::AllToAllRows, &scalar, &[0; 4]));
}

#[test]
fn a_dimension_that_is_not_there_is_everybodys_verdict() {
    let shapes: [&[usize]; 3] = [&[3, 3], &[3, 3], &[3, 3]];
    for dim in [2, 16, usize::MAX] {
        for op in [
            Op::AllGather { dim },
            Op::ReduceScatter { op: ReduceOp::Sum, dim },
            Op::Gather { dim, root: 2 },
            Op::Scatter { dim, root: 1 },
            Op::AllToAll { from: dim, to: 0 },
            Op::AllToAll { from: 0, to: dim },
            Op::AllToAll { from: dim, to: dim },
        ] {
            assert!(why(op, &letters(op, &shapes, &[])).contains("[3, 3]"), "{op:?}");
        }
    }
}

#[test]
fn sizes_add_up_on_every_rank_or_on_none() {
    let shapes: [&[usize]; 2] = [&[4, 2], &[4, 2]];
    for op in [
        Op::ReduceScatter { op: ReduceOp::Sum, dim: 0 },
        Op::Scatter { dim: 0, root: 1 },
        Op::AllToAll { from: 1, to: 0 },
    ] {
        for bad in [&[1, 2][..], &[4, 1], &[4], &[2, 1, 1], &[usize::MAX, 5]] {
            assert!(why(op, &letters(op, &shapes, bad)).contains("sizes"), "{op:?} {bad:?}");
        }
        schedules(op, &letters(op, &shapes, &[4, 0])).unwrap();
        let two = [letter_of(op, Some(shapes[0]), &[1, 3], 0), letter_of(op, Some(shapes[1]), &[3, 1], 0)];
        match schedules(op, &two).map(drop).unwrap_err() {
            Error::Mismatch { rank: 1, field: "sizes", theirs, others, .. } => {
                assert_eq!((theirs.as_str(), others.as_str()), ("[3, 1]", "[1, 3]"));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn what_is_too_large_together_is_everybodys_verdict() {
    let huge: [&[usize]; 2] = [&[1 << 62, 0], &[1 << 62, 0]];
    for op in [
        Op::AllGather { dim: 0 },
        Op::AllGatherEqual,
        // Only the root would have it, and the others know.
        Op::Gather { dim: 0, root: 1 },
        Op::AllToAll { from: 0, to: 1 },
    ] {
        assert!(schedules(op, &letters(op, &huge, &[])).is_err(), "{op:?}");
    }
    // All rows for rank 0: its result cannot be, the other's can.
    let op = Op::AllToAllRows;
    let sent = 1usize << 62;
    let sizes = [[sent, 0, sent, sent], [sent, 0, 0, 0]];
    let all: Vec<Letter> = (0..2).map(|r| letter_of(op, Some(huge[r]), &sizes[r], 0)).collect();
    assert!(schedules(op, &all).is_err());
    // Of a dimension without elements any size will do that fits.
    let op = Op::AllGather { dim: 1 };
    assert_eq!(shapes(op, &letters(op, &huge, &[])), [Some(vec![1 << 62, 0]), Some(vec![1 << 62, 0])]);
}

#[test]
fn a_buffer_of_another_shape_is_everybodys_verdict() {
    let op = Op::Gather { dim: 0, root: 0 };
    let right = out_code(&[5], ANY);
    let all = |root, other| [letter_of(op, Some(&[3]), &[], root), letter_of(op, Some(&[2]), &[], other)];
    schedules(op, &all(right, 0)).unwrap();
    schedules(op, &all(right, 1234)).unwrap();
    for wrong in [out_code(&[6], ANY), out_code(&[5], DType::I8), out_code(&[5, 1], ANY)] {
        match schedules(op, &all(wrong, right)).map(drop).unwrap_err() {
            Error::Mismatch { rank: 0, field: "output", others, .. } => assert_eq!(others, "u8 [5]"),
            other => panic!("{other}"),
        }
    }
}

fn any_op(rng: &mut SplitMix64, n: usize) -> Op {
    let (root, op) = (rng.below(n as u64) as usize, ReduceOp::Max);
    let dims = [0, 0, 1, 1, 2, 7, usize::MAX];
    let [dim, to] = [(); 2].map(|()| dims[rng.below(dims.len() as u64) as usize]);
    match rng.below(11) {
        0 => Op::AllReduce(op),
        1 => Op::Reduce { op, root },
        2 => Op::Broadcast { root },
        3 => Op::AllGather { dim },
        4 => Op::AllGatherEqual,
        5 => Op::AllGatherVec,
        6 => Op::ReduceScatter { op, dim },
        7 => Op::AllToAll { from: dim, to },
        8 => Op::AllToAllRows,
        9 => Op::Gather { dim, root },
        _ => Op::Scatter { dim, root },
    }
}

/// Whatever peers write, nothing panics, and all ranks come to the same verdict.
#[test]
fn nonsense_in_letters_is_one_verdict_and_no_panic() {
    const NONSENSE: [u64; 9] = [0, 1, 2, 3, 1 << 31, u32::MAX as u64, 1 << 62, i64::MAX as u64, u64::MAX];
    let (mut could, mut refused) = (0, 0);
    for seed in 0..20_000 {
        let mut rng = SplitMix64::new(seed);
        let n = 1 + rng.below(4) as usize;
        let op = any_op(&mut rng, n);
        let shape: Vec<usize> = (0..rng.below(3)).map(|_| rng.below(4) as usize).collect();
        let size = |rng: &mut SplitMix64| match rng.below(4) {
            0 => *rng.choose(&NONSENSE).unwrap() as usize,
            _ => rng.below(3) as usize,
        };
        let count = [0, n, 2 * n, 2 * n][rng.below(4) as usize];
        let sizes: Vec<usize> = (0..count).map(|_| size(&mut rng)).collect();
        let mut all: Vec<Letter> = (0..n).map(|_| letter_of(op, Some(&shape), &sizes, 0)).collect();
        // What is this rank's own is well formed; the others' bytes and sizes may be anything.
        for letter in &mut all[1..] {
            for _ in 0..rng.below(3) {
                let mut bytes = letter.descriptor.as_bytes().to_vec();
                let at = 8 * rng.below(bytes.len() as u64 / 8) as usize;
                let word = *rng.choose(&NONSENSE).unwrap();
                if rng.below(2) == 0 {
                    bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
                } else {
                    bytes[at..at + 4].copy_from_slice(&(word as u32).to_ne_bytes());
                }
                letter.descriptor = Descriptor::read_from_bytes(&bytes).unwrap();
            }
            for size in &mut letter.sizes {
                if rng.below(6) == 0 {
                    *size = *rng.choose(&NONSENSE).unwrap();
                }
            }
        }
        if agree(&all).is_ok() {
            match schedules(op, &all) {
                Ok(_) => could += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert!(could > 1000 && refused > 1000, "{could} could, {refused} refused");
}
