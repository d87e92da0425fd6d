//! Collectives, sends and receives: C's arguments become calls of the library.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use annulus::{CallError, Collective, DataType, Rank, RawCall, ReduceOp};

use crate::communicator::{LIVE, Live, find};
use crate::group;
use crate::handles::Handle;
use crate::log::{self, Subsystem};
use crate::memory::{self, expect_host};
use crate::operators::{Operator, find_operator};
use crate::result::{Code, Failure, Outcome};
use crate::types::{API_MAGIC, CollConfig};

/// The arguments that all collectives have.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    pub(crate) send: *const c_void,
    pub(crate) receive: *mut c_void,
    pub(crate) count: usize,
    pub(crate) dtype: c_int,
    pub(crate) comm: Handle,
    pub(crate) stream: *mut c_void,
    /// Of the functions that take one; null is as good as none.
    pub(crate) config: *const CollConfig,
}

/// Which collective it is, with the arguments that only some have.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    AllReduce { op: c_int },
    Reduce { op: c_int, root: c_int },
    Broadcast { root: c_int },
    AllGather,
    ReduceScatter { op: c_int },
    AllToAll,
    Gather { root: c_int },
    Scatter { root: c_int },
}

/// Checks and runs, or collects, one collective.
///
/// # Safety
/// The buffers are valid for the call, and nobody else accesses them until it has ended.
#[inline]
pub(crate) unsafe fn collective(kind: Kind, arguments: Arguments) -> Outcome {
    if let Kind::AllReduce { op } = kind {
        // SAFETY: the caller vouches for the buffers.
        if let Some(outcome) = unsafe { repeated_all_reduce(op, &arguments) } {
            return outcome;
        }
    }
    // SAFETY: the caller vouches for the buffers.
    group::member(|| unsafe { checked(kind, &arguments) })
}

/// An all-reduce that repeats the communicator's last call, with nothing that needs a closer look: the call whose smallest
/// sizes matter most. What the last call had was checked then. `None`: it is another, and nothing has run.
///
/// # Safety
/// As for [`collective`].
#[inline]
unsafe fn repeated_all_reduce(op: c_int, arguments: &Arguments) -> Option<Outcome> {
    let Arguments { send, receive, count, dtype, comm, stream, config } = *arguments;
    let plain = stream.is_null() && config.is_null() && !group::is_open();
    if !plain || !log::is_silent() || !memory::all_is_host() {
        return None;
    }
    let dtype = DataType::from_code(u8::try_from(dtype).ok()?)?;
    let op = match op {
        0 => ReduceOp::Sum,
        1 => ReduceOp::Prod,
        2 => ReduceOp::Max,
        3 => ReduceOp::Min,
        4 => ReduceOp::Avg,
        _ => return None,
    };
    let (from, to) = (send.addr(), receive.addr());
    let in_place = from == to;
    let aligned = (from | to) & (dtype.size() - 1) == 0;
    let apart = from.abs_diff(to) >= count.wrapping_mul(dtype.size());
    if from == 0 || to == 0 || !aligned || !(in_place || apart) {
        return None;
    }
    let live = LIVE.read(comm)?;
    let comm = live.get()?.at_rest()?;
    // SAFETY: the caller vouches for the buffers, which are apart unless they are one.
    let outcome =
        unsafe { comm.repeat_all_reduce(dtype, op, count, in_place, send.cast(), receive.cast()) };
    Some(outcome?.map(|()| Code::Success).map_err(Failure::from))
}

