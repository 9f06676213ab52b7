//! The variables of each launcher.

use super::{Launcher, Vars, contradiction, unusable};
use crate::config::{LOCAL_RANK, LOCAL_WORLD_SIZE, RANK, WORLD_SIZE};
use crate::error::Result;

/// How one launcher says things. Where there are several names, all that are set have to say the same.
pub(super) struct Set {
    pub launcher: Launcher,
    /// All of one of these lists have to be set.
    when: &'static [&'static [&'static str]],
    pub rank: &'static [&'static str],
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
}

/// In the order in which they are asked.
pub(super) const SETS: &[Set] = &[
    Set {
        launcher: Launcher::Comm,
        when: &[&[RANK.name], &[WORLD_SIZE.name], &[LOCAL_RANK.name], &[LOCAL_WORLD_SIZE.name]],
        rank: &[RANK.name],
        size: &[WORLD_SIZE.name],
        local_rank: &[LOCAL_RANK.name],
        local_size: &[LOCAL_WORLD_SIZE.name],
    },
    Set {
        launcher: Launcher::Torchrun,
        // One of the two alone is often set in a script, for another purpose.
        when: &[&["TORCHELASTIC_RUN_ID"], &["RANK", "WORLD_SIZE"]],
        rank: &["RANK"],
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
    },
    Set {
        launcher: Launcher::OpenMpi,
        when: &[&["OMPI_COMM_WORLD_RANK"]],
        rank: &["OMPI_COMM_WORLD_RANK", "PMIX_RANK"],
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
    },
    Set {
        launcher: Launcher::Pmi,
        when: &[&["PMI_RANK"]],
        rank: &["PMI_RANK"],
        size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID"],
        local_size: &["MPI_LOCALNRANKS"],
    },
    Set {
        launcher: Launcher::Pmix,
        when: &[&["PMIX_RANK"]],
        rank: &["PMIX_RANK", "SLURM_PROCID"],
        size: &["SLURM_STEP_NUM_TASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_size: &[],
    },
    Set {
        launcher: Launcher::Slurm,
        // Without a step it is the script of a job, which runs once and not as a rank.
        when: &[&["SLURM_STEP_ID", "SLURM_PROCID"]],
        rank: &["SLURM_PROCID"],
        size: &["SLURM_STEP_NUM_TASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_size: &[],
    },
];

/// What a launcher has said, and it is sound.
#[derive(Debug)]
pub(super) struct Said {
    pub rank: usize,
    pub world_size: usize,
    pub local_rank: Option<usize>,
    pub local_world_size: Option<usize>,
}

impl Set {
    /// Whether this launcher says anything.
    pub fn speaks(&self, vars: &Vars<'_>) -> bool {
        self.when.iter().any(|names| names.iter().all(|name| vars.is_set(name)))
    }

    pub fn said(&self, vars: &Vars<'_>) -> Result<Said> {
        let needed = |names: &[&'static str]| {
            number(vars, names)?.ok_or_else(|| {
                contradiction(format!("{} is not set, though {} is", names[0], self.reason(vars)))
            })
        };
        let (rank, size) = (needed(self.rank)?, needed(self.size)?);
        let local_rank = number(vars, self.local_rank)?;
        let local_size = match self.local_size {
            [] => tasks_here(vars)?,
            names => number(vars, names)?,
        };
        let below = |what: &str, of: &str, smaller: usize, larger: usize| {
            let said = format!("{what}={smaller} and {of}={larger}");
            contradiction(format!("{said} cannot both be: numbers go from 0 to one below how many there are"))
        };
        if rank >= size {
            return Err(below(self.rank[0], self.size[0], rank, size));
        }
        let local_size_name = self.local_size.first().unwrap_or(&TASKS);
        if let (Some(local), Some(locals)) = (local_rank, local_size)
            && local >= locals
        {
            return Err(below(self.local_rank[0], local_size_name, local, locals));
        }
        if let Some(locals) = local_size.filter(|&locals| locals > size) {
            let said = format!("{local_size_name}={locals} and {}={size}", self.size[0]);
            return Err(contradiction(format!(
                "{said} cannot both be: a host has no more ranks than there are"
            )));
        }
        Ok(Said { rank, world_size: size, local_rank, local_world_size: local_size })
    }

    /// The variable by which it is known that this launcher is there.
    fn reason(&self, vars: &Vars<'_>) -> &'static str {
        let set = self.when.iter().find(|names| names.iter().all(|name| vars.is_set(name)));
        set.map_or(self.rank[0], |names| names[0])
    }
}

/// The number that variables have, all of them that are set.
fn number(vars: &Vars<'_>, names: &[&'static str]) -> Result<Option<usize>> {
    let mut found: Option<(&str, usize)> = None;
    for &name in names {
        let Some(text) = vars.get(name)? else { continue };
        let number =
            text.parse().map_err(|_| unusable(name, &text, "it is no whole number of at least 0"))?;
        match found {
            Some((other, seen)) if seen != number => {
                return Err(contradiction(format!(
                    "{other}={seen} and {name}={number} contradict each other"
                )));
            }
            _ => found = Some((name, number)),
        }
    }
    Ok(found.map(|(_, number)| number))
}

const TASKS: &str = "SLURM_STEP_TASKS_PER_NODE";

/// How many ranks Slurm has put on this host: of a list like `2(x3),1`, the entry of this host's number.
fn tasks_here(vars: &Vars<'_>) -> Result<Option<usize>> {
    let (Some(list), Some(node)) = (vars.get(TASKS)?, number(vars, &["SLURM_NODEID"])?) else {
        return Ok(None);
    };
    let wrong = || unusable(TASKS, &list, "it is no list like 2(x3),1 with an entry for this node");
    let mut before = 0;
    for entry in list.split(',') {
        let (tasks, nodes) = match entry.split_once("(x") {
            None => (entry, 1),
            Some((tasks, rest)) => {
                let nodes = rest.strip_suffix(')').and_then(|nodes| nodes.parse::<usize>().ok());
                (tasks, nodes.ok_or_else(wrong)?)
            }
        };
        before = usize::saturating_add(before, nodes);
        if node < before {
            return tasks.parse().map(Some).map_err(|_| wrong());
        }
    }
    Err(wrong())
}
