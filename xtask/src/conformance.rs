//! `cargo xtask test-multirank --conformance FILE`: the table of a full run, for the documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::process::Command;

use comm_testkit::{Row, Status};
use serde::Deserialize;
use serde_json::Value;

use crate::fail::Fail;

const HEAD: &str = "\
# Conformance

<!-- Written by `cargo xtask test-multirank --conformance FILE`, not by hand. -->

Every operation of a group, with every operator, dtype, form, view, place, size, root and dimension that there is for it: what
came of the last full run. Each combination is called on all ranks, and every rank compares every byte of its result, and of its input
afterwards, with what a serial oracle says. Ranks are threads of one process, processes, or both ([testing.md](testing.md)). Without
`--full` few combinations are run, which hold every pair of levels of different factors.
";

/// What a case says that it has run, by dtype.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Counts {
    passed: BTreeMap<String, u64>,
    refused: BTreeMap<String, u64>,
}

/// What the matrix says about itself.
#[derive(Debug, Deserialize)]
struct Matrix {
    factors: Vec<Factor>,
    limits: Vec<String>,
    combinations: u64,
    pairs: u64,
    chosen: u64,
}

#[derive(Debug, Deserialize)]
struct Factor {
    name: String,
    levels: u64,
    names: Vec<String>,
}

/// The cases of conformance among the rows, each with what it has run.
struct Run {
    cases: Vec<(Row, Counts)>,
    matrix: Option<Matrix>,
}

/// The page that a run with these flags makes of its rows.
///
/// # Errors
/// [`Fail::Usage`] if there is nothing about conformance in them.
pub fn page(rows: &[Value], flags: &str) -> Result<String, Fail> {
    let mut run = Run { cases: Vec::new(), matrix: None };
    for row in rows.iter().filter_map(|row| Row::deserialize(row).ok()) {
        match row.case.strip_suffix("/any/conformance") {
            Some(_) => {
                let counts = Counts::deserialize(&row.value).unwrap_or_default();
                run.cases.push((row, counts));
            }
            None if row.case.ends_with("/conformance") => run.matrix = Matrix::deserialize(&row.value).ok(),
            None => {}
        }
    }
    if run.cases.is_empty() {
        return Err(Fail::usage("--conformance: no case of conformance was run"));
    }
    let tables = [run.about(flags), run.factors(), run.by_operation(), run.by_dtype()];
    Ok(format!("{HEAD}\n{}", tables.join("\n")))
}

impl Run {
    fn about(&self, flags: &str) -> String {
        let sum = |of: fn(&Counts) -> &BTreeMap<String, u64>| {
            self.cases.iter().map(|(_, counts)| of(counts).values().sum::<u64>()).sum::<u64>()
        };
        let failed = self.cases.iter().filter(|(row, _)| row.status != Status::Ok).count();
        let minutes = self.cases.iter().map(|(row, _)| row.ms).sum::<u64>().div_ceil(60_000);
        let rows = [
            ("date", today()),
            ("machine", machine()),
            ("command", format!("`cargo xtask test-multirank {flags}`")),
            ("combinations that passed", thousands(sum(|counts| &counts.passed))),
            ("operators that were refused, as they must be", thousands(sum(|counts| &counts.refused))),
            ("cases that failed", failed.to_string()),
            ("time", format!("{minutes} minutes")),
        ];
        table(&["run", ""], rows.map(|(name, value)| vec![name.to_owned(), value]))
    }

