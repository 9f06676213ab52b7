//! The inside of a child process: it runs the ranks it was told to, and reports.

mod link;
mod watchdog;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ctx::RankCtx;
use crate::fault::{self, Armed};
use crate::outcome::{RankResult, Skip};
use crate::proto::{BATCH, CHILD_VAR, ChildSpec, Command, End, Event};
use crate::runner::{self, Case};
use crate::teams::Teams;

pub(crate) use link::Link;
pub(crate) use watchdog::Watchdog;

/// A program that ranks can run, by name.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// The name a [`Launch`](crate::Launch) asks for.
    pub name: &'static str,
    /// What each rank runs.
    pub run: fn(&RankCtx) -> RankResult,
}

/// What all ranks of this process share.
pub(crate) struct Child {
    pub spec: ChildSpec,
    pub link: Arc<Link>,
    pub watchdog: Watchdog,
    pub armed: Arc<Armed>,
}

/// The first call in the `main` of every program that launches ranks: in a child it runs them and returns the
/// exit code, elsewhere it returns `None`. Test targets that use [`main`](crate::main) need not call it.
///
/// ```standalone_crate
/// use comm_testkit::{Launch, Layout, Program, RankCtx, RankResult};
/// use std::time::Duration;
///
/// fn hello(ctx: &RankCtx) -> RankResult {
///     Ok((ctx.rank() * 10).into())
/// }
///
/// fn main() {
///     if comm_testkit::child_main(&[Program { name: "hello", run: hello }]).is_some() {
///         return;
///     }
///     let running = Launch::new("hello", 3, Layout::Processes).spawn().unwrap();
///     for report in running.wait(Duration::from_secs(20)) {
///         assert_eq!(report.outcome, comm_testkit::Outcome::Ok((report.rank * 10).into()));
///     }
/// }
/// ```
pub fn child_main(programs: &[Program]) -> Option<ExitCode> {
    enter(programs, &[])
}

/// Prints a line on stderr, which in a child ends up in the launcher's log of it.
pub(crate) fn complain(text: &str) {
    // Nobody is left to tell if stderr is gone.
    let _ = writeln!(std::io::stderr(), "testkit: {text}");
}

pub(crate) fn enter(programs: &[Program], cases: &[Case]) -> Option<ExitCode> {
    let text = std::env::var(CHILD_VAR).ok()?;
    let code = match run(&text, programs, cases) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            complain(&format!("a child cannot start: {why}"));
            ExitCode::from(2)
        }
    };
    Some(code)
}

fn run(text: &str, programs: &[Program], cases: &[Case]) -> Result<(), String> {
    let spec: ChildSpec = serde_json::from_str(text).map_err(|e| format!("{CHILD_VAR}: {e}"))?;
    let program = programs.iter().find(|p| p.name == spec.program);
    if program.is_none() && spec.program != BATCH {
        return Err(format!("there is no program {:?} in this executable", spec.program));
    }
    let ranks = spec.placement.get(spec.process).cloned().ok_or("the process has no ranks")?;
    let (link, lines) = Link::open(spec.to_launcher, spec.from_launcher).map_err(|e| e.to_string())?;
    let link = Arc::new(link);
    let armed = Armed::install(&spec.faults, spec.process, spec.world, spec.record, link.clone());
    let watchdog = Watchdog::new(&ranks);
    let child = Arc::new(Child { spec, link, watchdog, armed });
    remember_panics();
    start("testkit-link", &child, move |child| {
        link::read_lines(&child.link, lines, |command| {
            if *command == Command::Dump {
                child.link.send(None, Event::Dump { dump: child.dump(&Teams::look()) });
            }
        });
    })?;
    start("testkit-watchdog", &child, |child| watchdog::watch(&child))?;

    let limit = child.spec.limit_ms.map(Duration::from_millis);
    std::thread::scope(|scope| {
        let mut started = Vec::new();
        for &rank in &ranks {
            let child = &child;
            let body = move || {
                fault::set_rank(Some(rank));
                child.link.send(Some(rank), Event::Started);
                child.watchdog.begin(rank, &child.spec.program, limit);
                let ctx = RankCtx::new(Arc::clone(child), rank, limit);
                let (end, _) = attempt(|| match program {
                    Some(program) => (program.run)(&ctx),
                    None => runner::batch::run_rank(&ctx, cases),
                });
                child.watchdog.end(rank);
                child.link.send(Some(rank), Event::Result(end));
            };
            let named = std::thread::Builder::new().name(format!("rank {rank}"));
            match named.spawn_scoped(scope, body) {
                Ok(thread) => started.push(thread),
                Err(e) => {
                    let end = End::Err(format!("cannot start a thread: {e}"));
                    child.link.send(Some(rank), Event::Result(end));
                }
            }
        }
        // The end of the scope would wait for the bodies only; this waits for the threads' locals as well, whose
        // destructors may still do something wrong.
        for thread in started {
            if thread.join().is_err() {
                complain("the thread of a rank panicked outside of its program");
            }
        }
    });
    if let Some(hits) = child.armed.hits() {
        child.link.send(None, Event::Hits(hits));
    }
    Ok(())
}

fn start(
    name: &str,
    child: &Arc<Child>,
    body: impl FnOnce(Arc<Child>) + Send + 'static,
) -> Result<(), String> {
    let child = Arc::clone(child);
    let named = std::thread::Builder::new().name(name.to_string());
    named.spawn(move || body(child)).map(drop).map_err(|e| format!("cannot start {name}: {e}"))
}

impl Child {
    /// Where each rank of this process is.
    pub fn dump(&self, teams: &Teams) -> BTreeMap<usize, String> {
        let ranks = self.spec.placement.get(self.spec.process).map_or(&[][..], Vec::as_slice);
        ranks.iter().map(|&rank| (rank, watchdog::describe(self, rank, teams))).collect()
    }
}

thread_local! {
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the message and the place of a panic for the report; the usual message still goes to stderr.
pub(crate) fn remember_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or("a panic without a text");
        let place = info.location().map(|l| format!(" at {}:{}", l.file(), l.line())).unwrap_or_default();
        LAST_PANIC.with_borrow_mut(|last| *last = Some(format!("{text}{place}")));
        usual(info);
    }));
}

/// Runs a body to its end, whatever that is.
pub(crate) fn attempt(body: impl FnOnce() -> RankResult) -> (End, Duration) {
    let began = Instant::now();
    let end = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => End::Ok(value),
        Ok(Err(error)) => match error.downcast_ref::<Skip>() {
            Some(skip) => End::Skipped(skip.why().to_string()),
            None => End::Err(chain(error.as_ref())),
        },
        Err(payload) => {
            let text = LAST_PANIC.with_borrow_mut(Option::take);
            // resume_unwind does not call the hook, so its payload is all there is.
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string()));
            End::Panicked(text.unwrap_or_else(|| "a panic without a text".to_string()))
        }
    };
    (end, began.elapsed())
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let more = inner.to_string();
        // Many errors print their source themselves.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = inner.source();
    }
    text
}
