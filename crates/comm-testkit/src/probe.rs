//! What a test can see of processes: descriptors, mappings, threads, memory, CPU time, states.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::net::{Shutdown, SocketType, shutdown, sockopt};
use rustix::process::{self as sys, PidfdFlags, PidfdGetfdFlags, Signal};

use crate::proto::LAUNCH_VAR;

/// The number of open descriptors of this process (the one needed for counting not included).
///
/// # Errors
/// /proc cannot be read.
///
/// ```
/// let before = comm_testkit::probe::fds().unwrap();
/// let file = std::fs::File::open("/dev/null").unwrap();
/// assert_eq!(comm_testkit::probe::fds().unwrap(), before + 1);
/// # drop(file);
/// ```
pub fn fds() -> io::Result<usize> {
    Ok(fs::read_dir("/proc/self/fd")?.count().saturating_sub(1))
}

/// Ends all connections of packets of this process, as a program does that closes descriptors which are not its own: the links of
/// its hub to other processes. Gives how many there were.
///
/// # Errors
/// /proc cannot be read; what the kernel says.
///
/// ```
/// assert_eq!(comm_testkit::probe::hang_up().unwrap(), 0);
/// ```
pub fn hang_up() -> io::Result<usize> {
    let me = sys::pidfd_open(sys::getpid(), PidfdFlags::empty())?;
    let mut ended = 0;
    for entry in fs::read_dir("/proc/self/fd")?.flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // Another thread may have closed it meanwhile.
        let Ok(fd) = sys::pidfd_getfd(&me, number, PidfdGetfdFlags::empty()) else { continue };
        let is_link = sockopt::socket_type(&fd).is_ok_and(|kind| kind == SocketType::SEQPACKET)
            && !sockopt::socket_acceptconn(&fd)?;
        if is_link {
            shutdown(&fd, Shutdown::Both)?;
            ended += 1;
        }
    }
    Ok(ended)
}

/// The number of mappings of this process (lines of /proc/self/maps).
///
/// # Errors
/// /proc cannot be read.
pub fn mappings() -> io::Result<usize> {
    Ok(fs::read_to_string("/proc/self/maps")?.lines().count())
}

/// The number of threads of this process.
///
/// # Errors
/// /proc cannot be read.
pub fn threads() -> io::Result<usize> {
    Ok(fs::read_dir("/proc/self/task")?.count())
}

/// The names in /dev/shm, sorted; empty where there is no /dev/shm.
pub fn dev_shm() -> Vec<String> {
    let Ok(entries) = fs::read_dir("/dev/shm") else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The names of Unix sockets on this machine that contain a text, abstract ones with a leading `@`.
///
/// # Errors
/// /proc cannot be read.
pub fn sockets_named(part: &str) -> io::Result<Vec<String>> {
    let table = fs::read_to_string("/proc/net/unix")?;
    // The name is the eighth column, and only sockets that have one show it.
    let names = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(7));
    Ok(names.filter(|name| name.contains(part)).map(str::to_string).collect())
}

/// CPU time that all threads of a process have used, ended ones included; `None` for this process.
///
/// # Errors
/// There is no such process.
pub fn cpu_time(pid: Option<u32>) -> io::Result<Duration> {
    let clock = match pid {
        None => libc::CLOCK_PROCESS_CPUTIME_ID,
        Some(pid) => {
            let mut clock = 0;
            let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
            // SAFETY: the second argument points to a clockid_t of this frame.
            match unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } {
                0 => clock,
                error => return Err(io::Error::from_raw_os_error(error)),
            }
        }
    };
    read_clock(clock)
}

/// CPU time that this thread has used.
///
/// # Errors
/// The clock does not exist (it does on every Linux).
pub fn thread_cpu_time() -> io::Result<Duration> {
    read_clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn read_clock(clock: libc::clockid_t) -> io::Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the second argument points to a timespec of this frame.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0)))
}

/// Memory of a process, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Resident, everything together.
    pub resident: u64,
    /// Resident and shared: memfds, shared mappings.
    pub shared: u64,
}

