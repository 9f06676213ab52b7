//! The operations, and which of the other factors each has.

use std::fmt;

use comm_core::tensor::DType;

use super::factors::{FORMS, Split};
use crate::call::{Operator, WAYS, Way};
use crate::support::{exists, operator_name, operators};

/// The operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Barrier,
    AllReduce,
    Reduce,
    ReduceScatter,
    AllGather,
    AllGatherEqual,
    AllGatherVec,
    Gather,
    Broadcast,
    Scatter,
    AllToAll,
    Rows,
    Shard,
    Send,
    Exchange,
}

use Operation::*;

const OPERATIONS: [Operation; 15] = [
    Barrier,
    AllReduce,
    Reduce,
    ReduceScatter,
    AllGather,
    AllGatherEqual,
    AllGatherVec,
    Gather,
    Broadcast,
    Scatter,
    AllToAll,
    Rows,
    Shard,
    Send,
    Exchange,
];

impl Operation {
    pub fn name(self) -> &'static str {
        match self {
            Barrier => "barrier",
            AllReduce => "all_reduce",
            Reduce => "reduce",
            ReduceScatter => "reduce_scatter",
            AllGather => "all_gather",
            AllGatherEqual => "all_gather_equal",
            AllGatherVec => "all_gather_into_vec",
            Gather => "gather",
            Broadcast => "broadcast",
            Scatter => "scatter",
            AllToAll => "all_to_all",
            Rows => "all_to_all_rows",
            Shard => "replicate_to_shard",
            Send => "send",
            Exchange => "exchange",
        }
    }

    pub fn reduces(self) -> bool {
        matches!(self, AllReduce | Reduce | ReduceScatter)
    }

    /// Whether one rank is another than the rest.
    pub fn is_rooted(self) -> bool {
        matches!(self, Reduce | Gather | Broadcast | Scatter | Send)
    }

    /// How many dimensions it is told.
    pub fn dims(self) -> usize {
        match self {
            ReduceScatter | AllGather | Gather | Scatter | Shard => 1,
            AllToAll => 2,
            _ => 0,
        }
    }

    /// Whether each rank gets or keeps a part of what there is, and not all of it.
    pub fn cuts(self) -> bool {
        matches!(self, AllReduce | Reduce | ReduceScatter | Scatter | AllToAll | Rows | Shard)
    }

    pub fn splits(self) -> &'static [Split] {
        match self {
            AllGather | AllGatherVec | Gather | Rows => &[Split::Even, Split::Given],
            ReduceScatter | Scatter | AllToAll | Shard => &[Split::Even, Split::Rule, Split::Given],
            _ => &[Split::None],
        }
    }

    pub fn forms(self) -> &'static [Way] {
        match self {
            AllReduce => &FORMS,
            Barrier | AllGatherVec => &[Way::Returned, Way::Started],
            Shard | Exchange => &[Way::Returned],
            _ => &WAYS,
        }
    }
}

/// An operation, with its operator if it has one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Subject {
    pub operation: Operation,
    pub operator: Option<Operator>,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operator {
            Some(_) => write!(f, "{} {}", self.operation.name(), self.operator_name()),
            None => f.write_str(self.operation.name()),
        }
    }
}

impl Subject {
    /// In the name of a case.
    pub fn operator_name(self) -> String {
        self.operator.map_or("-".into(), |(op, _)| operator_name(op))
    }

    pub fn takes(self, dtype: DType) -> bool {
        self.operator.is_none_or(|(_, oracle)| exists(oracle, dtype))
    }
}

/// The operations, those that reduce with each operator.
pub fn subjects() -> Vec<Subject> {
    let of = |operation: Operation| -> Vec<Subject> {
        if operation.reduces() {
            operators().map(|operator| Subject { operation, operator: Some(operator) }).into()
        } else {
            vec![Subject { operation, operator: None }]
        }
    };
    OPERATIONS.into_iter().flat_map(of).collect()
}
