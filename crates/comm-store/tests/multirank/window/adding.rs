//! All ranks add to the same elements at once, and nothing is lost.

use comm_core::Error;
use comm_core::tensor::{DType, Element, Tensor, TensorBuf};
use comm_store::Window;
use comm_store::window::{StoreOp, WindowSpec};
use comm_testkit::values::SplitMix64;
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};
use half::{bf16, f16};

use super::long;
use crate::support::{Any, team};

pub fn cases() -> Vec<Case> {
    vec![
        long("add/-/all/one-tile", one_tile),
        long("add/-/i64/rectangles", rectangles),
        long("add/-/-/unsupported", unsupported),
    ]
}

const SHAPE: [usize; 2] = [4, 16];
const N: usize = 64;

/// What a rank adds to an element, a small whole number: sums of up to eight ranks are exact in every dtype.
fn share(rank: usize, i: usize) -> i64 {
    1 + (rank + i) as i64 % 3
}

/// A number that can be added, as the case needs it.
trait Addend: Element {
    fn of(i: i64) -> Self;
}

macro_rules! addend {
    ($($t:ty: |$i:ident| $value:expr;)*) => {$(
        impl Addend for $t {
            fn of($i: i64) -> $t {
                $value
            }
        }
    )*};
}
addend! {
    i8: |i| i as i8;
    u8: |i| i as u8;
    i16: |i| i as i16;
    u16: |i| i as u16;
    i32: |i| i as i32;
    u32: |i| i as u32;
    i64: |i| i;
    u64: |i| i as u64;
    f16: |i| f16::from_f32(i as f32);
    bf16: |i| bf16::from_f32(i as f32);
    f32: |i| i as f32;
    f64: |i| i as f64;
}

fn one_tile(ctx: &RankCtx) -> RankResult {
    each::<i8>(ctx)?;
    each::<u8>(ctx)?;
    each::<i16>(ctx)?;
    each::<u16>(ctx)?;
    each::<i32>(ctx)?;
    each::<u32>(ctx)?;
    each::<i64>(ctx)?;
    each::<u64>(ctx)?;
    each::<f16>(ctx)?;
    each::<bf16>(ctx)?;
    each::<f32>(ctx)?;
    each::<f64>(ctx)
}

/// All add their shares to one tile of one rank, some by storing and some by putting, over and over.
fn each<T: Addend>(ctx: &RankCtx) -> RankResult {
    // 8 ranks, 3 at most, 10 times: a bf16 counts to 256, and an i8 may wrap.
    const TIMES: usize = 10;
    let dtype = T::DTYPE;
    let team = team(ctx, dtype.name())?;
    let bytes = N * dtype.size();
    let window = Window::alloc(&team, WindowSpec::bytes(2 * bytes).signals(ctx.world()), ctx.deadline())?;
    let signals = window.signals(&[ctx.world()])?;
    let (sum, mine) = (window.view(0, &SHAPE, dtype)?, window.view(bytes, &SHAPE, dtype)?);
    let values: Vec<T> = (0..N).map(|i| T::of(share(ctx.rank(), i))).collect();
    let tensor = Tensor::from_slice(&SHAPE, &values)?;
    mine.store(&tensor, &[0, 0])?;
    let repeats = if ctx.full() { 200 } else { 3 };
    for repeat in 0..repeats {
        let target = repeat % ctx.world();
        signals.barrier(ctx.deadline())?;
        for time in 0..TIMES {
            if (time + ctx.rank()).is_multiple_of(2) {
                sum.remote_store(&tensor, target, &[0, 0], StoreOp::Add)?;
            } else if target != ctx.rank() {
                sum.put(target, &mine, None, StoreOp::Add, None)?;
            } else {
                // Row by row, into its own part.
                for row in 0..SHAPE[0] {
                    let one = tensor.narrow(0, row, 1)?;
                    sum.remote_store(&one, target, &[row, 0], StoreOp::Add)?;
                }
            }
        }
        signals.barrier(ctx.deadline())?;
        if target == ctx.rank() {
            for i in 0..N {
                let all: i64 = (0..ctx.world()).map(|rank| share(rank, i)).sum();
                let seen = sum.read::<T>(&[i / SHAPE[1], i % SHAPE[1]])?;
                check_eq!(seen, T::of(all * TIMES as i64), "{dtype}, element {i}");
            }
            sum.store(&TensorBuf::zeros(&SHAPE, dtype)?.freeze(), &[0, 0])?;
        }
    }
    done()
}

