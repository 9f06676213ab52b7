use std::collections::BTreeSet;

use super::*;

/// All combinations of all levels that go together, by trying all that there are.
fn brute<const F: usize>(levels: [usize; F], goes: &dyn Fn(Level, Level) -> bool) -> Vec<[usize; F]> {
    let all = levels.iter().product::<usize>();
    let row = |mut n: usize| {
        let mut row = [0; F];
        for factor in (0..F).rev() {
            row[factor] = n % levels[factor];
            n /= levels[factor];
        }
        row
    };
    let fits = |row: &[usize; F]| (0..F).all(|b| (0..b).all(|a| goes((a, row[a]), (b, row[b]))));
    (0..all).map(row).filter(fits).collect()
}

/// The pairs that these hold, but for those that a mask which is none of them hides.
fn pairs<const F: usize>(rows: &[[usize; F]], masks: &[Level]) -> BTreeSet<(Level, Level)> {
    let all = |row: &[usize; F]| {
        let row: Vec<Level> = row.iter().copied().enumerate().collect();
        let hidden = |pair: &(Level, Level)| {
            row.iter().any(|level| masks.contains(level) && *level != pair.0 && *level != pair.1)
        };
        let pairs = (0..F).flat_map(|b| (0..b).map(move |a| (a, b)));
        pairs.map(|(a, b)| (row[a], row[b])).filter(|pair| !hidden(pair)).collect::<Vec<_>>()
    };
    rows.iter().flat_map(all).collect()
}

fn check<const F: usize>(levels: [usize; F], goes: &dyn Fn(Level, Level) -> bool, seed: u64) -> usize {
    check_masked(levels, goes, &[], seed)
}

/// Everything that holds for any factors.
fn check_masked<const F: usize>(
    levels: [usize; F],
    goes: &dyn Fn(Level, Level) -> bool,
    masks: &[Level],
    seed: u64,
) -> usize {
    let factors = Factors::new(levels, goes).unwrap().masking(masks);
    let all = brute(levels, goes);
    assert_eq!(factors.product().collect::<Vec<_>>(), all);
    let few = factors.covering(seed);
    assert!(few.is_sorted() && few.iter().all(|row| all.contains(row)));
    assert_eq!(pairs(&few, masks), pairs(&all, masks));
    assert_eq!(factors.missing(&few), []);
    assert_eq!(factors.missing(&[]).into_iter().collect::<BTreeSet<_>>(), pairs(&all, masks));
    for dropped in 0..few.len() {
        let mut rest = few.clone();
        let row = rest.remove(dropped);
        let missing = factors.missing(&rest);
        assert!(!missing.is_empty(), "without {row:?}");
        assert!(missing.iter().all(|((a, x), (b, y))| row[*a] == *x && row[*b] == *y));
    }
    few.len()
}

#[test]
fn all_pairs_in_few_combinations() {
    assert!((9..=15).contains(&check([3; 4], &|_, _| true, 1)));
    assert!((20..=30).contains(&check([5, 4, 3, 2, 2, 2], &|_, _| true, 1)));
    // One factor has nothing to pair with, a level nothing to go with.
    assert_eq!(check([4], &|_, _| true, 1), 0);
    assert_eq!(check([2, 2], &|a, _| a.1 == 0, 1), 2);
}

#[test]
fn a_pair_that_cannot_be_completed_is_none() {
    // 0 and 0 go together, and each level of the third factor goes with one of them only.
    let goes = |a: Level, b: Level| !(b.0 == 2 && a.1 == 0 && a.0 == b.1);
    let factors = Factors::new([2, 2, 2], goes).unwrap();
    assert!(!factors.missing(&[]).contains(&((0, 0), (1, 0))));
    check([2, 2, 2], &goes, 3);
}

#[test]
fn what_hides_others_counts_for_itself_alone() {
    // Without a mask nine hold all pairs; with one, the other levels need nine without it, and it needs three for itself.
    let factors = Factors::new([3, 3, 4], |_, _| true).unwrap().masking(&[(2, 3), (7, 0), (0, 9)]);
    let few = factors.covering(1);
    assert!(few.iter().filter(|row| row[2] != 3).count() >= 9 && few.len() >= 12, "{few:?}");
    check_masked([3, 3, 4], &|_, _| true, &[(2, 3)], 1);
    // Two masks beside each other hold nothing but themselves.
    let both = factors.masking(&[(0, 0)]);
    assert_eq!(both.missing(&[[0, 1, 3]]).len(), both.missing(&[]).len() - 1);
}

#[test]
fn random_relations() {
    for seed in 0..60 {
        let mut rng = SplitMix64::new(seed);
        let levels = std::array::from_fn::<_, 5, _>(|_| 1 + rng.below(4) as usize);
        let (salt, odds) = (rng.next_u64(), 3 + rng.below(6));
        let goes = |a: Level, b: Level| {
            let n =
                [a.0, a.1, b.0, b.1].iter().fold(salt, |n, &x| SplitMix64::new(n).fork(x as u64).next_u64());
            !n.is_multiple_of(odds)
        };
        check(levels, &goes, seed);
        check_masked(levels, &goes, &[(0, 0), (2, 0), (4, 1)], seed);
    }
}

#[test]
fn a_seed_is_a_choice() {
    let factors = Factors::new([4; 5], |_, _| true).unwrap();
    assert_eq!(factors.covering(7), factors.covering(7));
    assert_ne!(factors.covering(7), factors.covering(8));
}

#[test]
fn some_levels_given() {
    let factors = Factors::new([2, 3, 2], |a, b| a != (0, 1) || b.1 == 0).unwrap();
    assert_eq!(factors.product_with(&[1]).collect::<Vec<_>>(), [[1, 0, 0]]);
    assert_eq!(factors.product_with(&[0, 2]).collect::<Vec<_>>(), [[0, 2, 0], [0, 2, 1]]);
    assert_eq!(factors.product_with(&[2]).count() + factors.product_with(&[1, 1]).count(), 0);
}

#[test]
fn too_many_levels() {
    assert!(Factors::new([128], |_, _| true).is_some());
    assert!(Factors::new([128, 1], |_, _| true).is_none());
    assert!(Factors::new([], |_, _| true).is_none());
}
