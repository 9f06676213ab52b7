//! Cases that run in the test process and make their own launches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use comm_core::Deadline;
use serde_json::Value;

use super::report::{self, Report};
use super::{Case, Group, Kind, Row, Status};
use crate::child::attempt;
use crate::launch::{Launch, kill_all_of};
use crate::layout::Layout;
use crate::proto::End;
use crate::values::SplitMix64;

/// What a [`Kind::Launcher`] case gets.
pub struct LauncherCtx {
    world: usize,
    layout: Layout,
    seed: u64,
    backend: String,
    device: String,
    full: bool,
    deadline: Deadline,
    owner: u64,
}

impl LauncherCtx {
    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// How they are spread over processes.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Random numbers from the seed.
    pub fn rng(&self) -> SplitMix64 {
        SplitMix64::new(self.seed)
    }

    /// The backend under test, or `"-"`.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// The device under test.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Whether the long version was asked for.
    pub fn full(&self) -> bool {
        self.full
    }

    /// When the case counts as hung.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// A launch with the world size, layout and so on of this case. Its processes are ended when the case is
    /// over time.
    pub fn launch(&self, program: &'static str) -> Launch {
        self.launch_on(program, self.world, self.layout)
    }

    /// The same with another world size and layout.
    pub fn launch_on(&self, program: &'static str, world: usize, layout: Layout) -> Launch {
        let mut launch = Launch::new(program, world, layout)
            .seed(self.seed)
            .backend(self.backend.clone())
            .device(self.device.clone())
            .full(self.full);
        launch.owner = self.owner;
        launch
    }

    /// A line of progress, on stderr.
    pub fn progress(&self, text: &str) {
        report::line(&format!("    {text}"));
    }
}

static OWNERS: AtomicU64 = AtomicU64::new(1);

/// Runs the case and reports its row.
pub(super) fn run(group: &Group<'_>, case: &Case, report: &mut Report) {
    let Kind::Launcher(body) = &case.kind else { return };
    let owner = OWNERS.fetch_add(1, Ordering::Relaxed);
    let ctx = LauncherCtx {
        world: group.world,
        layout: group.layout,
        seed: group.args.seed,
        backend: case.backend.to_string(),
        device: group.args.device.clone(),
        full: group.args.full,
        deadline: case.limit.into(),
        owner,
    };
    let body = body.clone();
    let began = Instant::now();
    let (done, result) = channel();
    let thread = std::thread::Builder::new().name(case.title()).spawn(move || {
        // Nobody listens any more if the case was given up.
        let _ = done.send(attempt(|| body(&ctx)).0);
    });
    let mut value = Value::Null;
    let (status, reason) = match thread {
        Err(e) => (Status::Failed, Some(format!("cannot start a thread: {e}"))),
        Ok(_) => match result.recv_timeout(case.limit) {
            Ok(End::Ok(returned)) => {
                value = returned;
                (Status::Ok, None)
            }
            Ok(End::Err(text)) => (Status::Failed, Some(text)),
            Ok(End::Panicked(text)) => (Status::Failed, Some(format!("panicked: {text}"))),
            Ok(End::Skipped(why)) => (Status::Skipped, Some(why)),
            Err(RecvTimeoutError::Disconnected) => (Status::Failed, Some("its thread is gone".to_string())),
            Err(RecvTimeoutError::Timeout) => {
                // Its launches are ended, so a case that waits for one of them comes back and frees what it holds.
                kill_all_of(owner);
                let last = match result.recv_timeout(Duration::from_secs(10)) {
                    Ok(End::Err(text) | End::Panicked(text)) => {
                        format!("; when its launches were killed: {text}")
                    }
                    Ok(_) => String::new(),
                    Err(_) => "; it goes on although its launches were killed".to_string(),
                };
                (Status::Hung, Some(format!("not over after {:?}{last}", case.limit)))
            }
        },
    };
    let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    report.add(Row { value, ..group.row(case, status, ms, reason) }, "");
}
