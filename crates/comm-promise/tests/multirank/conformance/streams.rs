//! Values behind streams, on a simulated device whose streams stand at gates for as long as a case wants.

use std::time::Duration;

use comm_core::device::{Device, Stream};
use comm_core::tensor::Tensor;
use comm_core::{Error, Kind};
use comm_promise::{Promise, SetError};
use comm_testkit::sim::SimStream;
use comm_testkit::{RankCtx, RankResult, block_on, check, check_eq};

use crate::support::{Any, Run, Scene, in_vain, tensor};

pub const CASES: &[(&str, Run)] = &[
    ("ready/-/f32/when-its-stream-gets-there", when_it_gets_there),
    ("ready/-/f32/beside-a-busy-stream", beside_a_busy_one),
    ("ready/-/f32/not-behind-what-comes-later", not_behind_later),
    ("ready/-/-/without-data", without_data),
    ("ready/-/-/stream-that-fails", failing),
    ("ready/-/f32/of-the-host", of_the_host),
    ("set/-/f32/of-a-device", of_a_device),
];

const VALUES: [f32; 3] = [1.0, -2.0, 3.5];

/// A tensor of the stream's device, written when the stream gets there.
fn on_device(stream: &SimStream, s: &Scene) -> Any<Tensor> {
    Ok(tensor(&VALUES)?.to_device(stream.stream().device(), stream.stream(), s.by)?)
}

/// What the client has got, wherever it is.
fn is_right(value: &Tensor, s: &Scene) -> Any<()> {
    let seen = match value.device() {
        Device::Cpu => value.clone(),
        device => {
            let Device::Sim(ordinal) = device else { return Err(format!("on {device}").into()) };
            value.to_device(Device::Cpu, SimStream::new(ordinal).stream(), s.by)?
        }
    };
    let seen = seen.to_vec::<f32>()?;
    if seen == VALUES { Ok(()) } else { Err(format!("{seen:?}").into()) }
}

fn when_it_gets_there(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    for by_task in [false, true] {
        let (future, promise) = s.ask::<Tensor>()?;
        let mut gate = None;
        if let Some(promise) = promise {
            let stream = SimStream::new(3);
            gate = Some(stream.gate()?);
            let value = on_device(&stream, &s)?;
            // It returns while the stream stands.
            promise.set_when_ready(value, stream.stream());
        }
        s.all()?;
        if let Some(future) = &future {
            in_vain(future)?;
        }
        s.all()?;
        if let Some(gate) = gate {
            gate.open();
        }
        if let Some(future) = future {
            is_right(&if by_task { block_on(future)? } else { future.get(s.by)? }, &s)?;
        }
        s.all()?;
    }
    s.end()
}

fn beside_a_busy_one(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let ((busy, busy_promise), (free, free_promise)) = (s.ask::<Tensor>()?, s.ask::<Tensor>()?);
    let mut gate = None;
    if let (Some(busy), Some(free)) = (busy_promise, free_promise) {
        let streams = [SimStream::new(0), SimStream::new(0)];
        gate = Some(streams[0].gate()?);
        busy.set_when_ready(on_device(&streams[0], &s)?, streams[0].stream());
        free.set_when_ready(on_device(&streams[1], &s)?, streams[1].stream());
    }
    if let (Some(busy), Some(free)) = (&busy, free) {
        is_right(&free.get(s.by)?, &s)?;
        check!(!busy.is_ready());
    }
    s.all()?;
    drop(gate);
    if let Some(busy) = busy {
        is_right(&busy.get(s.by)?, &s)?;
    }
    s.end()
}

fn not_behind_later(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<Tensor>()?;
    let mut later = None;
    if let Some(promise) = promise {
        let stream = SimStream::new(0);
        let first = stream.gate()?;
        promise.set_when_ready(on_device(&stream, &s)?, stream.stream());
        later = Some(stream.gate()?);
        first.open();
    }
    if let Some(future) = future {
        is_right(&future.get(s.by)?, &s)?;
    }
    s.all()?;
    drop(later);
    s.end()
}

fn without_data(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<()>()?;
    let mut gate = None;
    if let Some(promise) = promise {
        let stream = SimStream::new(0);
        gate = Some(stream.gate()?);
        promise.set_when_ready((), stream.stream());
    }
    s.all()?;
    if let Some(future) = &future {
        check_eq!(future.wait(Duration::from_millis(5))?, None);
    }
    s.all()?;
    drop(gate);
    if let Some(future) = future {
        future.get(s.by)?;
    }
    s.end()
}

/// The error of a stream is the future's: of one that has failed, and of one that fails before it gets there.
fn failing(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    for before in [true, false] {
        let (future, promise) = s.ask::<()>()?;
        let mut gate = None;
        if let Some(promise) = promise {
            let stream = SimStream::new(0);
            let fault = Error::invalid("kernel", "the device has lost its mind");
            if before {
                stream.fail(fault);
                promise.set_when_ready((), stream.stream());
            } else {
                gate = Some(stream.gate()?);
                promise.set_when_ready((), stream.stream());
                stream.fail(fault);
            }
        }
        drop(gate);
        if let Some(future) = future {
            let error = future.get(s.by).unwrap_err();
            check!(error.to_string().contains("lost its mind"), "{error}");
        }
        s.all()?;
    }
    s.end()
}

/// What the host's stream has done is there when it is asked for.
fn of_the_host(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<Tensor>()?;
    if let Some(promise) = promise {
        promise.set_when_ready(tensor(&VALUES)?, &Stream::cpu());
    }
    s.all()?;
    if let Some(future) = future {
        check!(future.is_ready());
        is_right(&future.get(s.by)?, &s)?;
    }
    s.end()
}

/// Without a stream, memory of a device does not go to another process; and it is given back.
fn of_a_device(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let (future, promise) = s.ask::<Tensor>()?;
    if let Some(promise) = promise {
        let stream = SimStream::new(2);
        let value = on_device(&stream, &s)?;
        stream.stream().synchronize(s.by)?;
        match promise.set(value.clone()) {
            Ok(()) if !s.is_abroad() => {}
            Err(SetError::Failed { value: back, why }) if s.is_abroad() => {
                check!(back.shares_storage(&value));
                check!(matches!(*why, Error::DeviceMismatch { .. }), "{why}");
                // The promise is as before.
                Promise::set_when_ready(promise, back, stream.stream());
            }
            other => return Err(format!("{other:?}").into()),
        }
    }
    if let Some(future) = future {
        is_right(&future.get(s.by)?, &s)?;
    }
    s.end()
}
