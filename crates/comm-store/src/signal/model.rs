//! Models of signals and of the credit barrier, for loom: `cargo xtask test --loom`.
//!
//! Cells, the wait and the barrier are the shipped ones. Two wrong resets of the barrier are models too, which must fail.

mod loom_models {
    use comm_core::wait::Cell;
    use comm_core::wait::model::Scope;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::thread;

    use crate::signal::credits::{self, OddCredit};
    use crate::signal::{Cmp, NotifyOp, notify, value};

    /// Every interleaving with at most so many preemptions; `None`: every one.
    fn check(preemptions: Option<usize>, body: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = preemptions;
        model.check(body);
    }

    fn await_signal(scope: &Scope, rank: usize, cell: &Cell, cmp: Cmp, expected: i32) {
        scope.wait(rank, cell, || cmp.holds(value(cell), expected).then_some(())).unwrap();
    }

    /// One peer writes its payload and notifies; rank 0 waits on its own cell and reads the payload.
    fn payload_behind(op: NotifyOp) {
        check(None, move || {
            let shared = Arc::new((Scope::new(2), Cell::default(), AtomicU64::new(0)));
            let peer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.2.store(7, Ordering::Relaxed);
                    notify(&shared.1, -1, op, &shared.0);
                })
            };
            await_signal(&shared.0, 0, &shared.1, Cmp::Lt, 0);
            assert_eq!(shared.2.load(Ordering::Relaxed), 7, "the payload came with the signal");
            peer.join().unwrap();
        });
    }

    #[test]
    fn a_set_carries_its_payload() {
        payload_behind(NotifyOp::Set);
    }

    #[test]
    fn an_addition_carries_its_payload() {
        payload_behind(NotifyOp::Add);
    }

    #[test]
    fn two_adders_carry_the_payload_of_both_with_three_preemptions() {
        check(Some(3), || {
            let payloads = [AtomicU64::new(0), AtomicU64::new(0)];
            let shared = Arc::new((Scope::new(3), Cell::default(), payloads));
            let adders: Vec<_> = (0..2)
                .map(|adder| {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        shared.2[adder].store(7, Ordering::Relaxed);
                        notify(&shared.1, 1, NotifyOp::Add, &shared.0);
                    })
                })
                .collect();
            await_signal(&shared.0, 0, &shared.1, Cmp::Ge, 2);
            for payload in &shared.2 {
                assert_eq!(payload.load(Ordering::Relaxed), 7, "both payloads came with the second addition");
            }
            adders.into_iter().for_each(|adder| adder.join().unwrap());
        });
    }

    /// How a rank takes a credit away: rightly, or as one might think that it could be done.
    type Take = fn(&Cell, &Scope) -> i32;

    fn take_one(cell: &Cell, scope: &Scope) -> i32 {
        credits::take_one(cell, scope)
    }

    fn set_to_zero(cell: &Cell, scope: &Scope) -> i32 {
        let before = value(cell);
        notify(cell, 0, NotifyOp::Set, scope);
        before
    }

    fn no_reset(_: &Cell, _: &Scope) -> i32 {
        1
    }

    struct Board {
        scope: Scope,
        /// `cells[me][src]`.
        cells: Vec<Vec<Cell>>,
        written: Vec<AtomicU64>,
    }

    impl Board {
        fn new(ranks: usize) -> Board {
            let row = || (0..ranks).map(|_| Cell::default()).collect();
            Board {
                scope: Scope::new(ranks),
                cells: (0..ranks).map(|_| row()).collect(),
                written: (0..ranks).map(|_| AtomicU64::new(0)).collect(),
            }
        }

        fn meet(&self, me: usize, take: Take) -> Result<(), OddCredit> {
            let (scope, own) = (&self.scope, &self.cells[me]);
            credits::meet(
                own.len(),
                me,
                |peer| {
                    notify(&self.cells[peer][me], 1, NotifyOp::Add, scope);
                    Ok(())
                },
                || {
                    let others = (0..own.len()).filter(|&src| src != me);
                    others.for_each(|src| await_signal(scope, me, &own[src], Cmp::Ge, 1));
                    Ok(())
                },
                |src| Ok(take(&own[src], scope)),
            )
        }

        /// What a rank wrote before a call is seen after it, so nobody passes before all have come.
        fn rank_main(&self, me: usize, calls: u64, take: Take) {
            for call in 1..=calls {
                self.written[me].store(call, Ordering::Relaxed);
                self.meet(me, take).unwrap();
                for written in &self.written {
                    assert!(written.load(Ordering::Relaxed) >= call, "somebody passed too early");
                }
            }
        }
    }

    fn barrier(ranks: usize, calls: u64, preemptions: Option<usize>, take: Take) {
        check(preemptions, move || {
            let board = Arc::new(Board::new(ranks));
            let peers: Vec<_> = (1..ranks)
                .map(|me| {
                    let board = board.clone();
                    thread::spawn(move || board.rank_main(me, calls, take))
                })
                .collect();
            board.rank_main(0, calls, take);
            peers.into_iter().for_each(|peer| peer.join().unwrap());
            assert!(board.cells.iter().flatten().all(|cell| value(cell) == 0), "credits are left");
        });
    }

    #[test]
    fn two_ranks_meet_once() {
        barrier(2, 1, None, take_one);
    }

    #[test]
    fn two_ranks_meet_twice_with_five_preemptions() {
        barrier(2, 2, Some(5), take_one);
    }

    #[test]
    fn two_ranks_meet_three_times_with_three_preemptions() {
        barrier(2, 3, Some(3), take_one);
    }

    #[test]
    fn three_ranks_meet_once_with_three_preemptions() {
        barrier(3, 1, Some(3), take_one);
    }

    #[test]
    fn three_ranks_meet_twice_with_two_preemptions() {
        barrier(3, 2, Some(2), take_one);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_reset_by_a_store_wipes_the_next_credit_out() {
        barrier(2, 2, Some(3), set_to_zero);
    }

    #[test]
    #[should_panic(expected = "somebody passed too early")]
    fn without_a_reset_the_second_call_passes_too_early() {
        barrier(2, 2, Some(3), no_reset);
    }
}
