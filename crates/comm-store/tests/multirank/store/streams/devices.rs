//! Tensors that are brought to another device, by who publishes them or by who fetches them.

use comm_core::Error;
use comm_core::device::{Device, DeviceKind, Stream, with_current};
use comm_core::tensor::Tensor;
use comm_store::store::Kind;
use comm_testkit::sim::SimStream;
use comm_testkit::{RankCtx, RankResult, check, check_eq};

use super::super::{Run, Scene, in_vain};
use super::{Memory, NEW, OLD, look, read_later};

/// What goes to the host goes to other processes, too.
pub const ABROAD: &[(&str, Run)] = &[("publish/-/u8/to-the-host", publish_to_host)];

pub const CASES: &[(&str, Run)] = &[
    ("publish/-/u8/to-a-device", publish_to_device),
    ("publish/-/u8/to-where-it-is", publish_to_where_it_is),
    ("fetch_to_device/-/u8/to-a-device", fetch_to_device),
    ("fetch_to_device/-/u8/to-the-host", fetch_to_host),
    ("fetch_to_device/-/u8/between-devices", between_devices),
    ("fetch_to_device/-/u8/no-way", no_way),
];

/// A part of something larger, turned round: what is brought over is a view, too.
fn host_tensor() -> Result<Tensor, Error> {
    let bytes: Vec<u8> = (0..24).collect();
    Ok(Tensor::from_slice(&[6, 4], &bytes)?.narrow(0, 1, 4)?.transpose(0, 1)?.flip(0)?)
}

/// The elements of a tensor of a simulated device, in row-major order, as they are now.
fn elements(t: &Tensor) -> Result<Vec<u8>, Error> {
    let mut seen = Vec::new();
    for row in 0..t.shape()[0] {
        for column in 0..t.shape()[1] {
            seen.extend(look(&t.narrow(0, row, 1)?.narrow(1, column, 1)?));
        }
    }
    Ok(seen)
}

/// It is brought over by the device's current stream, behind whatever that has queued, and nobody waits.
fn publish_to_device(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let expected = host_tensor()?.to_vec::<u8>()?;
    if ctx.rank() == 0 {
        let none = s.store.publish("x", &host_tensor()?, &s.cpu, 1, Some(DeviceKind::Sim));
        check!(
            matches!(none, Err(Error::InvalidArgument { .. })),
            "no stream of the device is current: {none:?}"
        );
        let target = SimStream::new(5);
        let gate = target.gate()?;
        with_current(target.stream(), || {
            s.store.publish("x", &host_tensor()?, &s.cpu, ctx.world() - 1, Some(DeviceKind::Sim))
        })?;
        check_eq!(s.store.stats().bytes_copied, 16);
        (1..ctx.world()).try_for_each(|reader| s.script.pass(reader))?;
        drop(gate);
        s.wait_consumed("x")?;
        return s.end();
    }
    let reader = SimStream::new(5);
    let read = s.store.fetch("x", reader.stream(), s.by)?;
    check_eq!((read.device(), read.shape()), (Device::Sim(5), &[4, 4][..]));
    let (sender, receiver) = std::sync::mpsc::channel();
    let t = read.clone();
    reader.stream().then(move || sender.send(elements(&t).unwrap()).unwrap())?;
    // All fetch before it is brought over; the device's memory is poison until then.
    check_eq!(look(&read.narrow(0, 0, 1)?.narrow(1, 0, 1)?)[0] & 0xf0, 0xa0);
    s.script.open(ctx.rank())?;
    check_eq!(receiver.recv()?, expected);
    drop(read);
    s.end()
}

/// It is there when it is published, so readers in any process can have it.
fn publish_to_host(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        let (producer, memory) = (SimStream::new(0), Memory::new());
        producer.write(&memory.buffer, 0, &NEW)?;
        s.store.publish(
            "x",
            &memory.tensor(0)?,
            producer.stream(),
            ctx.world() - 1,
            Some(DeviceKind::Cpu),
        )?;
        check_eq!(s.store.stats().bytes_copied, 8);
        // What was brought over is another one.
        producer.write(&memory.buffer, 0, &OLD)?;
        producer.stream().synchronize(s.by)?;
        s.wait_consumed("x")?;
    } else {
        let read = s.fetch("x")?;
        check_eq!((read.device(), read.to_vec::<u8>()?), (Device::Cpu, NEW.to_vec()));
    }
    s.end()
}

fn publish_to_where_it_is(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        let (producer, memory) = (SimStream::new(0), Memory::new());
        let (there, here) = (memory.tensor(0)?, host_tensor()?);
        s.store.publish("there", &there, producer.stream(), 1, Some(DeviceKind::Sim))?;
        s.store.publish("here", &here, &s.cpu, 1, Some(DeviceKind::Cpu))?;
        check!(s.store.fetch("there", producer.stream(), s.by)?.shares_storage(&there));
        check!(s.fetch("here")?.shares_storage(&here));
        check_eq!(s.store.stats().bytes_copied, 0);
    }
    s.end()
}

