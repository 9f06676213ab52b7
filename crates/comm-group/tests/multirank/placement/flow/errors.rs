//! Who does not come, who means something else, and what is refused.

use std::fmt::Debug;
use std::time::Instant;

use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_core::{Deadline, Error};
use comm_group::ReduceOp;
use comm_group::placement::flow::Participant;
use comm_group::placement::{DeviceMesh, Placement, TensorSpec};
use comm_store::store;
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq, done};

use super::{SHORT, Scene, both, mesh_of, spec};
use crate::placement::model::id_of;
use crate::support::Any;
use Placement::{Partial, Shard};

pub fn cases() -> Vec<Case> {
    [
        both("flow/-/i32/missing", missing),
        both("flow/-/any/mismatch", mismatch),
        both("flow/-/any/refused", refused),
        both("flow/-/i32/one-id-twice", one_id_twice),
        both("flow/-/i32/long-names", long_names),
    ]
    .concat()
}

/// The two first ranks.
fn pair() -> Any<DeviceMesh> {
    mesh_of(&[2], &[0, 1])
}

fn one(value: usize) -> Any<Tensor> {
    Ok(Tensor::from_slice(&[1], &[value as i32])?)
}

/// Checks that a wait of [`SHORT`] gave up, and says in which flow and for which key.
fn gave_up<T: Debug>(call: impl FnOnce() -> Result<T, Error>, flow: &str, key: &str) -> RankResult {
    let started = Instant::now();
    match call() {
        Err(Error::Timeout { what, at, .. }) => {
            check!(started.elapsed() >= SHORT, "{what}: gave up after {:?}", started.elapsed());
            check!(what.contains(&format!("{key:?}")), "{what}");
            check!(at.op.starts_with(&format!("{flow} of key {key:?}: ")), "{}", at.op);
            done()
        }
        other => Err(format!("{flow} was to give up: {other:?}").into()),
    }
}

fn missing(ctx: &RankCtx, scene: &Scene) -> RankResult {
    let (me, by, rank) = (scene.me(), ctx.deadline(), ctx.rank());
    let source = spec(&[2], &pair()?, &[Shard(0)])?;
    let [a, b] = [mesh_of(&[1], &[0])?, mesh_of(&[1], &[1])?];
    let whole = Tensor::from_slice(&[2], &[5, 6])?;
    // The giver does not come. Who only gets has changed nothing, and may call again.
    let single = spec(&[1], &a, &[Shard(0)])?;
    let key = |name: &str, flow: &str, rank: usize| format!("{name}/{flow}/{}", id_of(rank));
    if rank == 1 {
        let get = || me.convert_mesh("a", &single, &b, None, SHORT);
        gave_up(get, "convert_mesh", &key("a", "convert_mesh", 0))?;
    }
    scene.team.barrier(by)?;
    if rank < 2 {
        let got = me.convert_mesh("a", &single, &b, Some(&one(7)?), by)?;
        check_eq!(got.map(|got| got.to_vec::<i32>()).transpose()?, (rank == 1).then(|| vec![7]));
    }
    // Who gets does not come.
    if rank == 0 {
        let own = one(7)?;
        let convert = || me.convert_mesh("b", &single, &b, Some(&own), SHORT);
        gave_up(convert, "convert_mesh", &key("b", "convert_mesh", 0))?;
        let scatter = || me.scatter("b", id_of(0), &source, Some(&whole), SHORT);
        gave_up(scatter, "scatter", &key("b", "scatter", 1))?;
        let copy = || me.copy("b", &single, &b, Some(&own), None, SHORT);
        gave_up(copy, "copy", &key("b", "copy", 0))?;
    }
    // One of several does not come: the one that has waits in vain, too.
    let consumer = ctx.world() - 1;
    if rank == 1 || rank == consumer {
        let missed = if rank == consumer { 0 } else { 1 };
        let own = one(7)?;
        let gather = || me.gather("c", &source, Some(&own), id_of(consumer), SHORT);
        gave_up(gather, "gather", &key("c", "gather", missed))?;
    }
    scene.team.barrier(by)?;
    // The store and its team go on.
    if rank < 2 {
        let shard = me.scatter("d", id_of(0), &source, Some(&whole), by)?.ok_or("a device of the mesh")?;
        check_eq!(shard.to_vec::<i32>()?, [5 + rank as i32]);
    }
    done()
}

fn differs<T: Debug>(outcome: Result<T, Error>, field: &str, key: &str, values: [&str; 2]) -> RankResult {
    match outcome {
        Err(Error::Mismatch { field: seen, theirs, others, at, .. }) => {
            check_eq!((seen, &*theirs, &*others), (field, values[0], values[1]));
            check!(at.op.contains(key), "{}", at.op);
            done()
        }
        other => Err(format!("{other:?}").into()),
    }
}

