//! Tests of the walk over real ranks, which are threads of this process.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use comm_core::tensor::DType;
use comm_group::ThreadGroupManager;

use super::block::Stream;
use super::course::{Course, Step, courses};
use super::report::{self, RankReport};
use super::walk::{Walker, work};
use super::weights::{Choice, Spec, Weights};

type Try = Result<(), Box<dyn std::error::Error>>;

/// Lets ranks walk, each with weights of its own.
fn walk(
    ranks: usize,
    spoil: Option<&str>,
    weights: impl Fn(usize) -> Weights + Sync,
) -> Vec<Result<RankReport, String>> {
    static WALKS: AtomicU64 = AtomicU64::new(0);
    let name = format!("demo-tests-{}", WALKS.fetch_add(1, Ordering::Relaxed));
    let all = work(weights(0).specs(), &courses(ranks).unwrap());
    let rank = |rank| {
        let groups = ThreadGroupManager::with_prefix(&name);
        let walker = Walker { rank, ranks, groups: &groups, spoil: spoil.map(str::to_owned) };
        let through = Cell::new(0);
        let report = walker.run(&weights(rank), &|bytes| through.set(through.get() + bytes))?;
        assert_eq!(through.get(), all);
        Ok(report)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|number| scope.spawn(move || rank(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn walk_well(
    ranks: usize,
    spoil: Option<&str>,
    weights: impl Fn(usize) -> Weights + Sync,
) -> Result<Vec<RankReport>, String> {
    walk(ranks, spoil, weights).into_iter().collect()
}

fn difference(reports: &[RankReport]) -> Option<String> {
    report::first(reports, |report| report.difference.as_ref())
}

/// A tensor of random bits.
fn tensor(name: &str, dtype: DType, shape: &[usize]) -> (Spec, Vec<u8>) {
    let mut stream = Stream::new(7);
    let len = shape.iter().product::<usize>() * dtype.size();
    let mask = if dtype == DType::Bool { 1 } else { 0xff };
    let bytes = (0..len).map(|_| stream.next() as u8 & mask).collect();
    (Spec { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes: len as u64 }, bytes)
}

/// One that takes all steps of a chain.
fn matrix() -> Weights {
    Weights::in_memory(vec![tensor("matrix", DType::I32, &[5, 7])])
}

/// The steps of the matrix on each mesh.
fn whole_chains(ranks: usize) -> Vec<(Course, Vec<Step>)> {
    let courses = courses(ranks).unwrap();
    courses
        .into_iter()
        .map(|course| {
            let steps = course.steps_of(&matrix().specs()[0]);
            (course, steps)
        })
        .collect()
}

#[test]
fn the_block_comes_back_and_costs_what_was_planned() -> Try {
    for ranks in [1, 2, 3, 4, 6] {
        let reports = walk_well(ranks, None, |_| Weights::open(&Choice::Block).unwrap())?;
        assert_eq!(difference(&reports), None);
        assert_eq!(report::first(&reports, |report| report.unplanned.as_ref()), None);
        let weights = Weights::open(&Choice::Block)?;
        for (course, measured) in courses(ranks)?.iter().zip(&reports[0].measured) {
            for (step, measured) in course.steps.iter().zip(measured) {
                let times =
                    |spec: &Spec| course.steps_of(spec).iter().filter(|other| *other == step).count() as u64;
                let count = |of: &dyn Fn(&Spec) -> u64| weights.specs().iter().map(of).sum::<u64>();
                // There is no bool in the block, so some steps nobody takes.
                assert_eq!(measured.tensors, count(&times), "{step}");
                assert_eq!(measured.bytes, count(&|spec| times(spec) * spec.bytes), "{step}");
            }
        }
    }
    Ok(())
}

#[test]
fn what_moves_is_what_the_others_lack() -> Try {
    // 64 rows of 300 bytes, on 4 ranks: nothing is small enough for letters.
    let reports = walk_well(4, None, |_| Weights::in_memory(vec![tensor("w", DType::U8, &[64, 300])]))?;
    let courses = courses(4)?;
    let moved = |mesh: usize, name: &str| -> u64 {
        let row = courses[mesh].steps.iter().position(|step| step.to_string() == name).unwrap();
        reports.iter().map(|report| report.measured[mesh][row].moved).sum()
    };
    let all = 64 * 300;
    assert_eq!(moved(0, "R -> S(0)"), 0);
    assert_eq!(moved(0, "S(0) -> S(1)"), all * 3 / 4);
    assert_eq!(moved(0, "S(1) -> R"), all * 3);
    assert_eq!(moved(0, "P(sum) -> S(0)"), all * 3);
    assert_eq!(moved(1, "[S(0), S(0)] -> [R, R]"), all * 3);
    // Where there is no plan, what ranks say to agree is in it.
    assert!(
        (all * 3..all * 3 + 2000).contains(&moved(0, "distribute -> R")),
        "{}",
        moved(0, "distribute -> R")
    );
    assert!((all / 2..all / 2 + 2000).contains(&moved(1, "[R, S(0)] -> collect")));
    Ok(())
}

#[test]
fn all_dtypes_and_awkward_shapes() -> Try {
    let shapes: [&[usize]; 7] = [&[], &[0], &[1], &[13], &[3, 0, 2], &[2, 3, 5], &[1; 16]];
    let all = || {
        let pairs = DType::ALL.iter().flat_map(|&dtype| shapes.map(|shape| (dtype, shape)));
        Weights::in_memory(pairs.map(|(dtype, shape)| tensor("w", dtype, shape)).collect())
    };
    for ranks in [3, 4, 6] {
        let reports = walk_well(ranks, None, |_| all())?;
        assert_eq!(difference(&reports), None);
        assert_eq!(report::first(&reports, |report| report.unplanned.as_ref()), None);
        // Every step has been taken: with bool there are all kinds of tensors.
        assert!(reports[0].measured.iter().flatten().all(|measured| measured.tensors > 0));
    }
    Ok(())
}

#[test]
fn a_wrong_bit_is_named_wherever_it_comes_from() -> Try {
    for (course, steps) in whole_chains(4) {
        for wrong in &steps {
            let reports = walk_well(4, Some(&wrong.to_string()), |_| matrix())?;
            let text = difference(&reports).unwrap();
            let during = format!(
                "tensor \"matrix\" (i32 [5, 7]), mesh {}, conversion {wrong}, rank 3, element ",
                course.name()
            );
            assert!(text.starts_with(&during), "{wrong}: {text}");
        }
    }
    Ok(())
}

#[test]
fn the_place_is_that_in_the_file() -> Try {
    let (_, bytes) = tensor("matrix", DType::I32, &[5, 7]);
    // The first of rank 3's block, [3.., 4..].
    let right = i32::from_le_bytes(bytes[100..104].try_into()?);
    let reports = walk_well(4, Some("distribute -> [S(0), S(1)]"), |_| matrix())?;
    let text = difference(&reports).unwrap();
    let expected = format!(
        "tensor \"matrix\" (i32 [5, 7]), mesh 2x2, conversion distribute -> [S(0), S(1)], rank 3, element 25 (byte 100), \
         seen 0x{:08x} ({}), expected 0x{right:08x} ({right})",
        right ^ 1,
        right ^ 1
    );
    assert_eq!(text, expected);
    Ok(())
}

#[test]
fn what_adds_nothing_to_a_sum_is_compared_too() -> Try {
    let reports =
        walk_well(2, Some("R -> P(sum)"), |_| Weights::in_memory(vec![tensor("w", DType::F8E5M2, &[4, 2])]))?;
    let text = difference(&reports).unwrap();
    // A zero added to -0.0 would change its sign.
    let expected = "mesh 2, conversion R -> P(sum), rank 1, element 0 (byte 0), seen 0x81, expected 0x80";
    assert!(text.ends_with(expected), "{text}");
    Ok(())
}

#[test]
fn the_weights_of_the_others_are_only_compared_with() -> Try {
    let reports = walk_well(2, None, |rank| {
        let (spec, mut bytes) = tensor("w", DType::U8, &[4, 4]);
        bytes[15] ^= u8::try_from(rank).unwrap();
        Weights::in_memory(vec![(spec, bytes)])
    })?;
    assert_eq!(reports[0].difference, None);
    assert!(
        difference(&reports).unwrap().contains("conversion distribute -> R, rank 1, element 15 (byte 15)")
    );
    Ok(())
}

#[test]
fn a_rank_that_fails_says_where_and_the_others_that_it_is_gone() -> Try {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("w.safetensors");
    let header = r#"{"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"I32","shape":[2],"data_offsets":[8,16]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 16]].concat();
    std::fs::write(&path, &bytes)?;
    let in_memory = |name: &str| {
        let spec = Spec { name: name.to_owned(), dtype: DType::I32, shape: vec![2], bytes: 8 };
        (spec, vec![0; 8])
    };
    let ends = walk(3, None, |rank| {
        if rank < 2 {
            return Weights::in_memory(vec![in_memory("a"), in_memory("b")]);
        }
        let weights = Weights::open(&Choice::File(path.clone())).unwrap();
        // Behind its back the second tensor is cut off.
        std::fs::File::options().write(true).open(&path).unwrap().set_len(bytes.len() as u64 - 8).unwrap();
        weights
    });
    let errors: Vec<String> = ends.into_iter().map(|end| end.unwrap_err()).collect();
    assert!(errors[2].contains("cannot read tensor \"b\" (i32 [2])"), "{errors:?}");
    for error in &errors[..2] {
        assert!(
            error.starts_with("tensor \"b\" (i32 [2]), mesh 3, conversion distribute -> R: "),
            "{errors:?}"
        );
        assert!(error.contains("rank 2"), "{errors:?}");
    }
    Ok(())
}