    fn factors(&self) -> String {
        let Some(matrix) = &self.matrix else { return String::new() };
        let rows =
            matrix.factors.iter().map(|f| vec![f.name.clone(), f.levels.to_string(), f.names.join(", ")]);
        let mut text = format!(
            "## Factors\n\n{}\nThat is {} combinations for each world and layout. They hold {} pairs of levels; {} of them, those that \
             the usual seed chooses, hold every pair. Not all levels go together:\n\n",
            table(&["factor", "levels", ""], rows),
            thousands(matrix.combinations),
            thousands(matrix.pairs),
            thousands(matrix.chosen),
        );
        for limit in &matrix.limits {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "- {limit}");
        }
        text
    }

    /// How many combinations of each operation passed in each world and layout.
    fn by_operation(&self) -> String {
        let settings: BTreeSet<_> = self.cases.iter().map(|(row, _)| (row.world, row.layout)).collect();
        let mut sums: BTreeMap<(&str, _), Result<u64, ()>> = BTreeMap::new();
        for (row, counts) in &self.cases {
            let sum = sums.entry((operation(row), (row.world, row.layout))).or_insert(Ok(0));
            match (row.status, sum) {
                (Status::Ok, Ok(sum)) => *sum += counts.passed.values().sum::<u64>(),
                (_, sum) => *sum = Err(()),
            }
        }
        let cell = |sum: Option<&Result<u64, ()>>| match sum {
            None => String::new(),
            Some(Ok(n)) => thousands(*n),
            Some(Err(())) => "**failed**".to_owned(),
        };
        let rows = self.in_order(operation).into_iter().map(|name| {
            let cells = settings.iter().map(|setting| cell(sums.get(&(name, *setting))));
            std::iter::once(name.to_owned()).chain(cells).collect()
        });
        let seconds = settings.iter().map(|setting| {
            let here = self.cases.iter().filter(|(row, _)| (row.world, row.layout) == *setting);
            thousands(here.map(|(row, _)| row.ms).sum::<u64>().div_ceil(1000))
        });
        let seconds: Vec<String> = std::iter::once("seconds".to_owned()).chain(seconds).collect();
        let names: Vec<String> = settings.iter().map(|(world, layout)| format!("{world} {layout}")).collect();
        let head: Vec<&str> = std::iter::once("operation").chain(names.iter().map(String::as_str)).collect();
        let table = table(&head, rows.chain([seconds]));
        format!(
            "## By operation, world and layout\n\nCombinations that passed, and how long that took.\n\n{table}"
        )
    }

    /// How many combinations of each operator, or operation without one, passed for each dtype.
    fn by_dtype(&self) -> String {
        let dtypes: Vec<&str> = comm_core::tensor::DType::ALL.iter().map(|dtype| dtype.name()).collect();
        let mut sums: BTreeMap<(&str, &str), String> = BTreeMap::new();
        for name in self.in_order(operator) {
            for &dtype in &dtypes {
                let here =
                    || self.cases.iter().filter(|(row, _)| operator(row) == name).map(|(_, counts)| counts);
                let sum = |of: fn(&Counts) -> &BTreeMap<String, u64>| {
                    here().filter_map(|counts| of(counts).get(dtype)).sum::<u64>()
                };
                let cell = match (sum(|c| &c.passed), sum(|c| &c.refused)) {
                    (0, 0) => String::new(),
                    (0, _) => "refused".to_owned(),
                    (n, _) => thousands(n),
                };
                sums.insert((name, dtype), cell);
            }
        }
        let rows = self.in_order(operator).into_iter().map(|name| {
            let cells = dtypes.iter().map(|dtype| sums[&(name, *dtype)].clone());
            std::iter::once(name.to_owned()).chain(cells).collect()
        });
        let head: Vec<&str> = std::iter::once("").chain(dtypes.iter().copied()).collect();
        format!(
            "## By operator and dtype\n\nCombinations that passed in all worlds and layouts; all_reduce, reduce and reduce_scatter by \
             their operators. Where there is no such operator for a dtype, every rank is told so: refused.\n\n{}",
            table(&head, rows)
        )
    }

    /// Names, each once, as the cases come.
    fn in_order<'a>(&'a self, name: impl Fn(&'a Row) -> &'a str) -> Vec<&'a str> {
        let mut seen = BTreeSet::new();
        self.cases.iter().map(|(row, _)| name(row)).filter(|name| seen.insert(*name)).collect()
    }
}

