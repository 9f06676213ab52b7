//! `cargo xtask demo`: a model's weights, distributed over meshes, placed one way after the other, collected, and compared bit
//! for bit.
//!
//! | module | what it does |
//! |---|---|
//! | `weights` | reads and checks a safetensors file |
//! | `block` | makes the default weights |
//! | `course` | says which meshes there are, and which steps a tensor takes on each |
//! | `walk` | what one rank does |
//! | `compare` | finds the first difference |
//! | `report` | what a rank has to say |
//! | `launch` | starts the ranks and collects what they say |
//! | `table` | sums up for people and programs |

mod block;
mod compare;
mod course;
mod launch;
mod report;
mod table;
#[cfg(test)]
mod tests;
mod walk;
mod weights;

use std::path::PathBuf;

use crate::cli::{DemoArgs, Layout};
use crate::download::{MINILM, fetch};
use crate::fail::Fail;
use crate::report::{check_writable, write_rows};
use table::Verdicts;
use weights::{Choice, Weights};

pub use launch::RANK;

/// Runs the demo.
///
/// # Errors
/// [`Fail::Usage`] if the weights cannot be used, [`Fail::Check`] if a rank failed or a result differs.
pub fn run(args: &DemoArgs) -> Result<(), Fail> {
    if args.layout == Layout::Mixed && args.ranks < 3 {
        let ranks = args.ranks;
        return Err(Fail::usage(format!("--layout mixed needs 3 ranks or more, --ranks is {ranks}")));
    }
    check_writable(&args.json)?;
    let ranks = usize::try_from(args.ranks).map_err(|e| Fail::usage(format!("--ranks: {e}")))?;
    let courses = course::courses(ranks).map_err(|e| Fail::usage(format!("--ranks: {e}")))?;
    if let Some(spoil) = &args.spoil
        && !courses.iter().flat_map(|course| &course.steps).any(|step| step.to_string() == *spoil)
    {
        return Err(Fail::usage(format!("--spoil {spoil}: there is no such conversion")));
    }
    let (choice, label) = choose(args)?;
    let weights = Weights::open(&choice).map_err(|why| Fail::usage(format!("--weights {why}")))?;
    let reports = launch::launch(args, choice, &weights, &courses)?;

    let difference = report::first(&reports, |report| report.difference.as_ref());
    let unplanned = report::first(&reports, |report| report.unplanned.as_ref());
    let verdicts = Verdicts { bit_identical: difference.is_none(), as_planned: unplanned.is_none() };
    let rows = table::rows(args, &label, weights.specs(), &courses, &reports, verdicts);
    write_rows(&args.json, &rows)?;
    let people = args.json.people();
    people.line(&table::render(&rows));
    for line in table::remarks(weights.specs(), ranks) {
        people.line(&line);
    }
    people.line(&table::verdict("costs as planned", unplanned));
    people.line(&table::verdict("bit-identical", difference));
    match verdicts {
        Verdicts { bit_identical: true, as_planned: true } => Ok(()),
        _ => Err(Fail::Check(None)),
    }
}

/// The weights that were asked for, and what rows call them.
fn choose(args: &DemoArgs) -> Result<(Choice, String), Fail> {
    let Some(path) = &args.weights else { return Ok((Choice::Block, "block".to_owned())) };
    if path.as_os_str() == "minilm" {
        return Ok((Choice::File(fetch(&MINILM)?), "minilm".to_owned()));
    }
    // Ranks in other processes start in a folder of their own choice.
    let full: PathBuf =
        std::path::absolute(path).map_err(|e| Fail::usage(format!("--weights {}: {e}", path.display())))?;
    Ok((Choice::File(full), path.display().to_string()))
}
