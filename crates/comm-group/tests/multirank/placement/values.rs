//! Values whose reductions are exact, and contributions to them.

use comm_core::tensor::DType;
use comm_group::ReduceOp;
use comm_testkit::oracle::reduce::round;
use comm_testkit::values::SplitMix64;

/// A value of some dtype.
#[derive(Debug, Clone)]
pub enum Value {
    /// A small number; of complex numbers the real part, and twice as much is the imaginary one.
    Number(i64),
    Raw(Vec<u8>),
}

fn is_tiny(dtype: DType) -> bool {
    matches!(dtype, DType::F8E4M3 | DType::F8E5M2)
}

pub fn random(rng: &mut SplitMix64, dtype: DType) -> Value {
    let most = match dtype {
        DType::Bool => 2,
        _ if is_tiny(dtype) => 4,
        _ => 100,
    };
    Value::Number(i64::from(dtype != DType::Bool) + rng.below(most) as i64)
}

pub fn bytes(value: &Value, dtype: DType) -> Vec<u8> {
    let x = match value {
        Value::Raw(bytes) => return bytes.clone(),
        Value::Number(x) => *x,
    };
    let pair = |a: Vec<u8>, b: Vec<u8>| [a, b].concat();
    match dtype {
        DType::Bool => vec![u8::from(x != 0)],
        DType::U8 => (x as u8).to_ne_bytes().to_vec(),
        DType::I8 => (x as i8).to_ne_bytes().to_vec(),
        DType::U16 => (x as u16).to_ne_bytes().to_vec(),
        DType::I16 => (x as i16).to_ne_bytes().to_vec(),
        DType::U32 => (x as u32).to_ne_bytes().to_vec(),
        DType::I32 => (x as i32).to_ne_bytes().to_vec(),
        DType::U64 | DType::I64 => x.to_ne_bytes().to_vec(),
        DType::F32 => (x as f32).to_ne_bytes().to_vec(),
        DType::F64 => (x as f64).to_ne_bytes().to_vec(),
        DType::Complex64 => pair((x as f32).to_ne_bytes().to_vec(), (2.0 * x as f32).to_ne_bytes().to_vec()),
        DType::Complex128 => pair((x as f64).to_ne_bytes().to_vec(), (2.0 * x as f64).to_ne_bytes().to_vec()),
        small => round(small, x as f32).to_ne_bytes()[..small.size()].to_vec(),
    }
}

/// The operators that contributions to elements of a dtype can be made for.
pub fn operators(dtype: DType) -> Vec<ReduceOp> {
    let all = crate::support::operators().map(|(op, _)| op);
    let has = |op: &ReduceOp| {
        op.check(dtype).is_ok() && (*op == ReduceOp::Avg || matches!(op.identity(dtype), Ok(Some(_))))
    };
    all.into_iter().filter(has).collect()
}

/// What each of `ranks` contributes to a value, wherever in the line the value itself may be.
pub fn contributions(
    rng: &mut SplitMix64,
    op: ReduceOp,
    value: &Value,
    ranks: usize,
    dtype: DType,
) -> Vec<Value> {
    let home = rng.below(ranks as u64) as usize;
    let identity = op.identity(dtype).ok().flatten().unwrap_or_default();
    let mut all = vec![Value::Raw(identity); ranks];
    all[home] = value.clone();
    match (op, value) {
        (ReduceOp::Avg, _) => all.fill(value.clone()),
        (ReduceOp::Sum, Value::Number(x)) if ranks > 1 => {
            let more = rng.below(if is_tiny(dtype) { 2 } else { 20 }) as i64;
            all[home] = Value::Number(x + more);
            all[(home + 1) % ranks] = Value::Number(-more);
        }
        (ReduceOp::Min | ReduceOp::Max, _) | (ReduceOp::And | ReduceOp::Or, _) => {
            all[rng.below(ranks as u64) as usize] = value.clone();
        }
        _ => {}
    }
    all
}
