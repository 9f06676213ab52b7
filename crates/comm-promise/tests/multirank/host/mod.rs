//! What only promises between processes can show.

use comm_testkit::{Case, Program};

mod counts;
mod fork;
mod hostile;
mod lending;
mod limits;
mod tensors;
mod tickets;

pub fn cases() -> Vec<Case> {
    [
        tensors::cases(),
        lending::cases(),
        tickets::cases(),
        counts::cases(),
        limits::cases(),
        hostile::cases(),
        fork::cases(),
    ]
    .concat()
}

pub fn programs() -> Vec<Program> {
    [counts::PROGRAMS, limits::PROGRAMS, hostile::PROGRAMS].concat()
}
