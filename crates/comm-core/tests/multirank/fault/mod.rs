//! What becomes of a team when a rank dies, panics, stops, leaves, or is copied by a fork.

mod debris;
mod fork;
mod kill;
mod leave;
mod link;
mod matrix;
mod member;
mod notices;
mod panic;
mod refuse;
mod stop;
mod verdict;
mod victim;

use comm_testkit::{Case, Program};

pub const PROGRAMS: &[Program] = &[
    Program { name: "fault.member", run: member::run },
    Program { name: "fault.leaver", run: leave::leaver },
    Program { name: "fault.awaits", run: stop::awaits },
    Program { name: "fault.forker", run: fork::forker },
    Program { name: "fault.forker-waits", run: fork::forker_waits },
    Program { name: "fault.hoarder", run: debris::hoarder },
];

pub fn cases() -> Vec<Case> {
    [
        kill::cases(),
        matrix::cases(),
        victim::cases(),
        panic::cases(),
        leave::cases(),
        link::cases(),
        stop::cases(),
        debris::cases(),
        refuse::cases(),
        fork::cases(),
    ]
    .concat()
}
