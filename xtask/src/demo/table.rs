//! Summing up: the table, the JSON rows, the remarks and the closing lines.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde::Serialize;

use super::course::{Course, grid, is_reducible};
use super::report::{Measured, RankReport};
use super::weights::Spec;
use crate::cli::DemoArgs;
use crate::fail::one_line;

/// A step on a mesh, all tensors, all ranks.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// How many ranks there are along each of its dimensions.
    mesh: Vec<usize>,
    conversion: String,
    tensors: u64,
    /// Of the tensors, each as a whole.
    bytes: u64,
    /// Bytes that all ranks together copied from each other.
    moved: u64,
    ms: f64,
    /// 10^9 of `bytes` per second; null if nothing moved.
    gbps: Option<f64>,
    not_reduced: u64,
    ranks: u64,
    layout: &'static str,
    weights: String,
    #[serde(flatten)]
    verdicts: Verdicts,
    #[serde(skip)]
    mesh_name: String,
}

/// How the run ended, as it stands in each row.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Verdicts {
    /// Every result has the bits that it should have.
    pub bit_identical: bool,
    /// Every conversion has cost what was planned.
    pub as_planned: bool,
}

/// One row for each step that a tensor took; its time is the slowest rank's.
pub fn rows(
    args: &DemoArgs,
    weights: &str,
    specs: &[Spec],
    courses: &[Course],
    reports: &[RankReport],
    verdicts: Verdicts,
) -> Vec<Row> {
    let not_reduced = specs.iter().filter(|spec| !is_reducible(spec)).count() as u64;
    let mut rows = Vec::new();
    for (mesh, course) in courses.iter().enumerate() {
        for (i, step) in course.steps.iter().enumerate() {
            let ranks: Vec<&Measured> =
                reports.iter().filter_map(|report| report.measured.get(mesh)?.get(i)).collect();
            let Some(Measured { tensors: tensors @ 1.., bytes, .. }) = ranks.first() else { continue };
            let slowest = ranks.iter().map(|rank| rank.time).max().unwrap_or(Duration::ZERO);
            let seconds = slowest.as_secs_f64();
            let moved = ranks.iter().map(|rank| rank.moved).sum();
            rows.push(Row {
                mesh: course.mesh.shape().to_vec(),
                conversion: step.to_string(),
                tensors: *tensors,
                bytes: *bytes,
                moved,
                ms: seconds * 1e3,
                gbps: (moved > 0 && seconds > 0.0).then(|| *bytes as f64 / seconds / 1e9),
                not_reduced: if step.has_sums() { not_reduced } else { 0 },
                ranks: args.ranks,
                layout: args.layout.name(),
                weights: weights.to_owned(),
                verdicts,
                mesh_name: course.name(),
            });
        }
    }
    rows
}

