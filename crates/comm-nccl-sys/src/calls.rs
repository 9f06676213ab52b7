//! NCCL's functions as methods whose status is a [`Result`].
//!
//! What is an output of the function is what the method returns; everything else has the header's order and types. So have the
//! places for the handles of communicators and windows that are made: NCCL may write there after the function has returned.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

use crate::error::{Error, Result, Status};
use crate::library::Nccl;
use crate::sys::{
    cudaStream_t, ncclCollConfig_t, ncclComm_t, ncclCommMemStat_t, ncclConfig_t, ncclDataType_t,
    ncclEncryptionConfig_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t, ncclSimInfo_t, ncclUniqueId,
    ncclWaitSignalDesc_t, ncclWindow_t,
};

/// How far a call has come on a communicator that does not block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// It is over, as it always is on a communicator that blocks.
    Done,
    /// It goes on; [`Nccl::comm_get_async_error`] says when it is over, and no other call may come before.
    InProgress,
}

/// The function, or the error that says why it is not there.
macro_rules! function {
    ($nccl:ident.$name:ident) => {
        $nccl.functions().$name.ok_or_else(|| $nccl.missing(stringify!($name)))?
    };
}

/// Methods that only pass on what they get, and what their caller promises. `on` is the communicator whose last error counts, if it
/// is alive afterwards.
macro_rules! calls {
    ($safety:literal $($(#[$doc:meta])* fn $method:ident = $name:ident($($arg:ident: $kind:ty),*) on $comm:expr;)*) => {
        impl Nccl {
            $(
                $(#[$doc])*
                ///
                /// # Safety
                #[doc = $safety]
                ///
                /// # Errors
                /// [`Error::Failed`], or [`Error::Unavailable`] if this library does not have it.
                #[allow(clippy::too_many_arguments, reason = "they are those of the header")]
                pub unsafe fn $method(&self, $($arg: $kind),*) -> Result<Progress> {
                    let call = function!(self.$name);
                    // SAFETY: the caller says that the arguments are what the function asks for.
                    let code = unsafe { call($($arg),*) };
                    self.judge(stringify!($name), code, $comm)
                }
            )*
        }
    };
}

/// Methods with a result: what the function writes to the pointer to `out`.
macro_rules! results {
    ($($(#[$doc:meta])* fn $method:ident = $name:ident($($arg:ident: $kind:ty),*; $($given:expr),*) -> ($out:ident: $of:ty = $initial:expr);)*) => {
        impl Nccl {
            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// As the header says of it: handles are alive and used by this thread alone, pointers point to what the
                /// function asks for.
                ///
                /// # Errors
                /// [`Error::Failed`], or [`Error::Unavailable`] if this library does not have it.
                pub unsafe fn $method(&self, $($arg: $kind),*) -> Result<($of, Progress)> {
                    let call = function!(self.$name);
                    let mut $out: $of = $initial;
                    // SAFETY: the caller says that the arguments are what the function asks for; the result goes to a value
                    // that is alive.
                    let code = unsafe { call($($given),*) };
                    let progress = self.judge(stringify!($name), code, null_mut())?;
                    Ok(($out, progress))
                }
            )*
        }
    };
}

impl Nccl {
    /// A new id, by which ranks find each other in [`comm_init_rank`](Nccl::comm_init_rank): one rank makes it, and it is brought
    /// to the others by other means. This process listens for them from now on.
    ///
    /// # Errors
    /// [`Error::Failed`], for one if there is no network interface to listen on.
    pub fn get_unique_id(&self) -> Result<ncclUniqueId> {
        let call = function!(self.ncclGetUniqueId);
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: the function fills the structure that it is pointed to, which is alive.
        let code = unsafe { call(&mut id) };
        self.judge("ncclGetUniqueId", code, null_mut()).map(|_| id)
    }

    /// What NCCL says of a status, in its own words; empty if it does not say anything.
    pub fn get_error_string(&self, code: ncclResult_t) -> String {
        // SAFETY: the function takes any number, and gives null or text that is never freed.
        self.functions().ncclGetErrorString.map_or_else(String::new, |call| unsafe { text(call(code)) })
    }

    /// What NCCL says about its last error, in any thread; empty if nothing.
    ///
    /// # Safety
    /// The communicator is null or alive.
    pub unsafe fn get_last_error(&self, comm: ncclComm_t) -> String {
        // SAFETY: the caller says what the communicator is; the text is never freed.
        self.functions().ncclGetLastError.map_or_else(String::new, |call| unsafe { text(call(comm)) })
    }

    /// What has gone wrong on a communicator since, or how far a call that did not block has come.
    ///
    /// # Safety
    /// The communicator is alive and used by this thread alone.
    ///
    /// # Errors
    /// [`Error::Failed`] with what has gone wrong.
    pub unsafe fn comm_get_async_error(&self, comm: ncclComm_t) -> Result<Progress> {
        let call = function!(self.ncclCommGetAsyncError);
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: the caller says that the communicator is alive; the state goes to a value that is.
        let code = unsafe { call(comm, &mut state) };
        let _ = self.judge("ncclCommGetAsyncError", code, comm)?;
        self.judge("ncclCommGetAsyncError", state, comm)
    }

    /// Begins a group: calls up to its end are one.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn group_start(&self) -> Result<Progress> {
        let call = function!(self.ncclGroupStart);
        // SAFETY: the function takes nothing, and changes nothing but a depth of this thread's own.
        let code = unsafe { call() };
        self.judge("ncclGroupStart", code, null_mut())
    }

    /// Frees memory of [`mem_alloc`](Nccl::mem_alloc).
    ///
    /// # Safety
    /// The memory is of that call, not freed yet, and nobody uses it.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Unavailable`] if this library does not have it.
    pub unsafe fn mem_free(&self, memory: *mut c_void) -> Result<()> {
        let call = function!(self.ncclMemFree);
        // SAFETY: the caller says that this memory may be freed.
        let code = unsafe { call(memory) };
        self.judge("ncclMemFree", code, null_mut()).map(drop)
    }

    /// What a status comes to.
    fn judge(&self, function: &'static str, code: ncclResult_t, comm: ncclComm_t) -> Result<Progress> {
        match Status::of(code) {
            None if code == ncclResult_t::ncclInProgress => Ok(Progress::InProgress),
            None => Ok(Progress::Done),
            Some(status) => {
                // SAFETY: it is null, or what the caller has just passed to NCCL as a communicator that is alive.
                let last = unsafe { self.get_last_error(comm) };
                Err(Error::Failed { function, status, last })
            }
        }
    }
}

results! {
    /// Device memory that NCCL can register.
    fn mem_alloc = ncclMemAlloc(size: usize; &mut out, size) -> (out: *mut c_void = null_mut());
    /// An id with which others grow this communicator.
    fn comm_get_unique_id = ncclCommGetUniqueId(comm: ncclComm_t; comm, &mut out)
        -> (out: ncclUniqueId = ncclUniqueId { internal: [0; 128] });
    /// How many ranks a communicator has.
    fn comm_count = ncclCommCount(comm: ncclComm_t; comm, &mut out) -> (out: c_int = 0);
    /// The CUDA device of a communicator.
    fn comm_cu_device = ncclCommCuDevice(comm: ncclComm_t; comm, &mut out) -> (out: c_int = 0);
    /// This rank in a communicator.
    fn comm_user_rank = ncclCommUserRank(comm: ncclComm_t; comm, &mut out) -> (out: c_int = 0);
    /// Registers a buffer, and gives the handle by which it is let go.
    fn comm_register = ncclCommRegister(comm: ncclComm_t, buffer: *mut c_void, size: usize;
        comm, buffer, size, &mut out) -> (out: *mut c_void = null_mut());
    /// What a communicator's memory comes to, in bytes.
    fn comm_mem_stats = ncclCommMemStats(comm: ncclComm_t, which: ncclCommMemStat_t; comm, which, &mut out)
        -> (out: u64 = 0);
    /// Where a window's memory is for its user.
    fn win_get_user_ptr = ncclWinGetUserPtr(comm: ncclComm_t, window: ncclWindow_t; comm, window, &mut out)
        -> (out: *mut c_void = null_mut());
    /// An operator that multiplies by a factor and sums, for this communicator.
    fn red_op_create_pre_mul_sum = ncclRedOpCreatePreMulSum(
        factor: *mut c_void, dtype: ncclDataType_t, residence: ncclScalarResidence_t, comm: ncclComm_t;
        &mut out, factor, dtype, residence, comm
    ) -> (out: ncclRedOp_t = ncclRedOp_t::ncclSum);
    /// How long the group would take, which is not carried out.
    fn group_simulate_end = ncclGroupSimulateEnd(; &mut out) -> (out: ncclSimInfo_t = ncclSimInfo_t::default());
    /// One of NCCL's settings, as text that is good until this thread's next such call.
    fn param_get_parameter = ncclParamGetParameter(key: *const c_char, length: *mut c_int; key, &mut out, length)
        -> (out: *const c_char = null());
}

// Those that make something, whose handle NCCL writes to a place.
calls! {
    "As the header says of it: handles are alive and used by this thread alone, pointers point to what the function asks for. **The place \
     for the handle stays where it is and is NCCL's to write until all is over**: that is not always when this returns, but in a group \
     when the group has ended, and on a communicator that does not block when [`comm_get_async_error`](Nccl::comm_get_async_error) says \
     [`Done`](Progress::Done) or what has gone wrong."

    /// This rank's communicator of so many ranks that have the same id. It blocks until all are there.
    fn comm_init_rank = ncclCommInitRank(place: *mut ncclComm_t, ranks: c_int, id: ncclUniqueId, rank: c_int) on null_mut();
    /// The same, with settings; with `blocking: 0` it does not block.
    fn comm_init_rank_config = ncclCommInitRankConfig(
        place: *mut ncclComm_t, ranks: c_int, id: ncclUniqueId, rank: c_int, config: *mut ncclConfig_t
    ) on null_mut();
    /// The same, with several ids, the same in the same order on all ranks.
    fn comm_init_rank_scalable = ncclCommInitRankScalable(
        place: *mut ncclComm_t, ranks: c_int, rank: c_int, count: c_int, ids: *mut ncclUniqueId,
        config: *mut ncclConfig_t
    ) on null_mut();
    /// Communicators for several devices of this process; there are as many places.
    fn comm_init_all = ncclCommInitAll(places: *mut ncclComm_t, count: c_int, devices: *const c_int) on null_mut();
    /// A communicator of those that give the same colour, ordered by key; null for `NCCL_SPLIT_NOCOLOR`.
    fn comm_split = ncclCommSplit(
        comm: ncclComm_t, colour: c_int, key: c_int, place: *mut ncclComm_t, config: *mut ncclConfig_t
    ) on comm;
    /// A communicator without some of the ranks.
    fn comm_shrink = ncclCommShrink(
        comm: ncclComm_t, without: *mut c_int, count: c_int, place: *mut ncclComm_t, config: *mut ncclConfig_t,
        flags: c_int
    ) on comm;
    /// A communicator with more ranks.
    fn comm_grow = ncclCommGrow(
        comm: ncclComm_t, ranks: c_int, id: *const ncclUniqueId, rank: c_int, place: *mut ncclComm_t,
        config: *mut ncclConfig_t
    ) on comm;
    /// Registers memory that peers reach.
    fn comm_window_register = ncclCommWindowRegister(
        comm: ncclComm_t, buffer: *mut c_void, size: usize, place: *mut ncclWindow_t, flags: c_int
    ) on comm;
}

calls! {
    "As the header says of it: handles are alive and used by this thread alone, and memory is as large as counts and types say, on the \
     device that it is meant for, until the stream is through."

    /// Ends what has been issued; then it can be destroyed without waiting.
    fn comm_finalize = ncclCommFinalize(comm: ncclComm_t) on comm;
    /// Frees a communicator. All ranks do.
    fn comm_destroy = ncclCommDestroy(comm: ncclComm_t) on null_mut();
    /// Ends a communicator at once, whatever it is doing.
    fn comm_abort = ncclCommAbort(comm: ncclComm_t) on null_mut();
    /// Stops what a communicator is doing.
    fn comm_revoke = ncclCommRevoke(comm: ncclComm_t, flags: c_int) on comm;
    /// Lets a registered buffer go.
    fn comm_deregister = ncclCommDeregister(comm: ncclComm_t, handle: *mut c_void) on comm;
    /// Gives memory back until [`comm_resume`](Nccl::comm_resume).
    fn comm_suspend = ncclCommSuspend(comm: ncclComm_t, flags: c_int) on comm;
    /// Takes it again.
    fn comm_resume = ncclCommResume(comm: ncclComm_t) on comm;
    /// Lets a window go.
    fn comm_window_deregister = ncclCommWindowDeregister(comm: ncclComm_t, window: ncclWindow_t) on comm;
    /// Lets an operator go.
    fn red_op_destroy = ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) on comm;
    /// Ends a group, and issues what is in it.
    fn group_end = ncclGroupEnd() on null_mut();
    /// Chooses whether sockets are encrypted, before anything else.
    fn set_encryption = ncclSetEncryption(config: *const ncclEncryptionConfig_t) on null_mut();

    /// Reduces to one rank.
    fn reduce = ncclReduce(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, op: ncclRedOp_t, root: c_int,
        comm: ncclComm_t, stream: cudaStream_t
    ) on comm;
    /// From one rank to all.
    fn broadcast = ncclBroadcast(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, root: c_int, comm: ncclComm_t,
        stream: cudaStream_t
    ) on comm;
    /// Reduces, to all.
    fn all_reduce = ncclAllReduce(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, op: ncclRedOp_t,
        comm: ncclComm_t, stream: cudaStream_t
    ) on comm;
    /// Reduces, each rank getting its block of so many.
    fn reduce_scatter = ncclReduceScatter(
        send: *const c_void, recv: *mut c_void, recv_count: usize, dtype: ncclDataType_t, op: ncclRedOp_t,
        comm: ncclComm_t, stream: cudaStream_t
    ) on comm;
    /// Each rank's block of so many, to all.
    fn all_gather = ncclAllGather(
        send: *const c_void, recv: *mut c_void, send_count: usize, dtype: ncclDataType_t, comm: ncclComm_t,
        stream: cudaStream_t
    ) on comm;
    /// A block of so many from each to each.
    fn all_to_all = ncclAlltoAll(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, comm: ncclComm_t,
        stream: cudaStream_t
    ) on comm;
    /// Each rank's block, to one.
    fn gather = ncclGather(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, root: c_int, comm: ncclComm_t,
        stream: cudaStream_t
    ) on comm;
    /// A block for each rank, from one.
    fn scatter = ncclScatter(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, root: c_int, comm: ncclComm_t,
        stream: cudaStream_t
    ) on comm;
    /// [`all_reduce`](Nccl::all_reduce) with settings of its own; those of the other collectives are in
    /// [`functions`](Nccl::functions).
    fn all_reduce_config = ncclAllReduceConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, op: ncclRedOp_t,
        comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t
    ) on comm;
    /// To a rank that receives as many.
    fn send = ncclSend(
        send: *const c_void, count: usize, dtype: ncclDataType_t, peer: c_int, comm: ncclComm_t, stream: cudaStream_t
    ) on comm;
    /// From a rank that sends as many.
    fn recv = ncclRecv(
        recv: *mut c_void, count: usize, dtype: ncclDataType_t, peer: c_int, comm: ncclComm_t, stream: cudaStream_t
    ) on comm;
    /// Writes into a peer's window, and signals.
    fn put_signal = ncclPutSignal(
        local: *const c_void, count: usize, dtype: ncclDataType_t, peer: c_int, window: ncclWindow_t, offset: usize,
        signal: c_int, context: c_int, flags: c_uint, comm: ncclComm_t, stream: cudaStream_t
    ) on comm;
    /// Signals.
    fn signal = ncclSignal(
        peer: c_int, signal: c_int, context: c_int, flags: c_uint, comm: ncclComm_t, stream: cudaStream_t
    ) on comm;
    /// Waits for signals.
    fn wait_signal = ncclWaitSignal(
        count: c_int, signals: *mut ncclWaitSignalDesc_t, comm: ncclComm_t, stream: cudaStream_t
    ) on comm;
}

/// A copy of a text of NCCL's. That of the last error is one buffer which other threads may write at the same time, so it is
/// read byte by byte, and no further than any message goes.
///
/// # Safety
/// The pointer is null or points to text that is never freed and ends with a zero.
unsafe fn text(from: *const c_char) -> String {
    const LONGEST: usize = 4096;
    let mut bytes = Vec::new();
    while !from.is_null() && bytes.len() < LONGEST {
        // SAFETY: no zero has been read up to here, so the text goes on.
        match unsafe { from.add(bytes.len()).read_volatile() } {
            0 => break,
            byte => bytes.push(byte as u8),
        }
    }
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
