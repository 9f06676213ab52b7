//! The program of most fault cases: a member of a team that goes on until it is told that the team is over.

use std::ffi::CString;
use std::time::Duration;

use comm_core::error::Error;
use comm_core::team::{BOARD_BYTES, Team};
use comm_testkit::witness::Witness;
use comm_testkit::{RankCtx, RankResult, now_ns};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::verdict::Told;

/// What the member does between joining and the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ops {
    Barrier,
    Exchange,
    /// One after the other.
    Both,
    /// None: it looks at the team from outside until that is over.
    Between,
}

/// What sets a process apart from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Does not come to any operation after the join.
    Idle,
    /// Idle, with so many MiB of touched memory.
    Heavy(u64),
    /// Idle, with a forked child that lives on.
    Forked,
    /// Becomes another program when the gate `exec` opens.
    Exec,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    pub join_ms: u64,
    pub op_ms: u64,
    pub ops: Ops,
    /// A process and its role.
    pub role: Option<(usize, Role)>,
    /// A process that joins when the gate `late` opens.
    pub late: Option<usize>,
    /// A rank that leaves after so many operations.
    pub leaver: Option<(usize, usize)>,
    /// Goes on when the gate `on` opens, after so many operations.
    pub pause_after: Option<usize>,
}

impl Default for Orders {
    fn default() -> Orders {
        Orders {
            join_ms: 20_000,
            op_ms: 20_000,
            ops: Ops::Both,
            role: None,
            late: None,
            leaver: None,
            pause_after: None,
        }
    }
}

impl Orders {
    pub fn json(&self) -> Value {
        json!(self)
    }
}

pub fn run(ctx: &RankCtx) -> RankResult {
    let orders: Orders = serde_json::from_value(ctx.args().clone())?;
    let witness = Witness::start();
    let told = |call: &str, error: &Error| -> RankResult {
        let mut told = Told::of(call, error);
        told.gaps = witness.gaps();
        Ok(json!(told))
    };
    ctx.note("comes");
    if orders.late == Some(ctx.process()) {
        ctx.await_go("late")?;
    }
    let join = Duration::from_millis(orders.join_ms);
    let team = match Team::join(&ctx.name("team"), ctx.rank(), ctx.world(), join) {
        Ok(team) => team,
        Err(error) => return told("join", &error),
    };
    ctx.note("in");
    let role = orders.role.filter(|(process, _)| *process == ctx.process()).map(|(_, role)| role);
    if let Some(role) = role {
        play(ctx, role)?;
    }
    for done in 0.. {
        if orders.leaver == Some((ctx.rank(), done)) {
            drop(team);
            return Ok(Value::Null);
        }
        if orders.pause_after == Some(done) {
            ctx.note("paused");
            ctx.await_go("on")?;
        }
        let call = match orders.ops {
            Ops::Barrier => "barrier",
            Ops::Exchange => "exchange",
            Ops::Both if done % 2 == 0 => "barrier",
            Ops::Both => "exchange",
            Ops::Between => {
                while team.snapshot().ended.is_none() {
                    std::thread::sleep(Duration::from_micros(500));
                }
                "barrier"
            }
        };
        if let Err(error) = operate(&team, call, &orders) {
            let first = told(call, &error);
            // What ended the team is what every later call says.
            for call in ["barrier", "exchange"] {
                let Err(later) = operate(&team, call, &orders) else {
                    return Err(format!("{call} succeeds after: {error}").into());
                };
                let (first, later) = (Told::of(call, &error), Told::of(call, &later));
                // Several may have left; any of them is missed.
                let same =
                    first.kind == "PeerLeft" || (&first.ranks, &first.how) == (&later.ranks, &later.how);
                if first.kind != later.kind || !same {
                    return Err(format!("first {}, then {}", first.text, later.text).into());
                }
            }
            return first;
        }
    }
    Ok(Value::Null)
}

fn operate(team: &Team, call: &str, orders: &Orders) -> Result<(), Error> {
    let deadline = Duration::from_millis(orders.op_ms);
    match call {
        "exchange" => team.exchange(&[team.rank() as u8; BOARD_BYTES], deadline).map(|said| {
            for (rank, bytes) in said.iter().enumerate() {
                assert_eq!(bytes, &[rank as u8; BOARD_BYTES], "what rank {rank} said");
            }
        }),
        _ => team.barrier(deadline),
    }
}

fn play(ctx: &RankCtx, role: Role) -> RankResult {
    // The ranks of a process are its threads: one of them does what is done once.
    let first = (0..ctx.world()).find(|&rank| ctx.shares_process(rank)) == Some(ctx.rank());
    match role {
        Role::Heavy(mib) if first => {
            let memory = touched((mib << 20) as usize)?;
            ctx.note("ready");
            idle(ctx);
            drop(memory);
        }
        Role::Forked if first => {
            // SAFETY: the child makes one system call over and over, which a fork of a process with threads may do.
            let child = unsafe { libc::fork() };
            if child == 0 {
                loop {
                    // SAFETY: pause has no arguments and touches no memory.
                    unsafe { libc::pause() };
                }
            }
            ctx.note_value("ready", child);
            idle(ctx);
        }
        Role::Exec if first => {
            let program = CString::new("/bin/sleep")?;
            let seconds = CString::new("30")?;
            let arguments = [program.as_ptr(), seconds.as_ptr(), std::ptr::null()];
            ctx.note("ready");
            ctx.await_go("exec")?;
            ctx.note("exec");
            // SAFETY: the strings live until the call, the list ends with a null; on success nothing of this program
            // is left.
            unsafe { libc::execv(program.as_ptr(), arguments.as_ptr()) };
            return Err(std::io::Error::last_os_error().into());
        }
        _ => {
            ctx.note("ready");
            idle(ctx);
        }
    }
    Ok(Value::Null)
}

/// Waits for something else to happen to this process.
fn idle(ctx: &RankCtx) {
    while ctx.line(Duration::from_secs(3600)).is_none() {}
}

/// Memory of which every page was written.
fn touched(bytes: usize) -> Result<memmap2::MmapMut, std::io::Error> {
    let began = now_ns();
    let mut memory = memmap2::MmapMut::map_anon(bytes)?;
    memory.chunks_mut(4096).for_each(|page| page[0] = 1);
    println!("touched {} MiB in {} ms", bytes >> 20, (now_ns() - began) / 1_000_000);
    Ok(memory)
}
