//! Operators that there are not for a dtype: every rank is told so, whatever the form, and nothing else happens.

use std::collections::BTreeMap;

use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_core::{Deadline, Error};
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::oracle::shard_range;
use comm_testkit::values::is_poison;
use comm_testkit::{RankCtx, RankResult, check, check_eq, done};

use super::PATIENCE;
use super::operation::{Operation, Subject};
use crate::call::{Call, Way, apart, poisoned};
use crate::support::Any;

/// Nothing, a number, what goes in a letter, and what does not.
const SHAPES: [&[usize]; 4] = [&[0], &[], &[3], &[600]];

/// Each dtype that the operator does not take, in one form or in all of them. How often it was refused, by dtype.
pub fn check(ctx: &RankCtx, group: &ThreadGroup, subject: Subject) -> Any<BTreeMap<&'static str, usize>> {
    let mut refused = BTreeMap::new();
    let Some(operator) = subject.operator else { return Ok(refused) };
    let forms = subject.operation.forms();
    for (i, &dtype) in DType::ALL.iter().filter(|dtype| !subject.takes(**dtype)).enumerate() {
        let attempts = SHAPES.iter().flat_map(|shape| forms.iter().map(move |form| (*shape, *form)));
        let cut = subject.operation == Operation::ReduceScatter;
        for (k, (shape, form)) in attempts.filter(|(shape, _)| !(cut && shape.is_empty())).enumerate() {
            // Each shape in another form, and each dtype begins with another one.
            let turn = (i + k + k / forms.len()).is_multiple_of(forms.len());
            if !turn && !ctx.full() {
                continue;
            }
            let call = match subject.operation {
                Operation::Reduce => Call::Reduce(operator, k % ctx.world()),
                Operation::ReduceScatter => Call::ReduceScatter(operator, 0, None),
                _ => Call::AllReduce(operator),
            };
            refuses(ctx, group, &call, form, dtype, shape)
                .map_err(|e| format!("{call:?} of {dtype} {shape:?}, {form:?}: {e}"))?;
            *refused.entry(dtype.name()).or_default() += 1;
        }
        let ones = Tensor::from_slice(&[2], &[1i64; 2])?;
        let next = group.all_reduce(&ones, ReduceOp::Sum, PATIENCE)?;
        check_eq!(next.to_vec::<i64>()?, [ctx.world() as i64; 2], "the next operation works");
    }
    Ok(refused)
}

fn refuses(
    ctx: &RankCtx,
    group: &ThreadGroup,
    call: &Call,
    form: Way,
    dtype: DType,
    shape: &[usize],
) -> RankResult {
    let at = Deadline::from(PATIENCE);
    let mine = TensorBuf::zeros(shape, dtype)?.freeze();
    let outcome = match (form, call) {
        (Way::InPlace, Call::AllReduce((op, _))) => {
            group.all_reduce_in_place(&mut TensorBuf::zeros(shape, dtype)?, *op, at)
        }
        (Way::Batch, Call::AllReduce((op, _))) => {
            group.all_reduce_batch(&[mine.clone(), mine], *op, at).map(drop)
        }
        (Way::Started, _) => call.started(group, Some(&mine), at).and_then(|wait| wait()).map(drop),
        (Way::Into | Way::Strided, _) => {
            let mut result = shape.to_vec();
            if matches!(call, Call::ReduceScatter(..)) {
                result[0] = shard_range(shape[0], ctx.world(), ctx.rank()).len();
            }
            let (layout, mut out) = if form == Way::Strided {
                let (layout, storage) = apart(&result)?;
                (Some(layout), poisoned(&[storage], dtype)?)
            } else {
                (None, poisoned(&result, dtype)?)
            };
            let outcome = call.call_into(group, Some(&mine), &mut out, layout, at);
            check!(is_poison(out.bytes()?), "something is written");
            outcome
        }
        _ => call.returned(group, Some(&mine), at).map(drop),
    };
    match outcome {
        Err(Error::Unsupported { op, .. }) => check!(op.contains(dtype.name()), "{op}"),
        other => return Err(format!("{other:?}").into()),
    }
    done()
}
