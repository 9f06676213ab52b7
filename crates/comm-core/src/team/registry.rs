//! The teams that this process is in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::control::TeamId;
use super::shared::{Kept, TeamShared};
use crate::error::Result;
use crate::hub::Nonce;

type Slot = Arc<Mutex<Weak<TeamShared>>>;

/// All teams of a process, by id, and what is kept of those it has left.
#[derive(Default)]
pub(crate) struct Registry {
    slots: Mutex<HashMap<TeamId, Slot>>,
    /// Every team from before its peers are looked at, so that no death falls between looking and listening.
    live: Mutex<Vec<Weak<TeamShared>>>,
    kept: Mutex<Vec<Kept>>,
}

impl Registry {
    /// The team as the ranks of this process share it, made by the first of them; the others wait for that one.
    ///
    /// `make` is given a way to register the team, which it does before it looks at the team's peers.
    pub(crate) fn open(
        &self,
        id: TeamId,
        make: impl FnOnce(&dyn Fn(&Arc<TeamShared>)) -> Result<Arc<TeamShared>>,
    ) -> Result<Arc<TeamShared>> {
        self.sweep();
        let slot = lock(&self.slots).entry(id).or_default().clone();
        let mut team = lock(&slot);
        if let Some(team) = team.upgrade() {
            return Ok(team);
        }
        let made = make(&|team| lock(&self.live).push(Arc::downgrade(team)))?;
        *team = Arc::downgrade(&made);
        Ok(made)
    }

    /// All teams that this process is in now.
    pub(crate) fn all(&self) -> Vec<Arc<TeamShared>> {
        lock(&self.live).iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn process_died(&self, nonce: Nonce) {
        self.all().iter().for_each(|team| team.process_died(nonce));
    }

    pub(crate) fn wake_tasks(&self) {
        self.all().iter().for_each(|team| team.wake_marked_tasks());
    }

    pub(crate) fn keep(&self, kept: Kept) {
        if !kept.is_deserted() {
            lock(&self.kept).push(kept);
        }
    }

    /// Forgets the teams that are gone, and lets go of what no peer can use any more.
    fn sweep(&self) {
        lock(&self.live).retain(|team| team.strong_count() > 0);
        lock(&self.slots)
            .retain(|_, slot| Arc::strong_count(slot) > 1 || slot.lock().is_ok_and(|t| t.strong_count() > 0));
        let released: Vec<Kept> = lock(&self.kept).extract_if(.., |kept| kept.is_deserted()).collect();
        drop(released);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
