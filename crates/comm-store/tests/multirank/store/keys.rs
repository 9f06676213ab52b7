//! Keys: what they may be, and what does not share them.

use comm_core::Error;
use comm_store::store::{self, Kind, MAX_KEY_BYTES};
use comm_testkit::{RankCtx, RankResult, block_on, check, check_eq, done};

use super::{Run, Scene, in_vain, tensor, values};
use crate::support::{Any, eventually, team};

pub const CASES: &[(&str, Run)] = &[
    ("publish/-/-/any-key", any_key),
    ("publish/-/-/no-key", no_key),
    ("publish/-/-/key-in-use", key_in_use),
    ("publish/-/-/key-by-all-at-once", by_all_at_once),
    ("open/-/-/two-stores-one-key", two_stores_one_key),
    ("open/-/-/two-teams-one-key", two_teams_one_key),
];

/// Keys of all lengths around the sizes of words and lines, and keys that differ in what is easily lost.
fn keys() -> Vec<String> {
    let lengths = (1..=17).chain([31, 32, 33, 63, 64, 65, 127, 255, 256, 1000, 1023, MAX_KEY_BYTES]);
    let mut keys: Vec<String> = lengths.map(|n| "k".repeat(n)).collect();
    let odd = ["\0", "\0\0", "a", "a\0", "a\0\0", "a\0\0\0\0\0\0\0", "\n", " ", "  ", "A", "é", "e\u{301}"];
    keys.extend(odd.map(String::from));
    keys.extend(["\u{10ffff}\u{7f}\u{1}", "0_1_2", "/dev/shm/x", "\"'{}%s", "ключ", "鍵"].map(String::from));
    keys.push("\u{10ffff}".repeat(MAX_KEY_BYTES / 4));
    keys
}

fn any_key(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let keys = keys();
    for (i, key) in keys.iter().enumerate() {
        if ctx.rank() == i % ctx.world() {
            s.publish(key, &tensor(&values(ctx.rank(), i))?, ctx.world())?;
        }
    }
    for (i, key) in keys.iter().enumerate().rev() {
        check_eq!(s.read(key)?, values(i % ctx.world(), i), "{key:?}");
    }
    for (i, key) in keys.iter().enumerate() {
        if ctx.rank() == i % ctx.world() {
            s.wait_consumed(key)?;
        }
    }
    s.end()
}

/// No key, and one that is too long, in every call.
fn no_key(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let t = tensor(&[1.0])?;
    for key in [String::new(), "k".repeat(MAX_KEY_BYTES + 1)] {
        let refused = [
            s.publish(&key, &t, 1).err(),
            s.fetch(&key).err(),
            block_on(s.store.fetch_async(&key, &s.cpu, s.by)).err(),
            s.store.fetch_to_device(&key, &s.cpu, comm_core::device::Device::Cpu, s.by).err(),
            s.store.finish(&key, &s.cpu).err(),
            s.wait_consumed(&key).err(),
            block_on(s.store.wait_consumed_async(&key, s.by)).err(),
        ];
        for error in refused {
            let Some(Error::InvalidArgument { why, .. }) = &error else {
                return Err(format!("{error:?}").into());
            };
            check!(why.contains(&format!("{} bytes", key.len())), "{why}");
        }
    }
    s.end()
}

/// A key is used once, by whomever, also when its value has been read, until a reset.
fn key_in_use(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    for round in 0..3 {
        let producer = round % ctx.world();
        let refused = |by_whom: &str| -> Any<()> {
            match s.publish("x", &tensor(&[-1.0])?, 1) {
                Err(Error::DuplicateKey { key, rank, .. }) => {
                    check_eq!((key.as_str(), rank), ("x", producer))
                }
                other => return Err(format!("{by_whom}: {other:?}").into()),
            }
            Ok(())
        };
        if ctx.rank() == producer {
            s.publish("x", &tensor(&values(producer, round))?, 1)?;
            refused("by the same")?;
        }
        s.all()?;
        refused("by all")?;
        s.all()?;
        if ctx.rank() == (producer + 1) % ctx.world() {
            check_eq!(s.read("x")?, values(producer, round), "the first one is there");
        }
        if ctx.rank() == producer {
            s.wait_consumed("x")?;
        }
        s.all()?;
        refused("when it has been read")?;
        s.store.reset(s.by)?;
    }
    s.end()
}

