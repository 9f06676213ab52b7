//! What a rank has to say at the end, and what of all that came first.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::compare::Difference;

/// What one rank has to say at the end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    /// By mesh, and then as in [`Course::steps`](super::course::Course::steps).
    pub measured: Vec<Vec<Measured>>,
    /// The first result that was not as it should be.
    pub difference: Option<Finding>,
    /// The first step that has cost something else than was planned.
    pub unplanned: Option<Finding>,
}

/// What a step was to one rank, over all tensors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Tensors that took it. One that took it twice counts twice.
    pub tensors: u64,
    /// Their bytes, each tensor as a whole.
    pub bytes: u64,
    /// Bytes that this rank copied from or to others, as its groups have counted them: in the steps of plans, and where
    /// there is no plan, all of them.
    pub moved: u64,
    /// Time inside of it, without the comparing.
    pub time: Duration,
}

/// Something that is not what it should be, and where on the way it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The numbers of the tensor, the mesh and the step: the least is the first.
    pub at: [usize; 3],
    /// Tensor, mesh and conversion in words.
    pub during: String,
    /// What.
    pub difference: Difference,
}

impl Finding {
    /// It in words, as `rank` has found it.
    pub fn on_rank(&self, rank: usize) -> String {
        format!("{}, rank {rank}, {}", self.during, self.difference)
    }
}

/// The finding of all ranks that comes first on the way of the tensors, as its lowest rank saw it.
pub fn first(reports: &[RankReport], of: impl Fn(&RankReport) -> Option<&Finding>) -> Option<String> {
    let found = reports.iter().enumerate().filter_map(|(rank, report)| Some((rank, of(report)?)));
    found.min_by_key(|(rank, finding)| (finding.at, *rank)).map(|(rank, finding)| finding.on_rank(rank))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_by_tensor_then_step_then_rank() {
        let report = |at: Option<[usize; 3]>| {
            let difference = Difference { place: "here".into(), seen: "1".into(), expected: "2".into() };
            let finding = |at| Finding { at, during: format!("step {at:?}"), difference };
            RankReport { difference: at.map(finding), ..RankReport::default() }
        };
        let first_difference = |reports: &[RankReport]| first(reports, |report| report.difference.as_ref());
        assert_eq!(first_difference(&[report(None)]), None);
        let found = [None, Some([5, 0, 0]), Some([3, 1, 2]), Some([3, 1, 0]), Some([3, 1, 0])];
        let reports = found.map(report);
        assert_eq!(first_difference(&reports).unwrap(), "step [3, 1, 0], rank 3, here, seen 1, expected 2");
        assert_eq!(first(&reports, |report| report.unplanned.as_ref()), None);
    }
}
