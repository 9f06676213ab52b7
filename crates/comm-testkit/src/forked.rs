//! Code that runs in a forked child of this process.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(10);
const PANICKED: i32 = 99;

/// Forks, and runs `body` in the child, which ends with what it gives and without running anything else of this process.
///
/// The child of a process with threads may wait for no lock that another thread held: that the library does not is what this
/// is for. One that has not ended after ten seconds is killed.
///
/// ```
/// assert_eq!(comm_testkit::in_forked_child(|| 7)?, 7);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The child hung, panicked or was killed; the system's own.
pub fn in_forked_child(body: impl FnOnce() -> u8) -> io::Result<u8> {
    // SAFETY: the child runs `body` and ends at once; of what that does with locks of other threads see above.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        let code = catch_unwind(AssertUnwindSafe(body)).map_or(PANICKED, i32::from);
        // SAFETY: it takes no pointers and does not return.
        unsafe { libc::_exit(code) };
    }
    let until = Instant::now() + SOON;
    let mut status = 0;
    loop {
        // SAFETY: `status` is this function's own.
        match unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } {
            0 if Instant::now() > until => {
                // SAFETY: it takes no pointers; the child has not been waited for, so the pid is its.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                // SAFETY: as above.
                unsafe { libc::waitpid(pid, &mut status, 0) };
                return Err(io::Error::other("the forked child hung"));
            }
            0 => std::thread::sleep(Duration::from_millis(1)),
            -1 => return Err(io::Error::last_os_error()),
            _ if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) != PANICKED => {
                return Ok(libc::WEXITSTATUS(status) as u8);
            }
            _ => return Err(io::Error::other(format!("the forked child ended with status {status:#x}"))),
        }
    }
}
