//! Runs every example as a user does, as threads of one process and as processes, and looks at what it prints.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The folder of the examples' programs, which cargo builds once for all tests.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").expect("cargo runs this test");
        let output = Command::new(cargo)
            .args(["build", "--quiet", "--workspace", "--examples"])
            .args(["--message-format", "json-render-diagnostics"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo can be started");
        assert!(output.status.success(), "the examples do not build");
        let messages = String::from_utf8_lossy(&output.stdout);
        let mut programs = messages.lines().filter_map(|line| {
            let message: serde_json::Value = serde_json::from_str(line).ok()?;
            Some(PathBuf::from(message["executable"].as_str()?))
        });
        programs
            .next()
            .and_then(|program| Some(program.parent()?.to_owned()))
            .expect("cargo says where they are")
    })
}

fn example(name: &str, instance: &str) -> Command {
    let mut command = Command::new(folder().join(name));
    // Whoever runs the tests may have been started by a launcher.
    for name in [
        "COMM_RANK",
        "COMM_WORLD_SIZE",
        "RANK",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "PMIX_RANK",
        "SLURM_STEP_ID",
    ] {
        command.env_remove(name);
    }
    command.env("COMM_INSTANCE_ID", format!("examples-{}-{instance}", std::process::id()));
    command
}

fn sorted_lines(outputs: &[Output]) -> Vec<String> {
    let mut lines = Vec::new();
    for output in outputs {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", output.status);
        lines.extend(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned));
    }
    lines.sort();
    lines
}

fn as_threads(name: &str) -> Result<Vec<String>, std::io::Error> {
    Ok(sorted_lines(&[example(name, "threads").output()?]))
}

fn as_so_many_threads(name: &str, size: usize) -> Result<Vec<String>, std::io::Error> {
    let mut command = example(name, &format!("{size}-threads"));
    Ok(sorted_lines(&[command.args(["--size", &size.to_string()]).output()?]))
}

