//! A window of one rank, and of threads; processes are in the `multirank` target.

use std::time::Duration;

use comm_core::Error;
use comm_core::team::Team;
use comm_core::tensor::{DType, Tensor, TensorBuf};

use super::Inside;
use super::part::Place;
use super::{Await, Exposed, Notify, StoreOp, Sub, Window, WindowSpec};
use crate::{Cmp, NotifyOp};

const AMPLE: Duration = Duration::from_secs(20);

fn one(name: &str, spec: WindowSpec) -> (Team, Window) {
    let team = Team::join(name, 0, 1, AMPLE).unwrap();
    let window = Window::alloc(&team, spec, AMPLE).unwrap();
    (team, window)
}

fn is_invalid<T: std::fmt::Debug>(outcome: comm_core::Result<T>) -> bool {
    matches!(outcome, Err(Error::InvalidArgument { .. }))
}

#[test]
fn places_travel_over_the_board() {
    let spec = WindowSpec::bytes(5).signals(3).slots(7);
    let place = Place { layout: 7, ..Place::new(u64::MAX - 1, 1 << 40, spec, Inside::default()) };
    let back = Place::from_board(&place.to_board());
    let words = |p: &Place| (p.segment, p.offset, p.spec, p.layout);
    assert_eq!(words(&back), words(&place));
}

#[test]
fn specs_are_of_bytes_or_of_tensors() {
    assert_eq!(WindowSpec::tensor(&[2, 3], DType::F64).unwrap(), WindowSpec::bytes(48));
    assert_eq!(WindowSpec::from(48), WindowSpec::bytes(48));
    for shape in [&[][..], &[0], &[3, 0], &[usize::MAX, 2]] {
        assert!(WindowSpec::tensor(shape, DType::U8).is_err(), "{shape:?}");
    }
}

#[test]
fn specs_that_cannot_be_are_refused_and_the_team_goes_on() {
    let team = Team::join("window-huge", 0, 1, AMPLE).unwrap();
    let most = WindowSpec::bytes(usize::MAX);
    for spec in [most, WindowSpec::bytes(0).signals(usize::MAX), WindowSpec::bytes(0).slots(usize::MAX)] {
        assert!(is_invalid(Window::alloc(&team, spec, AMPLE)));
    }
    team.barrier(AMPLE).unwrap();
    assert!(Window::alloc(&team, 1 << 47, AMPLE).is_err(), "more than there is memory");
    assert!(team.barrier(AMPLE).is_err(), "the others would have waited: the team is over");
}

#[test]
fn what_is_outside_is_refused() {
    let (team, window) = one("window-outside", WindowSpec::bytes(10).signals(2).slots(1));
    assert_eq!((window.rank(), window.nranks()), (0, 1));
    let signals = window.signals(&[2]).unwrap();
    for (rank, cell) in
        [(0, &[2][..]), (0, &[usize::MAX]), (1, &[0]), (usize::MAX, &[0]), (0, &[]), (0, &[0, 0])]
    {
        assert!(is_invalid(signals.notify(rank, cell, 1, NotifyOp::Add)), "cell {cell:?} of rank {rank}");
    }
    assert_eq!((signals.read(&[0]).unwrap(), signals.read(&[1]).unwrap()), (0, 0), "nothing was written");
    assert!(is_invalid(signals.wait(&[0], Cmp::Ge, 0, Some(1), AMPLE)), "from a rank that is not there");
    assert!(is_invalid(window.signals(&[3])) && is_invalid(window.signals_from(1, &[2])));
    assert!(is_invalid(window.signals_from(usize::MAX, &[1])));
    assert!(is_invalid(signals.barrier(AMPLE)), "one rank needs one cell");

    for (at, shape, dtype) in [(0, &[11][..], DType::U8), (8, &[1], DType::I32), (1, &[1], DType::I32)] {
        assert!(is_invalid(window.view(at, shape, dtype)), "{shape:?} at {at}");
    }
    assert!(window.view(usize::MAX, &[0], DType::U8).is_err());
    let view = window.view(0, &[2, 5], DType::U8).unwrap();
    view.store(&Tensor::from_slice(&[1, 2], &[1u8, 2]).unwrap(), &[1, 3]).unwrap();
    let tile = Tensor::from_slice(&[1, 2], &[9u8, 9]).unwrap();
    for offsets in [&[0, 4][..], &[2, 0], &[0], &[usize::MAX, 0], &[0, 0, 0]] {
        assert!(is_invalid(view.store(&tile, offsets)), "{offsets:?}");
        assert!(is_invalid(view.remote_store(&tile, 0, offsets, StoreOp::Add)), "{offsets:?}");
        assert!(is_invalid(view.remote_load(0, offsets, &[1, 2])), "{offsets:?}");
    }
    assert!(is_invalid(view.remote_load(1, &[0, 0], &[1, 1])) && is_invalid(view.read::<i8>(&[0, 0])));
    assert!(is_invalid(view.write(&[1, 5], 1u8)) && is_invalid(view.read::<u8>(&[1])));
    let all = view.remote_load(0, &[0, 0], &[2, 5]).unwrap();
    assert_eq!(all.as_slice::<u8>().unwrap(), [0, 0, 0, 0, 0, 0, 0, 0, 1, 2], "zero, but for what fitted");
    for (rank, slot) in [(1, 0), (0, 1), (0, usize::MAX)] {
        assert!(is_invalid(window.region(rank, slot, 1, AMPLE)), "slot {slot} of rank {rank}");
    }
    team.barrier(AMPLE).unwrap();
}

