//! Runs `cargo xtask bench` as a user does, with ranks in processes of their own.

use std::collections::BTreeSet;
use std::error::Error;
use std::process::{Command, Output};

use serde_json::Value;

type Outcome = Result<(), Box<dyn Error>>;

const OPS: [&str; 10] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "alltoall",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "sendrecv",
    "barrier",
];

fn bench(args: &str) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_xtask")).arg("bench").args(args.split_whitespace()).output()
}

/// The rows of a run with `--json -`, after a look at its exit status.
fn rows(args: &str, status: i32) -> Result<Vec<Value>, Box<dyn Error>> {
    let output = bench(&format!("{args} --json -"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "bench {args}: {said}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[test]
fn every_operation_is_right_in_every_layout_and_however_it_is_called() -> Outcome {
    for (mode, memory) in [("return", "arena"), ("into", "heap"), ("start", "heap"), ("into", "arena")] {
        let args = format!(
            "--check --ranks 3 --root 1 --layout all --max-bytes 8K --factor 16 --mode {mode} --memory {memory}"
        );
        let rows = rows(&args, 0)?;
        let of = |key: &'static str| rows.iter().map(move |row| row[key].as_str().unwrap_or("-"));
        let mut expected = BTreeSet::new();
        for op in OPS.into_iter().filter(|&op| op != "barrier" || mode != "into") {
            expected.extend(["threads", "processes", "mixed"].map(|layout| (op, layout)));
        }
        assert_eq!(of("op").zip(of("layout")).collect::<BTreeSet<_>>(), expected);
        for row in &rows {
            assert_eq!((&row["wrong"], &row["median_us"]), (&0.into(), &Value::Null), "{row}");
            assert_eq!(
                (&row["mode"], &row["memory"], &row["ranks"]),
                (&mode.into(), &memory.into(), &3.into())
            );
        }
        assert_eq!(rows.iter().any(|row| row["in_place"] == true), mode == "into");
    }
    Ok(())
}

#[test]
fn wrong_results_are_counted_and_end_in_1() -> Outcome {
    for row in rows("--check --spoil --max-bytes 2K --factor 16 --layout threads,mixed", 1)? {
        assert_eq!(row["wrong"].as_u64() > Some(0), row["op"] != "barrier", "{row}");
    }
    let output = bench("--check --spoil --op broadcast --ranks 2 --min-bytes 32 --max-bytes 32 --root 1")?;
    let [table, said] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    // On both ranks, in both checks.
    assert!(table.ends_with("1 rows, 4 wrong elements\n"), "{table}");
    assert!(said.contains("wrong: broadcast, threads, 32 bytes: rank 0, element 0: seen "), "{said}");
    Ok(())
}

#[test]
fn speeds_are_bytes_over_time() -> Outcome {
    let rows =
        rows("--ranks 3 --op reduce,all_reduce --min-bytes 4K --max-bytes 4K --dtype f64 --redop max", 0)?;
    let factors = [("all_reduce", 4.0 / 3.0), ("reduce", 1.0)];
    for (row, (op, factor)) in rows.iter().zip(factors) {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        assert_eq!((&row["op"], &row["dtype"], &row["redop"]), (&op.into(), &"f64".into(), &"max".into()));
        assert!(number("min_us") > 0.0 && number("min_us") <= number("median_us"), "{row}");
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        assert!(near(number("algbw"), 4096.0 / (number("median_us") * 1e3)), "{row}");
        assert!(near(number("busbw"), factor * number("algbw")), "{row}");
    }
    assert_eq!(rows.len(), 2);
    Ok(())
}

#[test]
fn the_table_has_the_columns_of_nccl_tests() -> Outcome {
    let output =
        bench("--check --ranks 2 --layout all --op gather --min-bytes 6 --max-bytes 6 --dtype bf16")?;
    let table = String::from_utf8(output.stdout)?;
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let columns = ["size(B)", "count", "type", "redop", "root", "time(us)", "algbw", "busbw", "#wrong"];
    assert_eq!(lines[1], columns);
    // Three elements are rounded up to four, two of each rank.
    assert_eq!(lines[2], ["8", "4", "bf16", "none", "0", "-", "-", "-", "0"]);
    // There is no mixed layout of two ranks.
    assert!(table.ends_with("2 rows, 0 wrong elements\n"), "{table}");
    Ok(())
}

#[test]
fn wrong_calls_get_one_line_and_2() -> Outcome {
    for (args, about) in [
        ("--root 4", "--root 4: the ranks are 0 to 3"),
        ("--ranks 2 --layout mixed", "3 ranks"),
        ("--redop and", "of bool"),
        ("--op barrier --mode into", "barrier"),
        ("--min-bytes 2K --max-bytes 1K", "--min-bytes"),
        ("--max-bytes 8000000000G", "MiB"),
        ("--max-bytes 90T", "K, M, G"),
        ("--json /no/such/folder/rows.json", "--json"),
    ] {
        let output = bench(args)?;
        let said = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(2), "{args}: {said}");
        assert!(
            said.lines().count() == 1 && said.contains(about) && output.stdout.is_empty(),
            "{args}: {said}"
        );
    }
    // An operator counts only where something is reduced.
    rows("--check --op gather --redop and --ranks 2 --max-bytes 8", 0)?;
    Ok(())
}
