//! stub
use super::convert::{RankReport, rank_main};
use super::exchange::Exchange;
use super::group::Group;
use super::weights::{Choice, Weights};
use crate::cli::DemoArgs;
use crate::fail::Fail;
pub fn child_main() -> Option<std::process::ExitCode> {
    None
}
pub fn launch(args: &DemoArgs, _choice: &Choice, weights: &Weights) -> Result<Vec<RankReport>, Fail> {
    let group = Group::join("demo", 0, args.ranks as usize).map_err(Fail::check)?;
    let bar = indicatif::ProgressBar::new(super::convert::work(weights.specs()));
    let _ = group.rank();
    Ok(vec![rank_main(&group, weights, &|b| bar.inc(b)).map_err(Fail::check)?])
}
