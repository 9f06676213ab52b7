//! Progress on stderr, results on stdout, rows as JSON.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use comfy_table::{Table, presets};

use super::cli::Args;
use super::{Case, Row, Status};
use crate::layout::Layout;

/// How many lines of logs are shown with a case that is not ok.
const LOG_LINES: usize = 60;

/// A line on stderr. There is nobody to tell if that fails.
pub(crate) fn line(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

pub(super) fn list(cases: &[(usize, &Case)]) {
    let mut out = io::stdout().lock();
    for (_, case) in cases {
        let layouts: Vec<&str> = case.layouts.iter().map(|l| l.name()).collect();
        let _ = writeln!(out, "{}  backend {}  layouts {}", case.title(), case.backend, layouts.join(","));
    }
}

/// Collects the rows of a run.
pub(crate) struct Report {
    rows: Vec<Row>,
    total: usize,
    json: Option<Json>,
}

enum Json {
    Stdout,
    File(File),
}

impl Report {
    pub fn new(args: &Args, total: usize) -> Result<Report, String> {
        let json = match &args.json {
            None => None,
            Some(path) if path == Path::new("-") => Some(Json::Stdout),
            // Made before the run: a run of minutes should not end with "no such directory".
            Some(path) => Some(Json::File(
                File::create(path).map_err(|e| format!("cannot write {}: {e}", path.display()))?,
            )),
        };
        Ok(Report { rows: Vec::new(), total, json })
    }

    /// Adds a row and shows it; with the logs of its processes if it is not ok.
    pub fn add(&mut self, row: Row, logs: &str) {
        let number = self.rows.len() + 1;
        let total = self.total.max(number);
        let place = format!("{}/{}", row.layout, row.world);
        let backend = if row.backend == "-" { String::new() } else { format!(" [{}]", row.backend) };
        line(&format!(
            "[{number}/{total}] {:<7} {place:<11} {}/{}{backend} {} ms",
            row.status, row.suite, row.case, row.ms
        ));
        if let Some(reason) = &row.reason {
            line(&format!("    {}", reason.replace('\n', "\n    ")));
        }
        if matches!(row.status, Status::Failed | Status::Hung) && !logs.is_empty() {
            let lines: Vec<&str> = logs.lines().collect();
            let hidden = lines.len().saturating_sub(LOG_LINES);
            if hidden > 0 {
                line(&format!("    | [{hidden} lines before]"));
            }
            lines[hidden..].iter().for_each(|l| line(&format!("    | {l}")));
        }
        self.rows.push(row);
    }

    /// Writes everything; whether nothing failed.
    pub fn finish(self) -> Result<bool, String> {
        let count = |wanted: &[Status]| self.rows.iter().filter(|r| wanted.contains(&r.status)).count();
        let (passed, skipped) = (count(&[Status::Ok]), count(&[Status::Skipped]));
        let failed = count(&[Status::Failed, Status::Hung]);
        let text = format!("{}{passed} passed, {failed} failed, {skipped} skipped\n", table(&self.rows));
        let written = match self.json {
            Some(Json::Stdout) => {
                let _ = io::stderr().write_all(text.as_bytes());
                write_json(io::stdout().lock(), &self.rows)
            }
            Some(Json::File(file)) => {
                write_json(file, &self.rows).and_then(|()| io::stdout().write_all(text.as_bytes()))
            }
            None => io::stdout().write_all(text.as_bytes()),
        };
        written.map_err(|e| format!("cannot write the results: {e}"))?;
        Ok(failed == 0)
    }
}

fn write_json(mut to: impl Write, rows: &[Row]) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut to, rows)?;
    to.write_all(b"\n")?;
    to.flush()
}

fn table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut groups: BTreeMap<(&str, Layout, usize), [u64; 5]> = BTreeMap::new();
    for row in rows {
        let sums = groups.entry((&row.suite, row.layout, row.world)).or_default();
        let column = match row.status {
            Status::Ok => 0,
            Status::Failed => 1,
            Status::Hung => 2,
            Status::Skipped => 3,
        };
        sums[column] += 1;
        sums[4] += row.ms;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["suite", "layout", "world", "ok", "failed", "hung", "skipped", "ms"]);
    for ((suite, layout, world), sums) in groups {
        let mut cells = vec![suite.to_string(), layout.to_string(), world.to_string()];
        cells.extend(sums.iter().map(u64::to_string));
        table.add_row(cells);
    }
    for column in 2..8 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    format!("{table}\n")
}