#[test]
fn narrow_tiles_are_read_element_by_element() {
    let (_team, window) = one("window-tiles", WindowSpec::bytes(64));
    let narrow = window.view(0, &[2, 1], DType::I32).unwrap();
    narrow.write(&[1, 0], 7i32).unwrap();
    let error = narrow.load_tile(&[0, 0], &[2, 1]).unwrap_err().to_string();
    assert!(error.contains("32") && error.contains("a column 8") && error.contains("wid"), "{error}");
    assert_eq!(narrow.read::<i32>(&[1, 0]).unwrap(), 7);
    for shape in [[8, 1], [1, 8]] {
        let wide = window.view(0, &shape, DType::I32).unwrap();
        assert_eq!(wide.load_tile(&[0, 0], &shape).unwrap().as_slice::<i32>().unwrap()[..2], [0, 7]);
    }
}

#[test]
fn transfers_go_between_views_of_other_shapes_and_not_over_themselves() {
    let (_team, window) = one("window-transfer", WindowSpec::bytes(64).signals(1));
    let (a, b) =
        (window.view(0, &[4, 4], DType::U16).unwrap(), window.view(32, &[2, 8], DType::U16).unwrap());
    (0..16).for_each(|i| a.write(&[i / 4, i % 4], i as u16).unwrap());
    let sub = Sub { to: &[0, 6], from: &[1, 2], shape: &[2, 2] };
    let signals = window.signals(&[1]).unwrap();
    b.put(0, &a, Some(sub), StoreOp::Set, Some(Notify::add(&signals, &[0], 3))).unwrap();
    assert_eq!(Await::ge(&signals, &[0], 3).now().unwrap(), 3);
    let row = |i| b.remote_load(0, &[0, 0], &[2, 8]).unwrap().as_slice::<u16>().unwrap()[i];
    assert_eq!([6, 7, 14, 15].map(row), [6, 7, 10, 11]);
    b.put(0, &a, Some(sub), StoreOp::Add, None).unwrap();
    assert_eq!([6, 7, 14, 15].map(row), [12, 14, 20, 22]);
    b.get(0, &a, Some(Sub { to: &[3, 0], from: &[0, 6], shape: &[1, 2] }), None).unwrap();
    assert_eq!(a.read::<u16>(&[3, 1]).unwrap(), 14);

    let shifted = window.view(2, &[4, 4], DType::U16).unwrap();
    assert!(is_invalid(shifted.put(0, &a, None, StoreOp::Set, None)), "over itself");
    assert!(is_invalid(a.get(0, &shifted, None, None)), "over itself");
    assert!(is_invalid(b.put(0, &a, None, StoreOp::Set, None)), "of another shape");
    let other = window.view(32, &[4, 4], DType::I16).unwrap();
    assert!(is_invalid(other.put(0, &a, None, StoreOp::Set, None)), "of another dtype");
    let cell = Notify::add(&signals, &[1], 1);
    let target = window.view(32, &[4, 4], DType::U16).unwrap();
    assert!(is_invalid(target.put(0, &a, None, StoreOp::Set, Some(cell))), "no such signal");
    assert_eq!(row(0), 0, "and nothing has moved");
    let bools = window.view(0, &[4], DType::Bool).unwrap();
    let t = Tensor::from_slice(&[4], &[true; 4]).unwrap();
    let outcome = bools.remote_store(&t, 0, &[0], StoreOp::Add);
    assert!(matches!(outcome, Err(Error::Unsupported { .. })), "{outcome:?}");
    a.write(&[0, 0], 0x0202u16).unwrap();
    assert!(bools.read::<bool>(&[0]).is_err(), "a bool is 0 or 1");
}

