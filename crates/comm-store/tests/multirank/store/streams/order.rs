//! Who is behind whom.

use comm_core::Error;
use comm_core::device::Stream;
use comm_store::store::Kind;
use comm_testkit::sim::SimStream;
use comm_testkit::{RankCtx, RankResult, check, check_eq, done};

use super::super::{Run, Scene, in_vain};
use super::{Memory, NEW, OLD, look, read_later};
use crate::support::eventually;

pub const CASES: &[(&str, Run)] = &[
    ("streams/-/-/reader-behind-producer", reader_behind_producer),
    ("streams/-/-/producer-behind-reader", producer_behind_reader),
    ("streams/-/-/producer-that-does-not-wait", producer_that_does_not_wait),
    ("streams/-/-/freed-behind-readers", freed_behind_readers),
    ("streams/-/-/freed-behind-readers-of-before-a-reset", freed_behind_old_readers),
    ("streams/-/-/reset-behind-readers", reset_behind_readers),
    ("streams/-/-/host-behind-device", host_behind_device),
    ("streams/-/-/device-behind-host", device_behind_host),
    ("streams/-/-/failed", failed),
];

/// The value is published before it is written: whoever reads behind the fetch sees it, and who reads without it does not.
fn reader_behind_producer(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        let (producer, memory) = (SimStream::new(0), Memory::new());
        let gate = producer.gate()?;
        producer.write(&memory.buffer, 0, &NEW)?;
        s.store.publish("x", &memory.tensor(0)?, producer.stream(), ctx.world() - 1, None)?;
        check!(memory.buffer.is_poison(), "the producer's stream has not come to it");
        s.script.open(0)?;
        (1..ctx.world()).try_for_each(|reader| s.script.pass(reader))?;
        drop(gate);
        s.wait_consumed("x")?;
        producer.stream().synchronize(s.by)?;
        return s.end();
    }
    s.script.pass(0)?;
    // Of another device, too.
    let (reader, careless) = (SimStream::new(ctx.rank() as u32 % 2), SimStream::new(0));
    let read = s.store.fetch("x", reader.stream(), s.by)?;
    let (seen, seen_early) = (read_later(&reader, &read)?, read_later(&careless, &read)?);
    careless.stream().synchronize(s.by)?;
    check!(
        seen_early.is_poison(),
        "who does not wait for the event reads what was there before: {seen_early:?}"
    );
    check!(!reader.stream().query()? && seen.is_poison());
    read.finish()?;
    s.script.open(ctx.rank())?;
    reader.stream().synchronize(s.by)?;
    check_eq!(seen.read(), NEW);
    s.end()
}

/// The producer overwrites by its stream what has been read, right after it has waited, and the readers' streams have not
/// read yet.
fn producer_behind_reader(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        let (producer, memory) = (SimStream::new(0), Memory::new());
        producer.write(&memory.buffer, 0, &OLD)?;
        let tensor = memory.tensor(0)?;
        s.store.publish("x", &tensor, producer.stream(), ctx.world() - 1, None)?;
        s.wait_consumed("x")?;
        producer.write(&memory.buffer, 0, &NEW)?;
        check!(!producer.stream().query()?, "the readers' streams have not read");
        check_eq!(look(&tensor), OLD);
        s.script.open(0)?;
        producer.stream().synchronize(s.by)?;
        check_eq!(look(&tensor), NEW);
        return s.end();
    }
    let reader = SimStream::new(0);
    let read = s.store.fetch("x", reader.stream(), s.by)?;
    reader.stream().synchronize(s.by)?;
    let gate = reader.gate()?;
    let seen = read_later(&reader, &read)?;
    read.finish()?;
    s.script.pass(0)?;
    drop(gate);
    reader.stream().synchronize(s.by)?;
    check_eq!(seen.read(), OLD);
    s.end()
}

/// The same without waiting for the readers: they see what came too early.
fn producer_that_does_not_wait(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        let (producer, memory) = (SimStream::new(0), Memory::new());
        producer.write(&memory.buffer, 0, &OLD)?;
        let tensor = memory.tensor(0)?;
        s.store.publish("x", &tensor, producer.stream(), ctx.world() - 1, None)?;
        (1..ctx.world()).try_for_each(|reader| s.script.pass(reader))?;
        producer.write(&memory.buffer, 0, &NEW)?;
        producer.stream().synchronize(s.by)?;
        s.script.open(0)?;
        s.wait_consumed("x")?;
        return s.end();
    }
    let reader = SimStream::new(0);
    let read = s.store.fetch("x", reader.stream(), s.by)?;
    reader.stream().synchronize(s.by)?;
    let gate = reader.gate()?;
    let seen = read_later(&reader, &read)?;
    read.finish()?;
    s.script.open(ctx.rank())?;
    s.script.pass(0)?;
    drop(gate);
    reader.stream().synchronize(s.by)?;
    check_eq!(seen.read(), NEW);
    s.end()
}