/// The one who sees it says so, and the one who gives is not held up by it.
fn mismatch(ctx: &RankCtx, scene: &Scene) -> RankResult {
    let (me, by, rank) = (scene.me(), ctx.deadline(), ctx.rank());
    if rank > 1 {
        return done();
    }
    let mesh = pair()?;
    let whole = Tensor::from_slice(&[4, 4], &[3i32; 16])?;
    let [rows, columns] = [Shard(0), Shard(1)].map(|p| spec(&[4, 4], &mesh, &[p]));
    let (rows, columns) = (rows?, columns?);
    let scattered = me.scatter("a", id_of(0), if rank == 0 { &rows } else { &columns }, Some(&whole), by);
    if rank == 0 {
        check_eq!(scattered?.ok_or("a device of the mesh")?.shape(), [2, 4]);
    } else {
        differs(scattered, "shape", "a/scatter/", ["[4, 2]", "[2, 4]"])?;
    }
    let floats = TensorSpec::new(&[4, 4], DType::F32, &mesh, &[Shard(0)])?;
    let scattered = me.scatter("b", id_of(0), if rank == 0 { &rows } else { &floats }, Some(&whole), by);
    if rank == 1 {
        differs(scattered, "dtype", "b/scatter/", ["f32", "i32"])?;
    }
    let local = Tensor::from_slice(if rank == 0 { &[2, 4] } else { &[4, 2] }, &[1i32; 8])?;
    let gathered = me.gather("c", if rank == 0 { &rows } else { &columns }, Some(&local), id_of(1), by);
    if rank == 0 {
        check!(gathered?.is_none());
    } else {
        differs(gathered, "shape", "c/gather/", ["[4, 2]", "[2, 4]"])?;
    }
    // Into a tensor that stays as it is.
    let [source, target] = [mesh_of(&[1], &[0])?, mesh_of(&[1], &[1])?];
    let (longer, shorter) = (spec(&[3], &source, &[Shard(0)])?, spec(&[2], &source, &[Shard(0)])?);
    if rank == 0 {
        me.copy("d", &longer, &target, Some(&Tensor::from_slice(&[3], &[7; 3])?), None, by)?;
    } else {
        let mut into = TensorBuf::zeros(&[2], DType::I32)?;
        let copied = me.copy("d", &shorter, &target, None, Some((&mut into).into()), by);
        differs(copied, "shape", "d/copy/", ["[2]", "[3]"])?;
        check_eq!(into.as_slice::<i32>()?, [0, 0]);
    }
    done()
}

fn invalid<T: Debug>(outcome: Result<T, Error>, text: &str) -> RankResult {
    match outcome {
        Err(error @ Error::InvalidArgument { .. }) => {
            check!(error.to_string().contains(text), "{error}");
            done()
        }
        other => Err(format!("{text}: {other:?}").into()),
    }
}

/// What is wrong with a call alone is said before anything has happened: the same name works afterwards.
fn refused(ctx: &RankCtx, scene: &Scene) -> RankResult {
    let (me, by, rank, n) = (scene.me(), ctx.deadline(), ctx.rank(), ctx.world());
    let all: Vec<usize> = (0..n).collect();
    let [mesh, turned] = [all.clone(), all.into_iter().rev().collect()].map(|ranks| mesh_of(&[n], &ranks));
    let (mesh, turned) = (mesh?, turned?);
    let source = spec(&[n], &mesh, &[Shard(0)])?;
    let (mine, whole) = (one(rank)?, Tensor::from_slice(&[n], &vec![1i32; n])?);
    let wrong = [Tensor::from_slice(&[n + 1], &vec![1i32; n + 1])?, Tensor::from_slice(&[1], &[1f32])?];
    let flat = mesh_of(&[1, n], &(0..n).collect::<Vec<_>>())?;

    invalid(me.convert_mesh("x", &source, &flat, Some(&mine), by), "which has another shape")?;
    invalid(me.convert_mesh("x", &source, &turned, None, by), "must bring a tensor")?;
    invalid(me.convert_mesh("x", &source, &turned, Some(&wrong[0]), by), "is [1], not")?;
    invalid(me.convert_mesh("x", &source, &turned, Some(&wrong[1]), by), "elements of f32, not i32")?;
    invalid(me.gather("x", &source, None, id_of(0), by), "must bring a tensor")?;
    invalid(me.gather("x", &source, Some(&wrong[0]), id_of(0), by), "is [1], not")?;
    if rank == 0 {
        invalid(me.scatter("x", id_of(0), &source, None, by), "must bring a tensor")?;
        invalid(me.scatter("x", id_of(0), &source, Some(&wrong[0]), by), "a whole of shape")?;
        invalid(me.scatter("x", id_of(0), &source, Some(&wrong[1]), by), "a whole of shape")?;
    }
    let mut buf = TensorBuf::zeros(&[2], DType::I32)?;
    invalid(me.copy("x", &source, &turned, Some(&mine), None, by), "must bring a tensor")?;
    invalid(me.copy("x", &source, &turned, None, Some((&mut buf).into()), by), "must bring a tensor")?;
    invalid(
        me.copy("x", &source, &turned, Some(&mine), Some((&mut buf).into()), by),
        "into i32 of shape [2]",
    )?;
    let mut floats = TensorBuf::zeros(&[1], DType::F32)?;
    invalid(
        me.copy("x", &source, &turned, Some(&mine), Some((&mut floats).into()), by),
        "into f32 of shape [1]",
    )?;
    let [first, last] = [mesh_of(&[1], &[0])?, mesh_of(&[1], &[n - 1])?];
    let narrow = spec(&[1], &first, &[Shard(0)])?;
    if n > 2 && rank == 1 {
        invalid(me.copy("x", &narrow, &last, Some(&mine), None, by), "is neither in the mesh")?;
        check!(me.convert_mesh("x", &narrow, &last, Some(&mine), by)?.is_none(), "nothing to do");
        check!(me.scatter("x", id_of(0), &spec(&[1], &last, &[Shard(0)])?, None, by)?.is_none());
        check!(me.gather("x", &narrow, None, id_of(n - 1), by)?.is_none());
    }
    // There is no element that such a sum would not change.
    let premul = spec(&[n], &mesh, &[Partial(ReduceOp::premul_sum(2.0))]);
    check!(premul.is_err(), "there is none of integers at all");
    let premul = TensorSpec::new(&[1], DType::F32, &mesh, &[Partial(ReduceOp::premul_sum(2.0))])?;
    let scattered = me.scatter("x", id_of(0), &premul, Some(&wrong[1]), by);
    check!(matches!(scattered, Err(Error::Unsupported { .. })), "{scattered:?}");
    check_eq!(scene.store.stats(), Default::default());

    let passed = me.convert_mesh("x", &source, &turned, Some(&mine), by)?.ok_or("all are in it")?;
    check_eq!(passed.to_vec::<i32>()?, [(n - 1 - rank) as i32]);
    me.scatter("x", id_of(0), &source, Some(&whole), by)?;
    me.gather("x", &source, Some(&mine), id_of(0), by)?;
    // Contributions that are there can be reduced.
    let sum = me.gather("y", &premul, Some(&wrong[1]), id_of(0), by)?;
    check_eq!(sum.map(|sum| sum.to_vec::<f32>()).transpose()?, (rank == 0).then(|| vec![2.0 * n as f32]));
    done()
}

