//! Who answers for the name of a live team.

use std::sync::{Arc, Weak};

use super::desk::{Clerk, Desk, Visitor};
use super::messages::{Answer, Request};
use super::shared::TeamShared;
use crate::error::Result;
use crate::hub::socket::Listener;

/// Answers that the name is in use, as long as it is.
pub(super) struct NameGuard(Weak<TeamShared>);

impl NameGuard {
    /// Holds the name for one rank, by a duplicate of its socket that the first rank of a process brings along.
    pub(super) fn open(team: &Arc<TeamShared>, listener: Listener) -> Result<()> {
        team.hold_name(|| {
            let guard = Arc::new(NameGuard(Arc::downgrade(team)));
            Desk::open(team.hub(), listener, guard)
        })
    }
}

impl Clerk for NameGuard {
    fn asked(&self, _visitor: &Arc<Visitor>, request: Request) -> Option<Answer> {
        let Request::Join { rank, .. } = request else { return Some(Answer::Later) };
        let Some(team) = self.0.upgrade() else { return Some(Answer::Later) };
        Some(if team.will_free(rank as usize) { Answer::Later } else { Answer::InUse })
    }

    fn gone(&self, _visitor: &Visitor) {}

    fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }
}
