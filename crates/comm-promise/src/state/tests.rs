//! The word, step by step.

use comm_core::wait::Cell;
use proptest::prelude::*;

use super::*;

#[test]
fn a_slot_is_used_again_and_again() {
    let cell = Cell::default();
    for round in 0..5 {
        let generation = open(&cell);
        assert_eq!(generation, round);
        assert_eq!(end_of(&cell, generation), None);
        begin(&cell, generation, HOME).unwrap();
        assert!(retire(&cell, generation).is_err(), "somebody writes");
        finish(&cell, generation, HOME, &Silent).unwrap();
        assert_eq!(end_of(&cell, generation).unwrap().phase(), Phase::Set);
        assert!(!is_returned(&cell, generation));
        returned(&cell, generation);
        assert!(is_returned(&cell, generation));
        assert_eq!(retire(&cell, generation).unwrap().phase(), Phase::Returned);
        assert!(claim(&cell, generation, 1).is_err() && begin(&cell, generation, HOME).is_err());
    }
}

#[test]
fn only_the_last_holder_breaks_it() {
    let cell = Cell::default();
    let generation = open(&cell);
    claim(&cell, generation, 3).unwrap();
    hand_on(&cell, generation, HOME).unwrap();
    claim(&cell, generation, 7).unwrap();
    part(&cell, generation, 3, End::Died, &Silent).unwrap();
    assert_eq!(end_of(&cell, generation), None);
    part(&cell, generation, 3, End::Died, &Silent).unwrap_err();
    part(&cell, generation, 7, End::Panicked, &Silent).unwrap();
    let word = end_of(&cell, generation).unwrap();
    assert_eq!((word.phase(), word.row(), word.how()), (Phase::Broken, 7, End::Panicked));
}

#[test]
fn handed_on_and_not_claimed_it_stays_open() {
    let cell = Cell::default();
    let generation = open(&cell);
    hand_on(&cell, generation, HOME).unwrap();
    assert_eq!(end_of(&cell, generation), None);
    assert!(begin(&cell, generation, HOME).is_err(), "the home holds it no more");
    give_up(&cell, generation, End::Cancelled, &Silent).unwrap();
    assert_eq!(end_of(&cell, generation).unwrap().how(), End::Cancelled);
    assert_eq!(claim(&cell, generation, 1).unwrap_err().phase(), Phase::Broken);
}

#[test]
fn who_writes_while_it_is_given_up_is_told_at_the_end() {
    let cell = Cell::default();
    let generation = open(&cell);
    begin(&cell, generation, HOME).unwrap();
    give_up(&cell, generation, End::Cancelled, &Silent).unwrap();
    assert_eq!(end_of(&cell, generation).unwrap().how(), End::Cancelled, "who waits is told at once");
    give_up(&cell, generation, End::Unwanted, &Silent).unwrap_err();
    let word = finish(&cell, generation, HOME, &Silent).unwrap_err();
    assert_eq!((word.phase(), word.how()), (Phase::Broken, End::Cancelled));
    retire(&cell, generation).unwrap();
}

proptest! {
    /// Whatever stands there, everything comes to an end, and nothing is done to a slot of another generation.
    #[test]
    fn any_word_is_borne(word in any::<u64>(), generation in 0..1_u64 << 40, row in 0..ROWS) {
        let cell = Cell::default();
        cell.replace_quietly(0, word).unwrap();
        let mine = Word(word).generation() == generation;
        let _ = format!("{:?}", Word(word));
        if !mine {
            prop_assert!(claim(&cell, generation, row).is_err());
            prop_assert!(hand_on(&cell, generation, row).is_err());
            prop_assert!(part(&cell, generation, row, End::Died, &Silent).is_err());
            prop_assert!(begin(&cell, generation, row).is_err());
            prop_assert!(finish(&cell, generation, row, &Silent).is_err());
            prop_assert!(give_up(&cell, generation, End::Cancelled, &Silent).is_err());
            returned(&cell, generation);
            prop_assert_eq!(cell.load(), word);
            prop_assert!(end_of(&cell, generation).is_some() && is_returned(&cell, generation));
        }
    }
}
