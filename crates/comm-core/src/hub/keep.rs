//! Memory of this process that others may still use: kept until they do not.

use std::sync::Mutex;

use super::Hub;
use crate::shm::fork;
use crate::sync::lock;

/// Memory, and whether nobody can use it any more.
struct Kept {
    is_deserted: Box<dyn Fn() -> bool + Send>,
    _memory: Box<dyn Send>,
}

/// All that a process keeps.
#[derive(Default)]
pub(super) struct Keeper {
    kept: Mutex<Vec<Kept>>,
}

impl Keeper {
    /// Lets go of what no peer can use any more. Called on the reactor thread: what goes may be the user's.
    pub(super) fn sweep(&self) {
        let released: Vec<Kept> = lock(&self.kept).extract_if(.., |kept| (kept.is_deserted)()).collect();
        drop(released);
    }
}

impl Hub {
    /// Keeps memory that other processes may use, until `is_deserted` says that none of them does. It is asked whenever a peer
    /// rings, and when one dies.
    pub fn keep(&self, memory: impl Send + 'static, is_deserted: impl Fn() -> bool + Send + 'static) {
        if fork::is_forked() {
            // The lock may be held by a thread that is not there. No peer uses memory of this process, and blocks of the
            // parent's do nothing when dropped.
            return;
        }
        // A peer that let go before it was on the list has rung for nothing. Only this one is looked at: there may be a hundred
        // thousand, and whoever lets go of another one rings.
        let released = {
            let mut all = lock(&self.keeper.kept);
            all.push(Kept { is_deserted: Box::new(is_deserted), _memory: Box::new(memory) });
            all.pop_if(|kept| (kept.is_deserted)())
        };
        drop(released);
    }
}
