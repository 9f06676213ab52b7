//! A process that is out of descriptors: who waits there for others learns that they cannot come, and why.

use std::fs::File;

use comm_core::hub::Hub;
use comm_testkit::{LauncherCtx, Layout};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

pub const PROGRAMS: &[Program] = &[Program { name: "rendezvous/starved", run: starved }];

pub fn cases() -> Vec<Case> {
    let case = Case::launcher("rendezvous", "join/-/-/no-descriptors", no_descriptors);
    vec![case.worlds(|w| w == 2).layouts(&[Layout::Processes])]
}

fn no_descriptors(ctx: &LauncherCtx) -> RankResult {
    for report in ctx.launch("rendezvous/starved").limit(AMPLE).run(AMPLE)? {
        check!(report.outcome.is_ok(), "rank {}: {} {:?}", report.rank, report.outcome, report.detail);
    }
    done()
}

/// Rank 0 joins alone, with only so many descriptors left; its hub is there already.
fn starved(ctx: &RankCtx) -> RankResult {
    if ctx.rank() != 0 {
        return done();
    }
    drop(Hub::get()?);
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), ..getrlimit(Resource::Nofile) })?;
    let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let mut join = |left: usize| {
        files.truncate(files.len() - left);
        let outcome = Team::join(&ctx.name(&format!("t{left}")), 0, 2, Duration::from_millis(300)).map(drop);
        files.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
        outcome
    };
    // The socket of the name, a duplicate of it to be handed out, and a connection to it, whose other end is one too many.
    for left in 0..=3 {
        match join(left) {
            Err(Error::Io { source, .. }) => {
                check_eq!(source.raw_os_error(), Some(Errno::MFILE.raw_os_error()), "{left} are left");
            }
            other => return Err(format!("{left} are left: {other:?}").into()),
        }
    }
    // With some more it is only that rank 1 does not come.
    match join(8) {
        Err(Error::Timeout { missing, .. }) => check_eq!(missing[0].rank, 1),
        other => return Err(format!("{other:?}").into()),
    }
    done()
}
