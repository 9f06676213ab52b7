//! Runs `cargo xtask demo` as a user does, with ranks in processes of their own.

use std::error::Error;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

type Outcome = Result<(), Box<dyn Error>>;

fn demo(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("demo").args(args.split_whitespace());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The rows of a run with `--json -`, and what it said to people, after a look at its exit status.
fn rows(mut command: Command, status: i32) -> Result<(Vec<Value>, String), Box<dyn Error>> {
    let Output { status: ended, stdout, stderr } = command.args(["--json", "-"]).output()?;
    let said = text(&stderr);
    assert_eq!(ended.code(), Some(status), "{command:?}: {said}");
    Ok((serde_json::from_slice(&stdout)?, said))
}

/// A safetensors file with these tensors: name, dtype, size of an element, shape. Their bytes count from 0.
fn write_weights(path: &Path, tensors: &[(String, &str, usize, &[usize])]) -> std::io::Result<()> {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, dtype, size, shape) in tensors {
        let start = end;
        end += size * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] }));
    }
    let header = Value::from(header).to_string();
    let data: Vec<u8> = (0..end).map(|i| (i % 2) as u8).collect();
    fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat())
}

#[test]
fn the_block_goes_all_the_ways_in_every_layout() -> Outcome {
    for (ranks, layout, meshes) in [
        (1, "processes", vec![json!([1])]),
        (4, "threads", vec![json!([4]), json!([2, 2])]),
        (4, "processes", vec![json!([4]), json!([2, 2])]),
        (5, "mixed", vec![json!([5])]),
        (6, "mixed", vec![json!([6]), json!([3, 2])]),
    ] {
        let (rows, said) = rows(demo(&format!("--ranks {ranks} --layout {layout}")), 0)?;
        assert!(said.ends_with("costs as planned: yes\nbit-identical: yes\n"), "{said}");
        assert_eq!(said.contains("no 2-D mesh"), meshes.len() == 1, "{said}");
        let mut seen: Vec<&Value> = rows.iter().map(|row| &row["mesh"]).collect();
        seen.dedup();
        assert_eq!(seen, meshes.iter().collect::<Vec<_>>());
        for row in &rows {
            let fixed =
                [&row["ranks"], &row["layout"], &row["weights"], &row["bit_identical"], &row["as_planned"]];
            assert_eq!(fixed, [&json!(ranks), &json!(layout), &json!("block"), &json!(true), &json!(true)]);
            assert!(row["tensors"].as_u64() > Some(0), "{row}");
            assert_eq!(row["gbps"].is_null(), row["moved"] == 0, "{row}");
        }
        let of = |conversion: &str| {
            rows.iter().find(|row| row["conversion"] == conversion).cloned().unwrap_or_default()
        };
        // All tensors, those with a dimension, and those with two.
        assert_eq!(of("distribute -> R")["tensors"], 31);
        assert_eq!(of("R -> S(0)")["tensors"], 29);
        assert_eq!((&of("S(1) -> R")["tensors"], &of("S(1) -> R")["bytes"]), (&json!(18), &json!(1_954_529)));
        assert_eq!(of("S(1) -> R")["moved"], (ranks - 1) * 1_954_529);
    }
    Ok(())
}

#[test]
fn the_table_is_for_people() -> Outcome {
    let output = demo("").output()?;
    let table = text(&output.stdout);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["mesh", "conversion", "tensors", "bytes", "moved", "time", "GB/s"]);
    assert_eq!(lines[1][..6], ["4", "distribute", "->", "R", "31", "1961241"]);
    let conversion = ["2x2", "[S(0),", "S(1)]", "->", "[S(1),", "S(0)]", "18", "1954529"];
    assert!(lines.iter().any(|line| line.starts_with(&conversion)), "{table}");
    let ends = "not sharded: 2 (no dimension to cut)\ncosts as planned: yes\nbit-identical: yes\n";
    assert!(table.ends_with(ends), "{table}");
    assert_eq!(text(&output.stderr), "demo: 31 tensors, 1961241 bytes, 4 ranks, layout threads\n");
    Ok(())
}

#[test]
fn a_file_of_all_kinds_of_tensors() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("all.safetensors");
    let mut tensors: Vec<(String, &str, usize, &[usize])> = Vec::new();
    for (dtype, size) in [("BOOL", 1), ("U16", 2), ("F8_E4M3", 1), ("C64", 8), ("F64", 8)] {
        for shape in [&[][..], &[0], &[1], &[7], &[0, 3], &[5, 3, 2]] {
            tensors.push((format!("{dtype} {shape:?}"), dtype, size, shape));
        }
    }
    write_weights(&path, &tensors)?;
    for layout in ["threads", "processes", "mixed"] {
        let mut command = demo(&format!("--layout {layout} --weights"));
        let (rows, said) = rows(
            {
                command.arg(&path);
                command
            },
            0,
        )?;
        assert!(
            said.contains("not reduced: 6 (6 bool: there is no sum of them)\nnot sharded: 5 ("),
            "{said}"
        );
        let reduced = rows.iter().find(|row| row["conversion"] == "R -> P(sum)").cloned().unwrap_or_default();
        assert_eq!((&reduced["tensors"], &reduced["not_reduced"]), (&json!(24), &json!(6)));
    }
    Ok(())
}

