//! Models of chains and of reader counts, for loom: `cargo xtask test --loom`.
//!
//! Cells, the wait, chains, counts and recalls are the shipped ones. A count that wakes nobody is a model, too, which must
//! fail, and so is a recall without its fence.

mod loom_models {
    use comm_core::wait::Cell;
    use comm_core::wait::model::Scope;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::thread;

    use crate::directory::chain::{self, Step};
    use crate::directory::readers::{self, Counts};
    use crate::directory::recall;

    /// Every interleaving with at most so many preemptions; `None`: every one.
    fn check(preemptions: Option<usize>, body: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = preemptions;
        model.check(body);
    }

    /// Two records and a chain for both. A record is at its link less one.
    struct Board {
        scope: Scope,
        head: Cell,
        records: Vec<Record>,
    }

    struct Record {
        next: AtomicU64,
        key: AtomicU64,
        value: AtomicU64,
        counts: Cell,
    }

    impl Board {
        fn new(ranks: usize, records: usize) -> Arc<Board> {
            let record = || Record {
                next: AtomicU64::new(0),
                key: AtomicU64::new(0),
                value: AtomicU64::new(0),
                counts: Cell::default(),
            };
            Arc::new(Board {
                scope: Scope::new(ranks),
                head: Cell::default(),
                records: (0..records).map(|_| record()).collect(),
            })
        }

        fn record(&self, link: u64) -> &Record {
            &self.records[link as usize - 1]
        }

        fn look(&self, link: u64, key: u64) -> Result<Step, ()> {
            let record = self.record(link);
            if record.key.load(Ordering::Relaxed) == key {
                return Ok(Step::Found);
            }
            Ok(Step::Behind(record.next.load(Ordering::Relaxed)))
        }

        /// Publishes a value, written before as a tensor is: the link of what is there already, if that is so.
        fn publish(&self, link: u64, key: u64, value: u64) -> Option<u64> {
            let record = self.record(link);
            record.key.store(key, Ordering::Relaxed);
            record.value.store(value, Ordering::Relaxed);
            chain::push(
                (&self.head, 0),
                link,
                &self.scope,
                |link| self.look(link, key),
                |next| record.next.store(next, Ordering::Relaxed),
            )
            .unwrap()
        }

        /// Waits for a key and begins to read it.
        fn fetch(&self, rank: usize, key: u64, readers: u32) -> Result<&Record, Counts> {
            loop {
                let seen = self.head.load();
                if let Some(link) = chain::find(seen, 0, |link| self.look(link, key)).unwrap() {
                    let record = self.record(link);
                    readers::enter(&record.counts, readers)?;
                    return Ok(record);
                }
                let changed = || (self.head.load() != seen).then_some(());
                self.scope.wait(rank, &self.head, changed).unwrap();
            }
        }

        fn wait_consumed(&self, rank: usize, link: u64, readers: u32) {
            let counts = &self.record(link).counts;
            let through = || readers::are_through(counts.load(), readers).then_some(());
            self.scope.wait(rank, counts, through).unwrap();
        }
    }

    #[test]
    fn a_value_comes_with_its_key_and_is_free_when_it_has_been_read() {
        check(None, || {
            let board = Board::new(2, 1);
            let reader = {
                let board = board.clone();
                thread::spawn(move || {
                    let record = board.fetch(1, 5, 1).unwrap();
                    assert_eq!(record.value.load(Ordering::Relaxed), 7, "the value came with the key");
                    readers::finish(&record.counts, 1, &board.scope).unwrap();
                })
            };
            assert_eq!(board.publish(1, 5, 7), None);
            board.wait_consumed(0, 1, 1);
            // What the reader looked at is not changed under it.
            board.record(1).value.store(9, Ordering::Relaxed);
            reader.join().unwrap();
        });
    }

    #[test]
    fn of_two_who_publish_one_key_one_succeeds_with_three_preemptions() {
        check(Some(3), || {
            let board = Board::new(3, 2);
            let other = {
                let board = board.clone();
                thread::spawn(move || board.publish(2, 5, 2))
            };
            let mine = board.publish(1, 5, 1);
            let theirs = other.join().unwrap();
            assert!(matches!((mine, theirs), (None, Some(1)) | (Some(2), None)), "{mine:?} {theirs:?}");
            let record = board.fetch(0, 5, 1).unwrap();
            assert_eq!(record.value.load(Ordering::Relaxed), if mine.is_none() { 1 } else { 2 });
        });
    }

    #[test]
    fn two_keys_of_one_chain_are_both_found_with_two_preemptions() {
        check(Some(2), || {
            let board = Board::new(3, 2);
            let producers: Vec<_> = [(1, 5), (2, 6)]
                .map(|(link, key)| {
                    let board = board.clone();
                    thread::spawn(move || assert_eq!(board.publish(link, key, key + 10), None))
                })
                .into();
            for key in [6, 5] {
                assert_eq!(board.fetch(0, key, 1).unwrap().value.load(Ordering::Relaxed), key + 10);
            }
            producers.into_iter().for_each(|producer| producer.join().unwrap());
        });
    }

