//! Opening a store: which kind, with whom, and what it leaves.

use comm_core::Error;
use comm_core::team::{BOARD_BYTES, Team};
use comm_store::store::{self, Kind};
use comm_testkit::{Layout, RankCtx, RankResult, check, check_eq, done, now_ns};

use super::{Run, Scene, tensor, values};
use crate::support::{Any, SHORT, team};

pub const CASES: &[(&str, Run)] = &[
    ("open/-/-/kind-that-fits", kind_that_fits),
    ("open/-/-/kind-that-does-not-reach", kind_that_does_not_reach),
    ("open/-/-/different-kinds", different_kinds),
    ("open/-/-/all-come", all_come),
    ("open/-/-/without-one", without_one),
    ("open/-/-/other-size", other_size),
    ("open/-/-/something-else", something_else),
];

fn kind_that_fits(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    check_eq!(s.store.kind(), kind);
    let fits = if ctx.layout() == Layout::Threads { Kind::Process } else { Kind::Host };
    let store = store::open(&s.team, s.by)?;
    check_eq!(store.kind(), fits);
    check_eq!((store.context().rank(), store.context().size()), (ctx.rank(), ctx.world()));
    check!(format!("{store:?}").contains(&fits.to_string()), "{store:?}");
    s.end()
}

/// On every rank the same, and the team goes on.
fn kind_that_does_not_reach(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let before = s.team.hub().windows().stats().blocks;
    s.all()?;
    let mut none = vec![Kind::Network];
    none.extend((ctx.layout() != Layout::Threads).then_some(Kind::Process));
    for kind in none {
        match store::open_kind(&s.team, kind, s.by) {
            Err(Error::Unsupported { op, .. }) => check!(op.contains(&kind.to_string()), "{op}"),
            other => return Err(format!("{other:?}").into()),
        }
        s.all()?;
    }
    crate::support::eventually("nothing is left of it", || s.team.hub().windows().stats().blocks == before)?;
    s.end()
}

/// Ranks that ask for different kinds are told so; nobody waits for anybody, and the team goes on.
fn different_kinds(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    for odd in 0..ctx.world() {
        for (kinds, other) in
            [(Kind::Host, Kind::Process), (Kind::Process, Kind::Host), (Kind::Host, Kind::Network)]
        {
            let asked = if ctx.rank() == odd { other } else { kinds };
            let outcome = store::open_kind(&s.team, asked, s.by);
            let Err(Error::Mismatch { field: "kind", theirs, others, .. }) = outcome else {
                return Err(
                    format!("rank {odd} asks for {other}, the others for {kinds}: {outcome:?}").into()
                );
            };
            // Of two ranks either may be the odd one.
            let said = [theirs, others];
            check!([kinds, other].iter().all(|kind| said.contains(&kind.to_string())), "{said:?}");
            s.all()?;
        }
    }
    let store = store::open(&s.team, s.by)?;
    store.barrier(s.by)?;
    s.end()
}

fn all_come(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    for round in 0..10 {
        if ctx.rank() == round % ctx.world() {
            (0..20).for_each(|_| std::thread::yield_now());
        }
        let came = now_ns();
        let store = store::open_kind(&s.team, kind, s.by)?;
        let went = now_ns();
        let mut board = [0; BOARD_BYTES];
        board[..8].copy_from_slice(&came.to_ne_bytes());
        board[8..16].copy_from_slice(&went.to_ne_bytes());
        let said = s.team.exchange(&board, s.by)?;
        let at =
            |i: usize| move |b: &[u8; BOARD_BYTES]| u64::from_ne_bytes(std::array::from_fn(|k| b[i + k]));
        let (last, first) = (said.iter().map(at(0)).max(), said.iter().map(at(8)).min());
        check!(last <= first, "one had it at {first:?}, and one came at {last:?}");
        drop(store);
    }
    s.end()
}

/// All but one open a store: out of time, and the one that is missing is named.
fn without_one(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let alone = team(ctx, "alone")?;
    if ctx.rank() > 0 {
        match store::open_kind(&alone, kind, SHORT) {
            Err(Error::Timeout { missing, .. }) => {
                check!(missing.iter().any(|m| m.rank == 0), "{missing:?}");
            }
            other => return Err(format!("{other:?}").into()),
        }
    }
    s.all()?;
    check!(matches!(store::open_kind(&alone, kind, s.by), Err(Error::Timeout { .. })));
    s.end()
}

/// Ranks that do not agree on how many they are do not come to have a store.
fn other_size(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let size = if ctx.rank() == 1 { ctx.world() + 1 } else { ctx.world() };
    let joined = Team::join(&ctx.name("sized"), ctx.rank(), size, s.by);
    let opened = joined.and_then(|team| store::open_kind(&team, kind, s.by).map(drop));
    check!(matches!(opened, Err(Error::Mismatch { field: "size", .. })), "{opened:?}");
    s.end()
}

/// Who opens a store while others make a window, or meet, is told so.
fn something_else(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let outcome: Any<()> = if ctx.rank() == 0 {
        match comm_store::Window::alloc(&s.team, 64, s.by) {
            Err(Error::Mismatch { .. }) => Ok(()),
            other => Err(format!("{other:?}").into()),
        }
    } else {
        match store::open_kind(&s.team, kind, s.by) {
            Err(Error::Mismatch { .. }) => Ok(()),
            other => Err(format!("{other:?}").into()),
        }
    };
    outcome?;
    s.publish(&ctx.rank().to_string(), &tensor(&values(ctx.rank(), 0))?, 1)?;
    check_eq!(s.read(&ctx.rank().to_string())?, values(ctx.rank(), 0));
    s.all()?;
    done()
}
