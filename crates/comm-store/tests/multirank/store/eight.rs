//! The conformance suite among eight ranks, which no default run asks for.

use std::time::Duration;

use comm_store::store::Kind;
use comm_testkit::{Case, LauncherCtx, Layout, Program, RankCtx, RankResult, check, done};

use super::{SUITE, conformance};

pub const PROGRAMS: &[Program] = &[ALL];

const ALL: Program = Program { name: "store-conformance", run: all };

const LIMIT: Duration = Duration::from_secs(300);

pub fn cases() -> Vec<Case> {
    let of = |backend: &'static str, layouts: &'static [Layout]| {
        let case = Case::launcher(SUITE, "eight/-/-/conformance", eight);
        case.worlds(|world| world == 4).layouts(layouts).backend(backend).limit(LIMIT)
    };
    vec![of("process", &[Layout::Threads]), of("host", Layout::ALL)]
}

fn eight(ctx: &LauncherCtx) -> RankResult {
    for report in ctx.launch_on(ALL.name, 8, ctx.layout()).limit(LIMIT).run(ctx.deadline())? {
        check!(report.outcome.is_ok(), "rank {} of 8: {}", report.rank, report.outcome);
    }
    done()
}

/// One after the other; teams of the same name follow each other.
fn all(ctx: &RankCtx) -> RankResult {
    let kind = if ctx.backend() == "process" { Kind::Process } else { Kind::Host };
    for (name, run) in conformance() {
        run(ctx, kind).map_err(|e| format!("{name}: {e}"))?;
    }
    done()
}
