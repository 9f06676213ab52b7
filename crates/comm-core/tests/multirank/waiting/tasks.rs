//! Ten thousand waits of tasks cost one thread and no descriptor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::shm::{Block, Segment};
use comm_core::team::{BOARD_BYTES, CellRef, Team};
use comm_core::wait::Cell as Word;
use comm_testkit::{Case, LauncherCtx, Limit, RankCtx, RankResult, check, check_eq, done, probe};
use serde_json::json;

use super::executor::Executor;

const SOON: Duration = Duration::from_secs(60);
const WAITS: usize = 10_000;

pub fn cases() -> Vec<Case> {
    vec![
        Case::launcher("rendezvous", "wait/task/10000", launch)
            .worlds(|world| world != 3)
            .limit(Duration::from_secs(120)),
    ]
}

fn launch(ctx: &LauncherCtx) -> RankResult {
    let launch = ctx.launch("waiting.tasks").rlimit(Limit::OpenFiles, 256).limit(SOON);
    for report in launch.run(Duration::from_secs(90))? {
        check!(report.outcome.is_ok(), "rank {}: {} {:?}", report.rank, report.outcome, report.detail);
        if let Some(note) = report.note("waited") {
            ctx.progress(&format!("{WAITS} waits: {}", note.value));
        }
    }
    done()
}

struct Nth {
    block: Arc<Block>,
    n: usize,
}

impl CellRef for Nth {
    fn cell(&self) -> &Word {
        &self.block.typed_slice(0, WAITS).unwrap()[self.n]
    }
}

/// The cells of rank 0, wherever they are seen from.
enum Cells {
    #[allow(clippy::redundant_allocation, reason = "a team shares things behind an Arc of its own")]
    Here(Arc<Arc<Block>>),
    There(Arc<Segment>, u64),
}

impl Cells {
    fn all(&self) -> Result<&[Word], comm_core::Error> {
        Ok(match self {
            Cells::Here(block) => block.typed_slice(0, WAITS)?,
            Cells::There(segment, offset) => segment.typed_slice(*offset, WAITS)?,
        })
    }
}

pub fn many(ctx: &RankCtx) -> RankResult {
    let team = Team::join("tasks", ctx.rank(), ctx.world(), SOON)?;
    let mut place = [0; BOARD_BYTES];
    let mut own = None;
    if ctx.rank() == 0 {
        let block = Arc::new(team.hub().windows().alloc_zeroed((WAITS * size_of::<Word>()) as u64)?);
        place[..8].copy_from_slice(&block.segment().id().to_ne_bytes());
        place[8..16].copy_from_slice(&block.offset().to_ne_bytes());
        for (i, cell) in block.typed_slice::<Word>(0, WAITS)?.iter().enumerate() {
            cell.set_tag(i as u32);
        }
        let shared = block.clone();
        own = Some(team.share(0, move || shared));
    }
    let mut op = team.begin("map", SOON)?;
    let place = op.say(&place)?[0];
    let word = |i: usize| u64::from_ne_bytes(std::array::from_fn(|k| place[i + k]));
    let cells = if own.is_some() || team.shares_process(0) {
        Cells::Here(team.share(0, || unreachable!("rank 0 has shared it")))
    } else {
        Cells::There(op.peer_segment(0, word(0))?, word(8))
    };
    op.heard()?;
    op.finish();
    let outcome = if let Some(block) = own {
        wait(ctx, &team, &block)
    } else {
        team.barrier(SOON)?;
        let mut mine: Vec<usize> = (0..WAITS).filter(|i| 1 + i % (ctx.world() - 1) == ctx.rank()).collect();
        let mut rng = ctx.rng();
        for last in (1..mine.len()).rev() {
            mine.swap(last, rng.below(last as u64 + 1) as usize);
        }
        for i in mine {
            cells.all()?[i].set(i as u64 + 1, team.bell());
        }
        done()
    };
    team.barrier(SOON)?;
    outcome
}

fn wait(ctx: &RankCtx, team: &Team, block: &Arc<Block>) -> RankResult {
    // What a first wait brings into being is not counted.
    let threads = probe::threads()?;
    let fds = probe::fds()?;
    let waits = (0..WAITS).map(|n| {
        let cell = Nth { block: block.clone(), n };
        let expected = n as u64 + 1;
        let from = 1 + n % (ctx.world() - 1);
        let text = format!("cell {n}");
        team.wait_task(&text, cell, Some(from), expected as i64, move |v| v == expected, SOON)
    });
    let executor = Executor::start(waits);
    check_eq!(executor.pending(), WAITS);
    check_eq!(probe::threads()?, threads, "threads for {WAITS} waits");
    // What the join needed may be closed meanwhile.
    check!(probe::fds()? <= fds, "{} descriptors with {WAITS} waits, {fds} before", probe::fds()?);
    team.barrier(SOON)?;
    let began = Instant::now();
    let outputs = executor.finish();
    check_eq!(outputs.len(), WAITS);
    for (n, output) in outputs.into_iter().enumerate() {
        check_eq!(output?, n as u64 + 1);
    }
    check_eq!(probe::threads()?, threads);
    let ms = began.elapsed().as_millis() as u64;
    ctx.note_value("waited", json!({ "ms": ms, "threads": threads, "descriptors": fds }));
    done()
}
