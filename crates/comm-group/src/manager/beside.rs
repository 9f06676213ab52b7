//! What ends the wait for a group from outside of it: another group, of which its ranks know each other.

use std::sync::Arc;

use comm_core::team::{Member, Team};
use comm_core::{Deadline, Result};

use super::OP;
use crate::group::ThreadGroup;

/// The team beside which a group is made, if there is one: what ends it ends the making.
#[derive(Clone, Default)]
pub(super) struct Beside(Option<Arc<Member>>);

impl Beside {
    pub(super) fn of(group: &ThreadGroup) -> Beside {
        Beside(Some(Arc::clone(group.team())))
    }

    /// # Errors
    /// What has ended it.
    pub(super) fn check(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |member| member.check(OP))
    }

    pub(super) fn join(&self, name: &str, rank: usize, size: usize, deadline: Deadline) -> Result<Team> {
        match &self.0 {
            Some(member) => member.join_beside(name, rank, size, deadline),
            None => Team::join(name, rank, size, deadline),
        }
    }
}
