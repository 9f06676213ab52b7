//! Eight ranks that publish, fetch and reset at random, each by two threads, from many seeds.

use std::time::Duration;

use comm_core::Error;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_store::store::Kind;
use comm_testkit::values::SplitMix64;
use comm_testkit::{Case, LauncherCtx, Layout, Program, RankCtx, RankResult, block_on, check, done};

use super::{SUITE, Scene};
use crate::support::Any;

pub const PROGRAMS: &[Program] = &[STRESS];

const STRESS: Program = Program { name: "store-stress", run: stress };

const LIMIT: Duration = Duration::from_secs(900);

pub fn cases() -> Vec<Case> {
    let of = |backend: &'static str, layouts: &'static [Layout]| {
        let case = Case::launcher(SUITE, "stress/-/-/random", seeds);
        case.worlds(|world| world == 4).layouts(layouts).backend(backend).limit(LIMIT)
    };
    vec![of("process", &[Layout::Threads]), of("host", Layout::ALL)]
}

fn seeds(ctx: &LauncherCtx) -> RankResult {
    let count = if ctx.full() { 100 } else { 10 };
    for seed in (0..count).map(|i| ctx.seed() * 1000 + i) {
        let launch = ctx.launch_on(STRESS.name, 8, ctx.layout()).seed(seed).limit(LIMIT);
        for report in launch.run(ctx.deadline())? {
            check!(report.outcome.is_ok(), "seed {seed}, rank {} of 8: {}", report.rank, report.outcome);
        }
    }
    done()
}

/// What is published in a round: the same on all ranks, who know thereby what comes from whom.
#[derive(Debug, Clone)]
struct Plan {
    key: String,
    producer: usize,
    /// How often each rank fetches it.
    reads: Vec<usize>,
    bytes: usize,
    in_arena: bool,
    fill: u8,
}

fn plans(ctx: &RankCtx, rng: &mut SplitMix64, round: usize) -> Vec<Plan> {
    let n = ctx.world() as u64;
    let count = 40 + rng.below(80);
    (0..count)
        .map(|i| Plan {
            // The same keys again and again, of many lengths.
            key: format!("{i}{}", "-".repeat((i * i % 200) as usize)),
            producer: rng.below(n) as usize,
            reads: (0..n).map(|_| if rng.below(3) == 0 { 1 + rng.below(2) as usize } else { 0 }).collect(),
            bytes: if rng.below(10) == 0 { rng.below(100_000) } else { rng.below(200) } as usize,
            in_arena: rng.below(2) == 0,
            fill: (round as u64 * 31 + i) as u8,
        })
        .collect()
}

fn shuffled<T>(rng: &mut SplitMix64, mut things: Vec<T>) -> Vec<T> {
    for i in (1..things.len()).rev() {
        things.swap(i, rng.below(i as u64 + 1) as usize);
    }
    things
}

fn stress(ctx: &RankCtx) -> RankResult {
    let kind = if ctx.backend() == "process" { Kind::Process } else { Kind::Host };
    let s = Scene::new(ctx, kind)?;
    let (mut common, own) = (ctx.common_rng(), ctx.rng());
    let mut kept: Vec<(Tensor, Plan)> = Vec::new();
    for round in 0..if ctx.full() { 30 } else { 8 } {
        let plans = plans(ctx, &mut common, round);
        let (for_publishing, for_reading) = (own.fork(2 * round as u64), own.fork(2 * round as u64 + 1));
        let read = std::thread::scope(|scope| -> Any<_> {
            let publishing = scope.spawn(|| publish_all(ctx, &s, &plans, for_publishing));
            let reading = scope.spawn(|| read_all(ctx, &s, &plans, for_reading));
            publishing.join().map_err(|_| "a thread panicked")??;
            reading.join().map_err(|_| "a thread panicked")?
        })?;
        // What some have kept, from whichever round, is as it was.
        kept.extend(read);
        for (tensor, plan) in &kept {
            is_right(tensor, plan).map_err(|e| format!("round {round}: kept: {e}"))?;
        }
        kept.truncate(50);
        s.store.reset(s.by)?;
    }
    s.end()
}

fn publish_all(ctx: &RankCtx, s: &Scene, plans: &[Plan], mut rng: SplitMix64) -> Any<()> {
    let mine: Vec<&Plan> = plans.iter().filter(|plan| plan.producer == ctx.rank()).collect();
    for plan in shuffled(&mut rng, mine.clone()) {
        let mut buf = if plan.in_arena {
            TensorBuf::zeros_in(s.team.hub().tensors(), &[plan.bytes], DType::U8)?
        } else {
            TensorBuf::zeros(&[plan.bytes], DType::U8)?
        };
        buf.as_mut_slice::<u8>()?.fill(plan.fill);
        s.publish(&plan.key, &buf.freeze(), plan.reads.iter().sum())?;
        let again = s.publish(&plan.key, &Tensor::from_slice(&[1], &[0_u8])?, 1);
        check!(matches!(again, Err(Error::DuplicateKey { .. })), "{again:?}");
    }
    for plan in shuffled(&mut rng, mine) {
        // Some are left to the reset.
        match rng.below(3) {
            0 => s.wait_consumed(&plan.key)?,
            1 => block_on(s.store.wait_consumed_async(&plan.key, s.by))?,
            _ => {}
        }
    }
    Ok(())
}

fn read_all(ctx: &RankCtx, s: &Scene, plans: &[Plan], mut rng: SplitMix64) -> Any<Vec<(Tensor, Plan)>> {
    let reads = plans.iter().flat_map(|plan| std::iter::repeat_n(plan, plan.reads[ctx.rank()])).collect();
    let mut kept = Vec::new();
    for plan in shuffled::<&Plan>(&mut rng, reads) {
        let read = match rng.below(3) {
            0 => block_on(s.store.fetch_async(&plan.key, &s.cpu, s.by))?,
            1 => {
                // One that is given up first.
                let mut fetch = s.store.fetch_async(&plan.key, &s.cpu, s.by);
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                match fetch.as_mut().poll(&mut context) {
                    std::task::Poll::Ready(read) => read?,
                    std::task::Poll::Pending => {
                        drop(fetch);
                        s.fetch(&plan.key)?
                    }
                }
            }
            _ => s.fetch(&plan.key)?,
        };
        is_right(&read, plan)?;
        if rng.below(8) == 0 {
            kept.push((read.tensor().clone(), plan.clone()));
        }
        match rng.below(3) {
            0 => read.finish()?,
            1 => {
                let tensor = read.into_tensor();
                s.store.finish(&plan.key, &s.cpu)?;
                drop(tensor);
            }
            _ => drop(read),
        }
    }
    Ok(kept)
}

fn is_right(tensor: &Tensor, plan: &Plan) -> Any<()> {
    let seen = tensor.to_vec::<u8>()?;
    let right = seen.len() == plan.bytes && seen.iter().all(|&byte| byte == plan.fill);
    check!(right, "{plan:?}: {} bytes, {:?}", seen.len(), seen.first());
    Ok(())
}