/// # Safety
/// As for [`collective`].
#[inline]
unsafe fn checked(kind: Kind, arguments: &Arguments) -> Outcome {
    let live = find(arguments.comm)?;
    let dtype = data_type(arguments.dtype)?;
    let (world, count) = (live.world, arguments.count);
    let operator = match kind {
        Kind::AllReduce { op } | Kind::Reduce { op, .. } | Kind::ReduceScatter { op } => {
            Some(find_operator(&live, op, dtype)?)
        }
        _ => None,
    };
    let op = operator.as_ref().map_or(ReduceOp::Sum, |operator| operator.op);
    let call = match kind {
        Kind::AllReduce { .. } => Collective::all_reduce(world, dtype, op, count),
        Kind::Reduce { root, .. } => {
            Collective::reduce(world, dtype, op, rank(&live, "root", root)?, count)
        }
        Kind::Broadcast { root } => {
            Collective::broadcast(world, dtype, rank(&live, "root", root)?, count)
        }
        Kind::AllGather => Collective::all_gather(world, dtype, count),
        Kind::ReduceScatter { .. } => Collective::reduce_scatter(world, dtype, op, count),
        Kind::AllToAll => Collective::all_to_all(world, dtype, count),
        Kind::Gather { root } => {
            Collective::gather(world, dtype, rank(&live, "root", root)?, count)
        }
        Kind::Scatter { root } => {
            Collective::scatter(world, dtype, rank(&live, "root", root)?, count)
        }
    };
    let call = call.map_err(|error: CallError| Failure::argument(error.to_string()))?;
    expect_no_stream(arguments.stream)?;
    if !arguments.config.is_null() {
        // SAFETY: the caller vouches for the configuration.
        unsafe { check_config(arguments.config)? };
    }
    // SAFETY: the caller vouches for the buffers.
    unsafe { run(&live, &call, operator.as_ref(), arguments) }
}

/// # Safety
/// As for [`collective`].
#[inline]
unsafe fn run(
    live: &Arc<Live>,
    call: &Collective,
    operator: Option<&Operator>,
    arguments: &Arguments,
) -> Outcome {
    let (input, output) = (call.input_bytes(live.rank), call.output_bytes(live.rank));
    let align = call.dtype().size();
    let (send, receive) = (arguments.send, arguments.receive.cast_const());
    check_buffer("sendbuff", send, input, align)?;
    check_buffer("recvbuff", receive, output, align)?;
    let raw = RawCall::new(
        *call,
        operator.map(|operator| operator.op),
        send.cast(),
        arguments.receive.cast(),
    );
    let overlap = send.addr() < receive.addr().wrapping_add(output)
        && receive.addr() < send.addr().wrapping_add(input);
    if overlap && !raw.is_in_place(live.rank) {
        return Err(Failure::argument(format!(
            "sendbuff {send:p} ({input} bytes) and recvbuff {receive:p} ({output} bytes) overlap, and not as \
             {} allows it in place",
            call.kind()
        )));
    }
    if log::wants(Subsystem::Tuning) || log::wants(Subsystem::Coll) {
        log::called(live, live.callable()?, call, (send.addr(), receive.addr()));
    }
    let raw = operator.map_or(raw, |operator| operator.applied_to(raw));
    // SAFETY: the caller vouches for the buffers, which are as long as the call needs.
    unsafe { group::call(live, &raw) }
}

/// `ncclSend`
///
/// # Safety
/// As for [`collective`].
pub(crate) unsafe fn send(arguments: Arguments, peer: c_int) -> Outcome {
    group::member(|| {
        let (live, dtype, peer) = check_transfer("sendbuff", arguments.send, &arguments, peer)?;
        let (data, count) = (arguments.send.cast(), arguments.count);
        // SAFETY: the caller vouches for the buffer.
        unsafe { group::transfer(&live, |group| Ok(group.send(data, count, dtype, peer)?)) }
    })
}

/// `ncclRecv`
///
/// # Safety
/// As for [`collective`].
pub(crate) unsafe fn receive(arguments: Arguments, peer: c_int) -> Outcome {
    group::member(|| {
        let buffer = arguments.receive.cast_const();
        let (live, dtype, peer) = check_transfer("recvbuff", buffer, &arguments, peer)?;
        let (data, count) = (arguments.receive.cast(), arguments.count);
        // SAFETY: the caller vouches for the buffer.
        unsafe { group::transfer(&live, |group| Ok(group.recv(data, count, dtype, peer)?)) }
    })
}

