//! Groups by content, over threads, processes and both.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use comm_core::Error;
use comm_core::team::Team;
use comm_core::tensor::Tensor;
use comm_group::{ReduceOp, ThreadGroup, ThreadGroupManager};
use comm_testkit::values::SplitMix64;
use comm_testkit::{
    Case, LauncherCtx, Layout, Outcome, Program, RankCtx, RankResult, check, check_eq, done, probe,
};
use serde_json::json;

use crate::support::{Any, shuffled};

const SUITE: &str = "manager";
const SOON: Duration = Duration::from_secs(20);

pub const PROGRAMS: &[Program] = &[Program { name: "managed", run: managed }];

pub fn cases() -> Vec<Case> {
    vec![
        Case::ranks(SUITE, "group/-/-/by-content", by_content),
        Case::ranks(SUITE, "group/-/-/crosswise", crosswise),
        Case::ranks(SUITE, "group/-/-/many-in-any-order", many),
        Case::ranks(SUITE, "group/-/-/over-and-again", over_and_again),
        Case::launcher(SUITE, "drop/-/-/dead-peer", dead_peer)
            .worlds(|world| world == 4)
            .layouts(&[Layout::Processes, Layout::Mixed])
            .limit(Duration::from_secs(60)),
    ]
}

/// The manager that the ranks of this process share.
fn manager(ctx: &RankCtx, name: &str) -> Arc<ThreadGroupManager> {
    static MANAGERS: Mutex<Option<HashMap<String, Weak<ThreadGroupManager>>>> = Mutex::new(None);
    let mut managers = MANAGERS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = managers.get_or_insert_default().entry(ctx.name(name)).or_default();
    known.upgrade().unwrap_or_else(|| {
        let fresh = Arc::new(ThreadGroupManager::with_prefix(ctx.name(name)));
        *known = Arc::downgrade(&fresh);
        fresh
    })
}

fn sum(ctx: &RankCtx, group: &ThreadGroup, mine: i64) -> Any<i64> {
    let mine = Tensor::from_slice(&[1], &[mine])?;
    Ok(group.all_reduce(&mine, ReduceOp::Sum, ctx.deadline())?.as_slice::<i64>()?[0])
}

/// Ids are not ranks: they are far apart, and any list of them is a group.
fn by_content(ctx: &RankCtx) -> RankResult {
    let manager = manager(ctx, "m");
    let id = |rank: usize| 1000 - 7 * rank;
    let (me, world) = (id(ctx.rank()), ctx.world());
    let all: Vec<usize> = (0..world).map(id).collect();
    let mut lists = vec![all.clone(), all.iter().rev().copied().collect()];
    lists.extend((0..world).map(|rank| vec![id(rank)]));
    lists.extend((1..world).map(|rank| vec![id(rank), id(0)]));
    for list in lists.iter().filter(|list| list.contains(&me)) {
        let group = manager.group(list.clone(), me, ctx.deadline())?;
        check_eq!((group.size(), Some(group.rank())), (list.len(), list.iter().position(|&i| i == me)));
        check_eq!(sum(ctx, &group, me as i64)?, list.iter().sum::<usize>() as i64, "{list:?}");
        // Nobody is asked: not even time is needed.
        check!(Arc::ptr_eq(&group, &manager.group(list.clone(), me, Duration::ZERO)?));
    }
    let stranger = manager.group(all.clone(), 1, ctx.deadline());
    check!(matches!(stranger, Err(Error::InvalidArgument { .. })));
    manager.group(all, me, SOON)?.barrier(ctx.deadline())?;
    done()
}

/// Each rank asks for two groups from two threads, in either order, and uses them from both.
fn crosswise(ctx: &RankCtx) -> RankResult {
    let manager = manager(ctx, "m");
    let forth: Vec<usize> = (0..ctx.world()).collect();
    let back: Vec<usize> = forth.iter().rev().copied().collect();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for lists in [[&forth, &back], [&back, &forth]] {
            let manager = &manager;
            threads.push(scope.spawn(move || -> Any<()> {
                for list in lists {
                    manager.group(list.clone(), ctx.rank(), ctx.deadline())?;
                }
                // The first of its lists is this thread's to use.
                let group = manager.group(lists[0].clone(), ctx.rank(), ctx.deadline())?;
                for round in 0..20 {
                    let expected = ctx.world() as i64 * round;
                    assert_eq!(sum(ctx, &group, round)?, expected);
                }
                Ok(())
            }));
        }
        threads.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread has panicked")?)
    })?;
    check_eq!(manager.keys().len(), 2);
    manager.group(forth, ctx.rank(), SOON)?.barrier(ctx.deadline())?;
    done()
}