#[test]
fn the_tail_of_a_ragged_tile_is_zero() {
    let (_team, window) = one("window-ragged", WindowSpec::bytes(15));
    let view = window.view(0, &[3, 5], DType::U8).unwrap();
    (0..15).for_each(|i| view.write(&[i / 5, i % 5], i as u8 + 1).unwrap());
    let tile = view.remote_load_valid(0, &[2, 3], &[2, 4], &[1, 2]).unwrap();
    assert_eq!(tile.as_slice::<u8>().unwrap(), [14, 15, 0, 0, 0, 0, 0, 0]);
    assert!(is_invalid(view.remote_load_valid(0, &[2, 3], &[2, 4], &[1, 3])), "outside");
    assert!(is_invalid(view.remote_load_valid(0, &[2, 3], &[2, 4], &[1])));
    let all = view.remote_load_valid(0, &[0, 0], &[3, 5], &[9, 9]).unwrap();
    assert_eq!(all.as_slice::<u8>().unwrap()[14], 15, "never more than the tile");
}

#[test]
fn only_what_peers_can_reach_is_exposed() {
    let (_team, window) = one("window-reach", WindowSpec::bytes(0).slots(1));
    let t = Tensor::from_slice(&[2, 2], &[1u8, 2, 3, 4]).unwrap();
    let refused = |t: &Tensor, slot, round| is_invalid(window.expose(slot, round, t).map(drop));
    assert!(refused(&t.transpose(0, 1).unwrap(), 0, 1), "not contiguous");
    assert!(refused(&t, 0, 0), "round 0 means that nothing is exposed");
    assert!(refused(&t, 1, 1), "no such slot");
    assert!(!refused(&t, 0, 1));
}

fn region_bytes(window: &Window, round: u64) -> comm_core::Result<Vec<u8>> {
    let region = window.region(0, 0, round, AMPLE)?;
    let mut bytes = vec![0; region.len()];
    assert_eq!(region.is_empty(), bytes.is_empty());
    region.read(0, &mut bytes)?;
    region.verify()?;
    Ok(bytes)
}

#[test]
fn a_tensor_is_there_in_its_round_until_it_is_withdrawn() {
    let (_team, window) = one("window-rounds", WindowSpec::bytes(0).slots(1));
    let t = Tensor::from_slice(&[3], &[1u8, 2, 3]).unwrap();
    let is_nothing = |outcome| matches!(outcome, Err(Error::BadPeer { .. }));
    assert!(is_nothing(region_bytes(&window, 5)));
    let exposed: Exposed<'_> = window.expose(0, 5, &t).unwrap();
    assert_eq!(region_bytes(&window, 5).unwrap(), [1, 2, 3]);
    assert!(is_nothing(region_bytes(&window, 4)) && is_nothing(region_bytes(&window, 6)));
    let t = t.try_into_buf().expect_err("the window holds it");
    drop(exposed);
    assert!(is_nothing(region_bytes(&window, 5)));
    assert!(t.try_into_buf().is_ok(), "and now nobody does");
    let none = TensorBuf::zeros(&[0], DType::F64).unwrap().freeze();
    let _exposed = window.expose(0, 6, &none).unwrap();
    assert!(region_bytes(&window, 6).unwrap().is_empty());
}