    /// Two readers, of whom the last wakes the producer.
    fn two_readers(finish: fn(&Board, &Record)) {
        check(Some(2), move || {
            let board = Board::new(3, 1);
            let readers: Vec<_> = [1, 2]
                .map(|rank| {
                    let board = board.clone();
                    thread::spawn(move || {
                        let record = board.fetch(rank, 5, 2).unwrap();
                        assert_eq!(record.value.load(Ordering::Relaxed), 7);
                        finish(&board, record);
                    })
                })
                .into();
            board.publish(1, 5, 7);
            board.wait_consumed(0, 1, 2);
            board.record(1).value.store(9, Ordering::Relaxed);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            let none_left = Counts { fetched: 2, finished: 2 };
            assert_eq!(board.fetch(0, 5, 2).map(drop), Err(none_left));
        });
    }

    #[test]
    fn the_last_of_two_readers_wakes_the_producer_with_two_preemptions() {
        two_readers(|board, record| readers::finish(&record.counts, 2, &board.scope).unwrap());
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_last_reader_who_wakes_nobody_is_waited_for_forever() {
        two_readers(|board, record| {
            // As if one more were to come.
            readers::finish(&record.counts, 3, &board.scope).unwrap();
        });
    }

    #[test]
    fn a_read_that_is_taken_back_is_somebody_elses() {
        check(None, || {
            let board = Board::new(2, 1);
            board.publish(1, 5, 7);
            let other = {
                let board = board.clone();
                thread::spawn(move || {
                    let record = board.fetch(1, 5, 2).unwrap();
                    readers::turn_back(&record.counts);
                })
            };
            let record = board.fetch(0, 5, 2).unwrap();
            readers::finish(&record.counts, 2, &board.scope).unwrap();
            other.join().unwrap();
            assert_eq!(Counts::of(record.counts.load()), Counts { fetched: 1, finished: 1 });
        });
    }

    /// A reset: all meet, the chain is emptied, all meet again. Nobody sees what was before it, and the record is used
    /// again.
    #[test]
    fn a_key_is_used_again_after_a_reset_with_two_preemptions() {
        check(Some(2), || {
            let board = Board::new(2, 1);
            let gates = Arc::new([Cell::default(), Cell::default()]);
            let meet = |board: &Board, gates: &[Cell; 2], rank: usize, round: u64| {
                gates[rank].set(round, &board.scope);
                let other = &gates[1 - rank];
                board.scope.wait(rank, other, || (other.load() >= round).then_some(())).unwrap();
            };
            let reader = {
                let (board, gates) = (board.clone(), gates.clone());
                thread::spawn(move || {
                    for round in 0..2 {
                        let record = board.fetch(1, 5, 1).unwrap();
                        assert_eq!(record.value.load(Ordering::Relaxed), round, "a value of another round");
                        readers::finish(&record.counts, 1, &board.scope).unwrap();
                        meet(&board, &gates, 1, 2 * round + 1);
                        meet(&board, &gates, 1, 2 * round + 2);
                    }
                })
            };
            for round in 0..2 {
                board.publish(1, 5, round);
                meet(&board, &gates, 0, 2 * round + 1);
                board.head.set(0, &board.scope);
                board.record(1).counts.set(0, &board.scope);
                meet(&board, &gates, 0, 2 * round + 2);
            }
            reader.join().unwrap();
        });
    }

    /// Memory on loan to two borrowers, who read it and give it back, while the owner wants to use it for something else: at
    /// once if it is back when it looks, or else when it is told.
    fn on_loan(recall: fn(&AtomicU64)) {
        check(None, move || {
            let words = Arc::new([const { () }; 3].map(|()| AtomicU64::new(0)));
            let memory = Arc::new([AtomicU64::new(7), AtomicU64::new(7)]);
            let told = Arc::new(AtomicU64::new(0));
            words[1..].iter().for_each(recall::take);
            let borrowers: Vec<_> = [1, 2]
                .map(|who| {
                    let (words, memory, told) = (words.clone(), memory.clone(), told.clone());
                    thread::spawn(move || {
                        assert_eq!(memory[who - 1].load(Ordering::Relaxed), 7, "used under who reads it");
                        if recall::give_back(&words[who], &words[0]) {
                            told.fetch_add(1, Ordering::AcqRel);
                        }
                    })
                })
                .into();
            recall(&words[0]);
            let reuse = |who: usize| {
                let is_back = recall::is_back(&words[who]);
                if is_back {
                    memory[who - 1].store(9, Ordering::Relaxed);
                }
                is_back
            };
            let back = [reuse(1), reuse(2)].iter().all(|&back| back);
            borrowers.into_iter().for_each(|borrower| borrower.join().unwrap());
            assert!(
                back || told.load(Ordering::Acquire) > 0,
                "nobody tells the owner, who has looked in vain"
            );
        });
    }

    #[test]
    fn whoever_gives_back_last_is_seen_or_tells() {
        on_loan(recall::recall);
    }

    #[test]
    #[should_panic(expected = "nobody tells the owner")]
    fn a_recall_without_a_fence_is_missed() {
        on_loan(|recalled| recalled.store(1, Ordering::Relaxed));
    }
}
