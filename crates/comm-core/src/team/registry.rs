//! The teams that this process is in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use super::control::TeamId;
use super::shared::TeamShared;
use crate::error::Result;
use crate::hub::Nonce;
use crate::sync::lock;

type Slot = Arc<Mutex<Weak<TeamShared>>>;

/// All teams of a process, by id.
#[derive(Default)]
pub(crate) struct Registry {
    slots: Mutex<HashMap<TeamId, Slot>>,
    /// Every team from before its peers are looked at, so that no death falls between looking and listening.
    live: Mutex<Vec<Weak<TeamShared>>>,
    /// Handles that the liveness thread has done with: theirs may be the last ones, and what goes with a team is the
    /// user's code, so the reactor drops them.
    done_with: Mutex<Vec<Arc<TeamShared>>>,
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

    /// Tells the teams of a process that it is dead. Called on the liveness thread, too.
    pub(crate) fn process_died(&self, nonce: Nonce) {
        let teams = self.all();
        teams.iter().for_each(|team| team.process_died(nonce));
        lock(&self.done_with).extend(teams);
    }

    /// Tells the teams of a process that the link to it is lost.
    pub(crate) fn link_broke(&self, nonce: Nonce, why: &str) {
        self.all().iter().for_each(|team| team.link_broke(nonce, why));
    }

    /// What the reactor does when it is rung.
    pub(crate) fn rung(&self) {
        self.all().iter().for_each(|team| team.wake_marked_tasks());
        drop(std::mem::take(&mut *lock(&self.done_with)));
        self.sweep();
    }

    /// Forgets the teams that are gone.
    fn sweep(&self) {
        lock(&self.live).retain(|team| team.strong_count() > 0);
        lock(&self.slots)
            .retain(|_, slot| Arc::strong_count(slot) > 1 || slot.lock().is_ok_and(|t| t.strong_count() > 0));
    }
}
