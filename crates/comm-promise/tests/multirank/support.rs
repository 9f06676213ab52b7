//! What the cases have in common: who is who, and how a promise gets from one rank to another.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use comm_core::error::BrokenHow;
use comm_core::team::{BOARD_BYTES, Team};
use comm_core::tensor::Tensor;
use comm_core::wait::OneShot;
use comm_core::{Deadline, Error, Kind};
use comm_promise::{Future, Promise, Ticket, Value};
use comm_testkit::{Case, Layout, RankCtx, RankResult, done, eventually};

pub type Any<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

pub const SUITE: &str = "promise";

/// The two ends, on the ranks that have them.
pub type Ends<T> = (Option<Future<T>>, Option<Promise<T>>);

pub type Run = fn(&RankCtx, Kind) -> RankResult;

/// A case for each kind: kind `process` where all ranks are threads.
pub fn both(name: &str, run: Run) -> [Case; 2] {
    let case = |kind: Kind| Case::ranks(SUITE, name, move |ctx| run(ctx, kind));
    [case(Kind::Process).backend("process").layouts(&[Layout::Threads]), case(Kind::Host).backend("host")]
}

/// A case of promises between processes, in every layout.
pub fn host(name: &str, run: fn(&RankCtx) -> RankResult) -> Case {
    Case::ranks(SUITE, name, run).backend("host")
}

/// What a case runs with. Rank 0 is the client, at home, and the last rank the worker, in another process where there is one.
pub struct Scene {
    pub kind: Kind,
    pub team: Team,
    pub by: Deadline,
    last: usize,
    handed: Cell<u64>,
}

impl Scene {
    pub fn new(ctx: &RankCtx, kind: Kind) -> Any<Scene> {
        let team = Team::join(&ctx.name("promise"), ctx.rank(), ctx.world(), ctx.deadline())?;
        Ok(Scene { kind, team, by: ctx.deadline(), last: ctx.world() - 1, handed: Cell::new(0) })
    }

    pub fn host(ctx: &RankCtx) -> Any<Scene> {
        Scene::new(ctx, Kind::Host)
    }

    pub fn is_client(&self) -> bool {
        self.team.rank() == 0
    }

    pub fn is_worker(&self) -> bool {
        self.team.rank() == self.last
    }

    /// Whether the two are in different processes.
    pub fn is_abroad(&self) -> bool {
        !self.team.shares_process(if self.is_client() { self.last } else { 0 })
    }

    /// All ranks come here before any goes on.
    pub fn all(&self) -> Any<()> {
        Ok(self.team.barrier(self.by)?)
    }

    /// The end of the case: nobody leaves before all are through.
    pub fn end(&self) -> RankResult {
        self.all()?;
        done()
    }

    /// What a rank says, on all ranks.
    pub fn say(&self, from: usize, bytes: &[u8]) -> Any<Vec<u8>> {
        const ROOM: usize = BOARD_BYTES - 8;
        let (mut said, mut parts) = (Vec::new(), bytes.chunks(ROOM));
        loop {
            let mut board = [0; BOARD_BYTES];
            if self.team.rank() == from {
                let part = parts.next().unwrap_or_default();
                board[..part.len()].copy_from_slice(part);
                board[ROOM] = part.len() as u8;
                board[ROOM + 1] = u8::from(parts.len() > 0);
            }
            let heard = self.team.exchange(&board, self.by)?[from];
            said.extend(&heard[..heard[ROOM].into()]);
            if heard[ROOM + 1] == 0 {
                return Ok(said);
            }
        }
    }

    /// A ticket of a rank, on all ranks.
    pub fn ticket<T: Value>(&self, from: usize, ticket: Option<Ticket<T>>) -> Any<Ticket<T>> {
        let bytes = ticket.map(|ticket| ticket.to_bytes()).unwrap_or_default();
        Ok(Ticket::from_bytes(&self.say(from, &bytes)?)?)
    }

    /// A promise of the client, at the worker: by its ticket, or as it is where there are none. The future stays.
    pub fn ask<T: Value>(&self) -> Any<Ends<T>> {
        let promise = if self.is_client() { Some(Promise::<T>::new(self.kind)?) } else { None };
        let future = promise.as_ref().map(Promise::future).transpose()?;
        Ok((future, self.hand_over(promise)?))
    }

    /// As [`ask`](Scene::ask), for a promise that is there.
    pub fn hand_over<T: Value>(&self, promise: Option<Promise<T>>) -> Any<Option<Promise<T>>> {
        if self.kind == Kind::Host {
            let ticket = self.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
            let here = self.is_worker().then(|| Promise::attach(&ticket, self.by)).transpose()?;
            // A ticket that is not attached yet is nobody's; a dropped future would be the worker's error.
            self.all()?;
            return Ok(here);
        }
        let number = self.handed.get();
        self.handed.set(number + 1);
        let place = self.team.share(number, OneShot::<Promise<T>>::default);
        if let Some(promise) = promise {
            place.set(promise);
        }
        self.all()?;
        let promise = self.is_worker().then(|| place.wait(self.by)).flatten();
        self.all()?;
        Ok(promise)
    }
}

/// A ticket as text, for those who are in no team together.
pub fn text_of<T: Value>(ticket: &Ticket<T>) -> String {
    ticket.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The ticket of a text.
pub fn of_text<T: Value>(text: &str) -> Any<Ticket<T>> {
    let byte = |pair: &[u8]| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?);
    Ok(Ticket::from_bytes(&text.as_bytes().chunks(2).map(byte).collect::<Any<Vec<_>>>()?)?)
}

/// Polls once, by a waker that does nothing.
pub fn poll<F: std::future::Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

pub fn tensor(values: &[f32]) -> Any<Tensor> {
    Ok(Tensor::from_slice(&[values.len()], values)?)
}

/// Checks how a promise broke.
pub fn is_broken<T: std::fmt::Debug>(outcome: Result<T, Error>, expected: BrokenHow) -> Any<Option<u32>> {
    match outcome {
        Err(Error::BrokenPromise { how, pid, .. }) if how == expected => Ok(pid),
        other => Err(format!("expected a promise that is broken since {expected}: {other:?}").into()),
    }
}

/// Checks that a wait gives up when its time is over, and not before.
pub fn in_vain<T: std::fmt::Debug + Send>(future: &Future<T>) -> Any<String> {
    const BRIEF: Duration = Duration::from_millis(10);
    let began = Instant::now();
    match future.get(BRIEF) {
        Err(error @ Error::Timeout { .. }) if began.elapsed() >= BRIEF => Ok(error.to_string()),
        other => Err(format!("a wait was to give up: {other:?} after {:?}", began.elapsed()).into()),
    }
}

/// Blocks of this process: of tensors, and of windows.
pub fn blocks(s: &Scene) -> (u64, u64) {
    (s.team.hub().tensors().stats().blocks, s.team.hub().windows().stats().blocks)
}

/// As many blocks of tensors as there were.
pub fn until_blocks(s: &Scene, expected: u64) -> Any<()> {
    let outcome = eventually("all blocks of tensors were given back", || blocks(s).0 == expected);
    outcome.map_err(|error| format!("{error}: {}, expected {expected}", blocks(s).0).into())
}