/// All publish one key at once: one succeeds, all others are told who, and its value is what everybody gets.
fn by_all_at_once(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let blocks = || s.team.hub().tensors().stats().blocks + s.team.hub().windows().stats().blocks;
    // So that every rank has a log.
    s.publish(&format!("by {}", ctx.rank()), &tensor(&[])?, 0)?;
    s.all()?;
    let before = blocks();
    for round in 0..200 {
        let key = round.to_string();
        let mine = tensor(&values(ctx.rank(), round))?;
        // Together, as far as that can be.
        s.all()?;
        let outcome = s.publish(&key, &mine, ctx.world());
        let won = outcome.is_ok();
        let mut board = [0; comm_core::team::BOARD_BYTES];
        board[0] = won.into();
        let said = s.team.exchange(&board, s.by)?;
        let winners: Vec<usize> = (0..ctx.world()).filter(|&rank| said[rank][0] == 1).collect();
        let &[winner] = &winners[..] else {
            return Err(format!("{winners:?} have published {key:?}").into());
        };
        match outcome {
            Err(Error::DuplicateKey { rank, .. }) => check_eq!(rank, winner),
            other => other?,
        }
        check_eq!(s.read(&key)?, values(winner, round));
        if won {
            s.wait_consumed(&key)?;
        }
        drop(mine);
        s.all()?;
        if round % 50 == 49 {
            s.store.reset(s.by)?;
        }
    }
    eventually("nothing is left of what came to nothing", || blocks() == before)?;
    s.end()
}

fn two_stores_one_key(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let other = store::open_kind(&s.team, kind, s.by)?;
    if ctx.rank() == 0 {
        s.publish("x", &tensor(&values(0, 1))?, ctx.world())?;
    }
    s.all()?;
    if ctx.rank() == 1 {
        let early = in_vain(|by| other.fetch("x", &s.cpu, by))?;
        check_eq!((early.seen, early.expected), (0, 1));
        check!(early.what.contains("key \"x\""), "{}", early.what);
        check!(matches!(other.finish("x", &s.cpu), Err(Error::UnknownKey { .. })));
        other.publish("x", &tensor(&values(1, 2))?, &s.cpu, ctx.world(), None)?;
    }
    check_eq!(s.read("x")?, values(0, 1));
    check_eq!(other.fetch("x", &s.cpu, s.by)?.to_vec::<f32>()?, values(1, 2));
    // A reset is of one store.
    s.all()?;
    other.reset(s.by)?;
    check!(matches!(s.publish("x", &tensor(&[0.0])?, 1), Err(Error::DuplicateKey { rank: 0, .. })));
    s.end()
}

/// Two teams of the same ranks, and one of some of them, which has another size.
fn two_teams_one_key(ctx: &RankCtx, kind: Kind) -> RankResult {
    let s = Scene::new(ctx, kind)?;
    let second = team(ctx, "second")?;
    let other = store::open_kind(&second, kind, s.by)?;
    let publish = |to: &dyn store::TensorStore, n: usize, readers| -> Any<()> {
        Ok(to.publish("x", &tensor(&values(ctx.rank(), n))?, &s.cpu, readers, None)?)
    };
    if ctx.rank() < 2 {
        let part = s.team.subset(&[1, 0], s.by)?;
        let small = store::open_kind(&part, kind, s.by)?;
        check_eq!((small.context().size(), small.context().rank()), (2, 1 - ctx.rank()));
        if small.context().rank() == 0 {
            publish(&*small, 3, 1)?;
            small.wait_consumed("x", s.by)?;
        } else {
            check_eq!(small.fetch("x", &s.cpu, s.by)?.to_vec::<f32>()?, values(1, 3));
        }
        part.barrier(s.by)?;
    }
    if ctx.rank() == 0 {
        publish(&*s.store, 1, ctx.world())?;
        publish(&*other, 2, ctx.world())?;
    }
    check_eq!(other.fetch("x", &s.cpu, s.by)?.to_vec::<f32>()?, values(0, 2));
    check_eq!(s.read("x")?, values(0, 1));
    second.barrier(s.by)?;
    s.all()?;
    done()
}
