//! Factors with a few levels each, not all of which go together: every combination, or few that hold every pair.
//!
//! Most faults need one factor or two that meet, so combinations that hold every pair of levels find most of what all of
//! them would, and there are far fewer. They are chosen one at a time, greedily, as AETG does: of some candidates that hold
//! a pair which is still wanted, each filled factor by factor with the level that brings most wanted pairs, the best is
//! taken. Source: D. M. Cohen, S. R. Dalal, M. L. Fredman, G. C. Patton, "The AETG System: An Approach to Testing Based on
//! Combinatorial Design", IEEE Transactions on Software Engineering 23(7), 1997. Which levels go together is a relation
//! between two levels each, and a level is taken only if the rest can still be filled. A level may mask others, as a tensor
//! without elements hides what would be wrong with them: beside it a pair of other levels does not count.
//!
//! ```
//! use comm_testkit::pairwise::Factors;
//!
//! // Four sizes, three colours, two shapes; the largest size comes in the first colour alone.
//! let factors = Factors::new([4, 3, 2], |a, b| !(a == (0, 3) && b.0 == 1 && b.1 > 0)).unwrap();
//! assert_eq!(factors.product().count(), (3 * 3 + 1) * 2);
//! let few = factors.covering(1);
//! assert!(few.len() < 13 && factors.missing(&few).is_empty());
//! assert!(!factors.missing(&few[1..]).is_empty(), "none of them is too many");
//! ```

use crate::values::SplitMix64;

/// A level of a factor, by their numbers: `(factor, level)`.
pub type Level = (usize, usize);

/// How many ways to fill a combination are tried. More are not better where some factor has by far the most levels.
const CANDIDATES: usize = 10;

/// Factors, how many levels each has, and which levels go together.
#[derive(Debug, Clone)]
pub struct Factors<const F: usize> {
    /// Levels of all factors, one after the other, have a bit each: where those of a factor begin, and all of them.
    first: [usize; F],
    own: [u128; F],
    /// Of each level, those of other factors that it goes with.
    with: Vec<u128>,
    /// The levels that mask others.
    masks: u128,
}

/// Levels as bits, from the lowest on.
fn bits(mut set: u128) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = set.trailing_zeros() as usize;
        set &= set.checked_sub(1)?;
        Some(bit)
    })
}

impl<const F: usize> Factors<F> {
    /// So many levels of each factor. `goes` says of two levels, the one of the earlier factor first, whether they go
    /// together. `None` if there are no factors, or more than 128 levels in all.
    pub fn new(levels: [usize; F], goes: impl Fn(Level, Level) -> bool) -> Option<Factors<F>> {
        let total: usize = levels.iter().sum();
        if F == 0 || total > 128 {
            return None;
        }
        let (mut first, mut own, mut all) = ([0; F], [0u128; F], Vec::new());
        for (factor, &n) in levels.iter().enumerate() {
            first[factor] = all.len();
            for level in 0..n {
                own[factor] |= 1 << all.len();
                all.push((factor, level));
            }
        }
        let together = |a: Level, b: Level| a.0 != b.0 && if a.0 < b.0 { goes(a, b) } else { goes(b, a) };
        let of = |a: Level| {
            all.iter().enumerate().filter(|(_, b)| together(a, **b)).fold(0, |set, (bit, _)| set | 1 << bit)
        };
        let with = all.iter().map(|a| of(*a)).collect();
        Some(Factors { first, own, with, masks: 0 })
    }

    /// With levels that mask others: a combination holds a pair beside one of these only if it is one of the pair.
    #[must_use]
    pub fn masking(self, levels: &[Level]) -> Factors<F> {
        let bit = |&(factor, level): &Level| {
            let bit = self.first.get(factor).and_then(|first| 1u128.checked_shl((first + level) as u32));
            bit.unwrap_or(0) & self.own.get(factor).copied().unwrap_or(0)
        };
        let masks = levels.iter().map(bit).fold(self.masks, |masks, bit| masks | bit);
        Factors { masks, ..self }
    }

