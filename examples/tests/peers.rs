//! The examples as torchrun, Open MPI and MPICH start them, and with ranks in Python. Run by `cargo xtask test --lane peers`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// What the lane has prepared.
fn prepared(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: cargo xtask test --lane peers"))
}

/// The examples' programs, which cargo builds once.
fn example(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").expect("cargo runs this test");
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--workspace", "--examples"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(build.status().is_ok_and(|status| status.success()), "the examples do not build");
        let here = std::env::current_exe().expect("this program has a path");
        here.ancestors().nth(2).map(|target| target.join("examples")).expect("it is in a folder of cargo's")
    });
    folder.join(name)
}

fn lines(output: &Output) -> Vec<String> {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    let mut lines: Vec<String> =
        out.lines().filter(|line| line.contains("rank ")).map(str::to_owned).collect();
    lines.sort();
    lines
}

fn torchrun(ranks: usize, program: &Path) -> Command {
    let mut command = Command::new(prepared("COMM_PEERS_PYTHON"));
    command
        .args(["-m", "torch.distributed.run", "--no-python", "--nproc-per-node", &ranks.to_string()])
        .arg(program);
    command
}

fn mpirun(variable: &str, ranks: usize, more: &[&str], program: &Path) -> Command {
    let mut command = Command::new(prepared(variable));
    // These want to be told that root may; an ordinary user need not.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args(["-n", &ranks.to_string()]).args(more).arg(program);
    command
}

fn reduced(ranks: usize) -> Vec<String> {
    let sum = (ranks as f32, (ranks * (ranks - 1) / 2) as f32, ranks as f32 / 2.0);
    (0..ranks)
        .map(|rank| format!("rank {rank} of {ranks}: [{:?}, {:?}, {:?}]", sum.0, sum.1, sum.2))
        .collect()
}

#[test]
#[ignore = "needs torch"]
fn by_torchrun() -> Outcome {
    assert_eq!(lines(&torchrun(4, &example("all_reduce")).output()?), reduced(4));
    // Two jobs at once, which do not meet.
    let start =
        |ranks| torchrun(ranks, &example("all_reduce")).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let (one, two) = (start(3)?, start(2)?);
    assert_eq!(lines(&one.wait_with_output()?), reduced(3));
    assert_eq!(lines(&two.wait_with_output()?), reduced(2));
    Ok(())
}

#[test]
#[ignore = "needs Open MPI"]
fn by_open_mpi() -> Outcome {
    let output = mpirun("COMM_PEERS_OPEN_MPI", 4, &["--oversubscribe"], &example("all_reduce")).output()?;
    assert_eq!(lines(&output), reduced(4));
    Ok(())
}

#[test]
#[ignore = "needs MPICH"]
fn by_mpich() -> Outcome {
    assert_eq!(lines(&mpirun("COMM_PEERS_MPICH", 4, &[], &example("all_reduce")).output()?), reduced(4));
    // The same under a shell for each rank; two jobs at once do not meet.
    let line = format!("{} && true", example("all_reduce").display());
    let start = |ranks| {
        let mut command = mpirun("COMM_PEERS_MPICH", ranks, &["sh", "-c"], Path::new(&line));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    let (one, two) = (start(3)?, start(2)?);
    assert_eq!(lines(&one.wait_with_output()?), reduced(3));
    assert_eq!(lines(&two.wait_with_output()?), reduced(2));
    Ok(())
}

/// Each rank's line names the same id.
fn same_id(outputs: &[Output]) {
    let mut all: Vec<String> = outputs.iter().flat_map(lines).collect();
    all.sort();
    let ids: Vec<&str> = all.iter().map(|line| line.rsplit(' ').next().unwrap_or_default()).collect();
    assert!(all.len() > 1 && ids.iter().all(|id| *id == ids[0]), "{all:#?}");
    for (rank, line) in all.iter().enumerate() {
        assert!(line.starts_with(&format!("rank {rank} of {}: an id of 128 bytes", all.len())), "{all:#?}");
    }
}

#[test]
#[ignore = "needs torch and the library of NCCL"]
fn an_id_of_nccl_in_the_store_of_torchrun() -> Outcome {
    same_id(&[torchrun(3, &example("nccl_id")).output()?]);
    Ok(())
}

/// The first rank is in Rust and the other in Python, and the other way round.
#[test]
#[ignore = "needs torch and the library of NCCL"]
fn an_id_of_nccl_between_rust_and_python() -> Outcome {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("nccl_id.py");
    for rust in [0, 1] {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let start = |mut command: Command, rank: usize| {
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
            command.env("MASTER_ADDR", "localhost").env("MASTER_PORT", &port);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        let mut python = Command::new(prepared("COMM_PEERS_PYTHON"));
        python.arg(&script);
        let ranks = [start(Command::new(example("nccl_id")), rust)?, start(python, 1 - rust)?];
        let ends = ranks.into_iter().map(|rank| rank.wait_with_output()).collect::<Result<Vec<_>, _>>()?;
        same_id(&ends);
    }
    Ok(())
}
