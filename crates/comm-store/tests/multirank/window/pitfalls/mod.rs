//! What is easily done wrong with signals. Each wrong program is shown to go wrong, the same way each time, by a script
//! that keeps a rank away; and the right one is shown to hold under the same script.

use comm_testkit::Case;

mod barrier;
mod cells;
mod data;

pub fn cases() -> Vec<Case> {
    [barrier::cases(), cells::cases(), data::cases()].concat()
}
