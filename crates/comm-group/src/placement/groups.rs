//! Where the groups of the lines of a mesh come from.

use std::sync::Arc;

use comm_core::{Deadline, Error, Result};

use crate::group::ThreadGroup;
use crate::manager::ThreadGroupManager;

/// Gives out groups of devices, each made when it is first asked for and then kept: a [`ThreadGroupManager`] does.
///
/// Whoever redistributes asks for the group of each [`Line`](super::Line) that takes part, and for that of the whole mesh, in
/// the same order on all ranks.
///
/// It is shared between threads, so that a [`MeshRank`](super::MeshRank) can be.
pub trait Groups: Send + Sync {
    /// The group of these devices, in this order, for the rank that is device `my_id`: its rank in the group is its position
    /// among the ids. The first call with these ids may wait for the same call of all the others.
    ///
    /// # Errors
    /// Those of [`ThreadGroup::new`] and of joining a team; [`Error::InvalidArgument`] if `my_id` is not among the ids.
    fn group(&self, ids: &[usize], my_id: usize, deadline: Deadline) -> Result<Arc<ThreadGroup>>;

    /// The same, of devices that are in a group `whole` together, which may end the wait: else a rank that is lost while a group is being
    /// made costs the others their deadline. Not overridden, it does not.
    ///
    /// # Errors
    /// What has ended `whole`; those of [`group`](Groups::group).
    fn group_beside(
        &self,
        whole: &ThreadGroup,
        ids: &[usize],
        my_id: usize,
        deadline: Deadline,
    ) -> Result<Arc<ThreadGroup>> {
        let _ = whole;
        self.group(ids, my_id, deadline)
    }
}

impl Groups for ThreadGroupManager {
    fn group(&self, ids: &[usize], my_id: usize, deadline: Deadline) -> Result<Arc<ThreadGroup>> {
        ThreadGroupManager::group(self, ids, my_id, deadline)
    }

    fn group_beside(
        &self,
        whole: &ThreadGroup,
        ids: &[usize],
        my_id: usize,
        deadline: Deadline,
    ) -> Result<Arc<ThreadGroup>> {
        ThreadGroupManager::group_beside(self, whole, ids, my_id, deadline)
    }
}

/// Asks for a group, and sees that it is the right one.
pub(super) fn get(
    groups: &dyn Groups,
    whole: Option<&ThreadGroup>,
    ids: &[usize],
    my_id: usize,
    deadline: Deadline,
) -> Result<Arc<ThreadGroup>> {
    let group = match whole {
        Some(whole) => groups.group_beside(whole, ids, my_id, deadline)?,
        None => groups.group(ids, my_id, deadline)?,
    };
    let position = ids.iter().position(|&id| id == my_id);
    if group.size() != ids.len() || Some(group.rank()) != position {
        let seen = format!("rank {} of {}", group.rank(), group.size());
        return Err(Error::invalid("Groups::group", format!("{seen} for device {my_id} of {ids:?}")));
    }
    Ok(group)
}
