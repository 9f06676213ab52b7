//! The four steps, one by one: publish, fetch, finish, wait.

use comm_core::Error;
use comm_core::tensor::{DType, TensorBuf};
use comm_store::store::Kind;
use comm_testkit::{RankCtx, RankResult, check, check_eq, done};

use super::{Run, Scene, tensor, values, waits};
use crate::support::{Any, eventually, others};

pub const CASES: &[(&str, Run)] = &[
    ("publish/-/f32/nobody-there", nobody_there),
    ("publish/-/f32/all-to-all", all_to_all),
    ("fetch/-/f32/comes-first", comes_first),
    ("fetch/-/f32/four-threads-each", four_threads_each),
    ("fetch/-/f32/own-value", own_value),
    ("wait_consumed/-/-/up-to-the-last-reader", up_to_the_last_reader),
    ("wait_consumed/-/-/no-readers", no_readers),
    ("wait_consumed/-/-/overwritten-afterwards", overwritten_afterwards),
    ("barrier/-/-/all-come", all_come),
];

/// Publishing waits for nobody: readers come only when it has returned.
fn nobody_there(ctx: &RankCtx, kind: Kind) -> RankResult {
    const PUBLISHED: usize = 0;
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        s.publish("x", &tensor(&values(0, 1))?, ctx.world() - 1)?;
        s.script.open(PUBLISHED)?;
        s.wait_consumed("x")?;
    } else {
        s.script.pass(PUBLISHED)?;
        check_eq!(s.read("x")?, values(0, 1));
    }
    s.end()
}

/// Everybody publishes, and everybody reads everybody's.
fn all_to_all(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let world = ctx.world();
    for round in 0..20 {
        let mut mine = TensorBuf::zeros_in(s.team.hub().tensors(), &[5], DType::F32)?;
        mine.as_mut_slice::<f32>()?.copy_from_slice(&values(ctx.rank(), round));
        let mine = mine.freeze();
        s.publish(&format!("{}-{round}", ctx.rank()), &mine, world)?;
        for peer in 0..world {
            let read = s.fetch(&format!("{peer}-{round}"))?;
            check_eq!(read.to_vec::<f32>()?, values(peer, round));
            check!(!ctx.shares_process(peer) || read.is_ours());
            if peer == ctx.rank() {
                check_eq!(read.as_ptr(), mine.as_ptr());
            }
        }
        s.wait_consumed(&format!("{}-{round}", ctx.rank()))?;
        if round % 7 == 6 {
            s.store.reset(s.by)?;
        }
    }
    let stats = s.store.stats();
    check_eq!((stats.published, stats.fetched, stats.bytes_copied), (20, 20 * world as u64, 0));
    done()
}

/// Readers that wait already when the value comes.
fn comes_first(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        for reader in others(ctx) {
            eventually("it waits", || waits(&s.team, reader, "key \"x\" to be published"))?;
        }
        s.publish("x", &tensor(&values(0, 2))?, ctx.world() - 1)?;
        s.wait_consumed("x")?;
    } else {
        check_eq!(s.read("x")?, values(0, 2));
    }
    s.end()
}

fn four_threads_each(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        s.publish("x", &tensor(&values(0, 3))?, 4 * ctx.world())?;
    }
    std::thread::scope(|scope| {
        let reads: Vec<_> = (0..4).map(|_| scope.spawn(|| s.read("x"))).collect();
        reads.into_iter().try_for_each(|read| -> Any<()> {
            check_eq!(read.join().map_err(|_| "a thread panicked")??, values(0, 3));
            Ok(())
        })
    })?;
    if ctx.rank() == 0 {
        s.wait_consumed("x")?;
    }
    s.end()
}

/// A producer that is its own reader.
fn own_value(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let key = ctx.rank().to_string();
    s.publish(&key, &tensor(&values(ctx.rank(), 4))?, 1)?;
    check_eq!(s.not_consumed(&key)?.seen, 0);
    check_eq!(s.read(&key)?, values(ctx.rank(), 4));
    s.wait_consumed(&key)?;
    s.end()
}

/// For one and for five readers: who waits is not let go by any but the last of them.
fn up_to_the_last_reader(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let mut gates = 0..;
    for readers in [1, 5] {
        let key = readers.to_string();
        let turns: Vec<(usize, usize)> = gates.by_ref().take(readers).map(|gate| (gate, gate + 8)).collect();
        if ctx.rank() > 0 {
            for (i, (go, gone)) in turns.into_iter().enumerate() {
                if ctx.rank() == 1 + i % (ctx.world() - 1) {
                    let read = s.fetch(&key)?;
                    s.script.pass(go)?;
                    read.finish()?;
                    s.script.open(gone)?;
                }
            }
            continue;
        }
        s.publish(&key, &tensor(&values(0, readers))?, readers)?;
        std::thread::scope(|scope| -> Any<()> {
            let waiting = scope.spawn(|| s.wait_consumed(&key));
            for (i, (go, gone)) in turns.into_iter().enumerate() {
                let early = s.not_consumed(&key)?;
                check_eq!((early.seen, early.expected), (i as i64, readers as i64));
                check!(early.what.contains(&format!("key {key:?}")), "{}", early.what);
                check!(!waiting.is_finished(), "let go after {i} of {readers}");
                s.script.open(go)?;
                s.script.pass(gone)?;
            }
            waiting.join().map_err(|_| "a thread panicked")??;
            // And once more.
            Ok(s.wait_consumed(&key)?)
        })?;
    }
    s.end()
}

fn no_readers(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() == 0 {
        s.publish("x", &tensor(&values(0, 0))?, 0)?;
        s.wait_consumed("x")?;
    }
    s.all()?;
    match s.fetch("x") {
        Err(Error::OverFinished { readers: 0, fetched: 0, finished: 0, key, .. }) => check_eq!(key, "x"),
        other => return Err(format!("{other:?}").into()),
    }
    s.end()
}

/// When all have read, the producer has its memory back, and what was copied before stays as it was.
fn overwritten_afterwards(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    if ctx.rank() > 0 {
        for round in 0..10 {
            check_eq!(s.read(&round.to_string())?, values(0, round));
        }
        return s.end();
    }
    let mut mine = TensorBuf::zeros_in(s.team.hub().tensors(), &[5], DType::F32)?;
    let place = mine.as_slice::<f32>()?.as_ptr();
    for round in 0..10 {
        mine.as_mut_slice::<f32>()?.copy_from_slice(&values(0, round));
        let tensor = mine.freeze();
        s.publish(&round.to_string(), &tensor, ctx.world() - 1)?;
        let Err(tensor) = tensor.try_into_buf() else { return Err("it is still to be read".into()) };
        s.wait_consumed(&round.to_string())?;
        mine = tensor.try_into_buf().map_err(|_| format!("round {round}: somebody still has it"))?;
        check_eq!(mine.as_slice::<f32>()?.as_ptr(), place);
    }
    s.end()
}

/// Nobody passes before all have come, and what was published before is there afterwards, for whoever does not wait.
fn all_come(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    for round in 0..50 {
        s.publish(&format!("{}-{round}", ctx.rank()), &tensor(&values(ctx.rank(), round))?, ctx.world())?;
        s.store.barrier(s.by)?;
        for peer in 0..ctx.world() {
            let now = std::time::Duration::ZERO;
            let read = s.store.fetch(&format!("{peer}-{round}"), &s.cpu, now.into())?;
            check_eq!(read.to_vec::<f32>()?, values(peer, round));
        }
    }
    s.end()
}