/// The table for people.
pub fn render(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["mesh", "conversion", "tensors", "bytes", "moved", "time", "GB/s"]);
    for row in rows {
        table.add_row([
            row.mesh_name.clone(),
            row.conversion.clone(),
            row.tensors.to_string(),
            row.bytes.to_string(),
            row.moved.to_string(),
            format!("{:.1} ms", row.ms),
            row.gbps.map_or_else(|| "-".to_owned(), |g| format!("{g:.2}")),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// What the table leaves out: tensors that some step cannot take, and the mesh that there is not.
pub fn remarks(specs: &[Spec], ranks: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut dtypes: BTreeMap<&str, u64> = BTreeMap::new();
    for spec in specs.iter().filter(|spec| !is_reducible(spec)) {
        *dtypes.entry(spec.dtype.name()).or_default() += 1;
    }
    if !dtypes.is_empty() {
        let list: Vec<String> = dtypes.iter().map(|(dtype, n)| format!("{n} {dtype}")).collect();
        let total: u64 = dtypes.values().sum();
        let list = list.join(", ");
        lines.push(format!("not reduced: {total} ({list}: there is no sum of them)"));
    }
    let scalars = specs.iter().filter(|spec| spec.shape.is_empty()).count();
    if scalars > 0 {
        lines.push(format!("not sharded: {scalars} (no dimension to cut)"));
    }
    if grid(ranks).is_none() {
        lines.push(format!("no 2-D mesh: {ranks} ranks fill no grid"));
    }
    lines
}

/// A closing line.
pub fn verdict(what: &str, difference: Option<String>) -> String {
    match difference {
        None => format!("{what}: yes"),
        Some(difference) => format!("{what}: no: first difference: {}", one_line(&difference)),
    }
}

#[cfg(test)]
mod tests {
    use comm_core::tensor::DType;

    use super::super::course::courses;
    use super::*;
    use crate::cli::Layout;

    const FINE: Verdicts = Verdicts { bit_identical: true, as_planned: true };

    /// A report on two ranks, of a rank that takes so long for each step.
    fn report(ms: u64) -> RankReport {
        let time = Duration::from_millis(ms);
        let measured = Measured { tensors: 2, bytes: 1_000_000, moved: ms, time };
        let measured =
            courses(2).unwrap().into_iter().map(|course| vec![measured.clone(); course.steps.len()]);
        RankReport { measured: measured.collect(), ..RankReport::default() }
    }

    fn args() -> DemoArgs {
        DemoArgs { ranks: 2, layout: Layout::Threads, weights: None, spoil: None, json: Default::default() }
    }

    fn spec(dtype: DType, shape: &[usize]) -> Spec {
        Spec { name: "w".into(), dtype, shape: shape.to_vec(), bytes: 0 }
    }

    #[test]
    fn the_slowest_rank_counts_and_bytes_add_up() {
        let (specs, courses) = ([spec(DType::Bool, &[2])], courses(2).unwrap());
        let mut reports = [report(4), report(8)];
        for report in &mut reports {
            report.measured[0][1] = Measured::default();
            report.measured[0][2].moved = 0;
        }
        let rows = rows(&args(), "block", &specs, &courses, &reports, FINE);
        assert_eq!(rows.len(), courses[0].steps.len() - 1, "a step that nobody took has no row");
        let first = serde_json::to_value(&rows[0]).unwrap();
        let expected = serde_json::json!({
            "mesh": [2], "conversion": "distribute -> R", "tensors": 2, "bytes": 1_000_000, "moved": 12, "ms": 8.0,
            "gbps": 0.125, "not_reduced": 0, "ranks": 2, "layout": "threads", "weights": "block", "bit_identical": true,
            "as_planned": true,
        });
        assert_eq!(first, expected);
        assert_eq!((rows[1].conversion.as_str(), rows[1].gbps), ("S(0) -> S(1)", None), "nothing moved");
        let not_reduced: Vec<(&str, u64)> =
            rows.iter().map(|row| (row.conversion.as_str(), row.not_reduced)).collect();
        assert!(not_reduced.contains(&("R -> P(sum)", 1)) && not_reduced.contains(&("R -> S(1)", 0)));
        let text = render(&rows);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["mesh", "conversion", "tensors", "bytes", "moved", "time", "GB/s"]);
        assert_eq!(lines[1], ["2", "distribute", "->", "R", "2", "1000000", "12", "8.0", "ms", "0.12"]);
        assert_eq!(lines[2], ["2", "S(0)", "->", "S(1)", "2", "1000000", "0", "8.0", "ms", "-"]);
    }

    #[test]
    fn the_verdict_is_one_line() {
        assert_eq!(verdict("bit-identical", None), "bit-identical: yes");
        let wrong = verdict("bit-identical", Some("tensor \"a\nb\"".into()));
        assert_eq!(wrong, "bit-identical: no: first difference: tensor \"a\\nb\"");
    }

    #[test]
    fn remarks_say_what_is_left_out() {
        assert!(remarks(&[spec(DType::F32, &[2])], 4).is_empty());
        let lines = remarks(&[spec(DType::Bool, &[2]), spec(DType::U8, &[]), spec(DType::Bool, &[1])], 5);
        assert!(lines[0].starts_with("not reduced: 2 (2 bool: "), "{lines:?}");
        assert!(lines[1].starts_with("not sharded: 1 ("), "{lines:?}");
        assert_eq!(lines[2], "no 2-D mesh: 5 ranks fill no grid");
    }
}
