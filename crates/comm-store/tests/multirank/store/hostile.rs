//! A process that writes what it should not into the memory that it shares with its peers: for them an error or a wrong value
//! at the worst, in time, and never a fault.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use comm_core::team::Team;
use comm_core::{Deadline, Error};
use comm_store::store::{self, TensorStore};
use comm_testkit::values::SplitMix64;
use comm_testkit::{Case, LauncherCtx, Layout, Program, RankCtx, RankResult, check, check_eq, done};

use super::{SUITE, tensor};
use crate::support::{Any, team};

pub const PROGRAMS: &[Program] = &[WORDS, NOISE];

const WORDS: Program = Program { name: "store-scribbled-words", run: words };
const NOISE: Program = Program { name: "store-noise", run: noise };

const LIMIT: Duration = Duration::from_secs(120);
const AMPLE: Duration = Duration::from_secs(60);
const BRIEF: Duration = Duration::from_millis(3);

/// Who scribbles.
const HOSTILE: usize = 1;

pub fn cases() -> Vec<Case> {
    let of = |name: &str, program: Program| {
        Case::launcher(SUITE, format!("hostile/-/-/{name}"), move |ctx| run(ctx, program.name))
            .worlds(|world| world == 3)
            .layouts(&[Layout::Processes])
            .backend("host")
            .limit(LIMIT)
    };
    vec![of("words", WORDS), of("noise", NOISE)]
}

fn run(ctx: &LauncherCtx, program: &'static str) -> RankResult {
    // What has no deadline of its own waits no longer than this for memory that it is told of.
    let launch = ctx.launch(program).env("COMM_TIMEOUT_MS", "100").limit(LIMIT);
    for report in launch.run(ctx.deadline())? {
        for note in &report.notes {
            ctx.progress(&format!("rank {}: {}", report.rank, note.text));
        }
        check!(report.outcome.is_ok(), "rank {}: {}", report.rank, report.outcome);
    }
    done()
}

/// The words of the memory that peers of this process may write, or read of it.
fn memory(team: &Team) -> Vec<&'static [AtomicU64]> {
    let words = |segment: std::sync::Arc<comm_core::shm::Segment>| {
        let start = segment.range(0, segment.len()).unwrap();
        let count = segment.len() as usize / 8;
        // It stays mapped as long as this process lives.
        std::mem::forget(segment);
        // SAFETY: the range is mapped writable and never goes; it is memory of windows, which everybody touches as atomics
        // or by copies that bear that.
        unsafe { std::slice::from_raw_parts(start.as_ptr().cast::<AtomicU64>(), count) }
    };
    team.hub().windows().segments().into_iter().map(words).collect()
}

/// Every word of a record and of its counts at its extremes, one after the other.
fn words(ctx: &RankCtx) -> RankResult {
    /// From the start of the key: the counts, a header, and a layout of one dimension.
    const BEFORE: usize = 20;
    let team = team(ctx, "t")?;
    let store = store::open(&team, AMPLE)?;
    let cpu = comm_core::device::Stream::cpu();
    let mut rng = ctx.common_rng();
    let (mut values, mut errors, mut refused) = (0, 0, 0);
    for word in 0..BEFORE + 3 {
        for value in [0, 1, 1 << 31, 1 << 40, u64::MAX, rng.next_u64()] {
            let key = format!("{:08}{:016x}", word, rng.next_u64());
            if ctx.rank() == HOSTILE {
                let t = tensor(&[7.0; 5])?.contiguous_in(team.hub().tensors())?;
                store.publish(&key, &t, &cpu, ctx.world() - 1, None)?;
                let letters: Vec<u64> = key
                    .as_bytes()
                    .chunks(8)
                    .map(|c| u64::from_ne_bytes(std::array::from_fn(|i| c[i])))
                    .collect();
                let is_key = |words: &[AtomicU64]| {
                    words.iter().zip(&letters).all(|(word, letter)| word.load(Ordering::Relaxed) == *letter)
                };
                let found = memory(&team).into_iter().find_map(|words| {
                    let at = words.windows(letters.len()).position(is_key)?;
                    Some(&words[at - BEFORE..])
                });
                found.ok_or("it has published it")?[word].store(value, Ordering::Relaxed);
            }
            team.barrier(AMPLE)?;
            let began = Instant::now();
            if ctx.rank() != HOSTILE {
                match store.fetch(&key, &cpu, BRIEF.into()) {
                    Ok(read) => {
                        values += 1;
                        let mut bytes = vec![0; read.nbytes().min(1 << 20)];
                        if bytes.len() == read.nbytes() {
                            read.copy_bytes_to(&mut bytes)?;
                        }
                        let _ = read.finish();
                    }
                    Err(Error::BadPeer { .. }) => refused += 1,
                    Err(_) => errors += 1,
                }
                let _ = store.finish(&key, &cpu);
                let own = format!("{key}-{}", ctx.rank());
                store.publish(&own, &tensor(&[1.0])?, &cpu, 1, None)?;
                check_eq!(store.fetch(&own, &cpu, AMPLE.into())?.to_vec::<f32>()?, [1.0]);
            }
            check!(began.elapsed() < AMPLE, "word {word} = {value:#x}: {:?}", began.elapsed());
            if ctx.rank() == HOSTILE {
                let _ = store.wait_consumed(&key, BRIEF.into());
            }
            store.reset(AMPLE.into())?;
        }
    }
    if ctx.rank() != HOSTILE {
        ctx.note(format!("{values} values, {refused} refused, {errors} other errors"));
        check!(values > 10 && refused > 10, "{values} values, {refused} refused, {errors} other errors");
    }
    team.barrier(AMPLE)?;
    done()
}

