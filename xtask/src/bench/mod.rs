//! `cargo xtask bench`: how fast the operations of a group are, and whether they are right.
//!
//! | module | what it does |
//! |---|---|
//! | `case` | operations, sizes, and what each rank brings and must get |
//! | `values` | makes inputs and compares results |
//! | `call` | calls the library |
//! | `rank` | what one rank does |
//! | `launch` | starts the ranks and collects what they say |
//! | `table` | sums up for people and programs |

mod call;
pub mod case;
mod launch;
mod rank;
mod table;
mod values;

use comm_core::shm::Budget;

use crate::cli::{BenchArgs, Layout};
use crate::fail::{Fail, one_line};
use crate::out::note;
use crate::report::{check_writable, write_rows};
use case::{Common, Op};
use rank::Plan;

pub use launch::RANK;

/// Runs the benchmark.
///
/// # Errors
/// [`Fail::Usage`] for what cannot be asked for, [`Fail::Check`] if a rank failed or a result is wrong.
pub fn run(args: &BenchArgs) -> Result<(), Fail> {
    let (plan, ranks) = plan(args)?;
    let layouts = layouts(args)?;
    check_writable(&args.json)?;
    let people = args.json.people();
    let mut all = Vec::new();
    for layout in layouts {
        let reports = launch::launch(&plan, ranks, layout)?;
        let rows = table::rows(&plan, layout, &reports);
        people.line(&format!("{}\n", table::render(&rows)));
        for line in table::wrongs(&rows, &reports) {
            note(&format!("wrong: {}", one_line(&line)));
        }
        all.extend(rows);
    }
    write_rows(&args.json, &all)?;
    let wrong: u64 = all.iter().map(|row| row.wrong).sum();
    people.line(&format!("{} rows, {wrong} wrong elements", all.len()));
    if wrong == 0 { Ok(()) } else { Err(Fail::Check(None)) }
}

/// What all layouts run, and how many ranks.
fn plan(args: &BenchArgs) -> Result<(Plan, usize), Fail> {
    let ranks = usize::try_from(args.ranks).map_err(|e| Fail::usage(format!("--ranks: {e}")))?;
    let root = usize::try_from(args.root).unwrap_or(usize::MAX);
    if root >= ranks {
        return Err(Fail::usage(format!("--root {root}: the ranks are 0 to {}", ranks - 1)));
    }
    let max = args.max_bytes();
    if args.min_bytes > max {
        return Err(Fail::usage(format!("--min-bytes {} is more than --max-bytes {max}", args.min_bytes)));
    }
    let ops: Vec<Op> = Op::ALL.into_iter().filter(|op| args.asks_for(op.name())).collect();
    if ops.iter().any(|op| op.reduces()) {
        let there_is = args.redop.op().check(args.dtype);
        there_is.map_err(|e| Fail::usage(format!("--redop, --dtype: {e}")))?;
    }
    let common = Common { dtype: args.dtype, redop: args.redop, root, memory: args.memory, mode: args.mode };
    let cases = case::cases(&ops, &case::sizes(args.min_bytes, max, args.factor), &common, ranks);
    if cases.is_empty() {
        return Err(Fail::usage("--mode into: a barrier has no result"));
    }
    fits(&cases, &common, ranks)?;
    Ok((Plan { common, cases, check: args.check, spoil: args.spoil }, ranks))
}

/// Refuses what would run out of memory, or of what the arenas may hold.
fn fits(cases: &[case::Case], common: &Common, ranks: usize) -> Result<(), Fail> {
    let limit = Budget::from_config().map_err(|e| Fail::usage(e.to_string()))?.limit();
    let Some(largest) = cases.iter().max_by_key(|case| case.memory(common, ranks)) else { return Ok(()) };
    let needs = largest.memory(common, ranks);
    if needs <= limit {
        return Ok(());
    }
    Err(Fail::usage(format!(
        "--max-bytes: {} of {} bytes on {ranks} ranks takes about {} MiB, and there are {} MiB (COMM_ARENA_MAX_BYTES, by \
         default half of the available memory)",
        largest.op.name(),
        largest.bytes(common.dtype),
        needs >> 20,
        limit >> 20,
    )))
}

/// The layouts that were asked for and that there are for so many ranks.
fn layouts(args: &BenchArgs) -> Result<Vec<Layout>, Fail> {
    let fits = |layout: Layout| layout != Layout::Mixed || args.ranks >= 3;
    let asked = |layout: Layout| args.layout.iter().any(|name| name == layout.name());
    if args.layout.iter().any(|name| name == "all") {
        let (yes, no): (Vec<Layout>, Vec<Layout>) = Layout::ALL.into_iter().partition(|&l| fits(l));
        for layout in no {
            note(&format!("bench: there is no layout {} of {} ranks", layout.name(), args.ranks));
        }
        return Ok(yes);
    }
    let asked: Vec<Layout> = Layout::ALL.into_iter().filter(|&l| asked(l)).collect();
    if asked.iter().any(|&layout| !fits(layout)) {
        let ranks = args.ranks;
        return Err(Fail::usage(format!("--layout mixed needs 3 ranks or more, --ranks is {ranks}")));
    }
    Ok(asked)
}
