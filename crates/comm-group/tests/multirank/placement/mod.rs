//! Tensors on meshes: distributed, redistributed and collected, against a serial model of who holds what.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use comm_core::team::Team;
use comm_core::{Deadline, Error};
use comm_group::ThreadGroup;
use comm_group::placement::Groups;
use comm_testkit::{Case, Program, RankCtx};

mod errors;
mod exhaustive;
mod flow;
mod lines;
mod matrix;
mod model;
mod property;
mod values;

/// Far more than an operation takes: when one rank fails, the others are not to wait for it for long.
const SOON: Duration = Duration::from_secs(20);

const SUITE: &str = "placement";
const BACKEND: &str = "same-device";

pub const PROGRAMS: &[Program] =
    &[matrix::CUBE, property::LARGE, exhaustive::PAIRS, flow::LOOP, lines::LINES];

pub fn cases() -> Vec<Case> {
    [matrix::cases(), property::cases(), exhaustive::cases(), errors::cases(), lines::cases(), flow::cases()]
        .concat()
}

fn case(
    name: impl Into<String>,
    run: impl Fn(&RankCtx) -> comm_testkit::RankResult + Send + Sync + 'static,
) -> Case {
    Case::ranks(SUITE, name, run).backend(BACKEND)
}

/// Groups by their ids, as long as this lives.
struct Cache {
    name: String,
    made: Mutex<HashMap<Vec<usize>, Arc<ThreadGroup>>>,
}

impl Cache {
    fn new(ctx: &RankCtx, name: &str) -> Cache {
        Cache { name: ctx.name(name), made: Mutex::default() }
    }
}

impl Groups for Cache {
    fn group(&self, ids: &[usize], my_id: usize, deadline: Deadline) -> Result<Arc<ThreadGroup>, Error> {
        if let Some(group) = self.made.lock().unwrap().get(ids) {
            return Ok(group.clone());
        }
        let rank = ids.iter().position(|&id| id == my_id);
        let rank = rank.ok_or_else(|| Error::invalid("group", format!("{my_id} is not in {ids:?}")))?;
        let ids_text = ids.iter().map(usize::to_string).collect::<Vec<_>>().join(".");
        let team = Team::join(&format!("{}-{ids_text}", self.name), rank, ids.len(), deadline)?;
        let group = Arc::new(ThreadGroup::new(team, deadline)?);
        self.made.lock().unwrap().insert(ids.to_vec(), group.clone());
        Ok(group)
    }
}
