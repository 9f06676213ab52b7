//! Signals: what ranks tell each other, and what they wait for.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use comm_core::shm::Pinned;
use comm_core::team::{OpGuard, TaskWait, TeamSnapshot};
use comm_core::tensor::Layout;
use comm_core::wait::Cell;
use comm_core::{Deadline, Error, Result, point};

use super::Window;
use super::cost::Counters;
use crate::signal::{self, Cmp, NotifyOp, credits};

/// Signal cells of a window as an array of some shape, the same on every rank: `i32` each, alone on its cache line.
///
/// A rank changes a *peer's* cells ([`notify`](Signals::notify)) and waits on its *own* ([`wait`](Signals::wait)).
/// Everything that it has written before a notify, wherever, is there for whoever has waited for that notify. Signals are
/// counters that nothing resets; the [module](super) says how to use them more than once.
pub struct Signals<'w> {
    pub(super) window: &'w Window,
    /// The window's cell that is the first here.
    first: usize,
    shape: Box<[usize]>,
}

impl fmt::Debug for Signals<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signals({:?} from {})", self.shape, self.first)
    }
}

impl Window {
    /// The signal cells of the window, from the first on, as an array.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it has more cells than the window.
    pub fn signals(&self, shape: &[usize]) -> Result<Signals<'_>> {
        self.signals_from(0, shape)
    }

    /// As [`signals`](Window::signals), from another cell on: for arrays that must not be mixed up, like those of two
    /// barriers.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it has more cells than the window.
    pub fn signals_from(&self, first: usize, shape: &[usize]) -> Result<Signals<'_>> {
        let cells = Layout::contiguous(shape)?.numel();
        if first.checked_add(cells).is_none_or(|end| end as u64 > self.spec.signals) {
            let why = format!("{shape:?} signals from {first} on: the window has {}", self.spec.signals);
            return Err(Error::invalid("Window::signals", why));
        }
        Ok(Signals { window: self, first, shape: shape.into() })
    }
}

impl<'w> Signals<'w> {
    /// The window.
    #[doc(alias = "get_comm_ctx")]
    pub fn window(&self) -> &'w Window {
        self.window
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Changes a cell of a rank, which may be this one, and wakes whoever waits for it.
    ///
    /// ```
    /// # use comm_core::{Deadline, team::Team};
    /// # use comm_store::{Cmp, NotifyOp, Window, window::WindowSpec};
    /// let team = Team::join("notify-example", 0, 1, Deadline::default())?;
    /// let window = Window::alloc(&team, WindowSpec::bytes(0).signals(2), Deadline::default())?;
    /// let signals = window.signals(&[2, 1])?;
    /// signals.notify(0, &[1, 0], 5, NotifyOp::Set)?;
    /// signals.notify(0, &[1, 0], -7, NotifyOp::Add)?;
    /// assert_eq!(signals.read(&[1, 0])?, -2);
    /// assert!(signals.test(&[1, 0], Cmp::Lt, 0)? && signals.test(&[0, 0], Cmp::Eq, 0)?);
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rank or a cell that is not there; what ended the team.
    #[doc(alias = "pld.system.notify")]
    #[doc(alias = "TNOTIFY")]
    pub fn notify(&self, peer: usize, cell: &[usize], value: i32, op: NotifyOp) -> Result<()> {
        self.window.alive("Signals::notify")?;
        let cell = self.cell_of(peer, cell)?;
        point!("window.notify");
        signal::notify(cell, value, op, self.window.member.bell());
        if peer != self.window.rank() {
            self.window.counters.notified();
        }
        Ok(())
    }

    /// Changes a cell of a rank from one value to another, if it holds that: of several ranks that try, one succeeds. For
    /// cells that are only ever set, and never added to. Gives what the cell held.
    ///
    /// # Errors
    /// Those of [`notify`](Signals::notify).
    #[doc(alias = "compare_exchange")]
    pub fn replace(&self, peer: usize, cell: &[usize], expected: i32, value: i32) -> Result<i32> {
        self.window.alive("Signals::replace")?;
        let cell = self.cell_of(peer, cell)?;
        let word = |signal: i32| i64::from(signal) as u64;
        let held = match cell.replace(word(expected), word(value), self.window.member.bell()) {
            Ok(()) => expected,
            Err(held) => signal::low_half(held),
        };
        if peer != self.window.rank() {
            self.window.counters.notified();
        }
        Ok(held)
    }