/// The last handle goes while a reader's stream has not read yet: the memory goes back behind that, if it was finished by
/// that stream, and at once if it was finished by another one.
fn freed_behind_readers(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        for (gate_of_key, key) in ["right", "by name", "wrong"].into_iter().enumerate() {
            let (producer, memory) = (SimStream::new(0), Memory::new());
            producer.write(&memory.buffer, 0, &OLD)?;
            s.store.publish(key, &memory.tensor(0)?, producer.stream(), 1, None)?;
            s.wait_consumed(key)?;
            if key == "wrong" {
                eventually("nobody holds it back", || memory.is_given_back())?;
                s.script.open(gate_of_key)?;
            } else {
                check!(!memory.is_given_back(), "{key}: the reader's stream has not read");
                s.script.open(gate_of_key)?;
                eventually("it is given back", || memory.is_given_back())?;
            }
        }
    }
    if ctx.rank() == 1 {
        for (key, gate_of_key, is_by_name, seen_value) in
            [("right", 0, false, OLD), ("by name", 1, true, OLD), ("wrong", 2, false, [0xee; 8])]
        {
            let (reader, another) = (SimStream::new(0), SimStream::new(0));
            let told = if key == "wrong" { &another } else { &reader };
            let read = s.store.fetch(key, told.stream(), s.by)?;
            told.stream().synchronize(s.by)?;
            let (gate, seen) = if is_by_name {
                let tensor = read.into_tensor();
                let gate = reader.gate()?;
                let seen = read_later(&reader, &tensor)?;
                drop(tensor);
                s.store.finish(key, told.stream())?;
                (gate, seen)
            } else {
                let gate = reader.gate()?;
                let seen = read_later(&reader, &read)?;
                drop(read);
                (gate, seen)
            };
            s.script.pass(gate_of_key)?;
            drop(gate);
            reader.stream().synchronize(s.by)?;
            check_eq!(seen.read(), seen_value, "{key}");
        }
    }
    s.end()
}

/// A guard that has outlived a reset counts for nothing, but what its stream has queued is before the memory goes back.
fn freed_behind_old_readers(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let memory = Memory::new();
    if ctx.rank() == 0 {
        let producer = SimStream::new(0);
        producer.write(&memory.buffer, 0, &OLD)?;
        s.store.publish("x", &memory.tensor(0)?, producer.stream(), 1, None)?;
    }
    let reader = SimStream::new(0);
    let old = if ctx.rank() == 1 { Some(s.store.fetch("x", reader.stream(), s.by)?) } else { None };
    s.store.reset(s.by)?;
    if let Some(read) = old {
        reader.stream().synchronize(s.by)?;
        let gate = reader.gate()?;
        let seen = read_later(&reader, &read)?;
        drop(read);
        s.script.open(0)?;
        s.script.pass(1)?;
        drop(gate);
        reader.stream().synchronize(s.by)?;
        check_eq!(seen.read(), OLD);
    }
    if ctx.rank() == 0 {
        s.script.pass(0)?;
        check!(!memory.is_given_back(), "the reader's stream has not read");
        s.script.open(1)?;
        eventually("it is given back", || memory.is_given_back())?;
    }
    s.end()
}

