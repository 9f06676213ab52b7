//! A hundred deaths at random moments, in few launches: when one of a team dies, the survivors and a fresh process are
//! the next team.

use std::time::Duration;

use comm_core::team::Team;
use comm_core::tensor::Tensor;
use comm_group::{ReduceOp, ThreadGroup};
use comm_testkit::report::{self, Notice, in_time, is_lost};
use comm_testkit::{Case, LauncherCtx, Layout, Program, RankCtx, RankResult, Running, check, check_eq, done};

use super::{BACKEND, SOON, SUITE};
use crate::support::Any;

pub const MEMBER: Program = Program { name: "group-member", run: member };

const TEAM: usize = 4;
const PER_LAUNCH: usize = 10;

pub fn cases() -> Vec<Case> {
    let case = Case::launcher(SUITE, "kill/-/-/100-at-random", hundred);
    vec![
        case.worlds(|w| w == TEAM)
            .layouts(&[Layout::Processes, Layout::Mixed])
            .limit(Duration::from_secs(240))
            .backend(BACKEND),
    ]
}

/// Reads lines `<round> <rank> <rank> ...`: which team comes next, and who is in it, in order.
fn member(ctx: &RankCtx) -> RankResult {
    while let Some(line) = ctx.line(SOON) {
        if line == "end" {
            return done();
        }
        let numbers: Vec<usize> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let (round, members) = numbers.split_first().ok_or("a round and its members")?;
        let rank = members.iter().position(|&r| r == ctx.rank()).ok_or("it is a member")?;
        let team = Team::join(&format!("round-{round}"), rank, members.len(), SOON)?;
        let group = ThreadGroup::new(team, SOON)?;
        ctx.note(format!("running {round}"));
        let values: Vec<i64> = (0..1 << 14).map(|i| rank as i64 * 1_000_000 + i).collect();
        let input = Tensor::from_slice(&[values.len()], &values)?;
        loop {
            let busy = report::busy();
            match group.all_reduce(&input, ReduceOp::Sum, SOON) {
                Ok(sum) => {
                    let n = members.len() as i64;
                    let expected = |i: i64| n * (n - 1) / 2 * 1_000_000 + n * i;
                    let right = sum.as_slice::<i64>()?.iter().zip(0..).all(|(&x, i)| x == expected(i));
                    check!(right, "a wrong sum in round {round}");
                }
                Err(error) => {
                    report::tell(ctx, "all_reduce", &error, busy);
                    break;
                }
            }
        }
    }
    Err("no line came".into())
}

fn hundred(ctx: &LauncherCtx) -> RankResult {
    let (kills, mut rng) = (100, ctx.rng());
    // The processes of a team: four with a rank each, or two with two.
    let width = if ctx.layout() == Layout::Mixed { 2 } else { 1 };
    let members = TEAM / width;
    let mut times = Vec::new();
    while times.len() < kills {
        let processes = members - 1 + PER_LAUNCH.min(kills - times.len());
        let placement = (0..processes).map(|p| (p * width..(p + 1) * width).collect()).collect();
        let running = ctx
            .launch_on("group-member", processes * width, Layout::Processes)
            .placement(placement)
            .spawn()?;
        let mut alive: Vec<usize> = (0..processes).collect();
        for round in 0.. {
            if alive.len() < members {
                break;
            }
            // Whoever comes in is last or first, hosts the join or does not.
            let mut team: Vec<usize> = alive[..members].to_vec();
            let turn = rng.below(members as u64) as usize;
            team.rotate_left(turn);
            let victim = team[rng.below(members as u64) as usize];
            let pause = Duration::from_micros(rng.below(8000));
            let slowest = one_death(&running, round, &team, victim, pause)
                .map_err(|e| format!("kill {} of {kills} (after {pause:?}): {e}", times.len() + 1))?;
            times.push(slowest);
            alive.retain(|&p| p != victim);
        }
        for process in alive {
            running.ranks_of(process).iter().try_for_each(|&rank| running.send(rank, "end"))?;
        }
        let ended = running.wait(SOON);
        let well = ended.iter().filter(|r| r.outcome.is_ok()).count();
        check_eq!(well, (members - 1) * width, "who is left ends well");
    }
    times.sort();
    let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
    ctx.progress(&format!("{} deaths, noticed after {median} (median), {most} (most)", times.len()));
    done()
}

/// A team comes together, works, and loses a process; says how long the slowest survivor took to know.
fn one_death(running: &Running, round: usize, team: &[usize], victim: usize, pause: Duration) -> Any<Notice> {
    let ranks: Vec<usize> = team.iter().flat_map(|&p| running.ranks_of(p).to_vec()).collect();
    let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let line = format!("{round} {}", list.join(" "));
    ranks.iter().try_for_each(|&rank| running.send(rank, line.clone()))?;
    let lost: Vec<usize> =
        (0..ranks.len()).filter(|&r| running.ranks_of(victim).contains(&ranks[r])).collect();
    let errors_before: Vec<usize> = ranks.iter().map(|&rank| errors(running, rank)).collect();
    for &rank in &ranks {
        running.wait_note(rank, &format!("running {round}"), SOON)?;
    }
    std::thread::sleep(pause);
    let killed = running.kill(victim)?;
    let mut slowest = Notice::default();
    for (rank, before) in ranks.iter().zip(errors_before) {
        if running.ranks_of(victim).contains(rank) {
            continue;
        }
        let until = std::time::Instant::now() + SOON;
        while errors(running, *rank) == before {
            check_time(until, *rank)?;
            std::thread::sleep(Duration::from_millis(1));
        }
        let notes = running.notes(*rank);
        let note = notes.iter().rev().find(|n| n.text == "error").ok_or("it was just there")?;
        is_lost(note, &lost, "Died").map_err(|e| format!("rank {rank}: {e}"))?;
        slowest = slowest.max(in_time(note, killed, &[]).map_err(|e| format!("rank {rank}: {e}"))?);
    }
    Ok(slowest)
}

fn check_time(until: std::time::Instant, rank: usize) -> Any<()> {
    if std::time::Instant::now() > until {
        return Err(format!("rank {rank} says nothing").into());
    }
    Ok(())
}

fn errors(running: &Running, rank: usize) -> usize {
    running.notes(rank).iter().filter(|n| n.text == "error").count()
}
