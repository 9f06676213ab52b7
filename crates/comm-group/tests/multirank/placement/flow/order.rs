//! What each rank does with the store, and in which order.

use std::sync::{Arc, Mutex, PoisonError};

use comm_core::device::{Device, DeviceKind, Stream};
use comm_core::team::Member;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_core::{Deadline, Result};
use comm_group::placement::flow::Participant;
use comm_group::placement::{DeviceMesh, Placement::Shard};
use comm_store::TensorStore;
use comm_store::store::{Awaitable, Fetched, Kind, Stats};
use comm_testkit::{Case, RankCtx, RankResult, check_eq, done};

use super::{Scene, both, mesh_of, spec};
use crate::placement::model::id_of;

pub fn cases() -> Vec<Case> {
    let worlds = |case: Case| case.worlds(|world| world >= 3);
    both("flow/-/i32/order", order).into_iter().map(worlds).collect()
}

/// A store that writes down what is done with it.
#[derive(Debug)]
struct Recorder {
    store: Arc<dyn TensorStore>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Recorder {
    fn note(&self, text: String) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn reading(&self, key: &str, stream: &Stream, fetched: Fetched) -> Fetched {
        self.note(format!("fetch {key}"));
        let (log, key) = (self.log.clone(), key.to_owned());
        Fetched::new(fetched.tensor().clone(), stream, move || {
            log.lock().unwrap_or_else(PoisonError::into_inner).push(format!("finish {key}"));
            fetched.finish()
        })
    }
}

impl TensorStore for Recorder {
    fn kind(&self) -> Kind {
        self.store.kind()
    }

    fn context(&self) -> &Arc<Member> {
        self.store.context()
    }

    fn publish(
        &self,
        key: &str,
        tensor: &Tensor,
        stream: &Stream,
        readers: usize,
        to: Option<DeviceKind>,
    ) -> Result<()> {
        let hint = to.map_or(String::new(), |kind| format!(" to {kind}"));
        self.note(format!("publish {key} for {readers}{hint}"));
        self.store.publish(key, tensor, stream, readers, to)
    }

    fn fetch(&self, key: &str, stream: &Stream, deadline: Deadline) -> Result<Fetched> {
        Ok(self.reading(key, stream, self.store.fetch(key, stream, deadline)?))
    }

    fn fetch_async<'s>(&'s self, key: &str, stream: &Stream, deadline: Deadline) -> Awaitable<'s, Fetched> {
        self.store.fetch_async(key, stream, deadline)
    }

    fn fetch_to_device(
        &self,
        key: &str,
        stream: &Stream,
        device: Device,
        deadline: Deadline,
    ) -> Result<Fetched> {
        Ok(self.reading(key, stream, self.store.fetch_to_device(key, stream, device, deadline)?))
    }

    fn finish(&self, key: &str, stream: &Stream) -> Result<()> {
        self.note(format!("finish {key}"));
        self.store.finish(key, stream)
    }

    fn wait_consumed(&self, key: &str, deadline: Deadline) -> Result<()> {
        self.note(format!("wait {key}"));
        self.store.wait_consumed(key, deadline)
    }

    fn wait_consumed_async<'s>(&'s self, key: &str, deadline: Deadline) -> Awaitable<'s, ()> {
        self.store.wait_consumed_async(key, deadline)
    }

    fn barrier(&self, deadline: Deadline) -> Result<()> {
        self.store.barrier(deadline)
    }

    fn reset(&self, deadline: Deadline) -> Result<()> {
        self.store.reset(deadline)
    }

    fn stats(&self) -> Stats {
        self.store.stats()
    }
}

/// The lines of a script, with `#n` for the id of rank n.
fn lines(script: &str) -> Vec<String> {
    let named = |line: &str| {
        (0..4).fold(line.to_owned(), |line, r| line.replace(&format!("#{r}"), &id_of(r).to_string()))
    };
    script.split(", ").filter(|line| !line.is_empty()).map(named).collect()
}

