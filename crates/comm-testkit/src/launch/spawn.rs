//! Makes the processes of a launch.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};

use rustix::fs::OFlags;
use rustix::io::FdFlags;
use rustix::process::{self as sys, PidfdFlags, Resource, Rlimit};

use super::io::Port;
use super::running::Running;
use super::shared::Proc;
use super::{Launch, LaunchError, Limit};
use crate::clock::now_ns;
use crate::proto::{CHILD_VAR, ChildSpec, LAUNCH_VAR};
use crate::sync::lock;

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// An instance that no other launch of this machine has had.
fn fresh_id() -> String {
    format!("tk-{}-{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed), now_ns())
}

pub(super) fn spawn(launch: &Launch) -> Result<Running, LaunchError> {
    let invalid = |why: String| LaunchError::Invalid { program: launch.program.clone(), why };
    let placement = match &launch.placement {
        Some(own) => own.clone(),
        None if launch.layout.supports(launch.world) => launch.layout.placement(launch.world),
        None => {
            return Err(invalid(format!("there is no layout {} of {} ranks", launch.layout, launch.world)));
        }
    };
    let mut seen = std::collections::HashSet::new();
    if placement.is_empty()
        || placement.iter().any(Vec::is_empty)
        || !placement.iter().flatten().all(|r| seen.insert(r))
    {
        return Err(invalid("every process needs a rank, and every rank one process".to_string()));
    }
    let id = fresh_id();
    let instance = launch.instance.clone().unwrap_or_else(|| id.clone());
    let (mut procs, mut ports) = (Vec::new(), Vec::new());
    let mut failed = None;
    for process in 0..placement.len() {
        let (launch, placement, id, instance) =
            (launch.clone(), placement.clone(), id.clone(), instance.clone());
        match on_spawner(move || start(&launch, &placement, process, &id, &instance)) {
            Ok((proc, port)) => {
                procs.push(proc);
                ports.push(port);
            }
            Err(e) => {
                failed = Some(e);
                break;
            }
        }
    }
    // Also after a failure: dropping the Running ends the processes that did start.
    let running = Running::new(launch, id, instance, placement, procs, ports)?;
    match failed {
        None => Ok(running),
        Some(e) => Err(e),
    }
}

fn start(
    launch: &Launch,
    placement: &[Vec<usize>],
    process: usize,
    id: &str,
    instance: &str,
) -> Result<(Proc, Port), LaunchError> {
    let pipe = || io::pipe().map_err(|e| LaunchError::io("cannot make a pipe", e));
    let ((events, to_launcher), (from_launcher, commands), (output, output_end)) =
        (pipe()?, pipe()?, pipe()?);
    let (to_launcher, from_launcher) = (OwnedFd::from(to_launcher), OwnedFd::from(from_launcher));

    let spec = ChildSpec {
        program: launch.program.clone(),
        world: launch.world,
        layout: launch.layout,
        process,
        placement: placement.to_vec(),
        seed: launch.seed,
        args: launch.args.clone(),
        faults: launch.faults.clone(),
        record: launch.record,
        limit_ms: launch.limit.map(|l| u64::try_from(l.as_millis()).unwrap_or(u64::MAX)),
        backend: launch.backend.clone(),
        device: launch.device.clone(),
        full: launch.full,
        to_launcher: to_launcher.as_raw_fd(),
        from_launcher: from_launcher.as_raw_fd(),
    };
    let spec =
        serde_json::to_string(&spec).map_err(|e| LaunchError::io("cannot write the orders of a child", e))?;

    // Not current_exe(): this way the very file that runs is run again, even if a build has replaced it since.
    let mut command = Command::new("/proc/self/exe");
    let name = std::env::current_exe().unwrap_or_else(|_| "rank".into());
    command.arg0(name).arg(format!("{} process {process} ranks {:?}", launch.program, placement[process]));
    command.env("COMM_INSTANCE_ID", instance).env(LAUNCH_VAR, id);
    for (name, value) in &launch.env {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env(CHILD_VAR, spec);
    let output_copy = output_end.try_clone().map_err(|e| LaunchError::io("cannot copy a descriptor", e))?;
    command.stdin(Stdio::null()).stdout(OwnedFd::from(output_copy)).stderr(OwnedFd::from(output_end));
    if let Some(uid) = launch.uid {
        command.uid(uid).gid(uid);
    }

    let launcher = sys::getpid();
    let inherited = [to_launcher.as_raw_fd(), from_launcher.as_raw_fd()];
    let limits: Vec<(Resource, u64)> =
        launch.limits.iter().map(|&(limit, value)| (resource(limit), value)).collect();
    let prepare = move || -> io::Result<()> {
        for fd in inherited {
            // SAFETY: the launcher keeps both descriptors open until the spawn is over, so in this copy of it
            // they are open too.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
            rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
        }
        sys::set_parent_process_death_signal(Some(sys::Signal::KILL))?;
        // A launcher that died before the line above would never be noticed.
        if sys::getppid() != Some(launcher) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        for &(resource, value) in &limits {
            sys::setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only (rustix calls the kernel directly); it
    // allocates nothing and takes no lock.
    unsafe { command.pre_exec(prepare) };

    let mut child =
        command.spawn().map_err(|e| LaunchError::io(format!("cannot start process {process}"), e))?;
    let pid = child.id();
    let watch = || -> io::Result<(OwnedFd, OwnedFd)> {
        let raw = i32::try_from(pid).ok().and_then(sys::Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        let pidfd = sys::pidfd_open(raw, PidfdFlags::empty())?;
        // A stopped child does not read; the launcher must not be stopped by that.
        for fd in [events.as_fd(), output.as_fd(), commands.as_fd()] {
            rustix::fs::fcntl_setfl(fd, OFlags::NONBLOCK)?;
        }
        Ok((pidfd.try_clone()?, pidfd))
    };
    match watch() {
        Ok((watched, pidfd)) => {
            Ok((Proc::new(pid, pidfd, commands), Port::new(process, events, output, watched)))
        }
        Err(e) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(LaunchError::io(format!("cannot watch process {process}"), e))
        }
    }
}

fn resource(limit: Limit) -> Resource {
    match limit {
        Limit::OpenFiles => Resource::Nofile,
        Limit::FileSize => Resource::Fsize,
        Limit::AddressSpace => Resource::As,
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Runs a job on the one thread that makes processes. A parent-death signal is sent when the *thread* that made
/// the child ends, so children are made by a thread that lives as long as this process.
fn on_spawner<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, LaunchError> + Send + 'static,
) -> Result<T, LaunchError> {
    static SPAWNER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, inbox) = channel::<Job>();
        let named = std::thread::Builder::new().name("testkit-spawner".into());
        // Without the thread the inbox is dropped, and every send below says so.
        let _ = named.spawn(move || inbox.into_iter().for_each(|job| job()));
        Mutex::new(jobs)
    });
    let gone = || LaunchError::io("the thread that starts processes", io::ErrorKind::BrokenPipe);
    let (done, result) = channel();
    let job: Job = Box::new(move || {
        // The caller waits for it; it can be gone only if it has panicked.
        let _ = done.send(job());
    });
    lock(spawner).send(job).map_err(|_| gone())?;
    result.recv().map_err(|_| gone())?
}
