//! Tensors of every dtype and layout, bit for bit, and what of them is copied.

use comm_core::tensor::{DType, Layout, MAX_DIMS, Tensor, TensorBuf};
use comm_store::store::Kind;
use comm_testkit::values::Strided;
use comm_testkit::{RankCtx, RankResult, check, check_eq};

use super::{Run, Scene};
use crate::support::Any;

pub const CASES: &[(&str, Run)] = &[
    ("publish/-/any/layouts-in-place", in_place),
    ("publish/-/any/layouts-of-the-heap", of_the_heap),
    ("publish/-/u8/sixteen-dims", sixteen_dims),
    ("publish/-/u8/parts-of-one", parts_of_one),
    ("publish/-/u8/small-and-large", small_and_large),
    ("publish/-/f32/more-than-2-to-the-31", many_elements),
    ("publish/-/f32/received-again", received_again),
];

/// A view as it is described over random elements, in the arena or on the heap, and its elements in row-major order. The
/// elements are the same on all ranks.
fn view(s: &Scene, ctx: &RankCtx, case: &Strided, dtype: DType, in_arena: bool) -> Any<(Tensor, Vec<u8>)> {
    let bytes = case.random_storage(&mut ctx.common_rng().fork(u64::from(dtype.code())), dtype);
    let expected = case.row_major(&bytes, dtype.size());
    let storage = if in_arena {
        TensorBuf::zeros_in(s.team.hub().tensors(), &[case.storage], dtype)?
    } else {
        TensorBuf::zeros(&[case.storage], dtype)?
    };
    let mut storage = storage;
    storage.bytes_mut()?.copy_from_slice(&bytes);
    let layout = Layout::new(&case.shape, &case.strides, case.offset)?;
    Ok((storage.freeze().with_layout(layout)?, expected))
}

fn all_layouts(ctx: &RankCtx, kind: Kind, in_arena: bool) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let abroad = (0..ctx.world()).any(|rank| !ctx.shares_process(rank));
    for case in Strided::cases() {
        let mut copied = s.store.stats().bytes_copied;
        for &dtype in DType::ALL {
            let producer = dtype.code() as usize % ctx.world();
            let key = format!("{}-{dtype}", case.name);
            let (mine, expected) = view(&s, ctx, &case, dtype, in_arena)?;
            if ctx.rank() == producer {
                s.publish(&key, &mine, ctx.world())?;
                if abroad && !in_arena {
                    copied += mine.nbytes() as u64;
                }
            }
            check_eq!(s.store.stats().bytes_copied, copied, "{key}");
            let read = s.fetch(&key)?;
            check_eq!((read.shape(), read.dtype()), (mine.shape(), dtype), "{key}");
            let mut seen = vec![0; read.nbytes()];
            read.copy_bytes_to(&mut seen)?;
            check!(seen == expected, "{key}: {seen:?}, expected {expected:?}");
            if ctx.rank() == producer && (in_arena || !abroad) {
                check!(read.shares_storage(&mine), "{key}: the producer's own has been copied");
            }
            if ctx.shares_process(producer) && (in_arena || !abroad) {
                check_eq!((read.strides(), read.is_ours()), (mine.strides(), true), "{key}");
            }
            // Between processes the view goes over as it is, too, if it has elements at all.
            if in_arena && read.numel() > 0 {
                check_eq!(read.strides(), mine.strides(), "{key}");
            }
        }
        s.store.reset(s.by)?;
    }
    s.end()
}

fn in_place(ctx: &RankCtx, kind: Kind) -> RankResult {
    all_layouts(ctx, kind, true)
}

fn of_the_heap(ctx: &RankCtx, kind: Kind) -> RankResult {
    all_layouts(ctx, kind, false)
}

fn sixteen_dims(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let mut shape = vec![1; MAX_DIMS];
    shape[2] = 3;
    shape[9] = 2;
    shape[MAX_DIMS - 1] = 5;
    let mut buf = TensorBuf::zeros_in(s.team.hub().tensors(), &shape, DType::U8)?;
    (0..).zip(buf.as_mut_slice::<u8>()?).for_each(|(i, byte)| *byte = i);
    // The order of dimensions turned round.
    let mut mine = buf.freeze();
    for d in 0..MAX_DIMS / 2 {
        mine = mine.transpose(d, MAX_DIMS - 1 - d)?;
    }
    let key = "k".repeat(1024);
    if ctx.rank() == 0 {
        s.publish(&key, &mine, ctx.world())?;
    }
    let read = s.fetch(&key)?;
    check_eq!((read.shape(), read.strides()), (mine.shape(), mine.strides()));
    check!(read.bytes_equal(&mine)?);
    check_eq!(s.store.stats().bytes_copied, 0);
    drop(read);
    s.end()
}