fn check_transfer(
    name: &str,
    buffer: *const c_void,
    arguments: &Arguments,
    peer: c_int,
) -> Result<(Arc<Live>, DataType, Rank), Failure> {
    let live = find(arguments.comm)?;
    let dtype = data_type(arguments.dtype)?;
    let peer = rank(&live, "peer", peer)?;
    expect_no_stream(arguments.stream)?;
    let bytes = arguments.count.checked_mul(dtype.size());
    let bytes = bytes.filter(|&bytes| bytes <= isize::MAX as usize).ok_or_else(|| {
        let count = arguments.count;
        Failure::argument(format!(
            "count is {count} elements of {dtype}: more than there are addresses"
        ))
    })?;
    check_buffer(name, buffer, bytes, dtype.size())?;
    Ok((live, dtype, peer))
}

/// The data type of that number.
#[inline]
pub(crate) fn data_type(dtype: c_int) -> Result<DataType, Failure> {
    u8::try_from(dtype).ok().and_then(DataType::from_code).ok_or_else(|| {
        Failure::argument(format!(
            "datatype is {dtype}, but must be 0 to {}",
            DataType::ALL.len() - 1
        ))
    })
}

/// A rank of the communicator.
#[inline]
fn rank(live: &Live, argument: &str, rank: c_int) -> Result<Rank, Failure> {
    match usize::try_from(rank) {
        Ok(rank) if rank < live.world => Ok(rank),
        _ => Err(Failure::argument(format!(
            "{argument} is {rank}, but must be 0 to {}",
            live.world - 1
        ))),
    }
}

/// Streams order work of a device. The names of the default streams are not streams that somebody has made.
#[inline]
fn expect_no_stream(stream: *mut c_void) -> Result<(), Failure> {
    if stream.addr() <= 2 {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "stream is {stream:p}: calls on host memory have no stream to run on; pass a null stream, and the result is in place \
         when the call returns"
    )))
}

/// An error unless `buffer` can be one of `bytes` bytes of host memory.
#[inline]
fn check_buffer(
    name: &str,
    buffer: *const c_void,
    bytes: usize,
    align: usize,
) -> Result<(), Failure> {
    if bytes == 0 {
        return Ok(());
    }
    if buffer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL, but {bytes} bytes are needed")));
    }
    if !buffer.addr().is_multiple_of(align) {
        let text =
            format!("{name} is {buffer:p}, which is not aligned to its elements of {align} bytes");
        return Err(Failure::argument(text));
    }
    // No process has addresses beyond.
    if buffer.addr().checked_add(bytes).is_none_or(|end| end > 1 << 56) {
        let text =
            format!("{name} is {buffer:p}, and {bytes} bytes from there end beyond all addresses");
        return Err(Failure::argument(text));
    }
    expect_host(buffer, name)
}

/// Refuses what a single call cannot be configured to.
///
/// # Safety
/// `config` leads to a `size_t`, and to as many bytes as that says; its strings are terminated.
#[cold]
unsafe fn check_config(config: *const CollConfig) -> Result<(), Failure> {
    // SAFETY: the caller vouches for the size; it needs no alignment.
    let size = unsafe { config.cast::<usize>().read_unaligned() };
    if size < size_of::<CollConfig>() {
        let text = format!("config: its size is {size}: use NCCL_COLLCONFIG_INITIALIZER");
        return Err(Failure::argument(text));
    }
    // SAFETY: it has as many bytes; any bits are a configuration.
    let config = unsafe { config.read_unaligned() };
    if config.magic != API_MAGIC {
        return Err(Failure::argument(
            "ncclCollConfig_t argument not initialized via NCCL_COLLCONFIG_INITIALIZER",
        ));
    }
    if !config.launch_completion_event.is_null() {
        return Err(Failure::usage("config: launchCompletionEvent needs device code"));
    }
    // SAFETY: the caller vouches for its strings.
    let selection = unsafe { crate::config::text(config.alg_selection) }.unwrap_or_default();
    if !selection.is_empty() && config.force_alg_selection != 0 {
        return Err(Failure::usage(format!(
            "config: algSelection is {selection:?}, but algorithms are chosen for the communicator (NCCL_ALGO): set \
             forceAlgSelection to 0 if it is only a wish"
        )));
    }
    Ok(())
}