/// Rectangles anywhere, that overlap as they will, onto any rank: each element counts what was added to it.
fn rectangles(ctx: &RankCtx) -> RankResult {
    const ROWS: usize = 9;
    const COLUMNS: usize = 13;
    let team = team(ctx, "t")?;
    let spec = WindowSpec::tensor(&[ROWS, COLUMNS], DType::I64)?.signals(ctx.world());
    let window = Window::alloc(&team, spec, ctx.deadline())?;
    let (view, signals) = (window.view(0, &[ROWS, COLUMNS], DType::I64)?, window.signals(&[ctx.world()])?);
    let adds = if ctx.full() { 20_000 } else { 500 };
    // Each rank can compute what all do.
    let plan = |rank: usize| Plan { rng: ctx.common_rng().fork(rank as u64), rank, world: ctx.world() };
    let mut own = plan(ctx.rank());
    for _ in 0..adds {
        let (target, [row, column, rows, columns], value) = own.next::<ROWS, COLUMNS>();
        let tensor = Tensor::from_slice(&[rows, columns], &vec![value; rows * columns])?;
        view.remote_store(&tensor, target, &[row, column], StoreOp::Add)?;
    }
    signals.barrier(ctx.deadline())?;
    let mut expected = vec![0i64; ROWS * COLUMNS];
    for rank in 0..ctx.world() {
        let mut of = plan(rank);
        for _ in 0..adds {
            let (target, [row, column, rows, columns], value) = of.next::<ROWS, COLUMNS>();
            for i in (0..rows * columns).filter(|_| target == ctx.rank()) {
                let at = (row + i / columns) * COLUMNS + column + i % columns;
                expected[at] = expected[at].wrapping_add(value);
            }
        }
    }
    let seen = view.remote_load(ctx.rank(), &[0, 0], &[ROWS, COLUMNS])?;
    check_eq!(seen.as_slice::<i64>()?, expected);
    team.barrier(ctx.deadline())?;
    done()
}

struct Plan {
    rng: SplitMix64,
    rank: usize,
    world: usize,
}

impl Plan {
    /// Onto whom, which rectangle (row, column, rows, columns), and what.
    fn next<const ROWS: usize, const COLUMNS: usize>(&mut self) -> (usize, [usize; 4], i64) {
        let mut below = |n: usize| self.rng.below(n as u64) as usize;
        let (target, row, column) = (below(self.world), below(ROWS), below(COLUMNS));
        let (rows, columns) = (1 + below(ROWS - row), 1 + below(COLUMNS - column));
        let value = (self.rng.next_u64() as i64).wrapping_add(self.rank as i64);
        (target, [row, column, rows, columns], value)
    }
}

/// Where there is no atomic addition it is refused, and nothing has moved and nobody was told.
fn unsupported(ctx: &RankCtx) -> RankResult {
    use DType::{Bool, Complex64, Complex128, F8E4M3, F8E5M2};
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, WindowSpec::bytes(1024).signals(1), ctx.deadline())?;
    let signals = window.signals(&[1])?;
    for dtype in [Bool, F8E4M3, F8E5M2, Complex64, Complex128] {
        let (view, source) = (window.view(0, &[8], dtype)?, window.view(512, &[8], dtype)?);
        let ones = tensor_of_ones(dtype)?;
        for peer in 0..ctx.world() {
            let stored = view.remote_store(&ones, peer, &[0], StoreOp::Add);
            let told = comm_store::window::Notify::add(&signals, &[0], 1);
            let put = view.put(peer, &source, None, StoreOp::Add, Some(told));
            for outcome in [stored, put] {
                check!(matches!(outcome, Err(Error::Unsupported { .. })), "{dtype}: {outcome:?}");
            }
        }
    }
    team.barrier(ctx.deadline())?;
    check_eq!(signals.read(&[0])?, 0);
    let bytes = window.view(0, &[1024], DType::U8)?.remote_load(ctx.rank(), &[0], &[1024])?;
    check!(bytes.bytes()?.iter().all(|&b| b == 0));
    done()
}

fn tensor_of_ones(dtype: DType) -> Any<Tensor> {
    let mut buf = TensorBuf::zeros(&[8], dtype)?;
    buf.bytes_mut()?.fill(1);
    Ok(buf.freeze())
}