#[test]
fn a_reader_of_this_process_keeps_what_it_reads() {
    let (_team, window) = one("window-keeps", WindowSpec::bytes(0).slots(1));
    let t = Tensor::from_slice(&[4], &[1u8, 2, 3, 4]).unwrap();
    let exposed = window.expose(0, 1, &t).unwrap();
    let region = window.region(0, 0, 1, AMPLE).unwrap();
    drop((exposed, t));
    let mut some = [0; 2];
    region.read(1, &mut some).unwrap();
    assert_eq!(some, [2, 3]);
    region.verify().unwrap();
    assert!(region.expect_len(4).is_ok() && matches!(region.expect_len(5), Err(Error::BadPeer { .. })));
    for (offset, len) in [(3, 2), (5, 0), (usize::MAX, 1)] {
        assert!(is_invalid(region.read(offset, &mut vec![0; len])), "{len} at {offset}");
    }
}

#[test]
fn an_exposed_tensor_is_read_and_never_written() {
    let (_team, window) = one("window-exposed", WindowSpec::bytes(8).slots(1));
    let t = Tensor::from_slice(&[2, 2], &[1i16, 2, 3, 4]).unwrap();
    let _exposed = window.expose(0, 1, &t).unwrap();
    let typed = || window.region(0, 0, 1, AMPLE).unwrap().typed(&[2, 2], DType::I16).unwrap();
    assert_eq!(typed().remote_load(&[0, 1], &[2, 1]).unwrap().as_slice::<i16>().unwrap(), [2, 4]);
    let target = window.view(0, &[4], DType::I16).unwrap();
    assert!(is_invalid(typed().get(&target, None, None)), "another shape");
    let square = window.view(0, &[2, 2], DType::I16).unwrap();
    typed().get(&square, None, None).unwrap();
    assert_eq!(target.read::<i16>(&[3]).unwrap(), 4);
    let refused = |outcome| matches!(outcome, Err(Error::Unsupported { .. }));
    assert!(refused(typed().remote_store(&t, &[0, 0], StoreOp::Set)));
    assert!(refused(typed().put(&square, None, StoreOp::Add)));
    let region = window.region(0, 0, 1, AMPLE).unwrap();
    assert!(matches!(region.typed(&[2], DType::I16), Err(Error::BadPeer { .. })), "other bytes than these");
}

#[test]
fn a_window_of_a_rank_that_has_left_does_nothing() {
    let (team, window) = one("window-left", WindowSpec::bytes(8).signals(1));
    let signals = window.signals(&[1]).unwrap();
    drop(team);
    let left = |error: Option<Error>| matches!(error, Some(Error::PeerLeft { rank: 0, .. }));
    assert!(left(signals.notify(0, &[0], 1, NotifyOp::Add).err()));
    assert!(left(signals.barrier(AMPLE).err()) && left(window.reset(AMPLE).err()));
    let view = window.view(0, &[8], DType::U8).unwrap();
    assert!(left(view.remote_load(0, &[0], &[8]).err()));
}

#[test]
fn reset_makes_all_of_it_zero() {
    let (_team, window) = one("window-reset", WindowSpec::bytes(100_000).signals(3));
    let (signals, view) = (window.signals(&[3]).unwrap(), window.view(0, &[100_000], DType::U8).unwrap());
    view.store(&Tensor::from_slice(&[100_000], &[7u8; 100_000]).unwrap(), &[0]).unwrap();
    signals.notify(0, &[2], -5, NotifyOp::Set).unwrap();
    window.reset(AMPLE).unwrap();
    assert_eq!(signals.read(&[2]).unwrap(), 0);
    assert!(view.remote_load(0, &[0], &[100_000]).unwrap().as_slice::<u8>().unwrap().iter().all(|&b| b == 0));
}
