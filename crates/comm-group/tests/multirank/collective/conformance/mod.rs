//! Conformance: every operation with every operator, dtype, form, view, place, size, root and dimension.
//!
//! The [factors](factors::factors) have levels, of which not all go together. All combinations are many: they are run with
//! `--full`. Otherwise those are run that the seed chooses, and that hold every pair of levels which any combination holds
//! ([`comm_testkit::pairwise`]). An operator and a dtype that do not go together are refused, which is checked, too.
//!
//! | file | what it holds |
//! |---|---|
//! | `operation` | the operations, and which factors each has |
//! | `factors` | the factors, and which of their levels go together |
//! | `setup` | what a combination calls, and which cells of an input go where |
//! | `elements` | what elements are, and what operators make of them |
//! | `image` | the bytes of cells, and how they lie |
//! | `pairs` | that every pair is among what is chosen |
//! | `refused` | operators that there are not for a dtype |

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use comm_core::Deadline;
use comm_group::ThreadGroup;
use comm_testkit::{Case, Layout, RankCtx, RankResult};
use serde_json::json;

mod elements;
mod factors;
mod image;
mod operation;
mod pairs;
mod refused;
mod setup;

use crate::call::{Way, check_in_place, check_way};
use crate::support::{Any, group, strided, tensor};
use elements::Elements;
use factors::{COUNT, Combination, Size, matrix};
use image::Image;
use operation::{Operation, Subject, subjects};
use setup::Setup;

/// How long one call may take. All of a case may take much longer.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn cases() -> Vec<Case> {
    let case = |(level, subject): (usize, Subject)| {
        let name = format!("{}/{}/any/conformance", subject.operation.name(), subject.operator_name());
        let case = super::case(name, move |ctx| run(ctx, level, subject));
        // A message is for somebody else.
        let alone = !matches!(subject.operation, Operation::Send | Operation::Exchange);
        case.also_worlds(if alone { &[1, 5, 8] } else { &[5, 8] })
            .worlds(if alone { |_| true } else { |world| world > 1 })
            .limit(Duration::from_secs(900))
    };
    let mut all: Vec<Case> = subjects().into_iter().enumerate().map(case).collect();
    let pairs = Case::launcher(super::SUITE, "matrix/-/-/conformance", pairs::check);
    all.push(pairs.worlds(|world| world == 2).layouts(&[Layout::Threads]).backend(super::BACKEND));
    all
}

/// The combinations that a seed chooses; that of a process is always the same.
fn chosen(seed: u64) -> Any<&'static [[usize; COUNT]]> {
    static CHOSEN: OnceLock<Vec<[usize; COUNT]>> = OnceLock::new();
    let matrix = matrix().ok_or("too many levels")?;
    Ok(CHOSEN.get_or_init(|| matrix.covering(seed)))
}

/// All combinations of an operation, or those that were chosen; how many, by dtype.
fn run(ctx: &RankCtx, level: usize, subject: Subject) -> RankResult {
    let group = group(ctx, "g")?;
    let mut walk = Walk { ctx, group: &group, setup: None, image: None };
    let mut passed: BTreeMap<&str, usize> = BTreeMap::new();
    let mut step = |row: &[usize; COUNT]| -> Any<()> {
        let c = Combination::of(row).ok_or("a level of another factor")?;
        walk.check(row, &c).map_err(|e| format!("{c}: {e}"))?;
        *passed.entry(c.dtype.name()).or_default() += 1;
        Ok(())
    };
    if ctx.full() {
        matrix().ok_or("too many levels")?.product_with(&[level]).try_for_each(|row| step(&row))?;
    } else {
        chosen(ctx.seed())?.iter().filter(|row| row[0] == level).try_for_each(step)?;
    }
    let refused = refused::check(ctx, &group, subject)?;
    Ok(json!({ "passed": passed, "refused": refused }))
}

/// A rank on its way through combinations. What neighbours have in common is made once.
struct Walk<'a> {
    ctx: &'a RankCtx,
    group: &'a ThreadGroup,
    setup: Option<([usize; 4], Setup)>,
    image: Option<([usize; 2], Image)>,
}

impl Walk<'_> {
    fn check(&mut self, row: &[usize; COUNT], c: &Combination) -> RankResult {
        let (rank, world) = (self.ctx.rank(), self.ctx.world());
        let [_, split, root, dims, view, dtype, size, ..] = *row;
        let key = [split, root, dims, view];
        if self.setup.as_ref().is_none_or(|(of, _)| *of != key) {
            let salt = key.iter().fold(0, |salt, &level| salt * 100 + level as u64);
            self.setup = Some((key, Setup::of(c, world, &mut self.ctx.common_rng().fork(salt))?));
            self.image = None;
        }
        let (_, setup) = self.setup.as_ref().ok_or("there is one now")?;
        let key = [dtype, size];
        if self.image.as_ref().is_none_or(|(of, _)| *of != key) {
            let elements = Elements::of(self.ctx, c.subject, c.dtype)?;
            self.image = Some((key, Image::of(c, setup, &elements, rank)?));
        }
        let (_, image) = self.image.as_ref().ok_or("there is one now")?;
        let at = Deadline::from(PATIENCE);
        if let (Way::InPlace, Some(operator), [expected]) = (c.form, c.subject.operator, &image.expected[..])
        {
            let whole = tensor(self.group, c.place, &image.view.shape, c.dtype, &image.storage)?;
            let buf = whole.try_into_buf().map_err(|_| "nobody else holds it")?;
            return check_in_place(self.group, operator, buf, expected, at);
        }
        let mine = strided(self.group, c.place, &image.view, c.dtype, &image.storage)?;
        let call = setup.call(c.size != Size::Letter);
        check_way(self.group, call, c.form, &mine, &image.expected, at)
    }
}
