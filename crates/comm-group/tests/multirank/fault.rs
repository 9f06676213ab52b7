use comm_testkit::{Case, Program};

pub const PROGRAMS: &[Program] = &[];

pub fn cases() -> Vec<Case> {
    vec![]
}
