//! The runner of multi-rank test targets: cases in, rows out.
//!
//! A crate has one test target without libtest's harness whose `main` is [`main`]. It runs each case for every
//! world size and layout that was asked for and that the case is made for. All [`Kind::Ranks`] cases of one
//! (world, layout) share one launch and go in lockstep; [`Kind::Launcher`] cases run in the test process and
//! make their own launches.

pub(crate) mod batch;
mod cli;
mod launcher;
mod report;
mod rows;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::child::{Program, enter, remember_panics};
use crate::ctx::RankCtx;
use crate::layout::Layout;
use crate::outcome::RankResult;
use cli::Args;
use report::Report;

pub use launcher::LauncherCtx;
pub use rows::{Row, Status};

/// How a case runs.
#[derive(Clone)]
pub enum Kind {
    /// On every rank of a launch that the runner makes.
    Ranks(Arc<dyn Fn(&RankCtx) -> RankResult + Send + Sync>),
    /// In the test process, which makes launches of its own: fault suites, for instance.
    Launcher(Arc<dyn Fn(&LauncherCtx) -> RankResult + Send + Sync>),
}

/// A case of a multi-rank test.
///
/// ```
/// use comm_testkit::{Case, Layout, check_eq, done};
///
/// let case = Case::ranks("collective", "all_reduce/sum/f32/strided", |ctx| {
///         check_eq!(ctx.world() > 2, true);
///         done()
///     })
///     .worlds(|world| world >= 3)
///     .backend("same-device");
/// assert_eq!(case.title(), "collective/all_reduce/sum/f32/strided");
/// assert!(case.runs_on(3, Layout::Mixed) && !case.runs_on(2, Layout::Threads));
/// ```
#[derive(Clone)]
#[must_use]
pub struct Case {
    pub(crate) suite: &'static str,
    pub(crate) name: String,
    pub(crate) backend: &'static str,
    pub(crate) devices: &'static [&'static str],
    pub(crate) worlds: fn(usize) -> bool,
    pub(crate) also: &'static [usize],
    pub(crate) layouts: &'static [Layout],
    pub(crate) limit: Duration,
    pub(crate) is_long: bool,
    pub(crate) kind: Kind,
}

impl Case {
    fn new(suite: &'static str, name: String, kind: Kind) -> Case {
        Case {
            suite,
            name,
            backend: "-",
            devices: &["cpu"],
            worlds: |_| true,
            also: &[],
            layouts: Layout::ALL,
            limit: Duration::from_secs(30),
            is_long: false,
            kind,
        }
    }

    /// A case that every rank runs. The name is `op/operator/dtype/variant`, as far as these apply.
    pub fn ranks(
        suite: &'static str,
        name: impl Into<String>,
        run: impl Fn(&RankCtx) -> RankResult + Send + Sync + 'static,
    ) -> Case {
        Case::new(suite, name.into(), Kind::Ranks(Arc::new(run)))
    }

    /// A case that runs in the test process and makes its own launches.
    pub fn launcher(
        suite: &'static str,
        name: impl Into<String>,
        run: impl Fn(&LauncherCtx) -> RankResult + Send + Sync + 'static,
    ) -> Case {
        Case::new(suite, name.into(), Kind::Launcher(Arc::new(run)))
    }

    /// The backend it tests (default `"-"`: none to choose).
    pub fn backend(mut self, backend: &'static str) -> Self {
        self.backend = backend;
        self
    }

