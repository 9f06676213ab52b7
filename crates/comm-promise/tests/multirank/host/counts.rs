//! Ten thousand promises: what they cost while they are there, and that nothing of them is left.

use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_core::{Kind, error::BrokenHow};
use comm_promise::{Promise, Wire};
use comm_testkit::Limit;
use comm_testkit::{
    Case, LauncherCtx, Layout, Program, RankCtx, RankResult, block_on, check, check_eq, done, eventually,
    probe,
};

use crate::support::{Any, SUITE, Scene, blocks, is_broken, until_blocks};

pub const PROGRAMS: &[Program] = &[CYCLE, PENDING];

const CYCLE: Program = Program { name: "promise-10000-cycle", run: cycle };
const PENDING: Program = Program { name: "promise-10000-pending", run: pending };

const MANY: usize = 10_000;
const LIMIT: Duration = Duration::from_secs(120);

pub fn cases() -> Vec<Case> {
    let of = |name: &str, run: fn(&LauncherCtx) -> RankResult| {
        let case = Case::launcher(SUITE, format!("count/-/-/{name}"), run).backend("host").limit(LIMIT);
        case.worlds(|world| world == 2).layouts(&[Layout::Processes])
    };
    vec![
        of("10000-leave-nothing", |ctx| both_end_well(ctx, CYCLE, None)),
        of("10000-pending-with-few-descriptors", |ctx| both_end_well(ctx, PENDING, Some(256))),
    ]
}

fn both_end_well(ctx: &LauncherCtx, program: Program, files: Option<u64>) -> RankResult {
    let mut launch = ctx.launch(program.name).limit(LIMIT);
    if let Some(files) = files {
        launch = launch.rlimit(Limit::OpenFiles, files);
    }
    let mut wrong = Vec::new();
    for report in launch.run(LIMIT)? {
        for note in &report.notes {
            ctx.progress(&format!("rank {}: {}", report.rank, note.text));
        }
        if !report.outcome.is_ok() {
            wrong.push(format!("rank {}: {}", report.rank, report.outcome));
        }
    }
    check!(wrong.is_empty(), "{}", wrong.join("; "));
    done()
}

/// What can be counted from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    descriptors: usize,
    threads: usize,
    mappings: usize,
    shared: u64,
}

fn counts(s: &Scene) -> Any<Counts> {
    // What is kept for recycling is not counted: it is memory of the arenas.
    s.team.hub().tensors().trim();
    s.team.hub().windows().trim();
    Ok(Counts {
        descriptors: probe::fds()?,
        threads: probe::threads()?,
        mappings: probe::mappings()?,
        shared: probe::memory(None)?.shared,
    })
}

/// Made, handed over, set, read, dropped; some in vain. All at once.
fn round(s: &Scene, n: usize) -> Any<()> {
    let tensor_of = |i: usize| -> Any<Tensor> {
        let mut buf = TensorBuf::zeros_in(s.team.hub().tensors(), &[16], DType::U64)?;
        buf.as_mut_slice::<u64>()?.fill(i as u64);
        Ok(buf.freeze())
    };
    if s.is_client() {
        let promises = (0..n).map(|_| Promise::<Tensor>::new(Kind::Host)).collect::<Result<Vec<_>, _>>()?;
        let futures = promises.iter().map(Promise::future).collect::<Result<Vec<_>, _>>()?;
        let mut bytes = Vec::new();
        for promise in promises {
            let ticket = promise.into_ticket()?.to_bytes();
            bytes.push(ticket.len() as u8);
            bytes.extend(ticket);
        }
        hand(s, &bytes)?;
        for (i, future) in futures.into_iter().enumerate() {
            match i % 4 {
                0 => drop(future),
                1 => drop(is_broken(future.get(s.by), BrokenHow::Dropped)?),
                2 => check_value(&future.get(s.by)?, i)?,
                _ => check_value(&block_on(future)?, i)?,
            }
        }
    } else {
        let mut bytes = &hand(s, &[])?[..];
        let mut i = 0;
        while let Some((&len, rest)) = bytes.split_first() {
            let (ticket, rest) = rest.split_at(len.into());
            bytes = rest;
            let ticket = comm_promise::Ticket::from_bytes(ticket)?;
            match (i % 4, Promise::attach(&ticket, s.by)) {
                // Its future may be gone already.
                (0, Ok(promise)) => drop(promise.set(tensor_of(i)?)),
                (0, Err(_)) => {}
                (1, promise) => drop(promise?),
                (_, promise) => promise?.set(tensor_of(i)?)?,
            }
            i += 1;
        }
        check_eq_any(i, n)?;
    }
    s.all()
}