    /// Waits until a cell of this rank compares to `expected` as it should, and returns what it holds. It changes nothing.
    ///
    /// `from` is the rank whose signal is awaited, if it is one: it is named if it does not come, and the wait ends when it
    /// leaves. Without one, the wait ends when all others have left.
    ///
    /// ```
    /// # use comm_core::{Deadline, Error, team::Team};
    /// # use comm_store::{Cmp, NotifyOp, Window, window::WindowSpec};
    /// # use std::time::Duration;
    /// let team = Team::join("wait-signal-example", 0, 1, Deadline::default())?;
    /// let window = Window::alloc(&team, WindowSpec::bytes(0).signals(1), Deadline::default())?;
    /// let signals = window.signals(&[1])?;
    /// let early = signals.wait(&[0], Cmp::Ge, 3, None, Duration::from_millis(1));
    /// assert!(matches!(early, Err(Error::Timeout { seen: 0, expected: 3, .. })));
    /// signals.notify(0, &[0], 4, NotifyOp::Add)?;
    /// assert_eq!(signals.wait(&[0], Cmp::Ge, 3, None, Deadline::default())?, 4);
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`] with the cell, what it holds and what was expected, which changes nothing: the same wait can be
    /// tried again. What ended the team; [`Error::PeerLeft`]; [`Error::InvalidArgument`] for a cell or a rank that is not
    /// there.
    #[doc(alias = "pld.system.wait")]
    #[doc(alias = "TWAIT")]
    pub fn wait(
        &self,
        cell: &[usize],
        cmp: Cmp,
        expected: i32,
        from: Option<usize>,
        deadline: impl Into<Deadline>,
    ) -> Result<i32> {
        let what = Wanted { cell, cmp, expected };
        self.wait_for(cell, &what, from, expected, |seen| cmp.holds(seen, expected).then_some(seen), deadline)
    }

    /// Waits until `look` finds something, and returns that. It is asked at once, and again whenever the cell has been notified:
    /// for what a signal announces, and several threads of this rank take from each other, so that a value of the cell does not
    /// say whether it is still there. `what` is for messages, as is `expected`; `from` is as in [`wait`](Signals::wait).
    ///
    /// It looks at the clock however often the cell changes.
    ///
    /// ```
    /// # use comm_core::{Deadline, team::Team};
    /// # use comm_store::{NotifyOp, Window, window::WindowSpec};
    /// # use std::sync::Mutex;
    /// let team = Team::join("wait-for-example", 0, 1, Deadline::default())?;
    /// let window = Window::alloc(&team, WindowSpec::bytes(0).signals(1), Deadline::default())?;
    /// let (bell, tasks) = (window.signals(&[1])?, Mutex::new(vec!["first", "second"]));
    /// bell.notify(0, &[0], 1, NotifyOp::Add)?;
    /// let task = || tasks.lock().unwrap().pop();
    /// assert_eq!(bell.wait_for(&[0], &"a task", None, 1, |_rung| task(), Deadline::default())?, "second");
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`wait`](Signals::wait).
    pub fn wait_for<T>(
        &self,
        cell: &[usize],
        what: &dyn fmt::Display,
        from: Option<usize>,
        expected: i32,
        mut look: impl FnMut(i32) -> Option<T>,
        deadline: impl Into<Deadline>,
    ) -> Result<T> {
        let word = self.awaited("Signals::wait_for", cell, from)?;
        let ready = |seen: u64| look(signal::low_half(seen));
        let found = self.window.member.wait(what, word, from, expected.into(), ready, deadline);
        let found = found.map_err(as_signal)?;
        self.window.counters.waited();
        Ok(found)
    }

    /// [`wait`](Signals::wait) as a future, for any executor, which borrows nothing; dropping it ends the wait.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] at once; the others are the future's.
    #[doc(alias = "defer_wait")]
    pub fn wait_async(
        &self,
        cell: &[usize],
        cmp: Cmp,
        expected: i32,
        from: Option<usize>,
        deadline: impl Into<Deadline>,
    ) -> Result<SignalWait> {
        self.awaited("Signals::wait_async", cell, from)?;
        let own = self.window.part(self.window.rank())?.task_cell(self.index(cell)?)?;
        let what = Wanted { cell, cmp, expected }.to_string();
        let ready: Ready = Box::new(move |seen| cmp.holds(signal::low_half(seen), expected));
        let wait = self.window.member.wait_task(&what, own, from, expected.into(), ready, deadline);
        Ok(SignalWait { counters: self.window.counters.clone(), wait })
    }

    /// Whether a cell of this rank compares to `expected` so, now.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a cell that is not there; if it does not, what ended the team.
    #[doc(alias = "TTEST")]
    pub fn test(&self, cell: &[usize], cmp: Cmp, expected: i32) -> Result<bool> {
        if cmp.holds(self.read(cell)?, expected) {
            return Ok(true);
        }
        self.window.alive("Signals::test").map(|()| false)
    }

    /// What a cell of this rank holds.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a cell that is not there.
    #[doc(alias = "pl.read")]
    pub fn read(&self, cell: &[usize]) -> Result<i32> {
        self.window.reached(self.window.rank())?;
        Ok(signal::value(self.cell_of(self.window.rank(), cell)?))
    }

    /// Sets a cell of this rank: before anybody can have sent the next signal, that is, or it is lost.
    ///
    /// # Errors
    /// Those of [`notify`](Signals::notify).
    #[doc(alias = "pl.write")]
    pub fn write(&self, cell: &[usize], value: i32) -> Result<()> {
        self.notify(self.window.rank(), cell, value, NotifyOp::Set)
    }

    /// Waits until all ranks have come here, and returns these signals. All ranks call it, on the same array of as many
    /// cells as there are ranks, `[nranks]` or `[nranks, 1]`, which nobody uses for anything else meanwhile.
    ///
    /// Each rank adds 1 to its cell of each peer, waits for 1 in each of its own, and takes it away again: so it can be
    /// called again at once, and leaves no count behind.
    ///
    /// ```
    /// # use comm_core::{Deadline, team::Team};
    /// # use comm_store::{Window, window::WindowSpec};
    /// # let team = Team::join("barrier-example", 0, 1, Deadline::default())?;
    /// let window = Window::alloc(&team, WindowSpec::bytes(0).signals(team.size()), Deadline::default())?;
    /// let signals = window.signals(&[team.size()])?;
    /// for _round in 0..3 {
    ///     signals.barrier(Deadline::default())?;
    /// }
    /// assert_eq!(signals.read(&[0])?, 0);
    /// # Ok::<(), comm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another shape. [`Error::Timeout`] with all who have not come, which ends the team, as
    /// what else ends a symmetric operation does; [`Error::BadPeer`] if a cell holds what it cannot.
    #[doc(alias = "pld.tensor.barrier")]
    pub fn barrier(&self, deadline: impl Into<Deadline>) -> Result<&Self> {
        self.rows("Signals::barrier")?;
        let mut op = self.window.member.begin("window barrier", deadline)?;
        let met = self.meet(&mut op, &self.barrier_text(), |_| Ok(()));
        op.settle(met, false)?;
        Ok(self)
    }

    /// A [`barrier`](Signals::barrier) with a name, which says of each rank that does not come what it was doing instead.
    ///
    /// # Errors
    /// Those of [`barrier`](Signals::barrier), with the name and the whereabouts of who is missing in a
    /// [`Error::Timeout`]'s `what`.
    #[doc(alias = "monitored_barrier")]
    pub fn barrier_named(&self, name: &str, deadline: impl Into<Deadline>) -> Result<&Self> {
        self.rows("Signals::barrier_named")?;
        let mut op = self.window.member.begin(format!("barrier {name:?}"), deadline)?;
        let met = self.meet(&mut op, &self.barrier_text(), |_| Ok(()));
        // Where the absent are is looked up before this rank's own failure can move them.
        let seen = met.is_err().then(|| self.window.member.snapshot());
        op.settle(met, false).map_err(|error| match (error, seen) {
            (Error::Timeout { what, waited, missing, seen, expected, at }, Some(snapshot)) => {
                let places = missing.iter().map(|m| whereabouts(&snapshot, m.rank));
                let what = format!("{what}; {}", places.collect::<Vec<_>>().join("; "));
                Error::Timeout { what, waited, missing, seen, expected, at }
            }
            (error, _) => error,
        })?;
        Ok(self)
    }

    /// The barrier as a part of an operation that has begun: for what is made of several. `before` is called with each
    /// peer before that is notified; what it writes there is seen by the peer when it has met this rank.
    ///
    /// # Errors
    /// Those of `before`, and those that [`OpGuard::all_reach`] has.
    pub fn meet(
        &self,
        op: &mut OpGuard<'_>,
        what: &dyn fmt::Display,
        before: impl FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        self.rows("Signals::meet")?;
        if !std::ptr::eq(op.team(), self.window.member.as_ref()) {
            return Err(Error::invalid("Signals::meet", "the operation is of another rank than the window"));
        }
        // A credit that is never spent would be one too many for a peer that has not spent its last one yet.
        op.may_come_about()?;
        let (rank, size) = (self.window.rank(), self.window.nranks());
        let bell = self.window.member.bell();
        let own: Vec<&Cell> = (0..size).map(|src| self.row(rank, src)).collect::<Result<_>>()?;
        let mut before = before;
        let arrive = |peer| {
            before(peer)?;
            let cell = self.row(peer, rank)?;
            point!("window.notify");
            signal::notify(cell, 1, NotifyOp::Add, bell);
            self.window.counters.notified();
            Ok(())
        };
        let gather = || {
            let peers = (0..size).filter(|&src| src != rank);
            // What cannot be there ends the wait as well, and is found out when it is taken.
            op.all_reach(what, peers, |src| own[src], 1, |seen| signal::low_half(seen) != 0)
        };
        let take = |src: usize| {
            self.window.counters.waited();
            Ok(credits::take_one(own[src], bell))
        };
        credits::meet(size, rank, arrive, gather, take).map_err(as_signal)?;
        self.window.counters.met();
        Ok(())
    }

    /// What a rank waits for at a barrier: two that differ are told apart.
    fn barrier_text(&self) -> impl fmt::Display {
        let (id, first) = (self.window.id, self.first);
        fmt::from_fn(move |f| {
            write!(f, "the others at the barrier of signals from {first} on of window {id}")
        })
    }

    /// A barrier needs a cell for each rank, in a row.
    fn rows(&self, op: &'static str) -> Result<()> {
        let n = self.window.nranks();
        if *self.shape == [n] || *self.shape == [n, 1] {
            return Ok(());
        }
        let why =
            format!("signals of shape {:?}: a barrier of {n} ranks needs [{n}] or [{n}, 1]", self.shape);
        Err(Error::invalid(op, why))
    }

    /// The cell in which `rank` hears of `src`.
    fn row(&self, rank: usize, src: usize) -> Result<&'w Cell> {
        self.window.part(rank)?.cell(self.first + src)
    }

    pub(super) fn cell_of(&self, rank: usize, cell: &[usize]) -> Result<&'w Cell> {
        let index = self.index(cell)?;
        self.window.part(rank)?.cell(index)
    }

    /// The number of a cell among those of the window.
    fn index(&self, cell: &[usize]) -> Result<usize> {
        let fits = cell.len() == self.shape.len() && cell.iter().zip(&self.shape).all(|(i, n)| i < n);
        if !fits {
            return Err(Error::invalid(
                "Signals",
                format!("no cell {cell:?} in signals of shape {:?}", self.shape),
            ));
        }
        Ok(self.first + cell.iter().zip(&self.shape).fold(0, |index, (i, n)| index * n + i))
    }

    fn awaited(&self, op: &'static str, cell: &[usize], from: Option<usize>) -> Result<&'w Cell> {
        if let Some(rank) = from.filter(|&rank| rank >= self.window.nranks()) {
            let why = format!("a signal from rank {rank} in a window of {} ranks", self.window.nranks());
            return Err(Error::invalid(op, why));
        }
        self.cell_of(self.window.rank(), cell)
    }
}