fn as_processes(name: &str, size: usize) -> Result<Vec<String>, std::io::Error> {
    let start = |rank: usize| {
        let mut command = example(name, &format!("{size}-processes"));
        command.args(["--rank", &rank.to_string(), "--size", &size.to_string()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    let ranks = (0..size).map(start).collect::<Result<Vec<_>, _>>()?;
    let ends = ranks.into_iter().map(|rank| rank.wait_with_output()).collect::<Result<Vec<_>, _>>()?;
    Ok(sorted_lines(&ends))
}

/// Lines that differ between runs in times and the like are compared up to where the expected one ends.
fn check(lines: &[String], expected: &[&str]) {
    let same = |(line, expected): (&String, &&str)| line.starts_with(*expected);
    assert!(lines.len() == expected.len() && lines.iter().zip(expected).all(same), "{lines:#?}");
}

#[test]
fn all_reduce() -> Outcome {
    let sum = "[4.0, 6.0, 2.0]";
    let lines: Vec<String> = (0..4).map(|rank| format!("rank {rank} of 4: {sum}")).collect();
    assert_eq!(as_threads("all_reduce")?, lines);
    assert_eq!(as_processes("all_reduce", 4)?, lines);
    assert_eq!(as_processes("all_reduce", 1)?, ["rank 0 of 1: [1.0, 0.0, 0.5]"]);
    Ok(())
}

/// As a shell, or any launcher, starts ranks: with variables, and no arguments.
#[test]
fn ranks_by_variables() -> Outcome {
    for name in ["all_reduce", "overlap"] {
        let start = |rank: usize| {
            let mut command = example(name, "variables");
            command.env("COMM_RANK", rank.to_string()).env("COMM_WORLD_SIZE", "3");
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        let ranks = (0..3).map(start).collect::<Result<Vec<_>, _>>()?;
        let ends = ranks.into_iter().map(|rank| rank.wait_with_output()).collect::<Result<Vec<_>, _>>()?;
        assert_eq!(sorted_lines(&ends), as_processes(name, 3)?);
    }
    let output =
        example("all_reduce", "contradiction").env("COMM_RANK", "3").env("COMM_WORLD_SIZE", "3").output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("COMM_RANK=3 and COMM_WORLD_SIZE=3 cannot both be"),
        "{said}"
    );
    Ok(())
}

/// With a library that is made up, since a machine need not have NCCL.
#[test]
fn nccl_id() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (source, library) = (folder.path().join("nccl.c"), folder.path().join("libnccl.so.2"));
    std::fs::write(
        &source,
        "int ncclGetVersion(int *version) { *version = 23203; return 0; }\n\
         int ncclGetUniqueId(char *id) { for (int i = 0; i < 128; i++) id[i] = i; return 0; }\n",
    )?;
    let mut cc = Command::new("cc");
    assert!(cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status()?.success());
    // A port that is free now; another program may take it before rank 0 does, and then there is another one.
    for attempt in 0.. {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let start = |rank: usize| {
            let mut command = example("nccl_id", "nccl");
            command.env("COMM_RANK", rank.to_string()).env("COMM_WORLD_SIZE", "3");
            command.env("COMM_MASTER_ADDR", "localhost").env("COMM_MASTER_PORT", &port);
            command.env("COMM_NCCL_LIB", &library).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        let (zero, rest) = (start(0)?, [start(1)?, start(2)?]);
        let mut ends = vec![zero.wait_with_output()?];
        if attempt < 5 && String::from_utf8_lossy(&ends[0].stderr).contains("in use") {
            for mut rank in rest {
                rank.kill()?;
                rank.wait()?;
            }
            continue;
        }
        for rank in rest {
            ends.push(rank.wait_with_output()?);
        }
        let sum = (0..128u32).fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
        let lines: Vec<String> =
            (0..3).map(|r| format!("rank {r} of 3: an id of 128 bytes, {sum:08x}")).collect();
        assert_eq!(sorted_lines(&ends), lines);
        break;
    }
    let output = example("nccl_id", "nobody").output()?;
    assert!(String::from_utf8_lossy(&output.stderr).contains("set COMM_RANK"), "{output:?}");
    Ok(())
}

#[test]
fn team() -> Outcome {
    let lines = |near| {
        let mut lines = vec![
            "rank 0: rank 2 has left".to_owned(),
            "rank 0: rank 2 is lost: its thread panicked".to_owned(),
            "rank 1: rank 2 has left".to_owned(),
            "rank 1: rank 2 is lost: its thread panicked".to_owned(),
        ];
        lines.extend((0..3).map(|r| format!("rank {r} of 3 has joined; its process holds {near} of them")));
        lines.sort();
        lines
    };
    assert_eq!(as_threads("team")?, lines(3));
    assert_eq!(as_processes("team", 3)?, lines(1));
    Ok(())
}

#[test]
fn shards() -> Outcome {
    let expected = [
        "rank 0: [0, 2] -> [3, 2] [1, 1, 2, 2, 2, 2]",
        "rank 0: shard [0, 1, 2, 3] of sizes [4, 3, 3]",
        "rank 0: sub-split [0, 1, 5, 6]",
        "rank 1: [1, 2] -> [3, 2] [1, 1, 2, 2, 2, 2]",
        "rank 1: shard [4, 5, 6] of sizes [4, 3, 3]",
        "rank 1: sub-split [2, 3, 7, 8]",
        "rank 2: [2, 2] -> [3, 2] [1, 1, 2, 2, 2, 2]",
        "rank 2: shard [7, 8, 9] of sizes [4, 3, 3]",
        "rank 2: sub-split [4, 9]",
    ];
    assert_eq!(as_threads("shards")?, expected);
    assert_eq!(as_processes("shards", 3)?, expected);
    Ok(())
}

#[test]
fn all_to_all() -> Outcome {
    let expected = [
        "rank 0: columns [4, 2] -> rows [2, 5] [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]",
        "rank 0: rows from all [0]",
        "rank 1: columns [4, 2] -> rows [1, 5] [10, 11, 12, 13, 14]",
        "rank 1: rows from all [1, 11]",
        "rank 2: columns [4, 1] -> rows [1, 5] [15, 16, 17, 18, 19]",
        "rank 2: rows from all [2, 12, 22]",
    ];
    assert_eq!(as_threads("all_to_all")?, expected);
    assert_eq!(as_processes("all_to_all", 3)?, expected);
    Ok(())
}

#[test]
fn overlap() -> Outcome {
    let line = |rank: usize, layer: usize, size: usize| {
        format!("rank {rank}: layer {layer} has the mean {}", (size + 1) as f64 / 2.0 * (layer + 1) as f64)
    };
    for size in [2, 3] {
        let lines: Vec<String> =
            (0..size).flat_map(|rank| (0..4).map(move |layer| line(rank, layer, size))).collect();
        assert_eq!(as_processes("overlap", size)?, lines);
        if size == 3 {
            assert_eq!(as_threads("overlap")?, lines);
        }
    }
    Ok(())
}

#[test]
fn survive() -> Outcome {
    let mut lines = vec!["rank 1: step 0, sum 1111".to_owned(), "rank 1: step 1, sum 1111".to_owned()];
    for (new, rank) in [0, 2, 3].into_iter().enumerate() {
        lines.push(format!("rank {rank}: rank 1 is lost; now rank {new} of 3"));
        let sums = [1111, 1111, 1101, 1101].into_iter().enumerate();
        lines.extend(sums.map(|(step, sum)| format!("rank {rank}: step {step}, sum {sum}")));
    }
    lines.sort();
    assert_eq!(as_threads("survive")?, lines);
    assert_eq!(as_processes("survive", 4)?, lines);
    Ok(())
}

#[test]
fn errors() -> Outcome {
    let expected = [
        "rank 0: aborted by rank 0: the loss is not a number",
        "rank 0: mismatch in shape: rank 2 says [3, 2], the others [2, 3] [team \"errors\", rank 0, all_reduce #3, after ",
        "rank 0: timeout: joining 2 ranks in the instance \"examples-",
        "rank 1: aborted by rank 0: the loss is not a number",
        "rank 1: mismatch in shape: rank 2 says [3, 2], the others [2, 3] [team \"errors\", rank 1, all_reduce #3, after ",
        "rank 2: aborted by rank 0: the loss is not a number",
        "rank 2: mismatch in shape: rank 2 says [3, 2], the others [2, 3] [team \"errors\", rank 2, all_reduce #3, after ",
    ];
    for lines in [as_threads("errors")?, as_processes("errors", 3)?] {
        check(&lines, &expected);
        assert!(lines[2].contains("missing: rank 1 (unknown)"), "{}", lines[2]);
    }
    Ok(())
}

/// As threads and as processes, with 2, 3 and 4 ranks.
fn check_sizes(name: &str, lines_of: impl Fn(usize, usize) -> Vec<String>) -> Outcome {
    check_sizes_with(name, 3, lines_of)
}

/// The same of an example that has another number of ranks if it is not told one.
fn check_sizes_with(name: &str, usual: usize, lines_of: impl Fn(usize, usize) -> Vec<String>) -> Outcome {
    for size in [2, 3, 4] {
        let mut expected: Vec<_> = (0..size).flat_map(|rank| lines_of(rank, size)).collect();
        expected.sort();
        assert_eq!(as_so_many_threads(name, size)?, expected);
        assert_eq!(as_processes(name, size)?, expected);
    }
    assert_eq!(as_threads(name)?, as_so_many_threads(name, usual)?);
    Ok(())
}

#[test]
fn remote() -> Outcome {
    check_sizes("remote", |rank, size| {
        let (next, previous) = (100 * ((rank + 1) % size), 100 * ((rank + size - 1) % size));
        let ones = if rank == 0 { [0, 0, 11, 111, 1111][size] } else { 0 };
        vec![
            format!("rank {rank}: loaded [{next}, {}]", next + 1),
            format!("rank {rank}: stored here [{previous}, {}]", previous + 1),
            format!("rank {rank}: added here [{ones}, {}]", 2 * ones),
        ]
    })
}

#[test]
fn put_get() -> Outcome {
    check_sizes("put_get", |rank, size| {
        let tag = (rank + size - 1) % size + 1;
        let got = [1, 2, 11, 12].map(|element| 100 * ((rank + 1) % size) + element);
        vec![format!("rank {rank}: tags [{tag}, {tag}, {tag}]"), format!("rank {rank}: got {got:?}")]
    })
}

#[test]
fn ring() -> Outcome {
    // Seven elements of 4 bytes: chunks of 4 and 3; 3, 2 and 2; 2, 2, 2 and 1. Each is loaded twice but for two loads.
    let bytes = [&[][..], &[], &[28, 28], &[36, 40, 36], &[40, 40, 44, 44]];
    check_sizes("ring", |rank, size| {
        let (steps, bytes) = (2 * (size - 1), bytes[size][rank]);
        let cost = format!("{steps} notifies, {steps} waits, 0 rounds, {bytes} bytes");
        vec![format!("rank {rank} of {size}: {cost}; the card says {cost}")]
    })
}

/// What it prints on stdout and on stderr, and its exit status.
fn barrier(args: &[&str]) -> Result<(String, String, Option<i32>), std::io::Error> {
    let output = example("barrier", &args.join(" ")).args(args).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((text(&output.stdout), text(&output.stderr), output.status.code()))
}

#[test]
fn barriers_of_signals() -> Outcome {
    for devices in ["0", "0,1", "5,2", "2,0,1", "3,1,0,2", "0,1,2,3,4,5,6,7"] {
        for how in [&["-d", devices][..], &["-d", devices, "--use-builtin"]] {
            for layout in [None, Some("--processes")] {
                let args: Vec<&str> = how.iter().copied().chain(layout).collect();
                assert_eq!(barrier(&args)?, ("OK\n".to_owned(), String::new(), Some(0)), "{args:?}");
            }
        }
    }
    assert_eq!(barrier(&[])?.0, "OK\n");
    Ok(())
}

#[test]
fn one_rank_of_a_barrier_prints_its_row() -> Outcome {
    let row = |rank: &str, more: &[&str]| {
        let mut command = example("barrier", &format!("rows{}", more.len()));
        command.args(["-d", "7,3", "--rank", rank]).args(more).stdout(Stdio::piped()).spawn()
    };
    for (more, expected) in [(&[][..], ["0 1\n", "1 0\n"]), (&["--use-builtin"], ["100 101\n", "0 1\n"])] {
        for (rank, expected) in [row("0", more)?, row("1", more)?].into_iter().zip(expected) {
            assert_eq!(String::from_utf8_lossy(&rank.wait_with_output()?.stdout), expected, "{more:?}");
        }
    }
    Ok(())
}

#[test]
fn the_check_of_a_barrier_can_fail() -> Outcome {
    let said = "y[0][0] is 1, expected 0\n".to_owned();
    let failed = (String::new(), said, Some(1));
    assert_eq!(barrier(&["-d", "0,1,2", "--pitfall", "self"])?, failed);
    assert_eq!(barrier(&["-d", "0,1,2", "--pitfall", "self", "--processes"])?, failed);
    Ok(())
}

#[test]
fn a_process_that_fails_is_a_barrier_that_fails() -> Outcome {
    let output = example("barrier", "fail").arg("--processes").env("COMM_TIMEOUT_MS", "never").output()?;
    assert_eq!((&output.stdout[..], output.status.code()), (&b""[..], Some(1)));
    let said = String::from_utf8_lossy(&output.stderr);
    let own = said.lines().filter(|line| line.contains("COMM_TIMEOUT_MS")).count();
    assert!(own > 0 && said.ends_with("the process of rank 0 has ended with exit status: 1\n"), "{said}");
    Ok(())
}

#[test]
fn wrong_arguments_of_a_barrier_are_one_line() -> Outcome {
    for (args, why) in [
        (&["-d", "0,0"][..], "device 0 is there twice"),
        (&["-d", "1,2,1"], "device 1 is there twice"),
        (&["-d", ""], "\"\" is not a device id"),
        (&["-d", "0,,1"], "\"\" is not a device id"),
        (&["-d", "0,x"], "\"x\" is not a device id"),
        (&["-d", "4294967296"], "is not a device id"),
        (&["-d", "-1"], "unexpected argument '-1'"),
        (&["-d"], "a value is required for '--device <ID,...>'"),
        (&["--bogus"], "unexpected argument '--bogus'"),
        (&["stray"], "unexpected argument 'stray'"),
        (&["--pitfall", "x"], "invalid value 'x' for '--pitfall"),
        (&["--pitfall", "self", "--use-builtin"], "cannot be used with '--use-builtin'"),
        (&["--rank", "2"], "--rank 2 of 2 devices"),
    ] {
        let (stdout, stderr, status) = barrier(args)?;
        assert_eq!((&*stdout, status), ("", Some(2)), "{args:?}");
        let one_line = stderr.starts_with("error: ") && stderr.ends_with(" (see --help)\n");
        assert!(stderr.contains(why) && one_line && stderr.lines().count() == 1, "{args:?}: {stderr}");
    }
    let many: Vec<String> = (0..10_000).map(|id| id.to_string()).collect();
    assert!(barrier(&["-d", &many.join(",")])?.1.contains("10000 devices"));
    let (help, stderr, status) = barrier(&["--help"])?;
    assert_eq!((&*stderr, status), ("", Some(0)));
    for option in
        ["-d, --device <ID,...>", "--use-builtin", "--processes", "--pitfall", "--rank <R>", "Exit status"]
    {
        assert!(help.contains(option), "{option} is not in {help}");
    }
    Ok(())
}

#[test]
fn redistribute() -> Outcome {
    let expected = [
        "  mesh dimension 0: S(0) -> S(1) by all-to-all, 48 bytes",
        "  mesh dimension 1: R -> S(1) by replicate-to-shard, 0 bytes",
        "  mesh dimension 1: S(1) -> R by all-gather, 48 bytes",
        "[S(0), S(1)] -> [S(1), S(1)], i64 of shape [4, 6]: 96 bytes",
        "rank 0 at [0, 0]: [0, 1, 2, 6, 7, 8]",
        "rank 0 has columns [0, 1, 6, 7, 12, 13, 18, 19]",
        "rank 1 at [0, 1]: [3, 4, 5, 9, 10, 11]",
        "rank 1 has columns [2, 8, 14, 20]",
        "rank 2 at [1, 0]: [12, 13, 14, 18, 19, 20]",
        "rank 2 has columns [3, 4, 9, 10, 15, 16, 21, 22]",
        "rank 3 at [1, 1]: [15, 16, 17, 21, 22, 23]",
        "rank 3 has collected [15, 51, 87, 123]",
        "rank 3 has columns [5, 11, 17, 23]",
    ];
    assert_eq!(as_threads("redistribute")?, expected);
    assert_eq!(as_processes("redistribute", 4)?, expected);
    let six = as_so_many_threads("redistribute", 6)?;
    assert!(six.contains(&"rank 5 has collected [15, 51, 87, 123]".to_owned()), "{six:#?}");
    Ok(())
}

#[test]
fn axes() -> Outcome {
    let mut expected = Vec::new();
    for rank in 0..4 {
        let (row, column) = (rank / 2, rank % 2);
        let line = [2 * row, 2 * row + 1];
        expected.push(format!("rank {rank} at [{row}, {column}]: weights with {line:?}, line {row}"));
        let outputs = ["0..3 give [2, 20, 3, 30, 4, 40]", "3..6 give [5, 50, 6, 60, 7, 70]"][row];
        expected.push(format!("rank {rank}: samples {outputs}"));
    }
    assert_eq!(as_threads("axes")?, expected);
    assert_eq!(as_processes("axes", 4)?, expected);
    Ok(())
}

#[test]
fn flows() -> Outcome {
    check_sizes_with("flows", 4, |rank, size| {
        // The rows of each device of the left mesh, whose ranks are those of the right one from the last device on.
        let half = size / 2;
        let rows = |r: usize| if half == 1 { 0..10 } else { [0..6, 6..10][r].clone() }.collect::<Vec<_>>();
        let mut lines = Vec::new();
        if rank < half {
            lines.push(format!("rank {rank} has got {:?}", rows(rank)));
        }
        if rank >= size - half {
            lines.push(format!("rank {rank} goes on with {:?}", rows(size - 1 - rank)));
        }
        if rank == size - 1 {
            lines.push(format!("rank {rank} has gathered {:?}", (0..10).map(|x| x * x).collect::<Vec<_>>()));
        }
        lines
    })
}

#[test]
fn pipeline_queue() -> Outcome {
    check_sizes("pipeline_queue", |rank, _| match rank {
        0 => vec!["rank 0: sent 20, of which 0 bytes were copied".to_owned()],
        _ => vec![format!("rank {rank}: received 20, which sum to 760")],
    })
}

#[test]
fn pipeline() -> Outcome {
    let said = |args: &[&str]| -> Result<Vec<String>, std::io::Error> {
        let mut command = Command::new(folder().join("pipeline"));
        command.args(args).env_remove("COMM_INSTANCE_ID");
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", output.status);
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    };
    let order = [9, 7, 5, 3, 1, 0, 2, 4, 6, 8];
    let all: Vec<String> = order.iter().map(|of| format!("{of} squared is [{}]", of * of)).collect();
    assert_eq!(said(&[])?, all);
    let some: Vec<String> = order
        .iter()
        .map(|of| match of {
            0..4 => format!("{of} squared is [{}]", of * of),
            _ => format!("{of} squared is not known: the worker died"),
        })
        .collect();
    assert_eq!(said(&["--kill"])?, some);
    Ok(())
}

#[test]
fn get_tensor() -> Outcome {
    check_sizes("get_tensor", |rank, size| {
        if rank + 1 < size {
            return vec![];
        }
        let rows: Vec<usize> = (0..size).flat_map(|r| [10 * r, 10 * r + 1, 10 * r + 2]).collect();
        let sum: Vec<usize> = (0..3).map(|c| (0..size).map(|r| 10 * r + c).sum()).collect();
        vec![format!("rank {rank}: rows {rows:?}"), format!("rank {rank}: sum {sum:?}")]
    })
}

#[test]
fn wrong_arguments_are_refused() -> Outcome {
    for name in [
        "all_reduce",
        "team",
        "shards",
        "errors",
        "remote",
        "put_get",
        "ring",
        "redistribute",
        "axes",
        "flows",
        "pipeline_queue",
    ] {
        for args in [&["--rank", "0"][..], &["--rank", "3", "--size", "2"], &["--size", "0"], &["help"]] {
            assert_eq!(example(name, "wrong").args(args).output()?.status.code(), Some(1), "{name} {args:?}");
        }
    }
    Ok(())
}

#[test]
fn the_program_in_the_readme_is_the_example() -> Outcome {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("../README.md"))?;
    let program = std::fs::read_to_string(root.join("all_reduce.rs"))?;
    let block = format!("```rust\n{program}```\n");
    assert!(readme.contains(&block), "README.md must hold examples/all_reduce.rs as it is");
    assert!(readme.contains("$ cargo run --quiet --example barrier -- -d 0,1\nOK\n```\n"));
    Ok(())
}
