//! Many keys at once, and many one after the other: nothing grows but what is in use.

use std::time::{Duration, Instant};

use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_store::store::Kind;
use comm_testkit::{Case, LauncherCtx, Layout, Program, RankCtx, RankResult, check, check_eq, done, probe};

use super::{SUITE, Scene};
use crate::support::{Any, eventually};

pub const PROGRAMS: &[Program] = &[KEYS, HAND_OVERS, CLONES];

const KEYS: Program = Program { name: "store-100000-keys", run: many_keys };
const HAND_OVERS: Program = Program { name: "store-hand-overs", run: hand_overs };
const CLONES: Program = Program { name: "store-kept-clones", run: kept_clones };

/// Two ranks; they say how long it took.
pub fn cases() -> Vec<Case> {
    let of = |name: &str, program: Program| {
        let case = Case::launcher(SUITE, format!("size/-/-/{name}"), move |ctx| measured(ctx, program.name));
        let case = case.worlds(|world| world == 2).limit(LIMIT);
        [
            case.clone().backend("process").layouts(&[Layout::Threads]),
            case.backend("host").layouts(&[Layout::Processes]),
        ]
    };
    [of("100000-keys", KEYS), of("hand-overs", HAND_OVERS), of("kept-clones", CLONES)].concat()
}

const LIMIT: Duration = Duration::from_secs(1800);

fn measured(ctx: &LauncherCtx, program: &'static str) -> RankResult {
    for report in ctx.launch(program).limit(LIMIT).run(ctx.deadline())? {
        for note in &report.notes {
            ctx.progress(&format!("rank {}: {}", report.rank, note.text));
        }
        check!(report.outcome.is_ok(), "rank {}: {}", report.rank, report.outcome);
    }
    done()
}

fn scene(ctx: &RankCtx) -> Any<Scene> {
    Scene::new(ctx, if ctx.backend() == "process" { Kind::Process } else { Kind::Host })
}

/// Numbers in one block, of which each is published by itself.
fn numbers(s: &Scene, count: usize) -> Any<Tensor> {
    let mut buf = TensorBuf::zeros_in(s.team.hub().tensors(), &[count], DType::U32)?;
    (0..).zip(buf.as_mut_slice::<u32>()?).for_each(|(i, number)| *number = i);
    Ok(buf.freeze())
}

fn number(t: &Tensor) -> Any<u32> {
    t.to_vec::<u32>()?.first().copied().ok_or("it has one element".into())
}

fn blocks(s: &Scene) -> (u64, u64) {
    (s.team.hub().tensors().stats().blocks, s.team.hub().windows().stats().blocks)
}

fn each(began: Instant, count: usize) -> Duration {
    began.elapsed() / count as u32
}

/// All are there at once, each with its own value, and are read in another order.
fn many_keys(ctx: &RankCtx) -> RankResult {
    const COUNT: usize = 100_000;
    let s = scene(ctx)?;
    let own = COUNT / ctx.world();
    let mine = numbers(&s, own)?;
    s.all()?;
    let began = Instant::now();
    for i in 0..own {
        s.publish(&format!("{}/{i}", ctx.rank()), &mine.narrow(0, i, 1)?, 1)?;
    }
    ctx.note(format!("{:?} to publish one of {COUNT}", each(began, own)));
    s.all()?;
    let began = Instant::now();
    let peer = 1 - ctx.rank();
    let mut reads = Vec::with_capacity(own);
    for n in 0..own {
        // 7919 is a prime that does not divide their number.
        let i = n * 7919 % own;
        let read = s.fetch(&format!("{peer}/{i}"))?;
        check_eq!(number(&read)?, i as u32);
        reads.push(read);
    }
    ctx.note(format!("{:?} to fetch one of {COUNT}", each(began, own)));
    check_eq!(s.store.stats().fetched, own as u64);
    s.all()?;
    let began = Instant::now();
    drop(reads);
    for i in 0..own {
        s.wait_consumed(&format!("{}/{i}", ctx.rank()))?;
    }
    ctx.note(format!("{:?} to finish and wait for one of {COUNT}", each(began, own)));
    s.all()?;
    check_eq!(s.store.stats().bytes_copied, 0);
    s.store.reset(s.by)?;
    s.end()
}

