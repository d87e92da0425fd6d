//! Every function that `libnccl.so.2` exports, with its `pnccl` twin.
//!
//! This table is all that there is of C: each line names the arguments and the function of this crate that they go to.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::collectives::{self, Arguments, Kind};
use crate::handles::Handle;
use crate::init::Out;
use crate::parameters::Parameter;
use crate::result::enter;
use crate::types::{CollConfig, Config, EncryptionConfig, SimInfo, Team, UniqueId, WaitSignalDesc};
use crate::unsupported::{Missing, no_number, no_team, unsupported};
use crate::{
    elastic, environment, group, init, last_error, lifetime, log, memory, operators, parameters,
    result,
};

type Data = *const c_void;
type Buffer = *mut c_void;
type Stream = *mut c_void;
type Window = *mut c_void;
type Any = *mut c_void;

/// One function of the table.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Its name, without a `p`.
    pub name: &'static str,
    /// The types of its arguments, as the table has them.
    pub arguments: &'static [&'static str],
    /// The type of its result.
    pub result: &'static str,
    /// How much of it is there.
    pub status: Status,
}

/// How much of a function is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// What NCCL's does.
    Real,
    /// What NCCL's does, but for this.
    Note(&'static str),
    /// It is exported, and says why it does nothing.
    Unsupported(&'static str),
}

/// The README's table of what is there.
#[doc(hidden)]
pub fn table() -> String {
    let names = |wanted: &dyn Fn(Status) -> bool| {
        let functions = SURFACE.iter().filter(|function| wanted(function.status));
        functions.map(|function| format!("`{}`", function.name)).collect::<Vec<_>>().join(" ")
    };
    let mut table = "| functions | what they do |\n|---|---|\n".to_owned();
    let mut line = |status: Status, text: &str| {
        table += &format!("| {} | {text} |\n", names(&|other| other == status));
    };
    line(Status::Real, "what NCCL's do, on host memory");
    let mut said = Vec::new();
    for status in SURFACE.iter().map(|function| function.status) {
        if status != Status::Real && !said.contains(&status) {
            said.push(status);
        }
    }
    said.sort_by_key(|status| matches!(status, Status::Unsupported(_)));
    for status in said {
        match status {
            Status::Real => {}
            Status::Note(note) => line(status, &format!("the same, but: {note}")),
            Status::Unsupported(why) => line(status, &format!("`ncclInvalidUsage`: {why}")),
        }
    }
    table
}

/// Defines the functions. `call` wraps a body that may fail, and returns the code; `plain` is a body as it is.
macro_rules! surface {
    ($(
        $name:ident($($argument:ident: $type:ty),* $(,)?) -> $return:ty
        [$status:expr] = $form:ident $body:block
    )*) => {
        /// Every function but `ncclResetDebugInitInternal`, which has no twin.
        pub const SURFACE: &[Function] = &[$(Function {
            name: stringify!($name),
            arguments: &[$(stringify!($type)),*],
            result: stringify!($return),
            status: $status,
        }),*];

        /// The names that programs call. They are weak once installed, so that a profiler may define its own.
        #[allow(non_snake_case, reason = "the names are NCCL's")]
        mod called {
            use super::*;
            $(
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $name($($argument: $type),*) -> $return {
                    // SAFETY: the caller keeps to what nccl.h says.
                    unsafe { super::profiled::$name($($argument),*) }
                }
            )*
        }

        /// Their twins, with a `p` in front, which a profiler calls.
        #[allow(non_snake_case, reason = "the names are NCCL's")]
        #[allow(unused_unsafe, reason = "some bodies are safe")]
        mod profiled {
            use super::*;
            $(
                #[unsafe(export_name = concat!("p", stringify!($name)))]
                pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> $return {
                    surface!(@$form stringify!($name), $body)
                }
            )*
        }
    };
    // SAFETY: the caller keeps to what nccl.h says.
    (@call $name:expr, $body:block) => { enter($name, || unsafe { $body }) };
    // SAFETY: as above.
    (@plain $name:expr, $body:block) => { unsafe { $body } };
}

const REAL: Status = Status::Real;
const DEVICE_API: Status = Status::Unsupported(Missing::DeviceApi.reason());
const WINDOWS: Status = Status::Unsupported(Missing::Windows.reason());
const ELASTIC: Status = Status::Note("the root is rank 0");
const ONE_SIDED: Status = Status::Unsupported(Missing::OneSided.reason());
const PER_CALL: Status = Status::Note(
    "the configuration is checked; bounds on CTAs have no effect, and an algorithm cannot be forced",
);

/// The arguments that collectives have in common.
macro_rules! arguments {
    ($send:expr, $receive:expr, $count:expr, $dtype:expr, $comm:expr, $stream:expr) => {
        arguments!($send, $receive, $count, $dtype, $comm, $stream, std::ptr::null())
    };
    ($send:expr, $receive:expr, $count:expr, $dtype:expr, $comm:expr, $stream:expr, $config:expr) => {
        Arguments {
            send: $send,
            receive: $receive,
            count: $count,
            dtype: $dtype,
            comm: $comm,
            stream: $stream,
            config: $config,
        }
    };
}

surface! {
    ncclGetVersion(version: *mut c_int) -> c_int [REAL] =
        call { init::version(Out::new(version, "version")?) }
    ncclGetErrorString(result: c_int) -> *const c_char [REAL] =
        plain { result::error_string(result).as_ptr() }
    ncclGetLastError(_comm: Handle) -> *const c_char [REAL] = plain { last_error::get() }
    ncclResetDebugInit() -> () [REAL] = plain { log::reset() }

    ncclGetUniqueId(id: *mut UniqueId) -> c_int [REAL] =
        call { init::unique_id(Out::new(id, "uniqueId")?) }
    ncclCommInitRank(comm: *mut Handle, ranks: c_int, id: UniqueId, rank: c_int) -> c_int [REAL] = call {
        group::member(|| {
            init::init_rank(Out::new(comm, "comm")?, ranks, &id, rank, None, "ncclCommInitRank")
        })
    }
    ncclCommInitRankConfig(
        comm: *mut Handle, ranks: c_int, id: UniqueId, rank: c_int, config: *const Config,
    ) -> c_int [REAL] = call {
        group::member(|| {
            let how = "ncclCommInitRankConfig";
            init::init_rank(Out::new(comm, "comm")?, ranks, &id, rank, Some(config), how)
        })
    }
    ncclCommInitRankScalable(
        comm: *mut Handle, ranks: c_int, rank: c_int, count: c_int, ids: *const UniqueId, config: *const Config,
    ) -> c_int [Status::Note("all ranks meet at the first id")] = call {
        group::member(|| {
            init::init_scalable(Out::new(comm, "newcomm")?, ranks, rank, count, ids, config)
        })
    }
    ncclCommInitAll(comms: *mut Handle, count: c_int, devices: *const c_int) -> c_int [REAL] =
        call { group::member(|| init::init_all(comms, count, devices)) }
    ncclCommFinalize(comm: Handle) -> c_int [REAL] = call { lifetime::finalize(comm) }
    ncclCommDestroy(comm: Handle) -> c_int [REAL] = call { lifetime::destroy(comm) }
    ncclCommAbort(comm: Handle) -> c_int [Status::Note("it ends the communicator on all ranks")] =
        call { lifetime::abort(comm) }
    ncclCommRevoke(comm: Handle, flags: c_int) -> c_int
        [Status::Note("it ends what goes on on all ranks; after it, shrink")] =
        call { lifetime::revoke(comm, flags) }
    ncclCommSplit(
        comm: Handle, color: c_int, key: c_int, child: *mut Handle, config: *const Config,
    ) -> c_int [REAL] = call {
        group::member(|| init::split(comm, color, key, Out::new(child, "newcomm")?, config))
    }
    ncclCommShrink(
        comm: Handle, excluded: *const c_int, count: c_int, child: *mut Handle, config: *const Config, flags: c_int,
    ) -> c_int [Status::Note("NCCL_SHRINK_ABORT ends the parent on all ranks; lost ranks are excluded too")] = call {
        group::member(|| {
            elastic::shrink(comm, excluded, count, Out::new(child, "newcomm")?, config, flags)
        })
    }
    ncclCommGetUniqueId(comm: Handle, id: *mut UniqueId) -> c_int [ELASTIC] =
        call { elastic::unique_id(comm, Out::new(id, "uniqueId")?) }
    ncclCommGrow(
        comm: Handle, ranks: c_int, id: *const UniqueId, rank: c_int, child: *mut Handle, config: *const Config,
    ) -> c_int [ELASTIC] = call {
        group::member(|| elastic::grow(comm, ranks, id, rank, Out::new(child, "newcomm")?, config))
    }

    ncclCommGetAsyncError(comm: Handle, error: *mut c_int) -> c_int [REAL] =
        call { lifetime::async_error(comm, Out::new(error, "asyncError")?) }
    ncclCommCount(comm: Handle, count: *mut c_int) -> c_int [REAL] =
        call { lifetime::count(comm, Out::new(count, "count")?) }
    ncclCommCuDevice(comm: Handle, device: *mut c_int) -> c_int
        [Status::Note("0, or the number that ncclCommInitAll was given")] =
        call { lifetime::device(comm, Out::new(device, "device")?) }
    ncclCommUserRank(comm: Handle, rank: *mut c_int) -> c_int [REAL] =
        call { lifetime::user_rank(comm, Out::new(rank, "rank")?) }
    ncclMemAlloc(address: *mut Buffer, bytes: usize) -> c_int
        [Status::Note("host memory that peers on the host read in place")] =
        call { memory::allocate(Out::new(address, "ptr")?, bytes) }
    ncclMemFree(address: Buffer) -> c_int [REAL] = call { memory::free(address) }
    ncclCommRegister(comm: Handle, buffer: Buffer, bytes: usize, handle: *mut Any) -> c_int
        [Status::Note("host memory needs none: the handle is NULL, as in NCCL where registration is off")] =
        call { memory::register(comm, buffer, bytes, Out::new(handle, "handle")?) }
    ncclCommDeregister(comm: Handle, handle: Any) -> c_int [REAL] =
        call { memory::deregister(comm, handle) }
    ncclCommSuspend(comm: Handle, flags: c_int) -> c_int
        [Status::Note("calls are refused until ncclCommResume; there is no device memory to give back")] =
        call { lifetime::suspend(comm, flags) }
    ncclCommResume(comm: Handle) -> c_int [REAL] = call { lifetime::resume(comm) }
    ncclCommMemStats(comm: Handle, statistic: c_int, value: *mut u64) -> c_int
        [Status::Note("0 bytes of device memory")] =
        call { lifetime::memory_statistics(comm, statistic, Out::new(value, "value")?) }

    ncclRedOpCreatePreMulSum(
        op: *mut c_int, scalar: Data, dtype: c_int, residence: c_int, comm: Handle,
    ) -> c_int [REAL] = call {
        operators::create(Out::new(op, "op")?, scalar, dtype, residence, comm)
    }
    ncclRedOpDestroy(op: c_int, comm: Handle) -> c_int [REAL] = call { operators::destroy(op, comm) }

    ncclAllReduce(
        send: Data, receive: Buffer, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: Stream,
    ) -> c_int [REAL] = call {
        collectives::collective(
            Kind::AllReduce { op },
            arguments!(send, receive, count, dtype, comm, stream),
        )
    }
    ncclReduce(
        send: Data, receive: Buffer, count: usize, dtype: c_int, op: c_int, root: c_int, comm: Handle, stream: Stream,
    ) -> c_int [REAL] = call {
        collectives::collective(
            Kind::Reduce { op, root },
            arguments!(send, receive, count, dtype, comm, stream),
        )
    }
    ncclBroadcast(
        send: Data, receive: Buffer, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: Stream,
    ) -> c_int [REAL] = call {
        collectives::collective(
            Kind::Broadcast { root },
            arguments!(send, receive, count, dtype, comm, stream),
        )
    }
    ncclBcast(
        buffer: Buffer, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: Stream,
    ) -> c_int [REAL] = call {
        collectives::collective(
            Kind::Broadcast { root },
            arguments!(buffer, buffer, count, dtype, comm, stream),
        )
    }
    ncclAllGather(
        send: Data, receive: Buffer, count: usize, dtype: c_int, comm: Handle, stream: Stream,
    ) -> c_int [REAL] = call {
        collectives::collective(Kind::AllGather, arguments!(send, receive, count, dtype, comm, stream))
    }
    ncclReduceScatter(
        send: Data, receive: Buffer, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: Stream,
    ) -> c_int [REAL] = call {
        collectives::collective(
            Kind::ReduceScatter { op },
            arguments!(send, receive, count, dtype, comm, stream),
        )
    }
    ncclAlltoAll(
        send: Data, receive: Buffer, count: usize, dtype: c_int, comm: Handle, stream: Stream,
    ) -> c_int [REAL] = call {
        collectives::collective(Kind::AllToAll, arguments!(send, receive, count, dtype, comm, stream))
    }
    ncclGather(
        send: Data, receive: Buffer, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: Stream,
    ) -> c_int [REAL] = call {
        collectives::collective(
            Kind::Gather { root },
            arguments!(send, receive, count, dtype, comm, stream),
        )
    }
    ncclScatter(
        send: Data, receive: Buffer, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: Stream,
    ) -> c_int [REAL] = call {
        collectives::collective(
            Kind::Scatter { root },
            arguments!(send, receive, count, dtype, comm, stream),
        )
    }

    ncclAllReduceConfig(
        send: Data, receive: Buffer, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: Stream,
        config: *const CollConfig,
    ) -> c_int [PER_CALL] = call {
        collectives::collective(
            Kind::AllReduce { op },
            arguments!(send, receive, count, dtype, comm, stream, config),
        )
    }
    ncclReduceConfig(
        send: Data, receive: Buffer, count: usize, dtype: c_int, op: c_int, root: c_int, comm: Handle, stream: Stream,
        config: *const CollConfig,
    ) -> c_int [PER_CALL] = call {
        collectives::collective(
            Kind::Reduce { op, root },
            arguments!(send, receive, count, dtype, comm, stream, config),
        )
    }
    ncclBroadcastConfig(
        send: Data, receive: Buffer, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: Stream,
        config: *const CollConfig,
    ) -> c_int [PER_CALL] = call {
        collectives::collective(
            Kind::Broadcast { root },
            arguments!(send, receive, count, dtype, comm, stream, config),
        )
    }
    ncclAllGatherConfig(
        send: Data, receive: Buffer, count: usize, dtype: c_int, comm: Handle, stream: Stream,
        config: *const CollConfig,
    ) -> c_int [PER_CALL] = call {
        collectives::collective(
            Kind::AllGather,
            arguments!(send, receive, count, dtype, comm, stream, config),
        )
    }
    ncclReduceScatterConfig(
        send: Data, receive: Buffer, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: Stream,
        config: *const CollConfig,
    ) -> c_int [PER_CALL] = call {
        collectives::collective(
            Kind::ReduceScatter { op },
            arguments!(send, receive, count, dtype, comm, stream, config),
        )
    }
    ncclAlltoAllConfig(
        send: Data, receive: Buffer, count: usize, dtype: c_int, comm: Handle, stream: Stream,
        config: *const CollConfig,
    ) -> c_int [PER_CALL] = call {
        collectives::collective(
            Kind::AllToAll,
            arguments!(send, receive, count, dtype, comm, stream, config),
        )
    }
    ncclGatherConfig(
        send: Data, receive: Buffer, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: Stream,
        config: *const CollConfig,
    ) -> c_int [PER_CALL] = call {
        collectives::collective(
            Kind::Gather { root },
            arguments!(send, receive, count, dtype, comm, stream, config),
        )
    }
    ncclScatterConfig(
        send: Data, receive: Buffer, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: Stream,
        config: *const CollConfig,
    ) -> c_int [PER_CALL] = call {
        collectives::collective(
            Kind::Scatter { root },
            arguments!(send, receive, count, dtype, comm, stream, config),
        )
    }

    ncclSend(
        send: Data, count: usize, dtype: c_int, peer: c_int, comm: Handle, stream: Stream,
    ) -> c_int [REAL] = call {
        collectives::send(arguments!(send, std::ptr::null_mut(), count, dtype, comm, stream), peer)
    }
    ncclRecv(
        receive: Buffer, count: usize, dtype: c_int, peer: c_int, comm: Handle, stream: Stream,
    ) -> c_int [REAL] = call {
        collectives::receive(arguments!(std::ptr::null(), receive, count, dtype, comm, stream), peer)
    }
    ncclGroupStart() -> c_int [REAL] = call { group::start() }
    ncclGroupEnd() -> c_int [REAL] = call { group::end() }
    ncclGroupSimulateEnd(info: *mut SimInfo) -> c_int [REAL] = call { group::simulate(info) }

    ncclParamBind(parameter: *mut Parameter, key: *const c_char) -> c_int [REAL] =
        call { parameters::bind(Out::new(parameter, "out")?, key) }
    ncclParamGetI8(parameter: Parameter, value: *mut i8) -> c_int [REAL] =
        call { parameters::number(parameter, Out::new(value, "out")?) }
    ncclParamGetI16(parameter: Parameter, value: *mut i16) -> c_int [REAL] =
        call { parameters::number(parameter, Out::new(value, "out")?) }
    ncclParamGetI32(parameter: Parameter, value: *mut i32) -> c_int [REAL] =
        call { parameters::number(parameter, Out::new(value, "out")?) }
    ncclParamGetI64(parameter: Parameter, value: *mut i64) -> c_int [REAL] =
        call { parameters::number(parameter, Out::new(value, "out")?) }
    ncclParamGetU8(parameter: Parameter, value: *mut u8) -> c_int [REAL] =
        call { parameters::number(parameter, Out::new(value, "out")?) }
    ncclParamGetU16(parameter: Parameter, value: *mut u16) -> c_int [REAL] =
        call { parameters::number(parameter, Out::new(value, "out")?) }
    ncclParamGetU32(parameter: Parameter, value: *mut u32) -> c_int [REAL] =
        call { parameters::number(parameter, Out::new(value, "out")?) }
    ncclParamGetU64(parameter: Parameter, value: *mut u64) -> c_int [REAL] =
        call { parameters::number(parameter, Out::new(value, "out")?) }
    ncclParamGetStr(parameter: Parameter, value: *mut *const c_char) -> c_int [REAL] =
        call { parameters::text(parameter, Out::new(value, "out")?) }
    ncclParamGet(parameter: Parameter, value: Any, room: c_int, length: *mut c_int) -> c_int [REAL] =
        call { parameters::bytes(parameter, value, room, Out::new(length, "len")?) }
    ncclParamGetParameter(key: *const c_char, value: *mut *const c_char, length: *mut c_int) -> c_int [REAL] =
        call { parameters::by_name(key, Out::new(value, "value")?, Out::new(length, "valueLen")?) }
    ncclParamGetAllParameterKeys(table: *mut *mut *const c_char, length: *mut c_int) -> c_int [REAL] =
        call { parameters::keys(Out::new(table, "table")?, Out::new(length, "tableLen")?) }
    ncclParamDumpAll() -> () [REAL] = plain { parameters::dump() }

    ncclSetEncryption(config: *const EncryptionConfig) -> c_int
        [Status::Note("for communicators made afterwards; the key follows from the unique id, and psk is not used")] =
        call { environment::set_encryption(config) }

    ncclCommWindowRegister(_comm: Handle, _buffer: Buffer, _bytes: usize, _window: *mut Window, _flags: c_int) -> c_int
        [WINDOWS] = call { unsupported(Missing::Windows) }
    ncclCommWindowDeregister(_comm: Handle, _window: Window) -> c_int [WINDOWS] =
        call { unsupported(Missing::Windows) }
    ncclWinGetUserPtr(_comm: Handle, _window: Window, _address: *mut Buffer) -> c_int [WINDOWS] =
        call { unsupported(Missing::Windows) }
    ncclPutSignal(
        _local: Data, _count: usize, _dtype: c_int, _peer: c_int, _window: Window, _offset: usize, _signal: c_int,
        _context: c_int, _flags: c_uint, _comm: Handle, _stream: Stream,
    ) -> c_int [ONE_SIDED] = call { unsupported(Missing::OneSided) }
    ncclSignal(
        _peer: c_int, _signal: c_int, _context: c_int, _flags: c_uint, _comm: Handle, _stream: Stream,
    ) -> c_int [ONE_SIDED] = call { unsupported(Missing::OneSided) }
    ncclWaitSignal(_count: c_int, _signals: *const WaitSignalDesc, _comm: Handle, _stream: Stream) -> c_int
        [ONE_SIDED] = call { unsupported(Missing::OneSided) }

    ncclCommQueryProperties(_comm: Handle, _properties: Any) -> c_int [DEVICE_API] =
        call { unsupported(Missing::DeviceApi) }
    ncclDevCommCreate(_comm: Handle, _requirements: Data, _device_comm: Any) -> c_int [DEVICE_API] =
        call { unsupported(Missing::DeviceApi) }
    ncclDevCommDestroy(_comm: Handle, _device_comm: Data) -> c_int [DEVICE_API] =
        call { unsupported(Missing::DeviceApi) }
    ncclGetLsaMultimemDevicePointer(_window: Window, _offset: usize, _address: *mut Buffer) -> c_int [DEVICE_API] =
        call { unsupported(Missing::DeviceApi) }
    ncclGetMultimemDevicePointer(
        _window: Window, _offset: usize, _multimem: u64, _address: *mut Buffer,
    ) -> c_int [DEVICE_API] = call { unsupported(Missing::DeviceApi) }
    ncclGetLsaDevicePointer(_window: Window, _offset: usize, _rank: c_int, _address: *mut Buffer) -> c_int
        [DEVICE_API] = call { unsupported(Missing::DeviceApi) }
    ncclGetPeerDevicePointer(_window: Window, _offset: usize, _rank: c_int, _address: *mut Buffer) -> c_int
        [DEVICE_API] = call { unsupported(Missing::DeviceApi) }
    ncclTeamWorld(_comm: Handle) -> Team [DEVICE_API] = plain { no_team("ncclTeamWorld") }
    ncclTeamLsa(_comm: Handle) -> Team [DEVICE_API] = plain { no_team("ncclTeamLsa") }
    ncclTeamRail(_comm: Handle) -> Team [DEVICE_API] = plain { no_team("ncclTeamRail") }
    ncclTeamCft(_comm: Handle) -> Team [DEVICE_API] = plain { no_team("ncclTeamCft") }
    ncclTeamCftMultimem(_comm: Handle) -> Team [DEVICE_API] = plain { no_team("ncclTeamCftMultimem") }
    ncclTeamRankToWorld(_comm: Handle, _team: Team, _rank: c_int) -> c_int [DEVICE_API] =
        plain { no_number("ncclTeamRankToWorld", -1) }
    ncclTeamRankToLsa(_comm: Handle, _team: Team, _rank: c_int) -> c_int [DEVICE_API] =
        plain { no_number("ncclTeamRankToLsa", -1) }
    ncclLsaBarrierCreateRequirement(_team: Team, _barriers: c_int, _barrier: Any, _resources: Any) -> c_int
        [DEVICE_API] = call { unsupported(Missing::DeviceApi) }
    ncclGinBarrierCreateRequirement(
        _comm: Handle, _team: Team, _barriers: c_int, _barrier: Any, _resources: Any,
    ) -> c_int [DEVICE_API] = call { unsupported(Missing::DeviceApi) }
    ncclGinOutboxCreateRequirement(_blocks: c_int, _size_log2: c_int, _outbox: Any, _resources: Any) -> c_int
        [DEVICE_API] = call { unsupported(Missing::DeviceApi) }
    ncclGinInboxA2ACreateRequirement(
        _peers: Team, _blocks: c_int, _size_log2: c_int, _inbox: Any, _resources: Any,
    ) -> c_int [DEVICE_API] = call { unsupported(Missing::DeviceApi) }
    ncclLLA2ACalcSlots(_elements: c_int, _element_bytes: c_int) -> c_int [DEVICE_API] =
        plain { no_number("ncclLLA2ACalcSlots", 0) }
    ncclLLA2ACreateRequirement(_blocks: c_int, _slots: c_int, _handle: Any, _resources: Any) -> c_int
        [DEVICE_API] = call { unsupported(Missing::DeviceApi) }
    ncclGetCftDeviceLeInfo() -> c_int [DEVICE_API] = call { unsupported(Missing::DeviceApi) }
    ncclGetMultimemDeviceLeInfo() -> c_int [DEVICE_API] = call { unsupported(Missing::DeviceApi) }
    ncclGetPeerDeviceLeInfo() -> c_int [DEVICE_API] = call { unsupported(Missing::DeviceApi) }
}

/// NCCL exports this one without a twin.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is NCCL's")]
extern "C" fn ncclResetDebugInitInternal() {
    log::reset();
}