/// A name that is too long is so on every device, however few digits its id has, and before anything is published.
fn long_names(ctx: &RankCtx, scene: &Scene) -> RankResult {
    let (by, rank, n) = (ctx.deadline(), ctx.rank(), ctx.world());
    // Ids of one digit, and one of twenty.
    let ids: Vec<usize> = (0..n - 1).chain([usize::MAX]).collect();
    let turned: Vec<usize> = ids.iter().copied().rev().collect();
    let (mesh, turned) = (DeviceMesh::new(&[n], ids.clone())?, DeviceMesh::new(&[n], turned)?);
    let me = Participant::new(&*scene.store, ids[rank]);
    let source = spec(&[n], &mesh, &[Shard(0)])?;
    let (mine, whole) = (one(rank)?, Tensor::from_slice(&[n], &vec![1i32; n])?);
    let mut into = TensorBuf::zeros(&[1], DType::I32)?;
    for flow in ["convert_mesh", "scatter", "gather", "copy"] {
        let mut call = |name: &str, by: Deadline| -> Result<(), Error> {
            match flow {
                "convert_mesh" => me.convert_mesh(name, &source, &turned, Some(&mine), by).map(drop),
                "scatter" => me.scatter(name, 0, &source, Some(&whole), by).map(drop),
                "gather" => me.gather(name, &source, Some(&mine), 0, by).map(drop),
                _ => me.copy(name, &source, &turned, Some(&mine), Some((&mut into).into()), by),
            }
        };
        let most = store::MAX_KEY_BYTES - format!("/{flow}/{}", usize::MAX).len();
        let before = scene.store.stats();
        for more in [1, 19, 20, store::MAX_KEY_BYTES] {
            invalid(call(&"n".repeat(most + more), SHORT.into()), "a name of")?;
        }
        check_eq!(scene.store.stats(), before, "{flow}");
        scene.team.barrier(by)?;
        call(&"n".repeat(most), by)?;
    }
    done()
}

/// Two that are the same device: the second one to give is told so.
fn one_id_twice(ctx: &RankCtx, scene: &Scene) -> RankResult {
    let by = ctx.deadline();
    let target = mesh_of(&[1], &[7])?;
    let source = spec(&[1], &mesh_of(&[1], &[0])?, &[Shard(0)])?;
    let me = Participant::new(&*scene.store, id_of(0));
    if ctx.rank() == 0 {
        let own = one(0)?;
        let convert = || me.convert_mesh("x", &source, &target, Some(&own), SHORT);
        gave_up(convert, "convert_mesh", &format!("x/convert_mesh/{}", id_of(0)))?;
    }
    scene.team.barrier(by)?;
    if ctx.rank() == 1 {
        match me.convert_mesh("x", &source, &target, Some(&one(1)?), by) {
            Err(Error::DuplicateKey { key, rank: 0, .. }) => check!(key.starts_with("x/convert_mesh/")),
            other => return Err(format!("{other:?}").into()),
        }
    }
    done()
}