fn operation(row: &Row) -> &str {
    row.case.split('/').next().unwrap_or_default()
}

fn operator(row: &Row) -> &str {
    row.case.split('/').nth(1).filter(|operator| *operator != "-").unwrap_or(operation(row))
}

fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(head) + &line(&vec!["---"; head.len()]);
    for row in rows {
        text += &line(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text
}

/// `1234567` is 1,234,567.
fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let comma = |(i, digit): (usize, char)| {
        let follows = i > 0 && (digits.len() - i).is_multiple_of(3);
        follows.then_some(',').into_iter().chain([digit])
    };
    digits.chars().enumerate().flat_map(comma).collect()
}

fn today() -> String {
    let date = Command::new("date").args(["-u", "+%F"]).output();
    date.map_or_else(|_| "unknown".to_owned(), |date| String::from_utf8_lossy(&date.stdout).trim().to_owned())
}

fn machine() -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model =
        cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{}, {cores} cores, Linux {}", model.unwrap_or(std::env::consts::ARCH), kernel.trim())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(case: &str, world: usize, layout: &str, status: &str, value: Value) -> Value {
        json!({
            "suite": "collective", "case": case, "world": world, "layout": layout, "backend": "same-device",
            "device": "cpu", "seed": 1, "status": status, "ms": 61_000, "reason": null, "value": value,
        })
    }

    fn text(rows: &[Value]) -> String {
        page(rows, "--full").unwrap_or_else(|e| panic!("{e:?}"))
    }

    #[test]
    fn rows_become_tables() {
        let counts = |n: u64| json!({ "passed": { "f32": n, "i8": 2 }, "refused": { "bool": 3 } });
        let text = text(&[
            row("all_reduce/sum/any/conformance", 2, "threads", "ok", counts(1000)),
            row("all_reduce/max/any/conformance", 2, "threads", "ok", counts(5)),
            row("all_reduce/sum/any/conformance", 3, "mixed", "ok", counts(7)),
            row("gather/-/any/conformance", 2, "threads", "ok", json!({ "passed": { "bool": 4 } })),
            row("all_reduce/sum/f32/sizes", 2, "threads", "ok", Value::Null),
            row(
                "matrix/-/-/conformance",
                2,
                "threads",
                "ok",
                json!({
                    "factors": [{ "name": "view", "levels": 2, "names": ["dense", "empty"] }], "limits": ["Nothing is large."],
                    "combinations": 12345, "pairs": 67, "chosen": 8,
                }),
            ),
        ]);
        for line in [
            "| command | `cargo xtask test-multirank --full` |",
            "| combinations that passed | 1,022 |",
            "| operators that were refused, as they must be | 9 |",
            "| cases that failed | 0 |",
            "| time | 5 minutes |",
            "| view | 2 | dense, empty |",
            "- Nothing is large.",
            "| operation | 2 threads | 3 mixed |",
            "| all_reduce | 1,009 | 9 |",
            "| gather | 4 |  |",
            "| seconds | 183 | 61 |",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
        assert!(text.contains("That is 12,345 combinations") && text.contains("| sum | refused |"), "{text}");
        assert!(!text.contains("sizes"));
    }

    #[test]
    fn a_failure_shows() {
        let text = text(&[
            row("reduce/sum/any/conformance", 2, "threads", "failed", Value::Null),
            row("reduce/max/any/conformance", 2, "threads", "ok", json!({ "passed": { "f32": 1 } })),
        ]);
        assert!(
            text.contains("| reduce | **failed** |") && text.contains("| cases that failed | 1 |"),
            "{text}"
        );
    }

    #[test]
    fn nothing_is_no_page() {
        assert!(page(&[row("reduce/sum/f32/x", 2, "threads", "ok", Value::Null)], "").is_err());
    }

    #[test]
    fn numbers_have_commas() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }
}
