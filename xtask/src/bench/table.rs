//! Summing up: rows for programs, and tables for people in the columns of nccl-tests.

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde::Serialize;

use super::case::{Case, Common, Memory, Mode, Op};
use super::rank::{Measured, Plan};
use crate::cli::Layout;

/// One case in one layout, all ranks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Whose operation it is.
    peer: &'static str,
    op: &'static str,
    layout: &'static str,
    memory: Memory,
    in_place: bool,
    /// Null of a barrier, which has none.
    dtype: Option<String>,
    /// Null where nothing is reduced.
    redop: Option<String>,
    /// Null where all ranks are alike.
    root: Option<usize>,
    ranks: usize,
    /// Of the large buffer of one rank.
    bytes: u64,
    mode: Mode,
    /// Null if nothing was timed.
    min_us: Option<f64>,
    median_us: Option<f64>,
    /// 10^9 bytes per second, by the median.
    algbw: Option<f64>,
    busbw: Option<f64>,
    /// Reserved: how near this comes to what the machine allows.
    limit_ratio: Option<f64>,
    /// Wrong elements, of all ranks.
    pub wrong: u64,
    #[serde(skip)]
    count: usize,
}

/// One row for each case; its times are the slowest rank's.
pub fn rows(plan: &Plan, layout: Layout, reports: &[Vec<Measured>]) -> Vec<Row> {
    let of = |i: usize| reports.iter().filter_map(move |report| report.get(i));
    let row = |(i, case): (usize, &Case)| {
        let times = of(i).filter_map(|m| m.times);
        let min_us = times.clone().map(|t| t.min_us).reduce(f64::max);
        let median_us = times.map(|t| t.median_us).reduce(f64::max);
        let Common { dtype, redop, root, memory, mode } = plan.common;
        let (op, bytes) = (case.op, case.bytes(dtype));
        let algbw = median_us.filter(|&us| us > 0.0).map(|us| bytes as f64 / us / 1e3);
        Row {
            peer: "ours",
            op: op.name(),
            layout: layout.name(),
            memory,
            in_place: case.in_place,
            dtype: (op != Op::Barrier).then(|| dtype.to_string()),
            redop: op.reduces().then(|| redop.name()),
            root: op.has_root().then_some(root),
            ranks: reports.len(),
            bytes,
            mode,
            min_us,
            median_us,
            algbw,
            busbw: algbw.map(|speed| speed * op.bus_factor(reports.len())),
            limit_ratio: None,
            wrong: of(i).map(|m| m.wrong).sum(),
            count: case.count,
        }
    };
    plan.cases.iter().enumerate().map(row).collect()
}

/// One line for each case with wrong elements: the first, as the lowest rank saw it.
pub fn wrongs(rows: &[Row], reports: &[Vec<Measured>]) -> Vec<String> {
    let first = |i: usize| reports.iter().filter_map(|r| r.get(i)?.first.as_deref()).next().unwrap_or("-");
    let bad = rows.iter().enumerate().filter(|(_, row)| row.wrong > 0);
    bad.map(|(i, row)| format!("{}, {}, {} bytes: {}", row.op, row.layout, row.bytes, first(i))).collect()
}

/// A block for each operation.
pub fn render(rows: &[Row]) -> String {
    let blocks = rows.chunk_by(|a, b| (a.op, a.layout, a.in_place) == (b.op, b.layout, b.in_place));
    blocks.map(block).collect::<Vec<_>>().join("\n\n")
}

fn block(rows: &[Row]) -> String {
    let Some(Row { op, layout, memory, in_place, ranks, mode, .. }) = rows.first() else {
        return String::new();
    };
    let (memory, mode) = (format!("{memory:?}").to_lowercase(), format!("{mode:?}").to_lowercase());
    let in_place = if *in_place { ", in place" } else { "" };
    let title = format!("# {op}, {layout}, {ranks} ranks, {memory}, {mode}{in_place} (bandwidths in GB/s)");
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["size(B)", "count", "type", "redop", "root", "time(us)", "algbw", "busbw", "#wrong"]);
    let number = |x: Option<f64>| x.map_or_else(|| "-".to_owned(), |x| format!("{x:.2}"));
    let word = |x: &Option<String>| x.clone().unwrap_or_else(|| "none".to_owned());
    for row in rows {
        table.add_row([
            row.bytes.to_string(),
            row.count.to_string(),
            word(&row.dtype),
            word(&row.redop),
            row.root.map_or_else(|| "-1".to_owned(), |root| root.to_string()),
            number(row.median_us),
            number(row.algbw),
            number(row.busbw),
            row.wrong.to_string(),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{title}\n{}", table.trim_fmt())
}

#[cfg(test)]
mod tests {
    use super::super::case::{Redop, cases, sizes};
    use super::super::rank::Times;
    use super::*;
    use comm_core::tensor::DType;

    fn plan(ops: &[Op]) -> Plan {
        let common = Common {
            dtype: DType::F32,
            redop: Redop::PremulSum,
            root: 1,
            memory: Memory::Heap,
            mode: Mode::Into,
        };
        let cases = cases(ops, &sizes(4000, 16000, 4), &common, 2);
        Plan { common, cases, check: false, spoil: false }
    }

    fn measured(us: [f64; 2], wrong: u64) -> Vec<Measured> {
        let one = |us: f64| Measured {
            wrong,
            first: (wrong > 0).then(|| format!("of {us} us")),
            times: Some(Times { min_us: us / 2.0, median_us: us }),
        };
        us.map(one).to_vec()
    }

    #[test]
    fn the_slowest_rank_counts_and_wrong_elements_add_up() {
        let plan = plan(&[Op::Reduce]);
        let reports = [measured([1.0, 8.0], 0), measured([4.0, 2.0], 3)];
        let rows = rows(&plan, Layout::Mixed, &reports);
        assert_eq!((rows[0].min_us, rows[0].median_us), (Some(2.0), Some(4.0)));
        assert_eq!((rows[0].algbw, rows[0].busbw, rows[0].wrong), (Some(1.0), Some(1.0), 3));
        assert_eq!(rows[1].algbw, Some(2.0));
        assert_eq!(wrongs(&rows, &reports)[1], "reduce, mixed, 16000 bytes: of 2 us");
        let json = serde_json::to_value(&rows[0]).unwrap();
        for (key, value) in [
            ("peer", "ours".into()),
            ("op", "reduce".into()),
            ("layout", "mixed".into()),
            ("memory", "heap".into()),
            ("in_place", false.into()),
            ("dtype", "f32".into()),
            ("redop", "premul_sum".into()),
            ("root", 1.into()),
            ("ranks", 2.into()),
            ("bytes", 4000.into()),
            ("mode", "into".into()),
            ("limit_ratio", serde_json::Value::Null),
        ] {
            assert_eq!(json[key], value, "{key}");
        }
        assert_eq!(json.as_object().map(|o| o.len()), Some(17));
    }

    #[test]
    fn one_block_for_each_operation_and_dashes_for_no_times() {
        let plan = plan(&[Op::AllReduce, Op::Alltoall]);
        let reports = vec![vec![Measured::default(); plan.cases.len()]; 2];
        let text = render(&rows(&plan, Layout::Threads, &reports));
        assert_eq!(text.matches("# ").count(), 3, "{text}");
        assert!(text.contains("# all_reduce, threads, 2 ranks, heap, into, in place"), "{text}");
        let line: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(line, ["16000", "4000", "f32", "none", "-1", "-", "-", "-", "0"]);
    }
}
