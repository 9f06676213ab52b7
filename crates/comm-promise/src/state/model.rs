//! The word under loom: every interleaving, up to a bound, of those who set, hold, wait and go.

#[cfg(test)]
mod loom_models {
    use std::sync::Arc;
    use std::task::{Wake, Waker};

    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::sync::{Condvar, Mutex};
    use loom::thread;

    use comm_core::wait::Bell;
    use comm_core::wait::model::Patience;

    use crate::state::seat::{Seat, Tasks};
    use crate::state::{self, End, HOME, Local, Phase, TASKS, THREADS};

    /// A promise as threads of a process have it.
    struct Promise {
        seat: Seat,
        tasks: Tasks,
        generation: u64,
        value: AtomicU64,
    }

    impl Bell for Promise {
        fn ring(&self, slot: usize, _tag: u32) {
            match slot {
                THREADS => self.seat.park.wake(),
                TASKS => {
                    if let Some(waker) = self.tasks.take() {
                        waker.wake();
                    }
                }
                _ => unreachable!("nobody else waits"),
            }
        }
    }

    impl Promise {
        /// Open, with these holders.
        fn new(rows: &[usize]) -> Arc<Promise> {
            let seat = Seat::default();
            let generation = state::open(&seat.cell);
            for &row in rows {
                state::claim(&seat.cell, generation, row).unwrap();
            }
            if !rows.contains(&HOME) {
                state::hand_on(&seat.cell, generation, HOME).unwrap();
            }
            Arc::new(Promise { seat, tasks: Tasks::default(), generation, value: AtomicU64::new(0) })
        }

        /// Sets it, unless somebody else does.
        fn set(&self, row: usize, value: u64) -> bool {
            let cell = &self.seat.cell;
            if state::begin(cell, self.generation, row).is_err() {
                return false;
            }
            self.value.store(value, Ordering::Relaxed);
            state::finish(cell, self.generation, row, self).is_ok()
        }

        fn part(&self, row: usize, how: End) {
            let _ = state::part(&self.seat.cell, self.generation, row, how, self);
        }

        fn give_up(&self, how: End) {
            let _ = state::give_up(&self.seat.cell, self.generation, how, self);
        }

        fn wait(&self) -> state::Word {
            self.seat.wait(self.generation, &mut Patience::endless()).unwrap()
        }

        fn value(&self) -> u64 {
            self.value.load(Ordering::Relaxed)
        }
    }

    /// Every interleaving with at most so many preemptions.
    fn bounded(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.check(body);
    }

    fn beside(promise: &Arc<Promise>, body: impl FnOnce(&Promise) + 'static) -> thread::JoinHandle<()> {
        let promise = promise.clone();
        thread::spawn(move || body(&promise))
    }

    #[test]
    fn a_value_wakes_who_waits_and_comes_whole() {
        loom::model(|| {
            let promise = Promise::new(&[HOME]);
            let setter = beside(&promise, |p| assert!(p.set(HOME, 7)));
            let word = promise.wait();
            assert_eq!((word.phase(), word.row(), promise.value()), (Phase::Set, HOME, 7));
            setter.join().unwrap();
        });
    }

