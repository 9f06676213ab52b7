//! An executor of many futures, as small as it can be.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};

#[derive(Default)]
struct Ready {
    queue: Mutex<VecDeque<usize>>,
    changed: Condvar,
}

struct Task {
    number: usize,
    ready: Arc<Ready>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.ready.queue.lock().unwrap().push_back(self.number);
        self.ready.changed.notify_one();
    }
}

type Body<T> = Pin<Box<dyn Future<Output = T>>>;

/// Many futures on one thread, each polled only when it was woken.
pub struct Executor<T> {
    ready: Arc<Ready>,
    tasks: Vec<(Option<Body<T>>, Waker)>,
    outputs: Vec<Option<T>>,
    pub polls: usize,
}

impl<T> Executor<T> {
    /// Polls each future once.
    pub fn start(futures: impl IntoIterator<Item = impl Future<Output = T> + 'static>) -> Executor<T> {
        let ready = Arc::<Ready>::default();
        let mut executor = Executor { ready, tasks: vec![], outputs: vec![], polls: 0 };
        for future in futures {
            let number = executor.tasks.len();
            let waker = Waker::from(Arc::new(Task { number, ready: executor.ready.clone() }));
            executor.tasks.push((Some(Box::pin(future)), waker));
            executor.outputs.push(None);
            executor.poll(number);
        }
        executor
    }

    pub fn pending(&self) -> usize {
        self.tasks.iter().filter(|(body, _)| body.is_some()).count()
    }

    fn poll(&mut self, number: usize) {
        let (slot, waker) = &mut self.tasks[number];
        let Some(body) = slot else { return };
        self.polls += 1;
        if let Poll::Ready(output) = body.as_mut().poll(&mut Context::from_waker(waker)) {
            *slot = None;
            self.outputs[number] = Some(output);
        }
    }

    /// Runs all to their end and gives their outputs in order.
    pub fn finish(mut self) -> Vec<T> {
        let mut left = self.pending();
        while left > 0 {
            let mut queue = self.ready.queue.lock().unwrap();
            let number = loop {
                match queue.pop_front() {
                    Some(number) => break number,
                    None => queue = self.ready.changed.wait(queue).unwrap(),
                }
            };
            drop(queue);
            let was_pending = self.tasks[number].0.is_some();
            self.poll(number);
            if was_pending && self.tasks[number].0.is_none() {
                left -= 1;
            }
        }
        self.outputs.into_iter().flatten().collect()
    }
}
