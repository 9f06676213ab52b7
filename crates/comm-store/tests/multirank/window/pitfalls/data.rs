//! Bytes that are read too early, or in a way that is refused.

use comm_core::Error;
use comm_core::tensor::{DType, Tensor};
use comm_store::window::{StoreOp, WindowSpec};
use comm_store::{Cmp, NotifyOp};
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq};

use super::super::case;
use crate::support::{SHORT, Scene, gave_up, left, right};

pub fn cases() -> Vec<Case> {
    vec![
        case("pitfall/-/-/no-barrier/load", load_too_early),
        case("pitfall/-/-/no-barrier/store", store_too_early),
        case("pitfall/-/-/narrow-tile", narrow_tile),
        case("pitfall/-/-/elements-for-bytes", elements),
    ]
}

const GO: usize = 0;
const N: usize = 16;

fn staged(rank: usize, round: usize) -> Vec<i32> {
    (0..N).map(|j| (1000 * round + 100 * rank + j) as i32).collect()
}

/// Rank 1 stages late. Who loads without having waited gets zeros in a fresh window, and what was there before in a used
/// one.
fn load_too_early(ctx: &RankCtx) -> RankResult {
    let scene = Scene::new(ctx, WindowSpec::tensor(&[N], DType::I32)?.signals(1))?;
    let (data, signals) = (scene.window.view(0, &[N], DType::I32)?, scene.window.signals(&[1])?);
    let load = || -> Result<Vec<i32>, Error> { Ok(data.remote_load(1, &[0], &[N])?.to_vec()?) };
    let mut before = vec![0; N];
    for round in 1..=3 {
        let expected = round as i32;
        match ctx.rank() {
            0 => {
                check_eq!(load()?, before, "nothing has come yet");
                let early = gave_up(signals.wait(&[0], Cmp::Ge, expected, Some(1), SHORT))?;
                check_eq!(
                    (early.seen, early.expected, early.missing),
                    (i64::from(expected) - 1, expected.into(), vec![1])
                );
                scene.script.open(GO + round)?;
                signals.wait(&[0], Cmp::Ge, expected, Some(1), scene.by)?;
                check_eq!(load()?, staged(1, round));
            }
            1 => {
                scene.script.pass(GO + round)?;
                data.store(&Tensor::from_slice(&[N], &staged(1, round))?, &[0])?;
                signals.notify(0, &[0], 1, NotifyOp::Add)?;
            }
            _ => {}
        }
        before = staged(1, round);
        scene.all()?;
    }
    scene.end()
}

/// The same the other way: what rank 0 stores into the part of rank 1 is not there before it has come.
fn store_too_early(ctx: &RankCtx) -> RankResult {
    let scene = Scene::new(ctx, WindowSpec::tensor(&[N], DType::I32)?.signals(ctx.world()))?;
    let (data, signals) = (scene.window.view(0, &[N], DType::I32)?, scene.window.signals(&[ctx.world()])?);
    let own = || -> Result<Vec<i32>, Error> { Ok(data.load_tile(&[0], &[N])?.to_vec()?) };
    if ctx.rank() == 0 {
        scene.script.pass(GO)?;
    }
    let mine = Tensor::from_slice(&[N], &staged(ctx.rank(), 1))?;
    data.remote_store(&mine, right(ctx), &[0], StoreOp::Set)?;
    if ctx.rank() == 1 {
        check_eq!(own()?, vec![0; N], "nothing has come yet");
        scene.script.open(GO)?;
    }
    signals.barrier(scene.by)?;
    check_eq!(own()?, staged(left(ctx), 1), "y[r] = x[r - 1]");
    scene.end()
}

/// Two numbers in two rows are no tile: one by one, or wider.
fn narrow_tile(ctx: &RankCtx) -> RankResult {
    let scene = Scene::new(ctx, WindowSpec::bytes(256))?;
    let narrow = scene.window.view(0, &[2, 1], DType::I32)?;
    match narrow.load_tile(&[0, 0], &[2, 1]) {
        Err(Error::InvalidArgument { why, .. }) => check!(why.contains("multiple of 32"), "{why}"),
        other => return Err(format!("{other:?}").into()),
    }
    narrow.write(&[1, 0], 7)?;
    check_eq!(narrow.read::<i32>(&[1, 0])?, 7);
    let wide = scene.window.view(0, &[2, 8], DType::I32)?;
    check_eq!(wide.load_tile(&[0, 0], &[2, 8])?.as_slice::<i32>()?[1], 7);
    let high = scene.window.view(0, &[8, 1], DType::I32)?;
    check_eq!(high.load_tile(&[0, 0], &[8, 1])?.as_slice::<i32>()?[1], 7);
    scene.end()
}

/// A window has a size in bytes. As many bytes as there are elements are too few, and that is found out when it is
/// looked at as elements, on every rank and before anything is written.
fn elements(ctx: &RankCtx) -> RankResult {
    let scene = Scene::new(ctx, WindowSpec::bytes(N))?;
    match scene.window.view(0, &[N], DType::I32) {
        Err(Error::InvalidArgument { why, .. }) => check!(why.contains("16 bytes"), "{why}"),
        other => return Err(format!("{other:?}").into()),
    }
    check_eq!(scene.window.view(0, &[N / 4], DType::I32)?.shape(), [N / 4]);
    let right = comm_store::Window::alloc(&scene.team, WindowSpec::tensor(&[N], DType::I32)?, scene.by)?;
    right.view(0, &[N], DType::I32)?.write(&[N - 1], 1)?;
    scene.end()
}
