//! Tensors of every dtype and layout, bit for bit, and what of them is copied.

use comm_core::tensor::{DType, Layout, MAX_DIMS, Tensor, TensorBuf};
use comm_testkit::values::Strided;
use comm_testkit::{Case, RankCtx, RankResult, check, check_eq};

use crate::support::{Any, Scene, host};

pub fn cases() -> Vec<Case> {
    vec![
        host("set/-/any/layouts-in-place", |ctx| all_layouts(ctx, true)),
        host("set/-/any/layouts-of-the-heap", |ctx| all_layouts(ctx, false)),
        host("set/-/u8/sixteen-dims", sixteen_dims),
        host("set/-/u8/large", large),
        host("set/-/f32/more-than-2-to-the-31", many_elements),
        host("set/-/f32/received-again", received_again),
    ]
}

/// A view as it is described over random elements, in the arena or on the heap, and its elements in row-major order.
fn view(s: &Scene, ctx: &RankCtx, case: &Strided, dtype: DType, in_arena: bool) -> Any<(Tensor, Vec<u8>)> {
    let bytes = case.random_storage(&mut ctx.common_rng().fork(u64::from(dtype.code())), dtype);
    let expected = case.row_major(&bytes, dtype.size());
    let mut storage = if in_arena {
        TensorBuf::zeros_in(s.team.hub().tensors(), &[case.storage], dtype)?
    } else {
        TensorBuf::zeros(&[case.storage], dtype)?
    };
    storage.bytes_mut()?.copy_from_slice(&bytes);
    let layout = Layout::new(&case.shape, &case.strides, case.offset)?;
    Ok((storage.freeze().with_layout(layout)?, expected))
}

/// How many blocks of tensors this process has ever made, this one included.
fn made(s: &Scene) -> Any<u64> {
    Ok(s.team.hub().tensors().alloc(1)?.generation())
}

fn all_layouts(ctx: &RankCtx, in_arena: bool) -> RankResult {
    let s = Scene::host(ctx)?;
    for case in Strided::cases() {
        for &dtype in DType::ALL {
            let what = format!("{} of {dtype}", case.name);
            let (future, promise) = s.ask::<Tensor>()?;
            if !s.is_client() && !s.is_worker() {
                continue;
            }
            let (mine, expected) = view(&s, ctx, &case, dtype, in_arena)?;
            if let Some(promise) = promise {
                let before = made(&s)?;
                promise.set(mine.clone())?;
                if s.is_abroad() {
                    let copies = u64::from(!in_arena && mine.numel() > 0);
                    check_eq!(made(&s)? - before - 1, copies, "{what}");
                }
            }
            if let Some(future) = future {
                let value = future.get(s.by)?;
                check_eq!((value.shape(), value.dtype()), (mine.shape(), dtype), "{what}");
                let mut seen = vec![0; value.nbytes()];
                value.copy_bytes_to(&mut seen)?;
                check!(seen == expected, "{what}: {seen:?}, expected {expected:?}");
                check!(
                    !s.is_abroad() || value.numel() == 0 || !value.is_ours(),
                    "{what} has been copied here"
                );
                if in_arena && value.numel() > 0 {
                    check_eq!(value.strides(), mine.strides(), "{what}");
                }
            }
        }
    }
    s.end()
}

fn sixteen_dims(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let mut shape = vec![1; MAX_DIMS];
    (shape[2], shape[9], shape[MAX_DIMS - 1]) = (3, 2, 5);
    let mut buf = TensorBuf::zeros_in(s.team.hub().tensors(), &shape, DType::U8)?;
    (0..).zip(buf.as_mut_slice::<u8>()?).for_each(|(i, byte)| *byte = i);
    let mut mine = buf.freeze();
    for d in 0..MAX_DIMS / 2 {
        mine = mine.transpose(d, MAX_DIMS - 1 - d)?;
    }
    // Alone it is said in the slot, and with others like it in a block of its own.
    for count in [1, 20] {
        let (future, promise) = s.ask::<Vec<Tensor>>()?;
        if let Some(promise) = promise {
            promise.set(vec![mine.clone(); count])?;
        }
        if let Some(future) = future {
            let values = future.get(s.by)?;
            check_eq!(values.len(), count);
            for value in values {
                check_eq!((value.shape(), value.strides()), (mine.shape(), mine.strides()));
                check!(value.bytes_equal(&mine)?);
            }
        }
    }
    s.end()
}

/// A large one costs what a small one does: no byte. It is of 1 GiB in the long version.
fn large(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let bytes = if ctx.full() { 1 << 30 } else { 8 << 20 };
    let (future, promise) = s.ask::<Tensor>()?;
    if let Some(promise) = promise {
        let mut buf = TensorBuf::zeros_in(s.team.hub().tensors(), &[bytes], DType::U8)?;
        let slice = buf.as_mut_slice::<u8>()?;
        (slice[0], slice[bytes / 2], slice[bytes - 1]) = (1, 2, 3);
        let before = made(&s)?;
        promise.set(buf.freeze())?;
        check!(!s.is_abroad() || made(&s)? == before + 1, "it has been copied");
    }
    if let Some(future) = future {
        let value = future.get(s.by)?;
        check_eq!(value.shape(), [bytes]);
        let at = |i: usize| value.narrow(0, i, 1)?.to_vec::<u8>();
        check_eq!((at(0)?, at(1)?, at(bytes / 2)?, at(bytes - 1)?), (vec![1], vec![0], vec![2], vec![3]));
    }
    s.end()
}

/// Two elements, repeated 2^33 times.
fn many_elements(ctx: &RankCtx) -> RankResult {
    const ROWS: usize = 1 << 33;
    let s = Scene::host(ctx)?;
    let (future, promise) = s.ask::<Tensor>()?;
    if let Some(promise) = promise {
        let row = Tensor::from_slice(&[1, 2], &[1.5f32, 2.5])?.contiguous_in(s.team.hub().tensors())?;
        promise.set(row.expand(&[ROWS, 2])?)?;
    }
    if let Some(future) = future {
        let value = future.get(s.by)?;
        check_eq!((value.shape(), value.nbytes()), (&[ROWS, 2][..], 8 * ROWS));
        for row in [0, 1 << 31, 1 << 32, ROWS - 1] {
            check_eq!(value.narrow(0, row, 1)?.to_vec::<f32>()?, [1.5, 2.5], "row {row}");
        }
    }
    s.end()
}

/// What has been received goes on to others: the memory of another process is copied, once.
fn received_again(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let mut value = Tensor::from_slice(&[3], &[1.0f32, 2.0, 3.0])?;
    for _ in 0..4 {
        // To the client ...
        let (future, promise) = s.ask::<Tensor>()?;
        if let Some(promise) = promise {
            promise.set(value.clone())?;
        }
        if let Some(future) = future {
            value = future.get(s.by)?;
        }
        // ... and back, through a promise of the worker's own.
        let home = ctx.world() - 1;
        let mine = s.is_worker().then(|| comm_promise::Promise::<Tensor>::new(s.kind)).transpose()?;
        let future = mine.as_ref().map(comm_promise::Promise::future).transpose()?;
        let ticket = s.ticket(home, mine.map(comm_promise::Promise::into_ticket).transpose()?)?;
        if s.is_client() {
            comm_promise::Promise::attach(&ticket, s.by)?.set(value.clone())?;
        }
        if let Some(future) = future {
            value = future.get(s.by)?;
            check_eq!(value.to_vec::<f32>()?, [1.0, 2.0, 3.0]);
        }
    }
    s.end()
}