/// Noise over everything that it can write, while the others go on among themselves and with it.
fn noise(ctx: &RankCtx) -> RankResult {
    let (began, time) = (Instant::now(), Duration::from_millis(if ctx.full() { 10_000 } else { 300 }));
    let team = team(ctx, "t")?;
    let store = store::open(&team, AMPLE)?;
    let mut rng = ctx.rng();
    // So that there is something to scribble over.
    for i in 0..200 {
        let _ = work(ctx, &*store, &mut rng, i);
    }
    team.barrier(AMPLE)?;
    if ctx.rank() == HOSTILE {
        let memory = memory(&team);
        while began.elapsed() < time {
            for words in &memory {
                // As much of it as has been used: the rest is not reserved.
                for _ in 0..2000 {
                    let at = rng.below((words.len() as u64).min(1 << 19)) as usize;
                    let value = match rng.below(4) {
                        0 => rng.below(300),
                        1 => words[rng.below(1 << 18) as usize % words.len()].load(Ordering::Relaxed),
                        _ => rng.next_u64(),
                    };
                    words[at].store(value, Ordering::Relaxed);
                }
            }
        }
    } else {
        let (mut fine, mut errors) = (0, 0);
        for i in 200.. {
            if began.elapsed() > time {
                break;
            }
            let began = Instant::now();
            match work(ctx, &*store, &mut rng, i) {
                Ok(()) => fine += 1,
                Err(_) => errors += 1,
            }
            check!(began.elapsed() < AMPLE, "{:?}", began.elapsed());
        }
        ctx.note(format!("{fine} fine, {errors} errors"));
        check!(fine > 0, "what has nothing to do with who scribbles goes on");
    }
    team.barrier(AMPLE)?;
    drop(store);
    team.barrier(AMPLE)?;
    done()
}

/// Something with a key of one's own; and something with one of another rank, of which anything may become.
fn work(ctx: &RankCtx, store: &dyn TensorStore, rng: &mut SplitMix64, i: usize) -> Any<()> {
    let (cpu, by) = (comm_core::device::Stream::cpu(), Deadline::from(BRIEF));
    let peer = rng.below(ctx.world() as u64);
    let theirs = format!("{peer}-{}", rng.below(i as u64 + 1));
    if let Ok(read) = store.fetch(&theirs, &cpu, Duration::ZERO.into()) {
        if read.nbytes() < 1 << 20 {
            read.copy_bytes_to(&mut vec![0; read.nbytes()])?;
        }
        let _ = read.finish();
    }
    let own = format!("{}-{i}", ctx.rank());
    store.publish(&own, &tensor(&[i as f32])?, &cpu, 3, None)?;
    let read = store.fetch(&own, &cpu, by)?;
    check_eq!(read.to_vec::<f32>()?, [i as f32]);
    read.finish()?;
    Ok(())
}
