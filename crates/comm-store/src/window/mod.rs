#![doc = include_str!("guide.md")]

mod alignment;
mod atomic;
mod cost;
mod expose;
mod handshake;
mod local;
mod part;
mod region;
mod signals;
mod spec;
#[cfg(test)]
mod tests;
mod transfer;
mod view;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use comm_core::hub::refuse_forked;
use comm_core::shm::Pinned;
use comm_core::team::{BOARD_BYTES, Member, OpGuard, odd_one_out};
use comm_core::wait::Cell;
use comm_core::{Deadline, Error, Kind, Result, point};

use cost::Counters;
pub use cost::{Cost, Operation, cost};
pub use expose::Exposed;
pub use handshake::{Await, Notify};
pub(crate) use local::{Beside, Local, Upon};
pub(crate) use part::Inside;
use part::{Part, Place};
pub use region::{Region, TypedRegion};
pub use signals::{SignalWait, Signals};
pub use spec::WindowSpec;
pub use transfer::{StoreOp, Sub};
pub use view::View;

const ALLOC: &str = "Window::alloc";

/// The same memory on every rank of a team, reached by all: bytes, and signals to tell when they may be read.
///
/// See the [module](self) for how they are used. A window is freed when the last of its ranks has dropped it. It may be
/// used by several threads at once; what is symmetric ([`reset`](Window::reset), [`Signals::barrier`]) by one at a time.
///
/// ```
/// use comm_core::{Deadline, team::Team, tensor::DType};
/// use comm_store::{Cmp, NotifyOp, window::{Window, WindowSpec}};
///
/// fn rank(rank: usize) -> comm_core::Result<()> {
///     let deadline = Deadline::default();
///     let team = Team::join("window-example", rank, 2, deadline)?;
///     let window = Window::alloc(&team, WindowSpec::bytes(8).signals(2), deadline)?;
///     let (data, signals) = (window.view(0, &[2], DType::I32)?, window.signals(&[2])?);
///     // Into my own part, then word to the other one, in my own row of its signals.
///     data.write(&[0], 10 + rank as i32)?;
///     let peer = 1 - rank;
///     signals.notify(peer, &[rank], 1, NotifyOp::Add)?;
///     signals.wait(&[peer], Cmp::Ge, 1, Some(peer), deadline)?;
///     assert_eq!(data.remote_load(peer, &[0], &[1])?.as_slice::<i32>()?, [10 + peer as i32]);
///     Ok(())
/// }
///
/// std::thread::scope(|s| {
///     for r in 0..2 {
///         s.spawn(move || rank(r).unwrap());
///     }
/// });
/// ```
#[doc(alias = "alloc_window_buffer")]
#[doc(alias = "DistributedTensor")]
pub struct Window {
    member: Arc<Member>,
    /// The number of the operation that made it: the same on all ranks.
    id: u64,
    spec: WindowSpec,
    local: Arc<Local>,
    counters: Arc<Counters>,
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window({}, rank {} of {})", self.spec, self.rank(), self.nranks())
    }
}

impl Window {
    /// Makes a window: all of it zero before any peer can reach it. All ranks of the team call it with the same spec,
    /// which may be a number of bytes. A window over some ranks of a team is one of a
    /// [subset](comm_core::team::Member::subset).
    ///
    /// # Errors
    /// On every rank, and the team goes on: [`Error::Mismatch`] if specs differ, [`Error::InvalidArgument`] for one that
    /// cannot be. [`Error::OutOfMemory`], which ends the team for the others; what ends a symmetric operation.
    pub fn alloc(
        member: &Arc<Member>,
        spec: impl Into<WindowSpec>,
        deadline: impl Into<Deadline>,
    ) -> Result<Window> {
        Window::alloc_for(ALLOC, Inside::default(), member, spec, deadline)
    }

    /// As [`alloc`](Window::alloc), for what is made of a window: the name of the operation, and what it keeps in the parts.
    pub(crate) fn alloc_for(
        op: &'static str,
        inside: Inside,
        member: &Arc<Member>,
        spec: impl Into<WindowSpec>,
        deadline: impl Into<Deadline>,
    ) -> Result<Window> {
        let mut op = member.begin(op, deadline)?;
        match Window::build(&mut op, member, spec.into(), inside) {
            Ok(verdict) => op.settle(verdict, true),
            Err(error) => op.settle(Err(error), false),
        }
    }