/// The copy is made behind what the reader's stream has queued, and is ready for the device's stream; and the reader still
/// has to finish.
fn fetch_to_device(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let expected = host_tensor()?.to_vec::<u8>()?;
    if ctx.rank() == 0 {
        s.publish("x", &host_tensor()?, 2)?;
        s.script.pass(0)?;
        check_eq!(s.not_consumed("x")?.seen, 0);
        s.script.open(1)?;
        s.wait_consumed("x")?;
    }
    if ctx.rank() == 1 {
        let device = SimStream::new(0);
        let gate = device.gate()?;
        // By a stream of the device, and by that which is current.
        let by_stream = s.store.fetch_to_device("x", device.stream(), Device::Sim(0), s.by)?;
        let by_current = with_current(device.stream(), || {
            let current = Stream::current();
            s.store.fetch_to_device("x", &current, Device::Sim(0), s.by)
        })?;
        let reads = [by_stream, by_current];
        check_eq!(s.store.stats().bytes_copied, 32);
        for read in &reads {
            check_eq!(read.device(), Device::Sim(0));
            let first = look(&read.narrow(0, 0, 1)?.narrow(1, 0, 1)?);
            check!(first[0] & 0xf0 == 0xa0, "copied before the stream came to it: {first:?}");
        }
        drop(gate);
        device.stream().synchronize(s.by)?;
        for read in &reads {
            check_eq!(elements(read)?, expected);
        }
        s.script.open(0)?;
        s.script.pass(1)?;
        drop(reads);
    }
    s.end()
}

/// The host waits for it, no longer than it likes; then nothing has been fetched.
fn fetch_to_host(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        let (producer, memory) = (SimStream::new(0), Memory::new());
        let gate = producer.gate()?;
        producer.write(&memory.buffer, 0, &NEW)?;
        s.store.publish("x", &memory.tensor(0)?, producer.stream(), 1, None)?;
        s.script.open(3)?;
        s.script.pass(0)?;
        check_eq!(s.not_consumed("x")?.seen, 0);
        drop(gate);
        s.script.pass(1)?;
        check_eq!(s.not_consumed("x")?.seen, 0);
        s.script.open(2)?;
        s.wait_consumed("x")?;
    }
    if ctx.rank() == 1 {
        let reader = SimStream::new(0);
        s.script.pass(3)?;
        for _ in 0..2 {
            let early = in_vain(|by| s.store.fetch_to_device("x", reader.stream(), Device::Cpu, by))?;
            check!(early.what.contains("value of key \"x\""), "{}", early.what);
        }
        check_eq!(s.store.stats().fetched, 0);
        s.script.open(0)?;
        let read = s.store.fetch_to_device("x", reader.stream(), Device::Cpu, s.by)?;
        check_eq!((read.device(), read.to_vec::<u8>()?), (Device::Cpu, NEW.to_vec()));
        s.script.open(1)?;
        s.script.pass(2)?;
        read.finish()?;
    }
    s.end()
}

/// From one device to another, by a stream of the second, behind the producer's.
fn between_devices(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        let (producer, memory) = (SimStream::new(0), Memory::new());
        let gate = producer.gate()?;
        producer.write(&memory.buffer, 0, &NEW)?;
        let tensor = memory.tensor(0)?;
        s.store.publish("x", &tensor, producer.stream(), 1, None)?;
        s.script.pass(0)?;
        s.wait_consumed("x")?;
        producer.write(&memory.buffer, 0, &OLD)?;
        drop(gate);
        producer.stream().synchronize(s.by)?;
        check_eq!(look(&tensor), OLD);
    }
    if ctx.rank() == 1 {
        let (reader, target) = (SimStream::new(0), SimStream::new(1));
        let read = with_current(target.stream(), || {
            s.store.fetch_to_device("x", reader.stream(), Device::Sim(1), s.by)
        })?;
        check_eq!(read.device(), Device::Sim(1));
        let seen = read_later(&target, &read)?;
        read.finish()?;
        s.script.open(0)?;
        target.stream().synchronize(s.by)?;
        check_eq!(seen.read(), NEW, "the producer overwrote it before it was brought over");
    }
    s.end()
}

/// Without a stream of the device there is no way, and nothing is fetched.
fn no_way(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        s.publish("x", &host_tensor()?, 1)?;
        s.wait_consumed("x")?;
    }
    if ctx.rank() == 1 {
        match s.store.fetch_to_device("x", &s.cpu, Device::Sim(2), s.by) {
            Err(Error::Unsupported { op, why, .. }) => {
                check!(op.contains("sim:2") && why.contains("sim:2"), "{op}: {why}")
            }
            other => return Err(format!("{other:?}").into()),
        }
        check!(matches!(s.store.finish("x", &s.cpu), Err(Error::OverFinished { fetched: 0, .. })));
        check_eq!(s.fetch("x")?.to_vec::<u8>()?, host_tensor()?.to_vec::<u8>()?);
    }
    s.end()
}