/// Pieces of one block under keys of their own, also overlapping ones, and the whole.
fn parts_of_one(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let bytes: Vec<u8> = (0..200).collect();
    let whole = Tensor::from_slice(&[20, 10], &bytes)?.contiguous_in(s.team.hub().tensors())?;
    let rows = |from: usize, count: usize| whole.narrow(0, from, count);
    if ctx.rank() == 0 {
        s.publish("whole", &whole, ctx.world())?;
        for from in 0..18 {
            s.publish(&format!("rows-{from}"), &rows(from, 3)?, ctx.world())?;
            s.publish(&format!("back-{from}"), &rows(from, 3)?.flip(0)?.flip(1)?, ctx.world())?;
        }
    }
    for from in (0..18).rev() {
        let mut expected = bytes[10 * from..][..30].to_vec();
        check_eq!(s.fetch(&format!("rows-{from}"))?.to_vec::<u8>()?, expected);
        expected.reverse();
        check_eq!(s.fetch(&format!("back-{from}"))?.to_vec::<u8>()?, expected);
    }
    check_eq!(s.fetch("whole")?.to_vec::<u8>()?, bytes);
    check_eq!(s.store.stats().bytes_copied, 0);
    s.end()
}

/// In place a large tensor costs what a small one does: no byte. The large one is of 1 GiB in the long version.
fn small_and_large(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let large = if ctx.full() { 1 << 30 } else { 8 << 20 };
    for (key, bytes) in [("small", 1 << 10), ("large", large)] {
        if ctx.rank() == 0 {
            let mut buf = TensorBuf::zeros_in(s.team.hub().tensors(), &[bytes], DType::U8)?;
            let slice = buf.as_mut_slice::<u8>()?;
            (slice[0], slice[bytes / 2], slice[bytes - 1]) = (1, 2, 3);
            s.publish(key, &buf.freeze(), ctx.world() - 1)?;
            s.wait_consumed(key)?;
        } else {
            let read = s.fetch(key)?;
            check_eq!(read.shape(), [bytes]);
            let at = |i: usize| read.narrow(0, i, 1)?.to_vec::<u8>();
            check_eq!((at(0)?, at(1)?, at(bytes / 2)?, at(bytes - 1)?), (vec![1], vec![0], vec![2], vec![3]));
        }
        check_eq!(s.store.stats().bytes_copied, 0, "{key}");
        s.all()?;
    }
    s.end()
}

/// Two elements, repeated 2^33 times: in place that costs nothing either.
fn many_elements(ctx: &RankCtx, kind: Kind) -> RankResult {
    const ROWS: usize = 1 << 33;
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        let row = s.in_arena(&[1.5, 2.5])?;
        s.publish("x", &row.unsqueeze(0)?.expand(&[ROWS, 2])?, ctx.world() - 1)?;
    } else {
        let read = s.fetch("x")?;
        check_eq!((read.shape(), read.numel(), read.nbytes()), (&[ROWS, 2][..], 2 * ROWS, 8 * ROWS));
        for row in [0, 1 << 31, 1 << 32, ROWS - 1] {
            check_eq!(read.narrow(0, row, 1)?.to_vec::<f32>()?, [1.5, 2.5], "row {row}");
        }
    }
    check_eq!(s.store.stats().bytes_copied, 0);
    s.end()
}

/// What has been received is published again by its reader: another rank's memory is copied, once, and one's own process's
/// goes on as it is.
fn received_again(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let floats = super::values(0, 7);
    let (me, last) = (ctx.rank(), ctx.world() - 1);
    if me == 0 {
        s.publish("0", &s.in_arena(&floats)?, 1)?;
    } else {
        let read = s.fetch(&(me - 1).to_string())?;
        check_eq!(read.to_vec::<f32>()?, floats);
        s.publish(&me.to_string(), &read, 1)?;
        let copied = if read.is_ours() { 0 } else { read.nbytes() as u64 };
        check_eq!(s.store.stats().bytes_copied, copied);
    }
    if me == last {
        check_eq!(s.fetch(&last.to_string())?.to_vec::<f32>()?, floats);
    }
    s.wait_consumed(&me.to_string())?;
    s.end()
}
