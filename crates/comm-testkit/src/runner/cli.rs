//! The flags of a multi-rank test target.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;

use super::{Case, report};
use crate::layout::Layout;

const HIGHEST_WORLD: u64 = 64;

/// The world sizes that every case runs in, unless others are asked for.
const USUAL_WORLDS: [usize; 3] = [2, 3, 4];

/// Runs multi-rank test cases.
#[derive(Debug, Parser)]
#[command(name = "multirank", disable_version_flag = true)]
pub(crate) struct Args {
    /// World sizes [default: 2,3,4, and for some cases more]
    #[arg(long = "world", value_name = "N,..", value_delimiter = ',', value_parser = world)]
    worlds: Vec<usize>,
    /// Layouts
    #[arg(long = "layout", value_name = "threads,processes,mixed|all", value_delimiter = ',', default_value = "all", value_parser = layouts)]
    layouts: Vec<Vec<Layout>>,
    /// Only cases of these backends (default all)
    #[arg(long = "backend", value_name = "NAMES", value_delimiter = ',')]
    backends: Vec<String>,
    /// The device
    #[arg(long, default_value = "cpu", value_parser = PossibleValuesParser::new(["cpu", "sim", "cuda"]))]
    pub device: String,
    /// Only cases whose suite/case contains this
    #[arg(long, value_name = "SUBSTRING")]
    filter: Option<String>,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The long version of checks that have one, and the cases that are long only
    #[arg(long)]
    pub full: bool,
    /// Writes the rows as a JSON array; `-` is standard output, and then nothing else goes there
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Lists the cases and runs nothing
    #[arg(long)]
    pub list: bool,
    /// What `cargo test NAME` passes to every target: like --filter, but may match nothing
    #[arg(hide = true)]
    name: Option<String>,
    #[arg(skip)]
    flat: Vec<Layout>,
}

fn world(text: &str) -> Result<usize, String> {
    match text.parse::<u64>() {
        Ok(n) if (1..=HIGHEST_WORLD).contains(&n) => Ok(n as usize),
        _ => Err(format!("a world size is a number from 1 to {HIGHEST_WORLD}")),
    }
}

fn layouts(text: &str) -> Result<Vec<Layout>, String> {
    if text == "all" { Ok(Layout::ALL.to_vec()) } else { Ok(vec![text.parse()?]) }
}

impl Args {
    /// The flags of this process; on `--help` or a mistake everything is said already and the code is given.
    pub fn parse_env() -> Result<Args, ExitCode> {
        Args::parse_from_list(std::env::args_os()).map_err(|e| {
            if e.kind() == ErrorKind::DisplayHelp {
                let _ = write!(std::io::stdout(), "{e}");
                return ExitCode::SUCCESS;
            }
            report::line(&one_line(&e));
            ExitCode::from(2)
        })
    }

    fn parse_from_list(
        list: impl IntoIterator<Item = impl Into<std::ffi::OsString> + Clone>,
    ) -> Result<Args, clap::Error> {
        let mut args = Args::try_parse_from(list)?;
        let mut flat: Vec<Layout> = args.layouts.concat();
        flat.sort();
        flat.dedup();
        args.flat = flat;
        Ok(args)
    }