fn check_eq_any(seen: usize, expected: usize) -> Any<()> {
    if seen == expected { Ok(()) } else { Err(format!("{seen}, expected {expected}").into()) }
}

fn check_value(value: &Tensor, i: usize) -> Any<()> {
    if value.to_vec::<u64>()? == [i as u64; 16] {
        Ok(())
    } else {
        Err(format!("number {i}: {value:?}").into())
    }
}

/// Bytes from the client to the worker through a promise of the worker's: many are too many for a board.
fn hand(s: &Scene, bytes: &[u8]) -> Any<Vec<u8>> {
    let promise = s.is_worker().then(|| Promise::<Wire<Vec<u8>>>::new(Kind::Host)).transpose()?;
    let future = promise.as_ref().map(Promise::future).transpose()?;
    let ticket = s.ticket(1, promise.map(Promise::into_ticket).transpose()?)?;
    if s.is_client() {
        Promise::attach(&ticket, s.by)?.set(Wire(bytes.to_vec()))?;
    }
    Ok(future.map(|future| future.get(s.by)).transpose()?.unwrap_or_default().0)
}

fn cycle(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    // As many slots as there will be at once, and whatever else is made at first use.
    round(&s, MANY)?;
    until_blocks(&s, 0)?;
    // What the other one keeps for recycling is mapped here, too: nobody counts before all have given it back.
    counts(&s)?;
    s.all()?;
    let (before, in_arenas) = (counts(&s)?, blocks(&s));
    let began = Instant::now();
    for _ in 0..if ctx.full() { 10 } else { 2 } {
        round(&s, MANY)?;
    }
    ctx.note(format!("{:?} for {MANY} promises; {before:?}", began.elapsed()));
    until_blocks(&s, in_arenas.0)?;
    check_eq!(blocks(&s), in_arenas);
    let same = || counts(&s).is_ok_and(|now| now == before);
    let outcome = eventually("all is as before", same);
    outcome.map_err(|e| format!("{e}: {:?}, before {before:?}", counts(&s)))?;
    s.end()
}

/// All of them awaited in one thread, and each woken by its value.
fn pending(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    // What is made at first use.
    let first = s.ask::<()>()?;
    hand(&s, &[0; 1000])?;
    s.all()?;
    let before = (probe::fds()?, probe::threads()?);
    if s.is_client() {
        let promises =
            (0..MANY).map(|_| Promise::<Wire<usize>>::new(Kind::Host)).collect::<Result<Vec<_>, _>>()?;
        let mut futures = promises.iter().map(Promise::future).collect::<Result<Vec<_>, _>>()?;
        let mut bytes = Vec::new();
        for promise in promises {
            let ticket = promise.into_ticket()?.to_bytes();
            bytes.push(ticket.len() as u8);
            bytes.extend(ticket);
        }
        hand(&s, &bytes)?;
        for future in &mut futures {
            check!(crate::support::poll(future).is_pending());
        }
        s.all()?;
        let now = (probe::fds()?, probe::threads()?);
        check_eq!(now, before, "descriptors and threads of {MANY} pending ones");
        s.all()?;
        let began = Instant::now();
        let mut polls = 0_u64;
        let mut left = MANY;
        let mut values = vec![None; MANY];
        block_on(std::future::poll_fn(|context| {
            for (future, value) in futures.iter_mut().zip(&mut values) {
                if value.is_none() {
                    polls += 1;
                    match Pin::new(future).poll(context) {
                        Poll::Ready(Ok(found)) => {
                            *value = Some(found.0);
                            left -= 1;
                        }
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending => {}
                    }
                }
            }
            if left == 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
        }))?;
        check!(values.iter().flatten().copied().eq(0..MANY));
        ctx.note(format!("{:?} for {MANY} values, {polls} polls", began.elapsed()));
    } else {
        let mut bytes = &hand(&s, &[])?[..];
        let mut promises = Vec::new();
        while let Some((&len, rest)) = bytes.split_first() {
            let (ticket, rest) = rest.split_at(len.into());
            bytes = rest;
            promises.push(Promise::attach(&comm_promise::Ticket::from_bytes(ticket)?, s.by)?);
        }
        s.all()?;
        let now = (probe::fds()?, probe::threads()?);
        check_eq!(now, before, "descriptors and threads of who holds {MANY}");
        s.all()?;
        for (n, promise) in promises.iter().enumerate().rev() {
            promise.set(Wire(n))?;
        }
    }
    drop(first);
    s.end()
}
