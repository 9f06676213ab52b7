//! Summing up: the table, the JSON rows, the remarks, and the first difference of all ranks.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde::Serialize;

use super::convert::{Conversion, RankReport, reducible};
use super::weights::{Spec, dtype_name};
use crate::cli::DemoArgs;

/// One conversion, all ranks.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    conversion: String,
    tensors: u64,
    bytes: u64,
    ms: f64,
    /// 10^9 bytes per second; null if nothing went through.
    gbps: Option<f64>,
    not_reduced: u64,
    ranks: u64,
    layout: &'static str,
    weights: String,
    bit_identical: bool,
}

/// One row per conversion; its time is the slowest rank's.
pub fn rows(args: &DemoArgs, weights: &str, specs: &[Spec], reports: &[RankReport], same: bool) -> Vec<Row> {
    let not_reduced = specs.iter().filter(|s| !reducible(s.dtype)).count() as u64;
    let row = |(i, conversion): (usize, Conversion)| {
        let timings = reports.iter().filter_map(|r| r.timings.get(i));
        let slowest = timings.clone().map(|t| t.time).max().unwrap_or(Duration::ZERO);
        let bytes = timings.clone().map(|t| t.bytes).max().unwrap_or(0);
        let seconds = slowest.as_secs_f64();
        Row {
            conversion: conversion.name(),
            tensors: timings.map(|t| t.tensors).max().unwrap_or(0),
            bytes,
            ms: seconds * 1e3,
            gbps: (bytes > 0 && seconds > 0.0).then(|| bytes as f64 / seconds / 1e9),
            not_reduced: if conversion == Conversion::Partial { not_reduced } else { 0 },
            ranks: args.ranks,
            layout: args.layout.name(),
            weights: weights.to_owned(),
            bit_identical: same,
        }
    };
    Conversion::ALL.into_iter().enumerate().map(row).collect()
}

/// The table for people.
pub fn render(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["conversion", "tensors", "bytes", "time", "GB/s"]);
    for row in rows {
        let gbps = row.gbps.map_or_else(|| "-".to_owned(), |g| format!("{g:.2}"));
        let (tensors, bytes) = (row.tensors.to_string(), row.bytes.to_string());
        table.add_row([row.conversion.clone(), tensors, bytes, format!("{:.1} ms", row.ms), gbps]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// What the table leaves out: tensors that some conversion cannot take.
pub fn remarks(specs: &[Spec]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut dtypes: BTreeMap<String, u64> = BTreeMap::new();
    for spec in specs.iter().filter(|s| !reducible(s.dtype)) {
        *dtypes.entry(dtype_name(spec.dtype)).or_default() += 1;
    }
    if !dtypes.is_empty() {
        let list: Vec<String> = dtypes.iter().map(|(dtype, n)| format!("{n} {dtype}")).collect();
        let total: u64 = dtypes.values().sum();
        let list = list.join(", ");
        lines.push(format!("not reduced: {total} ({list}: there is no sum of them)"));
    }
    let scalars = specs.iter().filter(|s| s.shape.is_empty()).count();
    if scalars > 0 {
        lines.push(format!("not sharded: {scalars} (no dimension to cut)"));
    }
    lines
}

/// The difference that comes first in the file, as its lowest rank saw it.
pub fn first_difference(reports: &[RankReport]) -> Option<String> {
    let seen = reports.iter().enumerate().filter_map(|(rank, r)| Some((rank, r.difference.as_ref()?)));
    seen.min_by_key(|(rank, d)| (d.index, *rank)).map(|(rank, d)| d.on_rank(rank).to_string())
}

#[cfg(test)]
mod tests {
    use super::super::compare::Difference;
    use super::super::convert::ConversionTiming;
    use super::*;
    use crate::cli::Layout;
    use safetensors::Dtype;

    fn report(ms: [u64; 3], difference: Option<usize>) -> RankReport {
        let timing = |ms| ConversionTiming { tensors: 2, bytes: 1_000_000, time: Duration::from_millis(ms) };
        let difference = difference.map(|index| Difference {
            index,
            tensor: format!("t{index}"),
            conversion: "R -> P -> R".into(),
            place: "element 0 (byte 0)".into(),
            seen: "0x01".into(),
            expected: "0x02".into(),
        });
        RankReport { timings: ms.map(timing).to_vec(), difference }
    }

    fn args() -> DemoArgs {
        DemoArgs { ranks: 2, layout: Layout::Threads, weights: None, json: Default::default() }
    }

    #[test]
    fn the_slowest_rank_counts() {
        let rows = rows(&args(), "block", &[], &[report([4, 9, 1], None), report([8, 3, 0], None)], true);
        let ms: Vec<f64> = rows.iter().map(|r| r.ms).collect();
        assert_eq!(ms, [8.0, 9.0, 1.0]);
        assert_eq!(rows[0].gbps, Some(0.125));
        assert_eq!((rows[0].tensors, rows[0].bytes), (2, 1_000_000));
        let text = render(&rows);
        assert!(text.contains("R -> S(0) -> R") && text.contains("0.12"), "{text}");
    }

    #[test]
    fn nothing_through_has_no_speed() {
        let idle = RankReport { timings: vec![ConversionTiming::default(); 3], difference: None };
        let rows = rows(&args(), "w", &[], &[idle], true);
        assert!(rows.iter().all(|r| r.gbps.is_none()));
        assert!(render(&rows).contains('-'));
    }

    #[test]
    fn the_first_difference_is_by_tensor_then_rank() {
        assert_eq!(first_difference(&[report([0; 3], None)]), None);
        let reports =
            [report([0; 3], None), report([0; 3], Some(5)), report([0; 3], Some(3)), report([0; 3], Some(3))];
        let text = first_difference(&reports).unwrap_or_default();
        assert!(text.starts_with("tensor t3, conversion R -> P -> R, rank 2,"), "{text}");
    }

    #[test]
    fn remarks_say_what_is_left_out() {
        let spec = |dtype, shape: &[usize]| Spec { name: "w".into(), dtype, shape: shape.to_vec(), bytes: 0 };
        assert!(remarks(&[spec(Dtype::F32, &[2])]).is_empty());
        let lines = remarks(&[spec(Dtype::BOOL, &[2]), spec(Dtype::U8, &[]), spec(Dtype::BOOL, &[1])]);
        assert!(lines[0].starts_with("not reduced: 2 (2 bool: "), "{lines:?}");
        assert!(lines[1].starts_with("not sharded: 1 ("), "{lines:?}");
    }
}
