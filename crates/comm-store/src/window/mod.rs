//! Windows: the same memory on every rank, reached by all.
//!
//! Each rank contributes one part of equal shape: cells, a few bytes, and slots in which it exposes tensors. A part is
//! written by its owner; what peers do to it is to enter themselves as waiters of a cell. Results are pulled: a peer
//! that reads what is exposed copies it, checks afterwards that it still was, and so never takes recycled bytes for a
//! tensor.

mod expose;
mod part;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};

use comm_core::team::{BOARD_BYTES, OpGuard, Team};
use comm_core::wait::Cell;
use comm_core::{Deadline, Error, Result};

use expose::Place;
pub use expose::{Exposed, Region};
use part::{Part, Shape};

const OP: &str = "Window::alloc";

/// Memory of the ranks of a team.
///
/// ```
/// use comm_core::{Deadline, team::Team};
/// use comm_store::Window;
///
/// let team = Team::join("window-example", 0, 1, Deadline::default())?;
/// let window = Window::alloc(&team, 1, 64, 0, Deadline::default())?;
/// window.write(0, b"hello")?;
/// window.cell(0, 0)?.set(1, team.bell());
/// let mut seen = [0; 5];
/// window.read(0, 0, &mut seen)?;
/// assert_eq!(&seen, b"hello");
/// # Ok::<(), comm_core::Error>(())
/// ```
#[doc(alias = "alloc_window_buffer")]
pub struct Window {
    /// The team that it belongs to.
    team: u128,
    rank: usize,
    parts: Vec<Part>,
    local: Arc<Local>,
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window")
            .field("rank", &self.rank)
            .field("ranks", &self.parts.len())
            .finish_non_exhaustive()
    }
}

/// What the ranks of one process share of a window besides its memory.
struct Local {
    parts: Vec<Mutex<Option<Part>>>,
    /// Tensors that ranks of this process expose, by rank and slot: peers in this process read them where they are.
    exposed: Vec<Vec<Mutex<Place>>>,
}

impl Window {
    /// Makes a window: `cells` cells, `bytes` bytes and `slots` slots for exposed tensors on every rank, all zero
    /// before any peer can reach them. All ranks call it with the same numbers.
    ///
    /// Its memory lives until all ranks have left the team.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for numbers that cannot be; [`Error::Mismatch`] if they differ between ranks;
    /// [`Error::OutOfMemory`], which ends the team for the others; what ends a symmetric operation.
    pub fn alloc(
        team: &Team,
        cells: usize,
        bytes: usize,
        slots: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Window> {
        let shape = Shape::new(cells, bytes, slots)?;
        let mut op = team.begin(OP, deadline)?;
        let outcome = Window::build(&mut op, shape);
        let agreed = matches!(outcome, Err(Error::Mismatch { .. }));
        op.settle(outcome, agreed)
    }

    fn build(op: &mut OpGuard<'_>, shape: Shape) -> Result<Window> {
        let team = op.team();
        let (rank, size) = (team.rank(), team.size());
        let block = Arc::new(team.hub().windows().alloc_zeroed(shape.len())?);
        let own = Part::own(block.clone(), shape);
        own.tag_cells()?;
        // Peers may reach the block from now on, and some may do so until they leave.
        let place = part::Place { segment: block.segment().id(), offset: block.offset(), shape };
        team.keep(block);
        let local = team.share(op.seq(), || Local {
            parts: (0..size).map(|_| Mutex::default()).collect(),
            exposed: (0..size).map(|_| (0..shape.slots()).map(|_| Mutex::default()).collect()).collect(),
        });
        if let Some(part) = local.parts.get(rank) {
            *part.lock().unwrap_or_else(PoisonError::into_inner) = Some(own);
        }
        let said = op.say(&place.to_board())?;
        let places: Vec<_> = said.iter().map(part::Place::from_board).collect();
        let verdict = agree(&places.iter().map(|place| place.shape).collect::<Vec<_>>());
        let parts = match verdict {
            Ok(()) => places.iter().enumerate().map(|(peer, place)| reach(op, &local, peer, place)).collect(),
            Err(mismatch) => Err(mismatch),
        };
        // A mismatch is everybody's: all go on to the end. With any other error the team is over.
        if matches!(parts, Ok(_) | Err(Error::Mismatch { .. })) {
            op.heard()?;
        }
        Ok(Window { team: team.id(), rank, parts: parts?, local })
    }

    /// How many ranks have a part.
    pub fn size(&self) -> usize {
        self.parts.len()
    }

    /// A cell of a rank. A rank sets its own cells; peers wait for them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such rank or cell.
    pub fn cell(&self, rank: usize, index: usize) -> Result<&Cell> {
        self.part(rank)?.cell(index)
    }

    /// Copies bytes into this rank's own part.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they do not fit there.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.part(self.rank)?.write(offset, bytes)
    }

    /// Copies bytes out of a rank's part. What that rank writes meanwhile may arrive torn: wait for a cell that it sets
    /// after writing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such rank or range.
    pub fn read(&self, rank: usize, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.part(rank)?.read(offset, bytes)
    }

    fn part(&self, rank: usize) -> Result<&Part> {
        self.parts.get(rank).ok_or_else(|| {
            Error::invalid("Window", format!("rank {rank} of a window of {} ranks", self.parts.len()))
        })
    }
}

/// The part of a rank, as it can be reached from here.
fn reach(op: &mut OpGuard<'_>, local: &Local, peer: usize, place: &part::Place) -> Result<Part> {
    if op.team().shares_process(peer) {
        let part =
            local.parts.get(peer).and_then(|p| p.lock().unwrap_or_else(PoisonError::into_inner).clone());
        return part.ok_or_else(|| Error::bad_peer(format!("rank {peer} made no part of the window")));
    }
    Part::peer(op.peer_segment(peer, place.segment)?, place.offset, place.shape)
}

/// All ranks must have asked for the same shape.
fn agree(shapes: &[Shape]) -> Result<()> {
    let Some((odd, common)) = comm_core::team::odd_one_out(shapes) else { return Ok(()) };
    Err(Error::Mismatch {
        rank: odd,
        field: "shape",
        theirs: shapes[odd].to_string(),
        others: shapes[common].to_string(),
        at: Box::default(),
    })
}

const _: () = assert!(BOARD_BYTES >= part::Place::BYTES);
