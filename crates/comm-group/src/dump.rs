//! What a rank writes when an operation has failed and its team is over: its last operations, and what each rank was doing.
//!
//! One file for each rank and team, an array of events that Chrome and Perfetto show: `X` is an operation that came to its
//! end, `B` one that did not; `i` is the end of the team, with the error and a line for each rank. Put together, the files of a
//! team tell who did not come, and where to.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use comm_core::config;
use comm_core::shm::file_size_limit;
use comm_core::team::{Member, RankSnapshot};
use comm_core::wait::now_ns;
use comm_core::{Error, Result};
use serde_json::{Value, json};

use crate::recorder::{OpRecord, OpState};

/// Bytes of a team's name in the name of a file.
const NAME: usize = 80;

/// Writes the file, if there is a folder for it. That this fails is told to the log and nobody else: the operation has an error
/// of its own.
pub(crate) fn dump(member: &Member, records: &[OpRecord], error: &Error) {
    let written = config::dump_dir().map_err(Error::from).and_then(|folder| match folder {
        Some(folder) => write(&folder, member, records, error).map(Some),
        None => Ok(None),
    });
    match written {
        Ok(None) => {}
        Ok(Some(path)) => tracing::info!(path = %path.display(), "the last operations are written down"),
        Err(error) => tracing::warn!(%error, "the last operations cannot be written down"),
    }
}

fn write(folder: &Path, member: &Member, records: &[OpRecord], error: &Error) -> Result<PathBuf> {
    let io = |e: io::Error| Error::io(format!("writing to {}", folder.display()), e);
    let text = serde_json::to_vec(&events(member, records, error)).map_err(|e| io(e.into()))?;
    if let Some(limit) = file_size_limit().filter(|&limit| text.len() as u64 > limit) {
        let what = format!("writing {} bytes to {}: RLIMIT_FSIZE is {limit}", text.len(), folder.display());
        return Err(Error::io(what, io::ErrorKind::FileTooLarge));
    }
    fs::create_dir_all(folder).map_err(io)?;
    let name = file_name(member.name(), member.id(), member.rank());
    let (unfinished, path) = (folder.join(format!(".{name}.unfinished")), folder.join(name));
    // Whoever finds the file finds all of it.
    let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, &path));
    if let Err(error) = written {
        let _ = fs::remove_file(&unfinished);
        return Err(io(error));
    }
    Ok(path)
}

fn file_name(team: &str, id: u128, rank: usize) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let team: String = team.chars().take(NAME).map(plain).collect();
    format!("comm-{team}-{id:032x}-rank{rank}.json")
}

fn events(member: &Member, records: &[OpRecord], error: &Error) -> Vec<Value> {
    let (pid, tid) = (std::process::id(), member.rank());
    let name = |what: &str, name: String| json!({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}});
    let process = member.process_of(tid).unwrap_or_default();
    let mut events = vec![
        name("process_name", format!("process {process} of {}", member.name())),
        name("thread_name", format!("rank {tid}")),
    ];
    events.extend(records.iter().map(|record| operation(record, pid, tid)));
    let ranks: Vec<Value> = member.snapshot().ranks.iter().map(doing).collect();
    events.push(json!({
        "name": "the team is over", "cat": "team", "ph": "i", "s": "g", "ts": micros(now_ns()), "pid": pid, "tid": tid,
        "args": {
            "team": member.name(),
            "id": format!("{:032x}", member.id()),
            "rank": tid,
            "size": member.size(),
            "error": error.to_string(),
            "ranks": ranks,
        },
    }));
    events
}

fn operation(record: &OpRecord, pid: u32, tid: usize) -> Value {
    let mut event = json!({
        "name": record.op, "cat": "collective", "ts": micros(record.started_ns), "pid": pid, "tid": tid,
        "args": {
            "seq": record.seq,
            "dtype": record.dtype.map(|dtype| dtype.to_string()),
            "shape": record.shape,
            "operator": record.operator.map(|op| op.to_string()),
            "root": record.root,
            "state": record.state.name(),
            "error": record.state.error(),
            "started_ns": record.started_ns,
            "agreed_ns": record.agreed_ns,
            "ended_ns": record.ended_ns,
        },
    });
    match (&record.state, record.ended_ns) {
        (OpState::Done | OpState::Refused(_), Some(ended)) => {
            event["ph"] = json!("X");
            event["dur"] = json!(micros(ended.saturating_sub(record.started_ns)));
        }
        _ => event["ph"] = json!("B"),
    }
    event
}

fn doing(rank: &RankSnapshot) -> Value {
    let wait = rank.wait.as_ref().map(|wait| {
        json!({
            "what": wait.what, "rank": wait.rank, "seen": wait.seen, "expected": wait.expected,
            "elapsed_ns": wait.elapsed.as_nanos() as u64,
        })
    });
    json!({
        "rank": rank.rank, "process": rank.process, "pid": rank.pid, "op": rank.op, "seq": rank.seq,
        "inside": rank.inside, "left": rank.left, "wait": wait, "text": rank.to_string(),
    })
}

/// What the format counts in.
fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_makes_a_plain_file_name() {
        let name = file_name("c3.g/00ff/1,0 \u{e9}\u{0}", 255, 2);
        assert_eq!(name, "comm-c3.g_00ff_1_0___-000000000000000000000000000000ff-rank2.json");
        assert!(file_name(&"../x".repeat(2000), 1, 127).len() < 200);
    }
}
