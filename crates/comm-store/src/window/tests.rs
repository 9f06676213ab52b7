//! A window of one rank, and of threads; processes are in the `multirank` target.

use std::time::Duration;

use comm_core::Error;
use comm_core::team::Team;
use comm_core::tensor::{DType, Tensor, TensorBuf};

use super::part::{Place, Shape};
use super::{Exposed, Window};

const AMPLE: Duration = Duration::from_secs(20);

fn one(name: &str, cells: usize, bytes: usize, slots: usize) -> (Team, Window) {
    let team = Team::join(name, 0, 1, AMPLE).unwrap();
    let window = Window::alloc(&team, cells, bytes, slots, AMPLE).unwrap();
    (team, window)
}

fn is_invalid<T: std::fmt::Debug>(outcome: comm_core::Result<T>) -> bool {
    matches!(outcome, Err(Error::InvalidArgument { .. }))
}

#[test]
fn places_travel_over_the_board() {
    let place = Place { segment: u64::MAX - 1, offset: 1 << 40, shape: Shape::new(3, 5, 7).unwrap() };
    let back = Place::from_board(&place.to_board());
    assert_eq!((back.segment, back.offset, back.shape), (place.segment, place.offset, place.shape));
}

#[test]
fn shapes_that_cannot_be_are_refused_before_anything_else() {
    let team = Team::join("window-huge", 0, 1, AMPLE).unwrap();
    let before = team.operations();
    for (cells, bytes, slots) in [(usize::MAX, 0, 0), (0, usize::MAX, 0), (0, 0, usize::MAX)] {
        assert!(is_invalid(Window::alloc(&team, cells, bytes, slots, AMPLE)));
    }
    assert_eq!(team.operations(), before, "it was no operation");
    assert!(Window::alloc(&team, 0, 1 << 47, 0, AMPLE).is_err(), "more than there is memory");
    assert!(team.barrier(AMPLE).is_err(), "the others would have waited: the team is over");
}

#[test]
fn what_is_outside_is_refused() {
    let (team, window) = one("window-outside", 2, 10, 1);
    assert_eq!(window.size(), 1);
    assert!(window.cell(0, 1).is_ok());
    for (rank, index) in [(0, 2), (0, usize::MAX), (1, 0), (usize::MAX, 0)] {
        assert!(is_invalid(window.cell(rank, index)), "cell {index} of rank {rank}");
    }
    window.write(3, &[1; 7]).unwrap();
    window.write(10, &[]).unwrap();
    for (offset, len) in [(4, 7), (0, 11), (11, 0), (usize::MAX, 1), (usize::MAX, 0)] {
        assert!(is_invalid(window.write(offset, &vec![2; len])), "{len} at {offset}");
        assert!(is_invalid(window.read(0, offset, &mut vec![2; len])), "{len} at {offset}");
    }
    assert!(is_invalid(window.read(1, 0, &mut [0])));
    let mut all = [9; 10];
    window.read(0, 0, &mut all).unwrap();
    assert_eq!(all, [0, 0, 0, 1, 1, 1, 1, 1, 1, 1], "zero before, and untouched by what was refused");
    let mut op = team.begin("test", AMPLE).unwrap();
    for (rank, slot) in [(1, 0), (0, 1), (0, usize::MAX)] {
        assert!(is_invalid(window.region(&mut op, rank, slot, 1)), "slot {slot} of rank {rank}");
    }
    op.finish();
}

#[test]
fn only_what_peers_can_reach_is_exposed() {
    let (team, window) = one("window-reach", 0, 0, 1);
    let t = Tensor::from_slice(&[2, 2], &[1u8, 2, 3, 4]).unwrap();
    let refused =
        |t: &Tensor, slot, round, abroad| is_invalid(window.expose(slot, round, t, abroad).map(drop));
    assert!(refused(&t.transpose(0, 1).unwrap(), 0, 1, false), "not contiguous");
    assert!(refused(&t, 0, 0, false), "round 0 means that nothing is exposed");
    assert!(refused(&t, 1, 1, false), "no such slot");
    assert!(refused(&t, 0, 1, true), "on the heap, for other processes");
    let reachable = t.contiguous_in(team.hub().tensors()).unwrap();
    assert!(!refused(&reachable, 0, 1, true));
}

fn region_bytes(team: &Team, window: &Window, round: u64) -> comm_core::Result<Vec<u8>> {
    let mut op = team.begin("test", AMPLE).unwrap();
    let outcome = window.region(&mut op, 0, 0, round).and_then(|region| {
        let mut bytes = vec![0; region.len()];
        assert_eq!(region.is_empty(), bytes.is_empty());
        region.read(0, &mut bytes)?;
        region.verify()?;
        Ok(bytes)
    });
    op.finish();
    outcome
}

#[test]
fn a_tensor_is_there_in_its_round_until_it_is_withdrawn() {
    let (team, window) = one("window-rounds", 0, 0, 1);
    let t = Tensor::from_slice(&[3], &[1u8, 2, 3]).unwrap();
    let is_nothing = |outcome| matches!(outcome, Err(Error::BadPeer { .. }));
    assert!(is_nothing(region_bytes(&team, &window, 5)));
    let exposed: Exposed<'_> = window.expose(0, 5, &t, false).unwrap();
    assert_eq!(region_bytes(&team, &window, 5).unwrap(), [1, 2, 3]);
    assert!(is_nothing(region_bytes(&team, &window, 4)) && is_nothing(region_bytes(&team, &window, 6)));
    let t = t.try_into_buf().expect_err("the window holds it");
    drop(exposed);
    assert!(is_nothing(region_bytes(&team, &window, 5)));
    assert!(t.try_into_buf().is_ok(), "and now nobody does");
    let none = TensorBuf::zeros(&[0], DType::F64).unwrap().freeze();
    let _exposed = window.expose(0, 6, &none, false).unwrap();
    assert_eq!(region_bytes(&team, &window, 6).unwrap(), []);
}

#[test]
fn a_reader_of_this_process_keeps_what_it_reads() {
    let (team, window) = one("window-keeps", 0, 0, 1);
    let t = Tensor::from_slice(&[4], &[1u8, 2, 3, 4]).unwrap();
    let exposed = window.expose(0, 1, &t, false).unwrap();
    let mut op = team.begin("test", AMPLE).unwrap();
    let region = window.region(&mut op, 0, 0, 1).unwrap();
    drop((exposed, t));
    let mut some = [0; 2];
    region.read(1, &mut some).unwrap();
    assert_eq!(some, [2, 3]);
    region.verify().unwrap();
    assert!(region.expect_len(4).is_ok() && matches!(region.expect_len(5), Err(Error::BadPeer { .. })));
    for (offset, len) in [(3, 2), (5, 0), (usize::MAX, 1)] {
        assert!(is_invalid(region.read(offset, &mut vec![0; len])), "{len} at {offset}");
    }
    op.finish();
}
