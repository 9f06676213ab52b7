//! What else there is to hear of ranks that a group waits for: a peer may be lost while others wait for it to come.

use std::sync::Arc;
use std::time::Instant;

use comm_core::error::At;
use comm_core::team::Member;
use comm_core::{Error, Result};

use super::OP;

/// What is heeded while a group is being made.
#[derive(Clone)]
pub(super) struct Heed {
    started: Instant,
    /// Something that the group is a part of: whatever ends it ends the wait.
    whole: Option<Arc<Member>>,
    /// Groups that were there when the wait began, and the ids of their ranks. One that was over by then tells nothing: who was lost
    /// in it may have been started again, and be on its way.
    others: Vec<(Arc<Member>, Vec<usize>)>,
}

impl Heed {
    pub(super) fn new(whole: Option<Arc<Member>>, others: Vec<(Arc<Member>, Vec<usize>)>) -> Heed {
        Heed { started: Instant::now(), whole, others }
    }

    /// Whether the others of a group may still come: for the rank of it that is `rank`, under the team's name.
    ///
    /// # Errors
    /// What has ended the whole; [`Error::PeerLost`], with ranks of this group, if some of them were lost.
    pub(super) fn check(&self, ids: &[usize], rank: usize, team: &str) -> Result<()> {
        if let Some(whole) = &self.whole {
            whole.check(OP)?;
        }
        for (member, members) in &self.others {
            let Err(Error::PeerLost { ranks, how, .. }) = member.check(OP) else { continue };
            let is_lost = |id: &usize| ranks.iter().any(|&rank| members.get(rank) == Some(id));
            let ranks: Vec<usize> = (0..ids.len()).filter(|&rank| is_lost(&ids[rank])).collect();
            if let Some(&first) = ranks.first() {
                let at = At { team: team.into(), rank, op: OP.into(), elapsed: self.started.elapsed() };
                return Err(Error::PeerLost { rank: first, ranks, how, at: Box::new(at) });
            }
        }
        Ok(())
    }
}
