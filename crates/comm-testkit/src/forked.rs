//! Forked children of a rank: what becomes of handles there.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use comm_core::shm::{Access, Segment};

/// How long a child may take; one that hangs is killed.
const LIMIT: Duration = Duration::from_secs(20);

/// How a forked child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forked {
    /// Its exit code: 99 if it panicked. `None` if it was killed, by a signal or because it hung.
    pub exit: Option<i32>,
    /// The step that it had come to, as it said.
    pub step: u64,
}

/// Forks, and runs `body` in the child, which exits with its result. It gets a function to say which step it has come to.
///
/// # Errors
/// The system refuses.
pub fn in_child(body: impl FnOnce(&dyn Fn(u64)) -> i32) -> io::Result<Forked> {
    let shared = Segment::create(8, Access::ReadWrite).map_err(io::Error::other)?;
    // SAFETY: the child runs this program's code, which in the fork of a process with threads must not wait for a lock that
    // another thread held; that it does not is what is tested, and a child that hangs is killed.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        let at = |step: u64| drop(shared.copy_in(0, &step.to_ne_bytes()));
        let code = catch_unwind(AssertUnwindSafe(|| body(&at))).unwrap_or(99);
        // SAFETY: it takes no pointers and does not return.
        unsafe { libc::_exit(code) };
    }
    let exit = wait(pid)?;
    let mut step = [0; 8];
    shared.copy_out(0, &mut step).map_err(io::Error::other)?;
    Ok(Forked { exit, step: u64::from_ne_bytes(step) })
}

/// The exit code; `None` if it was killed, by a signal or because it hung.
fn wait(pid: libc::pid_t) -> io::Result<Option<i32>> {
    let began = Instant::now();
    let mut killed = false;
    loop {
        let mut status = 0;
        // SAFETY: the second argument points to an integer of this frame.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
            0 => {}
            n if n == pid => {
                let exited = libc::WIFEXITED(status) && !killed;
                return Ok(exited.then(|| libc::WEXITSTATUS(status)));
            }
            _ => return Err(io::Error::last_os_error()),
        }
        if began.elapsed() > LIMIT && !killed {
            killed = true;
            // SAFETY: no pointers; the child is not reaped yet, so the id is its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}
