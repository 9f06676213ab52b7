//! What the ranks of a mesh tell each other before tensors move: one letter of each to all.

use std::sync::Arc;
use std::time::Instant;

use comm_core::error::At;
use comm_core::team::odd_one_out;
use comm_core::tensor::Tensor;
use comm_core::{Deadline, Error, Result};

use crate::group::ThreadGroup;

/// What all ranks must say alike, and a note of each.
pub(super) struct Claim {
    pub(super) op: &'static str,
    /// Names and values, in an order that is the operation's.
    pub(super) fields: Vec<(&'static str, String)>,
    /// What this rank alone has to say.
    pub(super) note: String,
}

/// What a rank says whose own arguments are wrong.
const INVALID: &str = "invalid";

impl Claim {
    fn lines(&self) -> Vec<&str> {
        let fields = self.fields.iter().map(|(_, value)| value.as_str());
        [self.op].into_iter().chain(fields).chain([self.note.as_str()]).collect()
    }

    /// Tells all ranks of the group, of which each tells its own, and compares. Returns the notes by rank.
    ///
    /// A rank with something to complain of tells that, and not what it is, so that the others know and do not wait for it.
    ///
    /// # Errors
    /// The complaint. [`Error::Mismatch`], the same on all ranks but those that complain, about `arguments` if one does, else about
    /// the first field that differs. Those of a collective.
    pub(super) fn settle(
        &self,
        complaint: Result<()>,
        group: Result<Arc<ThreadGroup>>,
        deadline: Deadline,
    ) -> Result<Vec<String>> {
        let started = Instant::now();
        let is_invalid = complaint.is_err();
        let heard = group.and_then(|group| Ok((self.tell(&group, is_invalid, deadline)?, group)));
        // Whatever became of telling: this is what the rank can do something about.
        complaint?;
        let (texts, group) = heard?;
        let lines: Vec<Vec<&str>> = texts.iter().map(|text| text.split('\n').collect()).collect();
        self.compare(&lines).map_err(|(rank, field, theirs, others)| {
            let (team, own) = (group.team().name().to_string(), group.rank());
            let at = At { team, rank: own, op: self.op.into(), elapsed: started.elapsed() };
            Error::Mismatch { rank, field, theirs, others, at: Box::new(at) }
        })?;
        let expected = self.lines().len();
        if let Some(rank) = lines.iter().position(|lines| lines.len() != expected) {
            return Err(Error::bad_peer(format!("rank {rank} says {} things", lines[rank].len())));
        }
        Ok(lines.iter().map(|lines| lines[expected - 1].to_string()).collect())
    }

    fn tell(&self, group: &ThreadGroup, is_invalid: bool, deadline: Deadline) -> Result<Vec<String>> {
        let text = if is_invalid { INVALID.to_string() } else { self.lines().join("\n") };
        let letter = Tensor::from_slice(&[text.len()], text.as_bytes())?;
        let letters = group.all_gather_into_vec(&letter, deadline)?;
        letters.iter().map(|letter| Ok(String::from_utf8_lossy(letter.bytes()?).into_owned())).collect()
    }

    /// The odd rank, what it differs in, and what it and the others say.
    fn compare(&self, all: &[Vec<&str>]) -> Result<(), (usize, &'static str, String, String)> {
        if let Some(rank) = all.iter().position(|lines| lines[..] == [INVALID]) {
            return Err((rank, "arguments", INVALID.into(), "valid".into()));
        }
        let names = ["op"].into_iter().chain(self.fields.iter().map(|&(name, _)| name));
        for (i, name) in names.enumerate() {
            let values: Vec<&str> =
                all.iter().map(|lines| lines.get(i).copied().unwrap_or("nothing")).collect();
            if let Some((odd, common)) = odd_one_out(&values) {
                return Err((odd, name, values[odd].to_string(), values[common].to_string()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(texts: &[&str]) -> Result<(), (usize, &'static str, String, String)> {
        let fields = vec![("shape", "[4]".to_string()), ("dtype", "f32".to_string())];
        let claim = Claim { op: "redistribute", fields, note: String::new() };
        claim.compare(&texts.iter().map(|text| text.split('\n').collect()).collect::<Vec<_>>())
    }

    #[test]
    fn the_odd_rank_is_found() {
        let right = "redistribute\n[4]\nf32\n";
        assert!(compare(&[right, right, "redistribute\n[4]\nf32\nmy note"]).is_ok());
        let other = compare(&[right, "redistribute\n[5]\nf64\n", right]).unwrap_err();
        assert_eq!(other, (1, "shape", "[5]".into(), "[4]".into()));
        assert_eq!(compare(&[right, right, "collect\n[4]"]).unwrap_err().1, "op");
        assert_eq!(compare(&[right, right, "redistribute\n[4]"]).unwrap_err().2, "nothing");
        assert_eq!(
            compare(&["invalid", right, "collect"]).unwrap_err(),
            (0, "arguments", "invalid".into(), "valid".into())
        );
    }
}
