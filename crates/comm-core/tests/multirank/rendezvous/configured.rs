//! What the environment says, right and wrong.

use comm_testkit::{LauncherCtx, Layout, Outcome};
use serde_json::Value;

use super::names::fresh;
use super::*;

pub fn cases() -> Vec<Case> {
    vec![
        Case::launcher("rendezvous", "environment/-/-/unusable", unusable)
            .worlds(|w| w == 2)
            .layouts(&[Layout::Threads]),
        Case::launcher("rendezvous", "environment/-/-/job-ids", job_ids)
            .worlds(|w| w == 2)
            .layouts(&[Layout::Processes]),
        Case::launcher("rendezvous", "environment/-/-/default-deadline", default_deadline)
            .worlds(|w| w == 2)
            .layouts(&[Layout::Threads]),
    ]
}

/// What one rank of `rendezvous/try` has to say.
pub(super) fn said(outcome: &Outcome) -> Result<Value, String> {
    match outcome {
        Outcome::Ok(value) => Ok(value.clone()),
        other => Err(other.to_string()),
    }
}

fn unusable(ctx: &LauncherCtx) -> RankResult {
    let numbers = ["COMM_TIMEOUT_MS", "COMM_ARENA_MAX_BYTES"];
    let wrong = ["", "0", "abc", "-1", "1.5", " 5", "5s", "18446744073709551616"];
    let mut tries: Vec<(&str, &str)> =
        numbers.into_iter().flat_map(|name| wrong.into_iter().map(move |value| (name, value))).collect();
    tries.extend([("COMM_INSTANCE_ID", ""), ("COMM_RUNTIME_DIR", "")]);
    for (name, value) in tries {
        let launch = ctx.launch_on("rendezvous/try", 1, Layout::Threads).arg(5000).env(name, value);
        for report in launch.limit(AMPLE).run(AMPLE)? {
            let said = said(&report.outcome)?;
            check_eq!(said["kind"], "invalid-argument", "{name}={value:?}: {said}");
            let text = said["text"].as_str().unwrap_or_default();
            check!(text.contains(&format!("{name}={value:?}")), "{text}");
        }
    }
    done()
}

/// Ranks meet by the job id of their launcher alone, and not across jobs.
fn job_ids(ctx: &LauncherCtx) -> RankResult {
    let bare = |program| {
        let mut launch = ctx.launch(program).limit(AMPLE);
        for name in
            ["COMM_INSTANCE_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID"]
        {
            launch = launch.env_remove(name);
        }
        launch
    };
    for name in ["TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "SLURM_JOB_ID"] {
        let id = fresh();
        for report in bare("rendezvous/meet").env(name, &id).env("SLURM_STEP_ID", "0").run(AMPLE)? {
            check!(report.outcome.is_ok(), "{name}: {}", report.outcome);
        }
        let here = bare("rendezvous/try").env(name, &id).arg(300).placement(vec![vec![0]]).spawn()?;
        let there = bare("rendezvous/try").env(name, fresh()).arg(300).placement(vec![vec![1]]).spawn()?;
        for report in here.wait(AMPLE).into_iter().chain(there.wait(AMPLE)) {
            let said = said(&report.outcome)?;
            check_eq!(said["kind"], "timeout", "{name}: {said}");
            let text = said["text"].as_str().unwrap_or_default();
            check!(text.contains(name), "{text}");
        }
    }
    // Ours counts more than the launcher's.
    let (id, job) = (fresh(), fresh());
    let first = bare("rendezvous/meet").env("COMM_INSTANCE_ID", &id).env("TORCHELASTIC_RUN_ID", &job);
    let first = first.placement(vec![vec![0]]).spawn()?;
    let second = bare("rendezvous/meet").env("COMM_INSTANCE_ID", &id).placement(vec![vec![1]]).spawn()?;
    for report in first.wait(AMPLE).into_iter().chain(second.wait(AMPLE)) {
        check!(report.outcome.is_ok(), "{}", report.outcome);
    }
    done()
}

fn default_deadline(ctx: &LauncherCtx) -> RankResult {
    let launch = ctx.launch_on("rendezvous/try", 2, Layout::Threads).placement(vec![vec![1]]);
    for report in launch.env("COMM_TIMEOUT_MS", "250").limit(AMPLE).run(AMPLE)? {
        let said = said(&report.outcome)?;
        check_eq!(said["kind"], "timeout", "{said}");
        check!((250..10_000).contains(&said["ms"].as_u64().unwrap_or(0)), "{said}");
    }
    done()
}
