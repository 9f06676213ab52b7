//! What the processes of one job have in common, and no other job has.

use super::Vars;
use crate::config;
use crate::error::Result;

/// A job, and where its id comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub id: String,
    pub source: &'static str,
}

impl Job {
    /// Looks in the environment of this process.
    pub fn detect() -> Result<Option<Job>> {
        Job::of(&Vars(&|name| std::env::var_os(name)))
    }

    /// `COMM_INSTANCE_ID`, else what the launcher says.
    pub fn of(vars: &Vars<'_>) -> Result<Option<Job>> {
        if let Some(id) = vars.get(config::INSTANCE_ID.name)? {
            return Ok(Some(Job { id, source: config::INSTANCE_ID.name }));
        }
        // Of what others set, an empty one says nothing.
        let other = |name: &str| (vars.0)(name)?.into_string().ok().filter(|text| !text.is_empty());
        let job = |source, id| Ok(Some(Job { id, source }));
        if let Some(run) = other("TORCHELASTIC_RUN_ID") {
            // Whoever does not name a run has one called "none"; no two of a host have the same port.
            let port = other("MASTER_PORT").unwrap_or_default();
            return job("TORCHELASTIC_RUN_ID", format!("TORCHELASTIC_RUN_ID={run}:{port}"));
        }
        if let Some(space) = other("PMIX_NAMESPACE") {
            return job("PMIX_NAMESPACE", format!("PMIX_NAMESPACE={space}"));
        }
        if other("PMI_RANK").is_some()
            && let Some(proxy) = hydra_proxy()
        {
            return job("PMI_RANK", proxy);
        }
        if let Some(id) = other("SLURM_JOB_ID") {
            let step = other("SLURM_STEP_ID").unwrap_or_default();
            return job("SLURM_JOB_ID", format!("slurm={id}.{step}"));
        }
        Ok(None)
    }
}

/// MPICH's launcher has no id, but a process on each host under which all ranks of the host are: that one, by its pid and the
/// time at which it was started.
fn hydra_proxy() -> Option<String> {
    const NAME: &str = "hydra_pmi_proxy";
    const GENERATIONS: usize = 32;
    let mut pid = std::process::id();
    for _ in 0..GENERATIONS {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses, and may hold some.
        let (name, rest) = (stat.split_once('(')?.1.rsplit_once(')')?.0, stat.rsplit_once(')')?.1);
        let mut fields = rest.split_whitespace();
        if name == NAME {
            return Some(format!("hydra={pid}.{}", fields.nth(19)?));
        }
        pid = fields.nth(1)?.parse().ok()?;
    }
    None
}