#[test]
fn a_wrong_bit_is_named_and_ends_in_1() -> Outcome {
    for (layout, conversion, place) in [
        // The first tensor is f32 [1003, 192]: the last rank's rows begin behind 3 * 251, its columns behind 3 * 48.
        ("threads", "S(0) -> S(1)", "mesh 4, conversion S(0) -> S(1), rank 3, element 144 (byte 576)"),
        (
            "mixed",
            "[P(sum), P(sum)] -> [R, S(0)]",
            "mesh 2x2, conversion [P(sum), P(sum)] -> [R, S(0)], rank 3, element 96384 (byte 385536)",
        ),
        ("processes", "S(1) -> collect", "mesh 4, conversion S(1) -> collect, rank 3, element 0 (byte 0)"),
    ] {
        let (rows, said) = rows(
            {
                let mut command = demo(&format!("--layout {layout}"));
                command.args(["--spoil", conversion]);
                command
            },
            1,
        )?;
        let (before, line) = said.trim_end().rsplit_once('\n').unwrap_or_default();
        let expected =
            "bit-identical: no: first difference: tensor \"embeddings.words.weight\" (f32 [1003, 192]), ";
        let rest = line.strip_prefix(expected).unwrap_or_else(|| panic!("{said}"));
        assert!(
            rest.starts_with(place) && rest.contains(", seen 0x") && rest.contains(", expected 0x"),
            "{said}"
        );
        // What it costs does not depend on the bits.
        assert!(before.ends_with("costs as planned: yes"), "{said}");
        assert!(rows.iter().all(|row| row["bit_identical"] == false && row["as_planned"] == true));
    }
    Ok(())
}

#[test]
fn a_rank_that_is_killed_is_named() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("many.safetensors");
    // So many tensors that it is killed before they are through.
    let tensors: Vec<_> = (0..20_000).map(|i| (format!("t{i}"), "U8", 1, &[2, 2][..])).collect();
    write_weights(&path, &tensors)?;
    let mut command = demo("--layout processes --ranks 3 --weights");
    let mut running = command.arg(&path).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut rank = None;
    // A rank reads the tensors one by one. When it has read many, it is in the middle of them.
    while rank.is_none_or(|pid| reads_of(pid) < 1000) {
        assert!(running.try_wait()?.is_none(), "it has ended before its ranks were there");
        rank = rank.or_else(|| child_of(running.id(), "demo process 1 ranks [1]"));
        std::thread::sleep(Duration::from_millis(1));
    }
    let rank = rank.ok_or("no rank")?;
    assert!(Command::new("kill").args(["-KILL", &rank.to_string()]).status()?.success());
    let mut said = String::new();
    running.stderr.take().ok_or("no stderr")?.read_to_string(&mut said)?;
    assert_eq!(running.wait()?.code(), Some(1), "{said}");
    assert!(said.contains("rank 1: process killed by signal 9\n"), "{said}");
    let last = said.trim_end().lines().last().unwrap_or_default();
    assert!(
        last.starts_with("error: ") && last.ends_with("rank 1 first: process killed by signal 9"),
        "{said}"
    );
    Ok(())
}

/// A child process of which this is an argument.
fn child_of(parent: u32, argument: &str) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = format!("PPid:\t{parent}");
    pids.find(|&pid| {
        let is_child = about(pid, "status").lines().any(|line| line == parent);
        is_child && about(pid, "cmdline").split('\0').any(|arg| arg == argument)
    })
}

/// How often a process has read from files so far.
fn reads_of(pid: u32) -> u64 {
    let io = about(pid, "io");
    let count = io.lines().find_map(|line| line.strip_prefix("syscr: ")?.parse().ok());
    count.unwrap_or_default()
}

/// What the system says about a process; nothing if there is none any more.
fn about(pid: u32, file: &str) -> String {
    fs::read(format!("/proc/{pid}/{file}")).map(|bytes| text(&bytes)).unwrap_or_default()
}

#[test]
fn wrong_calls_get_one_line_and_2() -> Outcome {
    for (args, about) in [
        ("--ranks 2 --layout mixed", "3 ranks"),
        ("--weights /no/such/file", "--weights /no/such/file: "),
        ("--weights /proc", "it is a directory"),
        ("--spoil R", "--spoil R: there is no such conversion"),
        ("--json /no/such/folder/rows.json", "--json"),
    ] {
        let output = demo(args).output()?;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args}: {said}");
        assert!(
            said.lines().count() == 1 && said.contains(about) && output.stdout.is_empty(),
            "{args}: {said}"
        );
    }
    Ok(())
}
