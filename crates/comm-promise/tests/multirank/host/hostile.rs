//! A peer that writes whatever it likes into slots: whoever reads gets a value or an error, and nothing stalls or lasts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use comm_core::hub::Hub;
use comm_core::tensor::Tensor;
use comm_core::{Error, Kind};
use comm_promise::{Packer, Promise, SetError, Ticket, Unpacker, Value, Wire};
use comm_testkit::values::SplitMix64;
use comm_testkit::{Case, LauncherCtx, Layout, Program, RankCtx, RankResult, check, check_eq, done};

use crate::support::{Any, SUITE, Scene, host, tensor};

pub const PROGRAMS: &[Program] = &[NOISE];

const NOISE: Program = Program { name: "promise-noise", run: noise };
const LIMIT: Duration = Duration::from_secs(100);

/// In processes of their own: a chunk that has been written over is of no use afterwards.
pub fn cases() -> Vec<Case> {
    let case = Case::launcher(SUITE, "hostile/-/-/noise-in-slots", |ctx: &LauncherCtx| {
        for report in ctx.launch(NOISE.name).limit(LIMIT).run(LIMIT)? {
            for note in &report.notes {
                ctx.progress(&format!("rank {}: {}", report.rank, note.text));
            }
            check!(report.outcome.is_ok(), "rank {}: {}", report.rank, report.outcome);
        }
        done()
    });
    let noise = case.backend("host").limit(LIMIT).worlds(|world| world == 2).layouts(&[Layout::Processes]);
    vec![noise, host("hostile/-/-/elements-without-bytes", endless).layouts(&[Layout::Processes])]
}

/// What claims to be so many elements that take no bytes, in so many vectors.
struct Endless<const VECTORS: u64>;

impl<const VECTORS: u64> Value for Endless<VECTORS> {
    fn pack(&self, to: &mut Packer<'_>) -> Result<(), Error> {
        to.wire(&VECTORS)?;
        (0..VECTORS).try_for_each(|_| to.wire(&u64::MAX))
    }

    fn unpack(_from: &mut Unpacker<'_>) -> Result<Self, Error> {
        Ok(Endless)
    }

    fn form() -> String {
        Vec::<Vec<((), ())>>::form()
    }
}

/// Whoever reads it gets an error, and does not make them all.
fn endless(ctx: &RankCtx) -> RankResult {
    type Elements = Vec<Vec<((), ())>>;
    let s = Scene::host(ctx)?;
    let ask = || -> Any<_> {
        let promise = s.is_client().then(|| Promise::<Elements>::new(Kind::Host)).transpose()?;
        let future = promise.as_ref().map(Promise::future).transpose()?;
        Ok((future, s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?))
    };
    for forged in [true, false] {
        let (future, ticket) = ask()?;
        if s.is_worker() && forged {
            let ticket = Ticket::<Endless<3>>::from_bytes(&ticket.to_bytes())?;
            Promise::attach(&ticket, s.by)?.set(Endless)?;
        } else if s.is_worker() {
            let promise = Promise::attach(&ticket, s.by)?;
            let many = vec![vec![((), ()); 1 << 19]; 3];
            let Err(SetError::Failed { value, why }) = promise.set(many) else {
                return Err("too many".into());
            };
            check!(why.to_string().contains("take no bytes"), "{why}");
            promise.set(value[..2].to_vec())?;
        }
        let Some(future) = future else { continue };
        match future.get(s.by) {
            Err(Error::BadPeer { what }) if forged => check!(what.contains("take no bytes"), "{what}"),
            Ok(values) if !forged => check_eq!(values.concat().len(), 1 << 20),
            other => return Err(format!("{:?}", other.map(|values| values.len())).into()),
        }
    }
    s.end()
}

/// Where the first words of a chunk are written, from its start on: behind its magic number, dirty words, and slots.
const HEADER: u64 = 64;
const SLOT: u64 = 512;

fn noise(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let mut rng = ctx.rng();
    let mut seen = [0; 3];
    for round in 0..if ctx.full() { 5000 } else { 500 } {
        let promise = s.is_client().then(|| Promise::<Vec<Tensor>>::new(Kind::Host)).transpose()?;
        let future = promise.as_ref().map(Promise::future).transpose()?;
        let ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
        if s.is_worker() {
            // What was written before may keep it from being attached or set.
            if let Ok(promise) = Promise::attach(&ticket, Duration::from_secs(5)) {
                let _ = promise.set(vec![tensor(&[round as f32; 4])?; 1 + round % 9]);
            }
            scribble(&s, &ticket, &mut rng)?;
        }
        s.all()?;
        if let Some(future) = future {
            match future.wait(Duration::from_millis(20)) {
                Ok(Some(values)) => {
                    // Whatever it is, it can be looked at.
                    for value in values.iter().filter(|value| value.nbytes() < 1 << 20) {
                        value.copy_bytes_to(&mut vec![0; value.nbytes()])?;
                    }
                    seen[0] += 1;
                }
                Ok(None) => seen[1] += 1,
                Err(
                    Error::BadPeer { .. }
                    | Error::BrokenPromise { .. }
                    | Error::SetToError { .. }
                    | Error::AlreadyConsumed { .. },
                ) => seen[2] += 1,
                Err(other) => return Err(format!("another error: {other:?}").into()),
            }
        }
        s.all()?;
    }
    if s.is_client() {
        ctx.note(format!("{} read, {} waited for in vain, {} errors", seen[0], seen[1], seen[2]));
    }
    // Promises of the other process are as they were.
    let home = ctx.world() - 1;
    let promise = s.is_worker().then(|| Promise::<Wire<u8>>::new(Kind::Host)).transpose()?;
    let future = promise.as_ref().map(Promise::future).transpose()?;
    let ticket = s.ticket(home, promise.map(Promise::into_ticket).transpose()?)?;
    if s.is_client() {
        Promise::attach(&ticket, s.by)?.set(Wire(1))?;
    }
    if let Some(future) = future {
        check_eq!(*future.get(s.by)?, 1);
    }
    s.end()
}

/// Writes noise into some words of slots of the other process, as one who has mapped its segment can.
fn scribble(s: &Scene, ticket: &Ticket<Vec<Tensor>>, rng: &mut SplitMix64) -> Any<()> {
    // Where it lies is private, but said for people: segment, offset, slot, generation.
    let said = format!("{ticket:?}");
    let numbers: Vec<u64> =
        said.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).take(3).collect();
    let [segment, chunk, index] = numbers[..] else { return Err(said.into()) };
    let peer = Hub::get()?.meet(ticket.home(), s.by)?.ok_or("it lives")?;
    let segment = peer.await_segment(segment, s.by).ok_or("it is mapped")?;
    for _ in 0..1 + rng.below(4) {
        let slot = chunk + HEADER + SLOT * index;
        let at = match rng.below(4) {
            // The word itself, mask and tag, the rows, the letter.
            0 => slot,
            1 => slot + 8 * rng.below(16),
            2 => slot + 128 + 8 * rng.below(8),
            _ => slot + 192 + 8 * rng.below(40),
        };
        let word = segment.typed::<AtomicU64>(at)?;
        let noise = match rng.below(3) {
            0 => rng.next_u64(),
            1 => word.load(Ordering::Relaxed) ^ 1 << rng.below(64),
            _ => rng.below(1000),
        };
        word.store(noise, Ordering::Relaxed);
    }
    Ok(())
}