/// All orders of the ids are groups, and each rank asks for them in an order of its own: within a process from three threads that
/// ask for all of them, else from a thread for each. Then each thread uses what is its own.
fn many(ctx: &RankCtx) -> RankResult {
    let (manager, world) = (manager(ctx, "m"), ctx.world());
    let lists = orders(world);
    let asks_for_all = ctx.layout() == Layout::Threads;
    let threads = if asks_for_all { 3 } else { lists.len() };
    std::thread::scope(|scope| {
        let mut rng = ctx.rng();
        let drive = |thread: usize, mut rng: SplitMix64| {
            let (manager, lists) = (&manager, &lists);
            move || -> Any<()> {
                if asks_for_all {
                    for list in shuffled(&mut rng, lists.clone()) {
                        manager.group(list, ctx.rank(), ctx.deadline())?;
                    }
                }
                for list in lists.iter().skip(thread).step_by(threads) {
                    let group = manager.group(list.clone(), ctx.rank(), ctx.deadline())?;
                    for round in 0..10 {
                        assert_eq!(sum(ctx, &group, round)?, world as i64 * round);
                    }
                }
                Ok(())
            }
        };
        let started = shuffled(&mut rng, (0..threads).collect());
        let started: Vec<_> =
            started.into_iter().map(|i| scope.spawn(drive(i, rng.fork(i as u64)))).collect();
        started.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread has panicked")?)
    })?;
    check_eq!(manager.keys().len(), lists.len());
    done()
}

/// All orders of `0..n`.
fn orders(n: usize) -> Vec<Vec<usize>> {
    let longer = |lists: Vec<Vec<usize>>, id: usize| {
        let at = |list: &[usize], place: usize| [&list[..place], &[id], &list[place..]].concat();
        lists.iter().flat_map(|list| (0..=list.len()).map(move |place| at(list, place))).collect()
    };
    (0..n).fold(vec![vec![]], longer)
}

/// A group that somebody has ended is made anew by the next calls, though the old one is still held.
fn over_and_again(ctx: &RankCtx) -> RankResult {
    let manager = manager(ctx, "m");
    let all: Vec<usize> = (0..ctx.world()).collect();
    let steps = Team::join(&ctx.name("steps"), ctx.rank(), ctx.world(), ctx.deadline())?;
    let mut held = Vec::new();
    for round in 0..5 {
        let group = manager.group(all.clone(), ctx.rank(), ctx.deadline())?;
        check!(held.iter().all(|old: &Arc<ThreadGroup>| old.team().id() != group.team().id()));
        check_eq!(sum(ctx, &group, 1)?, ctx.world() as i64);
        // Who has the sum may be ahead of one who has not heard of all yet, and who would not get it any more.
        steps.barrier(ctx.deadline())?;
        if ctx.rank() == round % ctx.world() {
            group.abort_handle().abort("for a new one");
        }
        let over = group.barrier(ctx.deadline());
        check!(matches!(over, Err(Error::Aborted { .. })), "{over:?}");
        held.push(group);
    }
    done()
}

/// Makes groups, works until a peer is lost, and drops the manager.
fn managed(ctx: &RankCtx) -> RankResult {
    let manager = manager(ctx, "m");
    let all: Vec<usize> = (0..ctx.world()).collect();
    let pair = [ctx.rank() / 2 * 2, ctx.rank() / 2 * 2 + 1];
    let (whole, half) = (manager.group(all, ctx.rank(), SOON)?, manager.group(pair, ctx.rank(), SOON)?);
    half.barrier(SOON)?;
    ctx.note("running");
    let error = loop {
        if let Err(error) = whole.barrier(SOON) {
            break error;
        }
    };
    check!(matches!(error, Error::PeerLost { .. }), "{error}");
    drop((whole, half, manager));
    done()
}

fn dead_peer(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch("managed").limit(SOON).spawn()?;
    for rank in 0..ctx.world() {
        running.wait_note(rank, "running", SOON)?;
    }
    let victim = running.process_of(ctx.world() - 1).ok_or("the launch runs it")?;
    let lost = running.ranks_of(victim).to_vec();
    running.kill(victim)?;
    for report in running.wait(SOON) {
        let dead = lost.contains(&report.rank);
        let expected = if dead { Outcome::Killed(9) } else { Outcome::Ok(json!(null)) };
        check_eq!(report.outcome, expected, "rank {}", report.rank);
    }
    let sockets = probe::sockets_named(running.instance())?;
    check!(sockets.is_empty(), "sockets are left: {sockets:?}");
    done()
}
