//! Eight ranks, which no default run asks for: the cheap cases that the number of ranks matters to.

use std::time::Duration;

use comm_testkit::{Case, LauncherCtx, Program, RankResult, check, done};

use super::{SUITE, arrival, costs};

const MATRIX: Program = Program { name: "window-arrival", run: arrival::matrix };
const SHARED: Program = Program { name: "window-shared-cell", run: arrival::shared };

pub const PROGRAMS: &[Program] = &[MATRIX, SHARED, costs::PROGRAM];

pub fn cases() -> Vec<Case> {
    let of = |name: &str, program: Program| {
        Case::launcher(SUITE, format!("eight/-/-/{name}"), move |ctx| eight(ctx, program.name))
            .worlds(|world| world == 4)
            .limit(Duration::from_secs(60))
    };
    vec![of("arrival-matrix", MATRIX), of("shared-cell", SHARED), of("costs", costs::PROGRAM)]
}

fn eight(ctx: &LauncherCtx, program: &'static str) -> RankResult {
    for report in ctx.launch_on(program, 8, ctx.layout()).run(ctx.deadline())? {
        check!(report.outcome.is_ok(), "rank {} of 8: {}", report.rank, report.outcome);
    }
    done()
}
