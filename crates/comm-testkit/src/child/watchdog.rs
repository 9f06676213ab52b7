//! The watchdog of a child: says where every rank is when one of them takes too long.
//!
//! Its thread sleeps until the nearest limit, so a test that measures the CPU time of a waiting process does
//! not measure the watchdog.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::child::{Child, complain};
use crate::clock::now_ns;
use crate::proto::Event;
use crate::sync::{lock, wait};
use crate::teams::Teams;

/// What each rank is doing and until when it may.
pub(crate) struct Watchdog {
    ranks: Mutex<BTreeMap<usize, Option<Doing>>>,
    begun: Condvar,
}

#[derive(Clone)]
struct Doing {
    what: String,
    since: Instant,
    limit: Option<Duration>,
    told: bool,
}

impl Watchdog {
    pub fn new(ranks: &[usize]) -> Watchdog {
        Watchdog { ranks: Mutex::new(ranks.iter().map(|&r| (r, None)).collect()), begun: Condvar::new() }
    }

    pub fn begin(&self, rank: usize, what: &str, limit: Option<Duration>) {
        let doing = Doing { what: what.to_string(), since: Instant::now(), limit, told: false };
        lock(&self.ranks).insert(rank, Some(doing));
        self.begun.notify_all();
    }

    pub fn end(&self, rank: usize) {
        lock(&self.ranks).insert(rank, None);
    }
}

/// The body of the watchdog's thread.
pub(crate) fn watch(child: &Child) {
    let dog = &child.watchdog;
    let mut ranks = lock(&dog.ranks);
    loop {
        let mut next = Duration::MAX;
        let mut late = false;
        for doing in ranks.values_mut().flatten().filter(|d| !d.told) {
            let Some(limit) = doing.limit else { continue };
            match limit.checked_sub(doing.since.elapsed()) {
                Some(left) => next = next.min(left),
                None => {
                    doing.told = true;
                    late = true;
                }
            }
        }
        if late {
            drop(ranks);
            let teams = Teams::look();
            let dump = child.dump(&teams);
            for (rank, text) in &dump {
                complain(&format!("rank {rank}: {text}"));
            }
            for line in teams.of_all() {
                complain(&line);
            }
            child.link.send(None, Event::Hung { dump });
            ranks = lock(&dog.ranks);
            continue;
        }
        // One millisecond more than is left, so that the limit has surely passed on waking.
        ranks = wait(&dog.begun, ranks, next.saturating_add(Duration::from_millis(1)));
    }
}

/// Where a rank is: what it runs and for how long, its last point, its open waits.
pub(crate) fn describe(child: &Child, rank: usize, teams: &Teams) -> String {
    let doing = lock(&child.watchdog.ranks).get(&rank).cloned().flatten();
    let mut text = match doing {
        None => "between programs".to_string(),
        Some(d) => format!("in {} for {} ms", d.what, d.since.elapsed().as_millis()),
    };
    // Writing to a String cannot fail.
    let _ = match child.armed.last(rank) {
        Some(last) => {
            write!(
                text,
                "; last point {}, {} ms ago",
                last.name,
                now_ns().saturating_sub(last.at_ns) / 1_000_000
            )
        }
        None => write!(text, "; no point passed yet"),
    };
    for line in teams.of_rank(rank) {
        let _ = write!(text, "; {line}");
    }
    text
}