/// Hand-overs one after the other, with a reset now and then: a million, or ten in the long version.
fn hand_overs(ctx: &RankCtx) -> RankResult {
    const AHEAD: usize = 64;
    let (rounds, each_round) = if ctx.full() { (100, 100_000) } else { (10, 100_000) };
    let s = scene(ctx)?;
    let mine = numbers(&s, each_round)?;
    let mut after_one = None;
    for round in 0..rounds {
        s.all()?;
        let began = Instant::now();
        for i in 0..each_round {
            let key = format!("{i}");
            if ctx.rank() == 0 {
                s.publish(&key, &mine.narrow(0, i, 1)?, 1)?;
                if let Some(i) = i.checked_sub(AHEAD) {
                    s.wait_consumed(&format!("{i}"))?;
                }
            } else {
                check_eq!(number(&*s.fetch(&key)?)?, i as u32);
            }
        }
        if ctx.rank() == 0 {
            (each_round - AHEAD..each_round).try_for_each(|i| s.wait_consumed(&format!("{i}")))?;
        }
        let time = each(began, each_round);
        s.store.reset(s.by)?;
        s.all()?;
        let stats = (s.team.hub().tensors().stats(), s.team.hub().windows().stats());
        let now = (stats.0.blocks, stats.0.reserved, stats.1.blocks, stats.1.reserved);
        let resident = probe::memory(None)?.resident;
        s.all()?;
        ctx.note(format!(
            "round {round}: {time:?} each; {resident} bytes resident, blocks and reserved {now:?}"
        ));
        match after_one {
            None => after_one = Some((now, resident)),
            Some((before, least)) => {
                check!(now.0 <= before.0 && now.2 <= before.2, "blocks: {before:?}, then {now:?}");
                // What is kept for recycling, and what allocators keep.
                let slack = 48 << 20;
                check!(
                    resident <= least + slack,
                    "{least} bytes resident after the first round, then {resident}"
                );
            }
        }
    }
    s.end()
}

/// A reader that keeps all that it reads, while its producer waits for each.
fn kept_clones(ctx: &RankCtx) -> RankResult {
    let count = if ctx.full() { 100_000 } else { 20_000 };
    let s = scene(ctx)?;
    s.publish(&format!("warm {}", ctx.rank()), &numbers(&s, 1)?, 0)?;
    s.store.reset(s.by)?;
    s.all()?;
    let before = blocks(&s);
    s.all()?;
    let mut kept = Vec::new();
    if ctx.rank() == 0 {
        for i in 0..count {
            let t = Tensor::from_slice(&[1], &[i as u32])?.contiguous_in(s.team.hub().tensors())?;
            s.publish(&i.to_string(), &t, 1)?;
        }
    } else {
        for i in 0..count {
            kept.push(s.fetch(&i.to_string())?.tensor().clone());
        }
    }
    s.all()?;
    if ctx.rank() == 0 {
        let began = Instant::now();
        (0..count).try_for_each(|i| s.wait_consumed(&i.to_string()))?;
        ctx.note(format!("{:?} to wait for one of {count} that are kept", each(began, count)));
    }
    s.all()?;
    for (i, t) in kept.iter().enumerate() {
        check_eq!(number(t)?, i as u32);
    }
    let began = Instant::now();
    let some = kept.len();
    drop(kept);
    if some > 0 {
        ctx.note(format!("{:?} to let go of one of {count}", each(began, count)));
    }
    s.all()?;
    s.store.reset(s.by)?;
    // But for the log, which grows as far as it is used, and stays.
    let logs = before.1 + 32;
    eventually("all blocks were given back", || {
        let now = blocks(&s);
        now.0 == before.0 && now.1 <= logs
    })?;
    s.end()
}
