//! `cargo xtask demo`: a model's weights through the library's conversions, compared bit for bit.
//!
//! | module | what it does |
//! |---|---|
//! | `weights` | reads and checks a safetensors file |
//! | `block` | makes the default weights |
//! | `exchange` | what the demo asks of the library |
//! | `group` | gets it from a thread group |
//! | `convert` | what one rank does |
//! | `compare` | finds the first difference |
//! | `launch` | starts the ranks and collects what they say |
//! | `table` | sums up for people and programs |

mod block;
mod compare;
mod convert;
mod exchange;
mod group;
mod launch;
mod table;
mod weights;

use std::path::PathBuf;

use crate::cli::{DemoArgs, Layout};
use crate::download::{MINILM, fetch};
use crate::fail::{Fail, one_line};
use crate::report::{check_writable, write_rows};
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
    let (choice, label) = choose(args)?;
    let weights = Weights::open(&choice).map_err(|why| Fail::usage(format!("--weights {why}")))?;
    let reports = launch::launch(args, &choice, &weights)?;

    let difference = table::first_difference(&reports);
    let rows = table::rows(args, &label, weights.specs(), &reports, difference.is_none());
    write_rows(&args.json, &rows)?;
    let people = args.json.people();
    people.line(&table::render(&rows));
    for line in table::remarks(weights.specs()) {
        people.line(&line);
    }
    match difference {
        None => {
            people.line("bit-identical: yes");
            Ok(())
        }
        Some(difference) => {
            people.line(&format!("bit-identical: no: first difference: {}", one_line(&difference)));
            Err(Fail::Check(None))
        }
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

#[cfg(test)]
mod local;
