//! That what is chosen holds every pair of levels which any combination holds, and would not without any of it. What an
//! input without elements holds is only that it has none.

use comm_testkit::{LauncherCtx, RankResult, check};
use serde_json::json;

use super::chosen;
use super::factors::{COUNT, Combination, LIMITS, Value, factors, matrix};

/// How many combinations hold each pair of levels.
struct Pairs {
    levels: Vec<&'static Value>,
    /// The number of the first level of each factor.
    first: [usize; COUNT],
    held: Vec<u32>,
}

impl Pairs {
    fn of(rows: impl Iterator<Item = [usize; COUNT]>) -> Pairs {
        let levels: Vec<&Value> = factors().iter().flat_map(|(_, levels)| levels).collect();
        let mut first = [0; COUNT];
        for factor in 1..COUNT {
            first[factor] = first[factor - 1] + factors()[factor - 1].1.len();
        }
        let mut pairs = Pairs { held: vec![0; levels.len() * levels.len()], levels, first };
        for row in rows {
            for pair in pairs.in_row(&row) {
                pairs.held[pair] += 1;
            }
        }
        pairs
    }

    fn in_row(&self, row: &[usize; COUNT]) -> impl Iterator<Item = usize> + use<> {
        let (n, levels) = (self.levels.len(), std::array::from_fn::<_, COUNT, _>(|f| self.first[f] + row[f]));
        let empty = (0..COUNT).find(|&f| self.levels[levels[f]].is_empty());
        let pairs = (0..COUNT).flat_map(move |b| (0..b).map(move |a| (a, b)));
        let shows = move |pair: &(usize, usize)| empty.is_none_or(|f| pair.0 == f || pair.1 == f);
        pairs.filter(shows).map(move |(a, b)| levels[a] * n + levels[b])
    }

    fn name(&self, pair: usize) -> String {
        format!("{} with {}", self.levels[pair / self.levels.len()], self.levels[pair % self.levels.len()])
    }
}

/// Checks it, and says what all this is.
pub fn check(ctx: &LauncherCtx) -> RankResult {
    let matrix = matrix().ok_or("too many levels")?;
    let chosen = chosen(ctx.seed())?;
    // Counted over all combinations, and not by what has chosen.
    let (wanted, seen) = (Pairs::of(matrix.product()), Pairs::of(chosen.iter().copied()));
    for (pair, _) in wanted.held.iter().enumerate().filter(|(_, held)| **held > 0) {
        check!(seen.held[pair] > 0, "nothing holds {}", seen.name(pair));
    }
    for row in chosen {
        let c = Combination::of(row).ok_or("a level of another factor")?;
        check!(seen.in_row(row).all(|pair| wanted.held[pair] > 0), "{c} is none of all combinations");
        check!(seen.in_row(row).any(|pair| seen.held[pair] == 1), "{c} holds nothing that others do not");
    }
    let pairs = wanted.held.iter().filter(|held| **held > 0).count();
    let all = matrix.product().count();
    ctx.progress(&format!("{all} combinations, {pairs} pairs in {} of them", chosen.len()));
    Ok(json!({
        "factors": factors().iter().map(described).collect::<Vec<_>>(),
        "limits": LIMITS,
        "combinations": all,
        "pairs": pairs,
        "chosen": chosen.len(),
    }))
}

/// A factor, how many levels it has, and their names; an operation with several operators has one.
fn described((name, levels): &(&str, Vec<Value>)) -> serde_json::Value {
    let name_of = |level: &Value| match level {
        Value::Subject(subject) => subject.operation.name().to_string(),
        other => other.to_string(),
    };
    let mut names: Vec<String> = levels.iter().map(name_of).collect();
    names.dedup();
    json!({ "name": name, "levels": levels.len(), "names": names })
}