    /// The window, or why all ranks make none; or an error of this rank's own.
    fn build(
        op: &mut OpGuard<'_>,
        member: &Arc<Member>,
        spec: WindowSpec,
        inside: Inside,
    ) -> Result<Result<Window>> {
        let (rank, size) = (member.rank(), member.size());
        // A spec that cannot be is told all the same, so that all come to the same verdict.
        let own = match spec.check() {
            Ok(()) => Some(Part::own(Arc::new(member.hub().windows().alloc_zeroed(spec.len())?), spec)?),
            Err(_) => None,
        };
        let block = own.as_ref().and_then(Part::block);
        let (segment, offset) = block.map_or((0, 0), |block| (block.segment().id(), block.offset()));
        let id = op.seq();
        let local = member.share(id, || Local::new(member.clone()));
        if let Some(own) = own {
            local.set_part(rank, own);
        }
        let said = match op.say(&Place::new(segment, offset, spec, inside).to_board()) {
            Ok(said) => said,
            Err(error @ Error::Mismatch { .. }) => {
                local.refused();
                return Ok(Err(error));
            }
            Err(error) => return Err(error),
        };
        let places: Vec<_> = said.iter().map(Place::from_board).collect();
        let verdict = agree(&places).and_then(|()| spec.check());
        if verdict.is_ok() {
            for (peer, place) in places.iter().enumerate().filter(|&(p, _)| !member.shares_process(p)) {
                let segment = op.peer_segment(peer, place.segment)?;
                local.set_part(peer, Part::peer(peer, segment, place.offset, spec)?);
            }
            local.enter();
        }
        // A verdict is everybody's: all go on to the end. Any other error has ended the team.
        op.heard()?;
        if let Err(verdict) = verdict {
            local.refused();
            return Ok(Err(verdict));
        }
        if let Some(rank) = (0..size).find(|&rank| local.part(rank).is_none()) {
            return Err(Error::bad_peer(format!("rank {rank} made no part of the window")));
        }
        point!("window.made");
        Ok(Ok(Window { member: member.clone(), id, spec, local, counters: Arc::default() }))
    }

    /// The team that it belongs to.
    #[doc(alias = "get_comm_ctx")]
    pub fn context(&self) -> &Arc<Member> {
        &self.member
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.member.rank()
    }

    /// How many ranks have a part.
    pub fn nranks(&self) -> usize {
        self.member.size()
    }

    /// What every rank contributes.
    pub fn spec(&self) -> WindowSpec {
        self.spec
    }

    /// What this rank has done with the window so far.
    pub fn costs(&self) -> Cost {
        self.counters.read()
    }

    /// Copies bytes into a rank's part: what ranks say to each other to agree, which is not counted as payload. The ground
    /// under [`View`]s, without types and shapes; it is for the inside of operations, which look themselves whether the
    /// team goes on.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rank or a range that is not there; [`Error::Forked`].
    pub fn write_bytes(&self, peer: usize, at: usize, bytes: &[u8]) -> Result<()> {
        self.reached(peer)?.write(at, bytes)
    }

    /// Copies bytes out of a rank's part; see [`write_bytes`](Window::write_bytes).
    ///
    /// # Errors
    /// Those of [`write_bytes`](Window::write_bytes).
    pub fn read_bytes(&self, peer: usize, at: usize, bytes: &mut [u8]) -> Result<()> {
        self.reached(peer)?.read(at, bytes)
    }

    /// Makes all bytes and all signals zero, on all ranks, as in a fresh window: when it returns, so has every rank's part
    /// become. All ranks call it, none inside another operation on the window; before it, all wait for each other, so
    /// that no signal from before comes afterwards, and so they do after it. What is exposed stays exposed.
    ///
    /// A window is kept from use to use by keeping the value. Whoever wants it fresh resets it; whoever does not, goes on
    /// with what is in it, and then needs signals that clear themselves, or that count on.
    ///
    /// # Errors
    /// [`Error::Mismatch`], on all ranks, if they reset different windows or do something else that they must agree about;
    /// nothing is reset then, and the team goes on. What ends a symmetric operation.
    pub fn reset(&self, deadline: impl Into<Deadline>) -> Result<()> {
        self.reset_by("Window::reset", deadline, || {
            let part = self.part(self.rank())?;
            part.wipe()?;
            (0..self.spec.signals as usize)
                .try_for_each(|cell| part.cell(cell).map(|cell| cell.set(0, self.member.bell())))
        })
    }