    /// Every combination whose levels all go together, those of the last factor fastest.
    pub fn product(&self) -> impl Iterator<Item = [usize; F]> + '_ {
        self.product_with(&[])
    }

    /// Those whose first factors have these levels.
    pub fn product_with(&self, head: &[usize]) -> impl Iterator<Item = [usize; F]> + '_ {
        let head: Vec<usize> = head.to_vec();
        // For each factor that has a level: which are to come, and what goes with the levels of those before.
        let enter = move |factor: usize, allowed: u128| {
            let chosen =
                head.get(factor).map(|&level| 1u128.checked_shl((self.first[factor] + level) as u32));
            let levels = chosen.map_or(self.own[factor], |one| one.unwrap_or(0) & self.own[factor]);
            (levels & allowed, allowed)
        };
        let mut row = [0; F];
        let mut stack = vec![enter(0, u128::MAX)];
        std::iter::from_fn(move || {
            loop {
                let factor = stack.len().checked_sub(1)?;
                let (to_come, allowed) = stack.last_mut()?;
                let Some(bit) = bits(*to_come).next() else {
                    stack.pop();
                    continue;
                };
                *to_come &= *to_come - 1;
                row[factor] = bit - self.first[factor];
                if factor + 1 == F {
                    return Some(row);
                }
                let allowed = *allowed & self.with[bit];
                stack.push(enter(factor + 1, allowed));
            }
        })
    }

    /// Few combinations, in the order of [`product`](Factors::product), that hold every pair of levels which any
    /// combination holds; without one of them they would not. The same for the same seed.
    pub fn covering(&self, seed: u64) -> Vec<[usize; F]> {
        let mut rng = SplitMix64::new(seed);
        let mut wanted = self.pairs();
        let mut chosen = Vec::new();
        while let Some(row) = self.best(&wanted, &mut rng) {
            bits(row).for_each(|bit| wanted[bit] &= !self.held(row, bit));
            chosen.push(row);
        }
        let mut rows: Vec<[usize; F]> = self.needed(chosen).iter().map(|&row| self.levels(row)).collect();
        rows.sort_unstable();
        rows
    }

    /// The pairs of levels that some combination holds and none of these does.
    pub fn missing(&self, rows: &[[usize; F]]) -> Vec<(Level, Level)> {
        let mut wanted = self.pairs();
        for row in rows {
            let row = self.set(row);
            bits(row).for_each(|bit| wanted[bit] &= !self.held(row, bit));
        }
        let later = |bit: usize, set: u128| bits(set).filter(move |&other| other > bit);
        let pairs =
            wanted.iter().enumerate().flat_map(|(bit, &set)| later(bit, set).map(move |other| (bit, other)));
        pairs.map(|(a, b)| (self.level(a), self.level(b))).collect()
    }

    /// Of each level, those that it is in some combination with.
    fn pairs(&self) -> Vec<u128> {
        let mut pairs = vec![0; self.with.len()];
        for (bit, &with) in self.with.iter().enumerate() {
            for other in bits(with).filter(|&other| other > bit) {
                let rest = self.others(1 << bit | 1 << other);
                if self.completes(with & self.with[other] & !self.masks, &rest) {
                    pairs[bit] |= 1 << other;
                    pairs[other] |= 1 << bit;
                }
            }
        }
        pairs
    }

    /// The levels of a combination with which it holds a pair of this one of them.
    fn held(&self, row: u128, bit: usize) -> u128 {
        let masks = row & self.masks & !(1 << bit);
        match masks.count_ones() {
            0 => row,
            1 => masks,
            _ => 0,
        }
    }

    /// Whether these factors can be filled with levels that are allowed and go with each other.
    fn completes(&self, allowed: u128, factors: &[usize]) -> bool {
        let Some((&factor, rest)) = factors.split_first() else { return true };
        factors.iter().all(|&f| allowed & self.own[f] != 0)
            && bits(allowed & self.own[factor]).any(|bit| self.completes(allowed & self.with[bit], rest))
    }

    /// The best of some combinations that hold a wanted pair; `None` if none is wanted any more.
    fn best(&self, wanted: &[u128], rng: &mut SplitMix64) -> Option<u128> {
        let most =
            |levels: &mut dyn Iterator<Item = usize>| levels.max_by_key(|&bit| wanted[bit].count_ones());
        let one = most(&mut (0..wanted.len())).filter(|&bit| wanted[bit] != 0)?;
        let other = most(&mut bits(wanted[one]))?;
        let gain = |row| bits(row).map(|bit| (wanted[bit] & self.held(row, bit)).count_ones()).sum::<u32>();
        (0..CANDIDATES).map(|_| self.filled(wanted, one, other, rng)).max_by_key(|&row| gain(row))
    }

    /// These two levels, and for each other factor, in some order, the level that brings most wanted pairs.
    fn filled(&self, wanted: &[u128], one: usize, other: usize, rng: &mut SplitMix64) -> u128 {
        let mut row = 1 << one | 1 << other;
        let mut allowed = self.with[one] & self.with[other] & !self.masks;
        let mut rest = self.others(row);
        while !rest.is_empty() {
            let factor = rest.swap_remove(rng.below(rest.len() as u64) as usize);
            let fits = |bit: &usize| self.completes(allowed & self.with[*bit], &rest);
            let gain = |bit: usize| (wanted[bit] & row).count_ones();
            let best =
                bits(allowed & self.own[factor]).filter(fits).max_by_key(|&bit| (gain(bit), rng.next_u64()));
            // There is one: the pair is in some combination, and every level so far left a way to fill the rest.
            let Some(bit) = best else { break };
            row |= 1 << bit;
            allowed &= self.with[bit];
        }
        row
    }

    /// Without those whose pairs others hold, too: what came early may have become too much.
    fn needed(&self, mut rows: Vec<u128>) -> Vec<u128> {
        let levels = self.with.len();
        let mut holders = vec![0u32; levels * levels];
        let pairs = |row| bits(row).flat_map(move |a| bits(self.held(row, a)).map(move |b| a * levels + b));
        for &row in &rows {
            pairs(row).filter(|pair| pair / levels != pair % levels).for_each(|pair| holders[pair] += 1);
        }
        rows.retain(|&row| {
            let needed = pairs(row).any(|pair| holders[pair] == 1);
            if !needed {
                pairs(row).for_each(|pair| holders[pair] = holders[pair].saturating_sub(1));
            }
            needed
        });
        rows
    }

    /// The factors that have no level in a set.
    fn others(&self, set: u128) -> Vec<usize> {
        (0..F).filter(|&factor| self.own[factor] & set == 0).collect()
    }

    fn set(&self, row: &[usize; F]) -> u128 {
        row.iter().zip(&self.first).fold(0, |set, (level, first)| set | 1 << (first + level))
    }

    fn levels(&self, set: u128) -> [usize; F] {
        std::array::from_fn(|factor| (set & self.own[factor]).trailing_zeros() as usize - self.first[factor])
    }

    fn level(&self, bit: usize) -> Level {
        let factor = (0..F).rfind(|&factor| self.first[factor] <= bit).unwrap_or(0);
        (factor, bit - self.first[factor])
    }
}

#[cfg(test)]
mod tests;