    /// The world sizes in which any of these cases runs.
    pub fn worlds<'a>(&self, cases: impl Iterator<Item = &'a Case>) -> BTreeSet<usize> {
        if self.worlds.is_empty() {
            cases.flat_map(|case| case.also).chain(&USUAL_WORLDS).copied().collect()
        } else {
            self.worlds.iter().copied().collect()
        }
    }

    /// Whether a case runs in a world size, as far as the flags say.
    pub fn is_in(&self, case: &Case, world: usize) -> bool {
        !self.worlds.is_empty() || USUAL_WORLDS.contains(&world) || case.also.contains(&world)
    }

    pub fn layouts(&self) -> &[Layout] {
        &self.flat
    }

    /// Whether the filters let a case through.
    pub fn chooses(&self, case: &Case) -> bool {
        let title = case.title();
        let named = |part: &Option<String>| part.as_ref().is_none_or(|p| title.contains(p.as_str()));
        let backend = self.backends.is_empty() || self.backends.iter().any(|b| b == case.backend);
        let device = case.devices.contains(&self.device.as_str());
        named(&self.filter) && named(&self.name) && backend && device && (self.full || !case.is_long)
    }

    /// What to say when nothing matches.
    pub fn nothing(&self) -> String {
        let mut text = format!("no case matches --device {}", self.device);
        if !self.backends.is_empty() {
            text += &format!(" --backend {}", self.backends.join(","));
        }
        if let Some(filter) = &self.filter {
            text += &format!(" --filter {filter:?}");
        }
        if self.full {
            text += " --full";
        }
        let names: Vec<&str> = self.flat.iter().map(|l| l.name()).collect();
        let worlds: Vec<String> = self.worlds([].into_iter()).iter().map(usize::to_string).collect();
        format!("{text} --world {} --layout {}", worlds.join(","), names.join(","))
    }

    pub fn may_match_nothing(&self) -> bool {
        self.name.is_some()
    }
}

/// The first line of clap's message, which says what is wrong, with the value that is right if there is one.
fn one_line(e: &clap::Error) -> String {
    let text = e.to_string();
    let useful: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|l| !l.starts_with("Usage"))
        .filter(|l| !l.is_empty())
        .collect();
    useful.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        Args::parse_from_list(line.split_whitespace().map(str::to_string)).map_err(|e| one_line(&e))
    }

    #[test]
    fn defaults_and_lists() {
        let args = parse("t").unwrap();
        assert_eq!(args.worlds([].into_iter()), BTreeSet::from([2, 3, 4]));
        assert_eq!(args.layouts(), Layout::ALL);
        let args = parse("t --world 4,2 --layout mixed,threads --backend a,b --seed 9 --full").unwrap();
        assert_eq!(args.worlds([].into_iter()), BTreeSet::from([2, 4]));
        assert_eq!(args.layouts(), [Layout::Threads, Layout::Mixed]);
        assert!(args.full && args.seed == 9);
    }

    #[test]
    fn a_case_may_want_more_worlds() {
        let [plain, large] = ["plain", "large"].map(|name| Case::ranks("s", name, |_| crate::done()));
        let large = large.also_worlds(&[1, 8]);
        let usual = parse("t").unwrap();
        assert_eq!(usual.worlds([&plain, &large].into_iter()), BTreeSet::from([1, 2, 3, 4, 8]));
        let where_ = |args: &Args, case| (1..10).filter(|&n| args.is_in(case, n)).collect::<Vec<_>>();
        assert_eq!(where_(&usual, &plain), [2, 3, 4]);
        assert_eq!(where_(&usual, &large), [1, 2, 3, 4, 8]);
        // Who says which gets those alone.
        let asked = parse("t --world 4,5").unwrap();
        assert_eq!(asked.worlds([&large].into_iter()), BTreeSet::from([4, 5]));
        assert!(asked.is_in(&plain, 5));
    }

    #[test]
    fn mistakes_are_one_line() {
        for line in
            ["t --wrold 2", "t --world 0", "t --world 65", "t --layout ring", "t --device tpu", "t --seed x"]
        {
            let text = parse(line).unwrap_err();
            assert!(text.starts_with("error: ") && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn filters() {
        let case = Case::ranks("s", "op/x", |_| crate::done()).backend("b").devices(&["sim"]);
        assert!(parse("t --device sim --backend a,b --filter s/op").unwrap().chooses(&case));
        for line in ["t", "t --device sim --backend a", "t --device sim --filter y", "t other --device sim"] {
            assert!(!parse(line).unwrap().chooses(&case), "{line}");
        }
        let long = Case::ranks("s", "long", |_| crate::done()).only_full();
        assert!(parse("t --full").unwrap().chooses(&long) && !parse("t").unwrap().chooses(&long));
    }
}