    /// A handshake around what this rank does to its own part: nobody does it before all have come, nor goes on before all
    /// have done it.
    pub(crate) fn reset_by(
        &self,
        op: &'static str,
        deadline: impl Into<Deadline>,
        wipe: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut op = self.member.begin(op, deadline)?;
        let outcome = self.wipe(&mut op, wipe);
        let agreed = matches!(outcome, Err(Error::Mismatch { .. }));
        op.settle(outcome, agreed)
    }

    fn wipe(&self, op: &mut OpGuard<'_>, wipe: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut board = [0; BOARD_BYTES];
        board[..8].copy_from_slice(&self.id.to_ne_bytes());
        let said = op.say(&board)?;
        if let Some((odd, common)) = odd_one_out(&said) {
            op.heard()?;
            let window = |rank: usize| {
                let id = u64::from_ne_bytes(std::array::from_fn(|i| said[rank][i]));
                format!("the window of operation {id}")
            };
            let (theirs, others) = (window(odd), window(common));
            return Err(Error::Mismatch { rank: odd, field: "window", theirs, others, at: Box::default() });
        }
        point!("window.wipe");
        wipe()?;
        op.heard()
    }

    /// A cell of a rank's part.
    pub(crate) fn cell(&self, rank: usize, index: usize) -> Result<&Cell> {
        self.reached(rank)?.cell(index)
    }

    /// A cell of a rank's part, for a task.
    pub(crate) fn task_cell(&self, rank: usize, index: usize) -> Result<Pinned<Cell>> {
        self.reached(rank)?.task_cell(index)
    }

    /// Words of a rank's part, so many bytes into it.
    pub(crate) fn words(&self, rank: usize, at: usize, count: usize) -> Result<&[AtomicU64]> {
        self.reached(rank)?.atomics(at, count)
    }

    /// What the ranks of this process share of it.
    pub(crate) fn local(&self) -> &Arc<Local> {
        &self.local
    }

    /// Whether peers of this rank are in other processes.
    fn is_abroad(&self) -> bool {
        self.member.processes() > 1
    }

    fn part(&self, rank: usize) -> Result<&Part> {
        self.local.part(rank).ok_or_else(|| {
            Error::invalid("Window", format!("rank {rank} of a window of {} ranks", self.nranks()))
        })
    }

    fn reached(&self, rank: usize) -> Result<&Part> {
        refuse_forked()?;
        self.part(rank)
    }

    /// Before this rank touches memory of others without waiting for anything: whether there is still a team.
    fn alive(&self, op: &'static str) -> Result<()> {
        self.member.check(op)
    }
}

/// All ranks must be of one build, and have asked for the same.
fn agree(places: &[Place]) -> Result<()> {
    let layouts: Vec<_> = places.iter().map(|place| place.layout).collect();
    let specs: Vec<_> = places.iter().map(|place| place.spec).collect();
    let kinds: Vec<_> = places.iter().map(|place| place.kind).collect();
    let kind = |rank: usize| kinds[rank].map_or_else(|| "none".to_owned(), |kind: Kind| kind.to_string());
    let (field, rank, theirs, others) = if let Some((odd, common)) = odd_one_out(&layouts) {
        ("layout", odd, format!("{:#x}", layouts[odd]), format!("{:#x}", layouts[common]))
    } else if let Some((odd, common)) = odd_one_out(&kinds) {
        ("kind", odd, kind(odd), kind(common))
    } else if let Some((odd, common)) = odd_one_out(&specs) {
        ("spec", odd, specs[odd].to_string(), specs[common].to_string())
    } else {
        return Ok(());
    };
    Err(Error::Mismatch { rank, field, theirs, others, at: Box::default() })
}

const _: () = assert!(BOARD_BYTES >= Place::BYTES);