fn order(ctx: &RankCtx, scene: &Scene) -> RankResult {
    let store = Recorder { store: scene.store.clone(), log: Arc::default() };
    let me = Participant::new(&store, id_of(ctx.rank()));
    let (rank, by) = (ctx.rank(), ctx.deadline());
    let on = |ranks: &[usize]| mesh_of(&[2], ranks);
    let source = spec(&[2], &on(&[0, 1])?, &[Shard(0)])?;
    let one = Tensor::from_slice(&[1], &[rank as i32])?;
    let whole = Tensor::from_slice(&[2], &[5, 6])?;
    let expect = |scripts: [&str; 3]| -> RankResult {
        check_eq!(store.take(), lines(scripts.get(rank).copied().unwrap_or_default()));
        done()
    };

    // A device in both meshes gives before it gets, and waits at the end; a device in neither does nothing.
    let convert = |name: &str, to: &DeviceMesh| me.convert_mesh(name, &source, to, Some(&one), by);
    convert("a", &on(&[1, 2])?)?;
    expect([
        "publish a/convert_mesh/#0 for 1, wait a/convert_mesh/#0",
        "publish a/convert_mesh/#1 for 1, fetch a/convert_mesh/#0, finish a/convert_mesh/#0, wait a/convert_mesh/#1",
        "fetch a/convert_mesh/#1, finish a/convert_mesh/#1",
    ])?;
    let hinted = me.clone().giving_to(DeviceKind::Cpu);
    hinted.convert_mesh("b", &source, &on(&[1, 0])?, Some(&one), by)?;
    expect([
        "publish b/convert_mesh/#0 for 1 to cpu, fetch b/convert_mesh/#1, finish b/convert_mesh/#1, wait b/convert_mesh/#0",
        "publish b/convert_mesh/#1 for 1 to cpu, fetch b/convert_mesh/#0, finish b/convert_mesh/#0, wait b/convert_mesh/#1",
        "",
    ])?;
    // What stays does not go through the store.
    convert("c", &on(&[0, 2])?)?;
    expect([
        "",
        "publish c/convert_mesh/#1 for 1, wait c/convert_mesh/#1",
        "fetch c/convert_mesh/#1, finish c/convert_mesh/#1",
    ])?;

    // From one of the mesh, and from another one.
    let scatter = |producer: usize| {
        let brought = (rank == producer).then_some(&whole);
        me.scatter(&format!("d{producer}"), id_of(producer), &source, brought, by)
    };
    scatter(0)?;
    expect([
        "publish d0/scatter/#1 for 1, wait d0/scatter/#1",
        "fetch d0/scatter/#1, finish d0/scatter/#1",
        "",
    ])?;
    scatter(2)?;
    expect([
        "fetch d2/scatter/#0, finish d2/scatter/#0",
        "fetch d2/scatter/#1, finish d2/scatter/#1",
        "publish d2/scatter/#0 for 1, publish d2/scatter/#1 for 1, wait d2/scatter/#0, wait d2/scatter/#1",
    ])?;
    let gather =
        |consumer: usize| me.gather(&format!("e{consumer}"), &source, Some(&one), id_of(consumer), by);
    gather(0)?;
    expect(["fetch e0/gather/#1, finish e0/gather/#1", "publish e0/gather/#1 for 1, wait e0/gather/#1", ""])?;
    gather(2)?;
    expect([
        "publish e2/gather/#0 for 1, wait e2/gather/#0",
        "publish e2/gather/#1 for 1, wait e2/gather/#1",
        "fetch e2/gather/#0, fetch e2/gather/#1, finish e2/gather/#0, finish e2/gather/#1",
    ])?;

    // On one mesh without the store.
    let mut into = TensorBuf::zeros(&[1], DType::I32)?;
    if rank < 2 {
        me.copy("f", &source, source.mesh(), Some(&one), Some((&mut into).into()), by)?;
    }
    expect(["", "", ""])?;
    if rank < 3 {
        me.copy("g", &source, &on(&[2, 1])?, Some(&one), Some((&mut into).into()), by)?;
    }
    expect(["publish g/copy/#0 for 1, wait g/copy/#0", "", "fetch g/copy/#0, finish g/copy/#0"])
}