/// A time-out tells what was seen of the whole word of a cell; a signal is its low half.
fn as_signal(mut error: Error) -> Error {
    if let Error::Timeout { seen, .. } = &mut error {
        *seen = signal::low_half(*seen as u64).into();
    }
    error
}

/// Where a rank was seen to be.
fn whereabouts(team: &TeamSnapshot, rank: usize) -> String {
    team.ranks.get(rank).map_or_else(|| format!("rank {rank}: unknown"), ToString::to_string)
}

/// What a wait wants, for messages.
struct Wanted<'a> {
    cell: &'a [usize],
    cmp: Cmp,
    expected: i32,
}

impl fmt::Display for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "signal {:?} {} {}", self.cell, self.cmp, self.expected)
    }
}

type Ready = Box<dyn Fn(u64) -> bool + Send>;

/// A wait for a signal as a future: what the cell holds when it compares as it should. See [`Signals::wait_async`].
#[must_use = "a future does nothing unless it is polled"]
pub struct SignalWait {
    counters: Arc<Counters>,
    wait: TaskWait<Pinned<Cell>, Ready>,
}

impl fmt::Debug for SignalWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wait.fmt(f)
    }
}

impl Future for SignalWait {
    type Output = Result<i32>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<i32>> {
        let outcome = Pin::new(&mut self.wait).poll(context);
        if let Poll::Ready(Ok(_)) = outcome {
            self.counters.waited();
        }
        outcome.map(|done| done.map(signal::low_half).map_err(as_signal))
    }
}