/// The resident memory of a process; `None` for this one.
///
/// # Errors
/// There is no such process.
pub fn memory(pid: Option<u32>) -> io::Result<Memory> {
    let who = pid.map_or_else(|| "self".to_string(), |pid| pid.to_string());
    let status = fs::read_to_string(format!("/proc/{who}/status"))?;
    let get = |name: &str| kib(&status, name).ok_or(io::ErrorKind::NotFound);
    Ok(Memory { resident: get("VmRSS:")?, shared: get("RssShmem:")? })
}

/// Bytes of shared memory in use on this machine (`Shmem` of /proc/meminfo), memfds that nobody maps included.
///
/// # Errors
/// /proc cannot be read.
pub fn machine_shared_memory() -> io::Result<u64> {
    let info = fs::read_to_string("/proc/meminfo")?;
    Ok(kib(&info, "Shmem:").ok_or(io::ErrorKind::NotFound)?)
}

fn kib(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|l| l.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// The state letter of a process: R runs, S sleeps, T is stopped, Z has ended and was not reaped. `None` if it
/// is gone.
///
/// ```
/// assert!(comm_testkit::probe::state_of(std::process::id()).is_some());
/// ```
pub fn state_of(pid: u32) -> Option<char> {
    stat_of(pid)?.trim_start().chars().next()
}

/// What /proc says about a process, from its state on.
fn stat_of(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it is in parentheses and may hold anything, parentheses included.
    Some(stat.rsplit_once(')')?.1.to_owned())
}

/// Whether the process group of this process is orphaned: nobody of its session who is outside the group started
/// anybody in it, as under `setsid`, `nohup` or a service. The kernel drops SIGTSTP for such a group.
pub(crate) fn group_is_orphaned() -> bool {
    // Parent, group, session.
    let family = |pid: u32| {
        let stat = stat_of(pid)?;
        let mut fields = stat.split_whitespace().skip(1).map_while(|field| field.parse::<u32>().ok());
        Some((fields.next()?, fields.next()?, fields.next()?))
    };
    let Some((_, group, session)) = family(std::process::id()) else { return false };
    !pids().filter_map(family).any(|(parent, of, _)| {
        of == group && family(parent).is_some_and(|(_, others, theirs)| others != group && theirs == session)
    })
}

/// All processes that can be seen.
fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok())
}

/// The processes that belong to a launch ([`Running::id`](crate::Running::id)): its ranks, and what they
/// forked or started. Ended ones do not count.
pub fn processes_of_launch(id: &str) -> Vec<u32> {
    pids().filter(|&pid| is_of_launch(pid, id)).collect()
}

fn is_of_launch(pid: u32, id: &str) -> bool {
    let Ok(environ) = fs::read(format!("/proc/{pid}/environ")) else { return false };
    let mine = format!("{LAUNCH_VAR}={id}");
    environ.split(|&b| b == 0).any(|entry| entry == mine.as_bytes())
}

/// Kills what is left of a launch.
pub(crate) fn kill_processes_of_launch(id: &str) {
    for pid in processes_of_launch(id) {
        let Some(raw) = i32::try_from(pid).ok().and_then(sys::Pid::from_raw) else { continue };
        let Ok(pidfd) = sys::pidfd_open(raw, PidfdFlags::empty()) else { continue };
        // The number may have passed to another process between the search and the opening; now it cannot.
        if is_of_launch(pid, id) {
            let _ = sys::pidfd_send_signal(&pidfd, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_seen() {
        assert!(fds().unwrap() >= 3);
        assert!(mappings().unwrap() > 5);
        assert!(threads().unwrap() >= 1);
        assert!(memory(None).unwrap().resident > 0);
        assert!(machine_shared_memory().is_ok());
        let before = cpu_time(Some(std::process::id())).unwrap();
        while thread_cpu_time().unwrap() < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
        assert!(cpu_time(None).unwrap() >= before);
        assert_eq!(state_of(u32::MAX), None);
        assert!(processes_of_launch("no launch has this name").is_empty());
    }

    #[test]
    fn sockets_are_found_by_name() {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("testkit-probe-{}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let socket = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
        assert_eq!(sockets_named(&name).unwrap(), [format!("@{name}")]);
        drop(socket);
        assert!(sockets_named(&name).unwrap().is_empty());
    }
}