/// A reset without a wait for the readers, who have finished: the producer's stream is behind theirs all the same.
fn reset_behind_readers(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (producer, memory) = (SimStream::new(0), Memory::new());
    let tensor = memory.tensor(0)?;
    if ctx.rank() == 0 {
        producer.write(&memory.buffer, 0, &OLD)?;
        s.store.publish("x", &tensor, producer.stream(), 1, None)?;
    }
    let reader = SimStream::new(0);
    let queued = if ctx.rank() == 1 {
        let read = s.store.fetch("x", reader.stream(), s.by)?;
        reader.stream().synchronize(s.by)?;
        let gate = reader.gate()?;
        let seen = read_later(&reader, &read)?;
        read.finish()?;
        Some((gate, seen))
    } else {
        None
    };
    s.store.reset(s.by)?;
    if ctx.rank() == 0 {
        producer.write(&memory.buffer, 0, &NEW)?;
        check_eq!(look(&tensor), OLD);
        check!(!producer.stream().query()?);
        s.script.open(0)?;
        producer.stream().synchronize(s.by)?;
        check_eq!(look(&tensor), NEW);
    }
    if let Some((gate, seen)) = queued {
        s.script.pass(0)?;
        drop(gate);
        reader.stream().synchronize(s.by)?;
        check_eq!(seen.read(), OLD);
    }
    s.end()
}

/// Who fetches for the host waits for the device to have written, no longer than he likes, and can ask again.
fn host_behind_device(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        let (producer, memory) = (SimStream::new(0), Memory::new());
        let gate = producer.gate()?;
        producer.write(&memory.buffer, 0, &NEW)?;
        s.store.publish("x", &memory.tensor(0)?, producer.stream(), ctx.world() - 1, None)?;
        s.script.open(0)?;
        (1..ctx.world()).try_for_each(|reader| s.script.pass(reader))?;
        check_eq!(s.not_consumed("x")?.seen, 0);
        drop(gate);
        s.wait_consumed("x")?;
        return s.end();
    }
    s.script.pass(0)?;
    let early = in_vain(|by| s.store.fetch("x", &s.cpu, by))?;
    check!(early.what.contains("value of key \"x\""), "{}", early.what);
    s.script.open(ctx.rank())?;
    let read = s.fetch("x")?;
    check_eq!(look(&read), NEW);
    drop(read);
    s.end()
}

/// A tensor of the host that is read by a device's stream: the producer's stream, which is the host's, waits for it, no
/// longer than it likes.
fn device_behind_host(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        let memory = Memory::new();
        memory.buffer.write(0, &OLD);
        s.store.publish("x", &s.in_arena(&[7.0])?, &s.cpu, 1, None)?;
        s.script.pass(1)?;
        let early = s.not_consumed("x")?;
        check!(early.what.contains("streams of the readers of key \"x\""), "{}", early.what);
        s.script.open(0)?;
        s.wait_consumed("x")?;
        s.wait_consumed("x")?;
    }
    if ctx.rank() == 1 {
        let reader = SimStream::new(0);
        let read = s.store.fetch("x", reader.stream(), s.by)?;
        let gate = reader.gate()?;
        let kept = read.clone();
        let (seen, tensor) = (std::sync::Arc::new(std::sync::Mutex::new(Vec::new())), kept);
        let to = seen.clone();
        reader.stream().then(move || *to.lock().unwrap() = tensor.to_vec::<f32>().unwrap())?;
        read.finish()?;
        s.script.open(1)?;
        s.script.pass(0)?;
        drop(gate);
        reader.stream().synchronize(s.by)?;
        check_eq!(*seen.lock().unwrap(), [7.0]);
    }
    s.end()
}

/// A stream that has failed is an error for whoever needs it, and for nobody else.
fn failed(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        let (producer, memory) = (SimStream::new(0), Memory::new());
        let gate = producer.gate()?;
        producer.write(&memory.buffer, 0, &NEW)?;
        s.store.publish("x", &memory.tensor(0)?, producer.stream(), 1, None)?;
        producer.fail(Error::bad_peer("the device has failed"));
        drop(gate);
        let refused = s.store.publish("y", &memory.tensor(0)?, producer.stream(), 1, None);
        check!(refused.is_err(), "what it writes will never be there");
        check!(matches!(s.store.finish("y", &s.cpu), Err(Error::UnknownKey { .. })));
        s.script.open(0)?;
    }
    if ctx.rank() == 1 {
        s.script.pass(0)?;
        for _ in 0..2 {
            let error = s.fetch("x").map(drop).unwrap_err();
            check!(error.to_string().contains("the device has failed"), "{error}");
            let task = comm_testkit::block_on(s.store.fetch_async("x", &s.cpu, s.by)).map(drop).unwrap_err();
            check!(task.to_string().contains("the device has failed"), "{task}");
        }
        // Whoever fetched in vain has not fetched.
        check!(matches!(s.store.finish("x", &Stream::cpu()), Err(Error::OverFinished { fetched: 0, .. })));
    }
    s.all()?;
    done()
}
