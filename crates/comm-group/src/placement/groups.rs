//! Where the groups of the lines of a mesh come from.

use std::sync::Arc;

use comm_core::{Deadline, Error, Result};

use crate::group::ThreadGroup;

/// Gives out groups of devices, each made when it is first asked for and then kept.
///
/// Whoever redistributes asks for the group of each [`Line`](super::Line) that takes part, and for that of the whole mesh, in
/// the same order on all ranks.
#[doc(alias = "ThreadGroupManager")]
pub trait Groups {
    /// The group of these devices, in this order, for the rank that is device `my_id`: its rank in the group is its position
    /// among the ids. The first call with these ids may wait for the same call of all the others.
    ///
    /// # Errors
    /// Those of [`ThreadGroup::new`] and of joining a team; [`Error::InvalidArgument`] if `my_id` is not among the ids.
    fn group(&self, ids: &[u64], my_id: u64, deadline: Deadline) -> Result<Arc<ThreadGroup>>;
}

/// Asks for a group, and sees that it is the right one.
pub(super) fn get(
    groups: &dyn Groups,
    ids: &[u64],
    my_id: u64,
    deadline: Deadline,
) -> Result<Arc<ThreadGroup>> {
    let group = groups.group(ids, my_id, deadline)?;
    let position = ids.iter().position(|&id| id == my_id);
    if group.size() != ids.len() || Some(group.rank()) != position {
        let seen = format!("rank {} of {}", group.rank(), group.size());
        return Err(Error::invalid("Groups::group", format!("{seen} for device {my_id} of {ids:?}")));
    }
    Ok(group)
}
