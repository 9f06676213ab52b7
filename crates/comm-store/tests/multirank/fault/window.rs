//! The programs of windows: everything that a window does, over and over; and each kind of wait, by itself.

use comm_core::Error;
use comm_core::team::Team;
use comm_core::tensor::{DType, Tensor};
use comm_store::window::{Await, Notify, StoreOp, WindowSpec};
use comm_store::{Cmp, NotifyOp, Window};
use comm_testkit::report;
use comm_testkit::{Program, RankCtx, RankResult, block_on, check, check_eq, done};

use super::program::{self, Call, OP};
use crate::support::{Any, left, right, team};

pub const BACKEND: &str = "window";

pub const LOOP: Program = Program { name: "window-loop", run: rounds };
pub const WAITS: Program = Program { name: "window-waits", run: waits };

const N: usize = 512;

fn rounds(ctx: &RankCtx) -> RankResult {
    program::rounds(
        ctx,
        |team, round, call| step(ctx, team, round, call),
        |team| Window::alloc(team, 8, OP).err(),
    )
}

/// One of everything, in a window of its own, all results checked.
fn step(ctx: &RankCtx, team: &Team, round: u64, call: &mut Call) -> Any<()> {
    let (me, n) = (ctx.rank(), ctx.world());
    let (right, left) = (right(ctx), left(ctx));
    let value = |rank: usize, i: usize| round as i64 * 1_000_000 + rank as i64 * 10_000 + i as i64;
    let values = |rank: usize| (0..N).map(|i| value(rank, i)).collect::<Vec<_>>();
    call.is("alloc");
    let window = Window::alloc(team, WindowSpec::bytes(3 * 8 * N).signals(3 * n).slots(1), OP)?;
    let [row, ring, got] = [0, 1, 2].map(|k| window.signals_from(k * n, &[n]));
    let (row, ring, got) = (row?, ring?, got?);
    let [source, target, pulled] = [0, 1, 2].map(|k| window.view(k * 8 * N, &[N], DType::I64));
    let (source, target, pulled) = (source?, target?, pulled?);

    call.is("reset");
    source.store(&Tensor::from_slice(&[N], &vec![-1i64; N])?, &[0])?;
    window.reset(OP)?;
    check_eq!(source.read::<i64>(&[N - 1])?, 0);

    call.is("wait");
    ring.notify(right, &[me], 1, NotifyOp::Add)?;
    check_eq!(ring.wait(&[left], Cmp::Ge, 1, Some(left), OP)?, 1);

    call.is("put");
    source.store(&Tensor::from_slice(&[N], &values(me))?, &[0])?;
    target.put(right, &source, None, StoreOp::Set, Some(Notify::add(&got, &[me], 1)))?;
    call.is("wait_async");
    block_on(got.wait_async(&[left], Cmp::Ge, 1, Some(left), OP)?)?;
    check!(target.remote_load(me, &[0], &[N])?.as_slice::<i64>()? == values(left), "round {round}: put");

    call.is("get");
    ring.notify(left, &[me], 1, NotifyOp::Add)?;
    // Among two, left and right are the same one, and this is its second.
    let up = if left == right { 2 } else { 1 };
    let cell = [right];
    let signal = Await::ge(&ring, &cell, up).from(right).by(OP);
    source.get(right, &pulled, None, Some(signal))?;
    check!(pulled.remote_load(me, &[0], &[N])?.as_slice::<i64>()? == values(right), "round {round}: get");

    call.is("expose");
    let tensor = Tensor::from_slice(&[N], &values(me))?.contiguous_in(team.hub().tensors())?;
    let exposed = window.expose(0, round, &tensor)?;
    call.is("barrier");
    row.barrier(OP)?;
    call.is("region");
    let read = window.region(left, 0, round, OP)?.typed(&[N], DType::I64)?.remote_load(&[0], &[N]);
    // A rank that is told of the death withdraws its tensor, which is no death of its own.
    match read {
        Err(Error::BadPeer { .. }) => {}
        read => check!(read?.as_slice::<i64>()? == values(left), "round {round}: read"),
    }
    call.is("barrier_named");
    row.barrier_named("end of round", OP)?;
    drop(exposed);
    Ok(())
}

/// Arguments: `kind` of the wait, and the `victim`, which comes no further than its gate.
fn waits(ctx: &RankCtx) -> RankResult {
    let kind = ctx.args()["kind"].as_str().unwrap_or_default();
    let victim = ctx.args()["victim"].as_u64().unwrap_or_default() as usize;
    let n = ctx.world();
    let team = team(ctx, "t")?;
    let window = Window::alloc(&team, WindowSpec::bytes(16).signals(n), OP)?;
    let signals = window.signals(&[n])?;
    let (from, into) = (window.view(0, &[1], DType::I64)?, window.view(8, &[1], DType::I64)?);
    ctx.note("ready");
    if ctx.process_of(victim) == Some(ctx.process()) {
        ctx.await_go("never")?;
        return done();
    }
    // A survivor that awaits another survivor's signal must hear as well.
    let survivor = (0..n).find(|&r| ctx.process_of(r) != ctx.process_of(victim)).unwrap_or_default();
    let before = report::busy();
    let outcome = match kind {
        "wait" => signals.wait(&[0], Cmp::Ge, 1, Some(victim), OP).map(drop),
        "wait-for-another" => signals.wait(&[0], Cmp::Ge, 1, Some(survivor), OP).map(drop),
        "wait-for-anybody" => signals.wait(&[0], Cmp::Ge, 1, None, OP).map(drop),
        "wait_async" => block_on(signals.wait_async(&[0], Cmp::Ge, 1, Some(victim), OP)?).map(drop),
        "wait_async-for-anybody" => block_on(signals.wait_async(&[0], Cmp::Ge, 1, None, OP)?).map(drop),
        "barrier" => signals.barrier(OP).map(drop),
        "barrier_named" => signals.barrier_named("of the living", OP).map(drop),
        "reset" => window.reset(OP),
        "alloc" => Window::alloc(&team, 64, OP).map(drop),
        "get" => from.get(survivor, &into, None, Some(Await::ge(&signals, &[0], 1).from(victim).by(OP))),
        other => return Err(format!("no wait is called {other:?}").into()),
    };
    match outcome {
        Err(error) => report::tell(ctx, kind, &error, before),
        Ok(()) => return Err("it is over".into()),
    }
    done()
}

pub const KINDS: [&str; 10] = [
    "wait",
    "wait-for-another",
    "wait-for-anybody",
    "wait_async",
    "wait_async-for-anybody",
    "barrier",
    "barrier_named",
    "reset",
    "alloc",
    "get",
];
