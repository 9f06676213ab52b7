//! Devices with streams: nobody waits on the host, and what is gotten is there for what is queued behind.

use comm_core::Error;
use comm_core::device::{Device, DeviceKind};
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_group::ReduceOp;
use comm_group::placement::{Placement, TensorSpec};
use comm_testkit::sim::SimStream;
use comm_testkit::{Case, Layout, RankCtx, RankResult, check, check_eq, done};

use super::{Scene, both, mesh_of, spec};
use crate::placement::model::id_of;
use Placement::{Partial, Replicate, Shard};

pub fn cases() -> Vec<Case> {
    let cases = [
        both("convert_mesh/-/i32/streams", convert),
        both("scatter/sum/f32/to-the-host", to_the_host),
        both("copy/-/i32/into-a-device", into_a_device),
        both("copy/-/i32/into-the-host", into_the_host),
    ]
    .concat();
    cases.into_iter().map(|case| case.layouts(&[Layout::Threads])).collect()
}

/// From device to device, behind a gate in the giver's stream.
fn convert(ctx: &RankCtx, scene: &Scene) -> RankResult {
    let (rank, by) = (ctx.rank(), ctx.deadline());
    if rank > 1 {
        scene.team.barrier(by)?;
        scene.team.barrier(by)?;
        return done();
    }
    let stream = SimStream::new(rank as u32);
    let me = scene.me().on(stream.stream()).giving_to(DeviceKind::Sim);
    let source = spec(&[3], &mesh_of(&[1], &[0])?, &[Shard(0)])?;
    let target = mesh_of(&[1], &[1])?;
    if rank == 0 {
        let gate = stream.gate()?;
        let local = Tensor::from_slice(&[3], &[4, 5, 6])?.to_device(Device::Sim(0), stream.stream(), by)?;
        me.convert_mesh("x", &source, &target, Some(&local), by)?;
        scene.team.barrier(by)?;
        // The other one has looked.
        scene.team.barrier(by)?;
        gate.open();
    } else {
        let got = me.convert_mesh("x", &source, &target, None, by)?.ok_or("it is the target")?;
        check_eq!(got.device(), Device::Sim(1));
        scene.team.barrier(by)?;
        check!(!stream.stream().query()?, "it is behind what the giver has not written yet");
        scene.team.barrier(by)?;
        check_eq!(got.to_device(Device::Cpu, stream.stream(), by)?.to_vec::<i32>()?, [4, 5, 6]);
    }
    done()
}

/// A whole on a device, handed out to the host; of contributions, and as views.
fn to_the_host(ctx: &RankCtx, scene: &Scene) -> RankResult {
    let (rank, by, n) = (ctx.rank(), ctx.deadline(), ctx.world());
    let stream = SimStream::new(0);
    let mesh = mesh_of(&[n - 1], &(1..n).collect::<Vec<_>>())?;
    for (i, placement) in [Partial(ReduceOp::Sum), Shard(0), Replicate].into_iter().enumerate() {
        let target = TensorSpec::new(&[4], DType::F32, &mesh, std::slice::from_ref(&placement))?;
        let mut me = scene.me();
        let mut brought = None;
        if rank == 0 {
            let whole = Tensor::from_slice(&[4], &[1f32, 2.0, 3.0, 4.0])?;
            brought = Some(whole.to_device(Device::Sim(0), stream.stream(), by)?);
            me = me.on(stream.stream()).giving_to(DeviceKind::Cpu);
        }
        let part = me.scatter(&i.to_string(), id_of(0), &target, brought.as_ref(), by)?;
        check_eq!(part.is_some(), rank > 0);
        let Some(part) = part else { continue };
        check_eq!(part.device(), Device::Cpu);
        let expected = match placement {
            Partial(_) if rank > 1 => vec![-0f32; 4],
            Shard(_) => {
                let range = comm_testkit::oracle::shard_range(4, n - 1, rank - 1);
                [1f32, 2.0, 3.0, 4.0][range].to_vec()
            }
            _ => vec![1.0, 2.0, 3.0, 4.0],
        };
        check_eq!(part.to_vec::<f32>()?, expected, "{placement}");
    }
    done()
}

/// Only a device's driver writes its memory: it is refused before anything has happened.
fn into_a_device(ctx: &RankCtx, scene: &Scene) -> RankResult {
    let (by, n) = (ctx.deadline(), ctx.world());
    let stream = SimStream::new(0);
    let mesh = mesh_of(&[n], &(0..n).collect::<Vec<_>>())?;
    let turned = mesh_of(&[n], &(0..n).rev().collect::<Vec<_>>())?;
    let source = spec(&[n], &mesh, &[Shard(0)])?;
    let local = Tensor::from_slice(&[1], &[7])?;
    let there = local.to_device(Device::Sim(0), stream.stream(), by)?;
    stream.stream().record()?.synchronize(by)?;
    let mut there = there.try_into_buf().map_err(|_| "nobody else has it")?;
    for target in [&mesh, &turned] {
        let refused = scene.me().copy("x", &source, target, Some(&local), Some((&mut there).into()), by);
        check!(matches!(refused, Err(Error::DeviceMismatch { .. })), "{refused:?}");
    }
    check_eq!(scene.store.stats(), Default::default());
    done()
}

/// Into memory of the host, by participants whose work goes through a device's stream: from the host, from a device whose
/// giver brings it to the host or does not, and what a device has itself.
fn into_the_host(ctx: &RankCtx, scene: &Scene) -> RankResult {
    let (rank, by) = (ctx.rank(), ctx.deadline());
    let stream = SimStream::new(0);
    let pair = mesh_of(&[2], &[0, 1])?;
    let turned = mesh_of(&[2], &[1, 0])?;
    if rank > 1 {
        return done();
    }
    let source = spec(&[4], &pair, &[Shard(0)])?;
    let host = Tensor::from_slice(&[2], &[rank as i32, 7])?;
    let device = host.to_device(Device::Sim(0), stream.stream(), by)?;
    let on_device = scene.me().on(stream.stream());
    let participants =
        [(scene.me(), &host), (on_device.clone(), &device), (on_device.giving_to(DeviceKind::Cpu), &device)];
    for (i, (me, local)) in participants.into_iter().enumerate() {
        // One gives from the host, and gets by its device's stream.
        let (me, local) =
            if i == 0 && rank == 1 { (scene.me().on(stream.stream()), &device) } else { (me, local) };
        let me = if i == 0 { me.giving_to(DeviceKind::Cpu) } else { me };
        for (target, expected) in [(&turned, 1 - rank), (&pair, rank)] {
            let mut into = TensorBuf::zeros(&[2], DType::I32)?;
            let name = format!("{i} to {target}");
            me.copy(&name, &source, target, Some(local), Some((&mut into).into()), by)
                .map_err(|e| format!("{name}: {e}"))?;
            check_eq!(into.as_slice::<i32>()?, [expected as i32, 7], "{name}");
        }
    }
    done()
}