    /// The devices it can run on (default `cpu`).
    pub fn devices(mut self, devices: &'static [&'static str]) -> Self {
        self.devices = devices;
        self
    }

    /// The world sizes it is made for (default all).
    pub fn worlds(mut self, worlds: fn(usize) -> bool) -> Self {
        self.worlds = worlds;
        self
    }

    /// World sizes that it runs in besides the usual ones, unless `--world` says which (default none).
    pub fn also_worlds(mut self, worlds: &'static [usize]) -> Self {
        self.also = worlds;
        self
    }

    /// The layouts it is made for (default all).
    pub fn layouts(mut self, layouts: &'static [Layout]) -> Self {
        self.layouts = layouts;
        self
    }

    /// How long it may take before it counts as hung (default 30 s).
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Only with `--full`: what takes many minutes, or most of the machine's memory, and has no short version.
    pub fn only_full(mut self) -> Self {
        self.is_long = true;
        self
    }

    /// `suite/name`, what `--filter` looks at.
    pub fn title(&self) -> String {
        format!("{}/{}", self.suite, self.name)
    }

    /// Whether it is made for this world size and layout.
    pub fn runs_on(&self, world: usize, layout: Layout) -> bool {
        layout.supports(world) && (self.worlds)(world) && self.layouts.contains(&layout)
    }
}

/// The `main` of a multi-rank test target; see `--help` for its flags. In a child process it runs the child.
///
/// Exit code 0: nothing failed. 1: something failed or hung. 2: a flag is wrong, or nothing matches.
///
/// ```standalone_crate
/// use comm_testkit::{Case, check, done};
///
/// fn main() -> std::process::ExitCode {
///     let cases = [Case::ranks("rendezvous", "rank/below/world", |ctx| {
///         check!(ctx.rank() < ctx.world());
///         done()
///     })];
///     comm_testkit::main(&cases, &[])
/// }
/// ```
pub fn main(cases: &[Case], programs: &[Program]) -> ExitCode {
    if let Some(code) = enter(programs, cases) {
        return code;
    }
    let args = match Args::parse_env() {
        Ok(args) => args,
        Err(code) => return code,
    };
    remember_panics();
    match run(cases, &args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            report::line(&format!("error: {why}"));
            ExitCode::from(2)
        }
    }
}

fn run(cases: &[Case], args: &Args) -> Result<bool, String> {
    let mut names = BTreeSet::new();
    if let Some(twice) = cases.iter().find(|c| !names.insert((c.title(), c.backend))) {
        return Err(format!("two cases are called {} ({})", twice.title(), twice.backend));
    }
    let chosen: Vec<(usize, &Case)> = cases.iter().enumerate().filter(|(_, c)| args.chooses(c)).collect();
    let mut groups = Vec::new();
    for world in args.worlds(chosen.iter().map(|(_, case)| *case)) {
        for &layout in args.layouts() {
            let here = |case: &Case| args.is_in(case, world) && case.runs_on(world, layout);
            let here: Vec<(usize, &Case)> = chosen.iter().copied().filter(|(_, c)| here(c)).collect();
            if !here.is_empty() {
                groups.push((world, layout, here));
            }
        }
    }
    if args.list {
        report::list(&chosen);
        return if chosen.is_empty() { Err(args.nothing()) } else { Ok(true) };
    }
    if groups.is_empty() && !args.may_match_nothing() {
        return Err(args.nothing());
    }
    let mut report = Report::new(args, groups.iter().map(|(_, _, here)| here.len()).sum())?;
    for (world, layout, here) in groups {
        let group = Group { world, layout, args };
        let (ranks, launchers): (Vec<_>, Vec<_>) =
            here.into_iter().partition(|(_, c)| matches!(c.kind, Kind::Ranks(_)));
        batch::run(&group, &ranks, &mut report);
        for (_, case) in launchers {
            launcher::run(&group, case, &mut report);
        }
    }
    report.finish()
}

/// The (world, layout) that is being run.
pub(crate) struct Group<'a> {
    pub world: usize,
    pub layout: Layout,
    pub args: &'a Args,
}

impl Group<'_> {
    fn row(&self, case: &Case, status: Status, ms: u64, reason: Option<String>) -> Row {
        Row {
            suite: case.suite.to_string(),
            case: case.name.clone(),
            world: self.world,
            layout: self.layout,
            backend: case.backend.to_string(),
            device: self.args.device.clone(),
            seed: self.args.seed,
            status,
            ms,
            reason,
            value: Value::Null,
        }
    }
}
