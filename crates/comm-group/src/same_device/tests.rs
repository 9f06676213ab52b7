//! The backend among threads; processes are in the `multirank` target.

use std::time::Duration;

use comm_core::Error;
use comm_core::team::Team;
use comm_core::tensor::{DType, Tensor, TensorBuf};

use crate::{ReduceOp, ThreadGroup};

const AMPLE: Duration = Duration::from_secs(20);

fn ranks<T: Send>(name: &str, n: usize, body: impl Fn(ThreadGroup) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let body = &body;
        let start = |rank| {
            scope.spawn(move || {
                let team = Team::join(name, rank, n, AMPLE).unwrap();
                body(ThreadGroup::new(team, AMPLE).unwrap())
            })
        };
        let threads: Vec<_> = (0..n).map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn each_contribution_counts_once() {
    for n in 1..=5 {
        ranks(&format!("digits-{n}"), n, |group| {
            for len in [0usize, 1, 2, 5, 1000, 100_000] {
                let digit = 10i64.pow(group.rank() as u32);
                let mine: Vec<i64> = (0..len as i64).map(|i| digit * (i % 9 + 1)).collect();
                let mine = Tensor::from_slice(&[len], &mine).unwrap();
                let sum = group.all_reduce(&mine, ReduceOp::Sum, AMPLE).unwrap().to_vec::<i64>().unwrap();
                let ones: i64 = (0..n as u32).map(|r| 10i64.pow(r)).sum();
                assert!(sum.iter().enumerate().all(|(i, &x)| x == ones * (i as i64 % 9 + 1)), "{len} on {n}");
            }
        });
    }
}

/// Who gets no result has no wrong buffer for it.
#[test]
fn buffers_of_others_than_the_root_stay_as_they_are() {
    ranks("not-the-root", 3, |group| {
        for n in [4usize, 1000] {
            let mine = Tensor::from_slice(&[n], &vec![1i64; n]).unwrap();
            let mut bytes = TensorBuf::zeros(&[3], DType::U8).unwrap();
            bytes.as_mut_slice::<u8>().unwrap().fill(7);
            let [mut sum, mut whole] = [n, 3 * n].map(|size| TensorBuf::zeros(&[size], DType::I64).unwrap());
            if group.rank() == 1 {
                group.reduce_into(&mine, ReduceOp::Sum, 1, &mut sum, AMPLE).unwrap();
                group.gather_into(&mine, 0, 1, &mut whole, AMPLE).unwrap();
                assert_eq!(sum.as_slice::<i64>().unwrap(), vec![3; n]);
                assert_eq!(whole.as_slice::<i64>().unwrap(), vec![1; 3 * n]);
            } else {
                group.reduce_into(&mine, ReduceOp::Sum, 1, &mut bytes, AMPLE).unwrap();
                group.gather_into(&mine, 0, 1, &mut bytes, AMPLE).unwrap();
                assert_eq!(bytes.as_slice::<u8>().unwrap(), [7; 3]);
            }
        }
    });
}

#[test]
fn strided_scalar_and_empty_inputs() {
    ranks("odd-inputs", 3, |group| {
        let t = Tensor::from_slice(&[2, 3], &[1, 2, 3, 4, 5, 6i32]).unwrap();
        let turned = t.transpose(0, 1).unwrap().flip(0).unwrap();
        let sum = group.all_reduce(&turned, ReduceOp::Sum, AMPLE).unwrap();
        assert_eq!((sum.shape(), sum.to_vec::<i32>().unwrap()), (&[3, 2][..], vec![9, 18, 6, 15, 3, 12]));
        let whole = group.all_gather(&turned, 1, AMPLE).unwrap();
        assert_eq!(whole.shape(), [3, 6]);
        assert_eq!(whole.to_vec::<i32>().unwrap()[..6], [3, 6, 3, 6, 3, 6]);
        let scalar = Tensor::from_slice(&[], &[0.5f64]).unwrap();
        let sum = group.all_reduce(&scalar, ReduceOp::Sum, AMPLE).unwrap();
        assert_eq!((sum.shape(), sum.to_vec::<f64>().unwrap()), (&[][..], vec![1.5]));
        let none = TensorBuf::zeros(&[4, 0], DType::F32).unwrap().freeze();
        assert_eq!(group.all_reduce(&none, ReduceOp::Sum, AMPLE).unwrap().shape(), [4, 0]);
        assert_eq!(group.all_gather(&none, 0, AMPLE).unwrap().shape(), [12, 0]);
        assert_eq!(group.all_gather(&none, 1, AMPLE).unwrap().shape(), [4, 0]);
    });
}

#[test]
fn shards_come_back_as_the_whole() {
    for n in 1..=4 {
        ranks(&format!("whole-{n}"), n, |group| {
            let values: Vec<u16> = (0..5 * 9 * 3).collect();
            let whole = Tensor::from_slice(&[5, 9, 3], &values).unwrap();
            for dim in 0..3 {
                let shard = group.replicate_to_shard(&whole, dim, None).unwrap();
                let back = group.all_gather(&shard, dim, AMPLE).unwrap();
                assert!(back.bytes_equal(&whole).unwrap(), "dim {dim} on {n}");
            }
        });
    }
}

#[test]
fn a_mismatch_is_the_same_on_every_rank_and_the_next_operation_works() {
    let errors = ranks("mismatch", 3, |group| {
        let len = if group.rank() == 1 { 4 } else { 5 };
        let mine = Tensor::from_slice(&[len], &vec![1f32; len]).unwrap();
        let errors = [
            group.all_reduce(&mine, ReduceOp::Sum, AMPLE).unwrap_err(),
            if group.rank() == 2 {
                group.barrier(AMPLE).unwrap_err()
            } else {
                group.all_gather(&mine, 0, AMPLE).unwrap_err()
            },
            group.all_gather(&Tensor::from_slice(&[1], &[1u8]).unwrap(), 1, AMPLE).unwrap_err(),
            group
                .all_reduce(&TensorBuf::zeros(&[3], DType::Bool).unwrap().freeze(), ReduceOp::Sum, AMPLE)
                .unwrap_err(),
        ];
        assert_eq!(group.all_gather(&mine, 0, AMPLE).unwrap().shape(), [14]);
        errors
    });
    for [shape, op, dim, dtype] in errors {
        match shape {
            Error::Mismatch { rank: 1, field: "shape", theirs, others, at } => {
                assert_eq!((theirs.as_str(), others.as_str()), ("[4]", "[5]"));
                assert!(at.op.contains("all_reduce"), "{at}");
            }
            other => panic!("{other}"),
        }
        assert!(matches!(&op, Error::Mismatch { rank: 2, field: "op", .. }), "{op}");
        assert!(matches!(&dim, Error::InvalidArgument { .. }), "{dim}");
        assert!(matches!(&dtype, Error::Unsupported { .. }), "{dtype}");
    }
}

#[test]
fn outputs_alias_nothing() {
    ranks("alias", 2, |group| {
        let mine = Tensor::from_slice(&[3], &[1i32, 2, 3]).unwrap();
        let before = mine.to_vec::<i32>().unwrap();
        let sum = group.all_reduce(&mine, ReduceOp::Sum, AMPLE).unwrap();
        assert!(!sum.shares_storage(&mine));
        assert_eq!(mine.to_vec::<i32>().unwrap(), before);
        let mut buf = sum.try_into_buf().unwrap();
        buf.fill(0i32).unwrap();
        group.barrier(AMPLE).unwrap();
        assert!(mine.try_into_buf().is_ok(), "no peer holds the input any more");
    });
}

#[test]
fn bits_depend_on_rank_order_alone() {
    let parts = [1e8f32, 1.0, -1e8, 3.0];
    let expected = ((parts[0] + parts[1]) + parts[2]) + parts[3];
    for round in 0..20 {
        ranks(&format!("bits-{round}"), 4, |group| {
            if round % 4 == group.rank() {
                std::thread::yield_now();
            }
            let mine = Tensor::from_slice(&[7], &[parts[group.rank()]; 7]).unwrap();
            let sum = group.all_reduce(&mine, ReduceOp::Sum, AMPLE).unwrap().to_vec::<f32>().unwrap();
            assert!(sum.iter().all(|x| x.to_bits() == expected.to_bits()));
        });
    }
}

/// Counts the spans of operations, by what they are about.
#[derive(Default)]
struct Spans(std::sync::Mutex<Vec<String>>);

impl tracing::field::Visit for &Spans {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "op" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

struct Listener(std::sync::Arc<Spans>);

impl tracing::Subscriber for Listener {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        if span.metadata().name() == "collective" {
            span.record(&mut &*self.0);
        }
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn operations_are_spans_and_are_recorded() {
    let spans = std::sync::Arc::new(Spans::default());
    let records = tracing::subscriber::with_default(Listener(spans.clone()), || {
        let group = ThreadGroup::new(Team::join("spans", 0, 1, AMPLE).unwrap(), AMPLE).unwrap();
        let mine = Tensor::from_slice(&[2], &[true, false]).unwrap();
        group.barrier(AMPLE).unwrap();
        assert!(group.all_reduce(&mine, ReduceOp::Sum, AMPLE).is_err());
        group.broadcast(Some(&mine), 0, AMPLE).unwrap();
        group.abort_handle().abort("enough");
        assert!(group.barrier(AMPLE).is_err() && group.barrier(AMPLE).is_err());
        group.recent()
    });
    assert_eq!(*spans.0.lock().unwrap(), ["\"barrier\"", "\"all_reduce\"", "\"broadcast\""]);
    let seen: Vec<_> = records.iter().map(|r| (r.op, r.state.name(), r.agreed_ns.is_some())).collect();
    let expected = [
        ("barrier", "done", true),
        ("all_reduce", "refused", false),
        ("broadcast", "done", true),
        ("barrier", "failed", false),
    ];
    assert_eq!(seen, expected, "what ended the team once");
    assert!(records.windows(2).all(|two| two[0].seq + 1 == two[1].seq));
    assert_eq!(
        (records[2].root, records[2].dtype, &records[2].shape[..]),
        (Some(0), Some(DType::Bool), &[2][..])
    );
}