    #[test]
    fn of_two_who_set_it_one_succeeds_with_three_preemptions() {
        bounded(3, || {
            let promise = Promise::new(&[1, 2]);
            let set = Arc::new(AtomicU64::new(0));
            let setters: Vec<_> = [1, 2]
                .map(|row| {
                    let set = set.clone();
                    beside(&promise, move |p| {
                        if p.set(row, row as u64) {
                            set.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .into();
            let word = promise.wait();
            assert_eq!((word.phase(), word.row() as u64), (Phase::Set, promise.value()));
            setters.into_iter().for_each(|setter| setter.join().unwrap());
            assert_eq!(set.load(Ordering::Relaxed), 1);
            assert_eq!(promise.value(), word.row() as u64, "the other one has written nothing");
        });
    }

    #[test]
    fn a_wait_that_gives_up_misses_nothing() {
        for sleeps in [0, 1] {
            loom::model(move || {
                let promise = Promise::new(&[HOME]);
                let setter = beside(&promise, |p| assert!(p.set(HOME, 7)));
                // Not yet, or all of it; and if not yet, later.
                let early = promise.seat.wait(promise.generation, &mut Patience::sleeps(sleeps));
                let word = early.unwrap_or_else(|| promise.wait());
                assert_eq!((word.phase(), promise.value()), (Phase::Set, 7));
                setter.join().unwrap();
            });
        }
    }

    #[test]
    fn the_last_of_two_who_go_breaks_it_and_not_before_with_three_preemptions() {
        bounded(3, || {
            let promise = Promise::new(&[1, 2]);
            let first = beside(&promise, |p| p.part(1, End::Died));
            let second = beside(&promise, |p| p.part(2, End::Dropped));
            let word = promise.wait();
            assert_eq!((word.phase(), word.holders()), (Phase::Broken, 0));
            assert_eq!(word.how(), if word.row() == 1 { End::Died } else { End::Dropped });
            first.join().unwrap();
            second.join().unwrap();
        });
    }

    #[test]
    fn one_who_claims_while_the_last_goes_holds_it_or_is_told() {
        loom::model(|| {
            let promise = Promise::new(&[1]);
            let goes = beside(&promise, |p| p.part(1, End::Dropped));
            let claimed = state::claim(&promise.seat.cell, promise.generation, 2).is_ok();
            goes.join().unwrap();
            assert_eq!(promise.set(2, 7), claimed, "whoever has claimed it can set it");
            assert_eq!(promise.wait().phase(), if claimed { Phase::Set } else { Phase::Broken });
        });
    }

    #[test]
    fn a_writer_who_is_gone_breaks_it_and_one_who_is_through_has_set_it() {
        loom::model(|| {
            let promise = Promise::new(&[1, 2]);
            // The home sees the death of the one, wherever that had come to; here it sees it while he goes on, too.
            let writer = beside(&promise, |p| {
                p.set(1, 7);
            });
            promise.part(1, End::Died);
            let word = state::end_of(&promise.seat.cell, promise.generation);
            writer.join().unwrap();
            match word {
                // He was writing, or had written.
                Some(word) if word.phase() == Phase::Broken => assert_eq!(word.how(), End::Died),
                Some(word) => assert_eq!((word.phase(), promise.value()), (Phase::Set, 7)),
                // He had not begun, and there is another one.
                None => assert!(promise.set(2, 9)),
            }
        });
    }

    #[test]
    fn a_future_that_goes_and_a_value_that_comes() {
        loom::model(|| {
            let promise = Promise::new(&[1]);
            let set = Arc::new(AtomicU64::new(0));
            let setter = {
                let set = set.clone();
                beside(&promise, move |p| set.store(p.set(1, 7).into(), Ordering::Relaxed))
            };
            promise.give_up(End::Unwanted);
            let retired = state::retire(&promise.seat.cell, promise.generation);
            setter.join().unwrap();
            if retired.is_err() {
                // Somebody was writing; he is through now.
                state::retire(&promise.seat.cell, promise.generation).unwrap();
            }
            // Free for its next use, whoever came first; and who is told that it was set has set it before it was given up.
            let again = state::open(&promise.seat.cell);
            assert_eq!(again, promise.generation + 1);
            assert!(!promise.set(1, 8), "that was another use");
            let before = retired.map(|word| word.phase());
            assert_eq!(set.load(Ordering::Relaxed) == 1, before == Ok(Phase::Set), "{before:?}");
        });
    }

    #[test]
    fn who_had_set_a_retired_promise_is_known() {
        bounded(2, || {
            let promise = Promise::new(&[1]);
            let set = Arc::new(AtomicU64::new(0));
            let setter = {
                let set = set.clone();
                beside(&promise, move |p| set.store(p.set(1, 7).into(), Ordering::Relaxed))
            };
            // Nobody has asked for its future, so nobody has given it up.
            let retired = state::retire(&promise.seat.cell, promise.generation);
            setter.join().unwrap();
            let before =
                retired.or_else(|_| state::retire(&promise.seat.cell, promise.generation)).unwrap().phase();
            assert_eq!(set.load(Ordering::Relaxed) == 1, before == Phase::Set, "{before:?}");
        });
    }

    #[test]
    fn who_waits_is_told_when_it_is_cancelled_with_two_preemptions() {
        bounded(2, || {
            let promise = Promise::new(&[1]);
            let cancels = beside(&promise, |p| p.give_up(End::Cancelled));
            let setter = beside(&promise, |p| {
                p.set(1, 7);
            });
            let word = promise.wait();
            match word.phase() {
                Phase::Set => assert_eq!(promise.value(), 7),
                _ => assert_eq!(word.how(), End::Cancelled),
            }
            cancels.join().unwrap();
            setter.join().unwrap();
        });
    }

    /// A task that sleeps until it is woken.
    struct Task {
        woken: Mutex<bool>,
        changed: Condvar,
    }

    impl Task {
        fn new() -> Arc<Task> {
            Arc::new(Task { woken: Mutex::new(false), changed: Condvar::new() })
        }

        fn sleep(&self) {
            let mut woken = self.woken.lock().unwrap();
            while !*woken {
                woken = self.changed.wait(woken).unwrap();
            }
        }
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            *self.woken.lock().unwrap() = true;
            self.changed.notify_one();
        }
    }

    /// A task that is polled until it is ready, with another waker each time.
    fn run(promise: &Promise) -> state::Word {
        loop {
            let task = Task::new();
            match promise.seat.poll(promise.generation, &promise.tasks, &Waker::from(task.clone())) {
                Some(word) => return word,
                None => task.sleep(),
            }
        }
    }

    #[test]
    fn a_task_is_woken_by_a_value() {
        loom::model(|| {
            let promise = Promise::new(&[HOME]);
            let setter = beside(&promise, |p| assert!(p.set(HOME, 7)));
            assert_eq!((run(&promise).phase(), promise.value()), (Phase::Set, 7));
            setter.join().unwrap();
        });
    }

    #[test]
    fn a_task_that_is_polled_by_another_waker_is_woken_by_that() {
        loom::model(|| {
            let promise = Promise::new(&[1]);
            let last = beside(&promise, |p| p.part(1, End::Died));
            // Polled and dropped.
            let _ = promise.seat.poll(promise.generation, &promise.tasks, Waker::noop());
            assert_eq!(run(&promise).how(), End::Died);
            last.join().unwrap();
        });
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_task_that_does_not_look_again_is_not_woken() {
        loom::model(|| {
            let promise = Promise::new(&[HOME]);
            let setter = beside(&promise, |p| assert!(p.set(HOME, 7)));
            let task = Task::new();
            if state::end_of(&promise.seat.cell, promise.generation).is_none() {
                promise.tasks.enter(&Waker::from(task.clone()));
                promise.seat.cell.enrol(TASKS);
                task.sleep();
            }
            setter.join().unwrap();
        });
    }

    /// A value that is set here, and read, cancelled or given up beside that.
    struct Value {
        promise: Promise,
        local: Local<u64>,
    }

    impl Value {
        fn set(&self, value: u64) -> Result<(), (u64, state::Word)> {
            let Promise { seat, generation, .. } = &self.promise;
            self.local.set(&seat.cell, *generation, value, &self.promise)
        }

        /// What the future gets; `None` if it has got it before.
        fn read(&self) -> Option<Option<u64>> {
            let word = state::end_of(&self.promise.seat.cell, self.promise.generation).unwrap();
            let mut reading = self.local.read()?;
            let value = if word.phase() == Phase::Set { Some(reading.value().unwrap()) } else { None };
            reading.consume();
            Some(value)
        }
    }

    /// Somebody sets it, beside what `ends` does, which gives what the future gets: nothing is lost, and nothing is there twice.
    fn set_beside(ends: impl Fn(&Arc<Value>) -> Option<u64>) {
        let promise = Arc::into_inner(Promise::new(&[HOME])).unwrap();
        let value = Arc::new(Value { promise, local: Local::default() });
        let there = value.clone();
        let setter = thread::spawn(move || there.set(7));
        let read = ends(&value);
        assert_eq!(value.read(), None, "it is read once");
        match (setter.join().unwrap(), read) {
            (Ok(()), Some(7)) | (Err((7, _)), None) => {}
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_value_that_is_given_up_beside_is_read_or_goes_back() {
        loom::model(|| {
            set_beside(|value| {
                value.promise.give_up(End::Unwanted);
                value.read().unwrap()
            });
        });
    }

    #[test]
    fn a_value_that_another_cancels_is_read_or_goes_back_with_three_preemptions() {
        bounded(3, || {
            set_beside(|value| {
                let there = value.clone();
                let canceller = thread::spawn(move || there.promise.give_up(End::Cancelled));
                value.promise.wait();
                let read = value.read().unwrap();
                canceller.join().unwrap();
                read
            });
        });
    }
}
