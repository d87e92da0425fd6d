//! Result codes, the errors behind them, and the edge that nothing but a code crosses.

use std::any::Any;
use std::ffi::{CStr, c_int};
use std::panic::{self, AssertUnwindSafe};

use annulus::bootstrap::Refusal;
use annulus::{BootstrapError, Error, GrowError, ShrinkError};

use crate::{last_error, log};

/// `ncclResult_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// `ncclSuccess`
    Success = 0,
    /// `ncclUnhandledCudaError`
    UnhandledCudaError = 1,
    /// `ncclSystemError`
    SystemError = 2,
    /// `ncclInternalError`
    InternalError = 3,
    /// `ncclInvalidArgument`
    InvalidArgument = 4,
    /// `ncclInvalidUsage`
    InvalidUsage = 5,
    /// `ncclRemoteError`
    RemoteError = 6,
    /// `ncclInProgress`
    InProgress = 7,
    /// `ncclTimeout`; NCCL before 2.30 calls this number `ncclNumResults`, so that its bindings know it.
    Timeout = 8,
}

/// Why a function does not return `ncclSuccess`: the code, and what `ncclGetLastError` says.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) text: String,
}

/// What a function comes to: [`Code::Success`], [`Code::InProgress`], or a failure.
pub(crate) type Outcome = Result<Code, Failure>;

impl Failure {
    /// An argument that no call of the function may have.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self { code: Code::InvalidArgument, text: text.into() }
    }

    /// A call that makes no sense here and now.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { code: Code::InvalidUsage, text: text.into() }
    }

    pub(crate) fn internal(text: impl Into<String>) -> Self {
        Self { code: Code::InternalError, text: text.into() }
    }

    /// What a panic leaves behind.
    pub(crate) fn panic(panic: &(dyn Any + Send)) -> Self {
        let message = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::internal(format!(
            "internal panic: {}: please report this bug of Annulus",
            message.unwrap_or("without a message")
        ))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { code: code_of(&error), text: error.to_string() }
    }
}

fn code_of(error: &Error) -> Code {
    match error {
        Error::Call { .. } | Error::BufferLength { .. } | Error::Argument { .. } => {
            Code::InvalidArgument
        }
        Error::Mismatch { .. }
        | Error::Deadlock { .. }
        | Error::RankJoined { .. }
        | Error::Config(_)
        | Error::Launch(_) => Code::InvalidUsage,
        Error::RankLost { .. }
        | Error::CutOff { .. }
        | Error::Reported { .. }
        | Error::Aborted { .. }
        | Error::Link { .. } => Code::RemoteError,
        Error::Timeout { .. } => Code::Timeout,
        Error::Memory { .. } => Code::SystemError,
        Error::Shrink { source, .. } => match **source {
            ShrinkError::OutOfRange { .. } | ShrinkError::Own => Code::InvalidArgument,
            ShrinkError::Excluded { .. } => Code::InvalidUsage,
            _ => Code::RemoteError,
        },
        Error::Grow { source, .. } => match **source {
            GrowError::World { .. } => Code::InvalidArgument,
            GrowError::NoInvitation | GrowError::NotRankZero => Code::InvalidUsage,
            GrowError::Damaged => Code::RemoteError,
            _ => Code::SystemError,
        },
        Error::Bootstrap(error) => match &**error {
            BootstrapError::WorldSize { .. } | BootstrapError::RankOutOfRange { .. } => {
                Code::InvalidArgument
            }
            BootstrapError::Refused(Refusal::Missing { .. }) => Code::Timeout,
            BootstrapError::Refused(Refusal::Left { .. }) => Code::RemoteError,
            BootstrapError::Refused(_) => Code::InvalidUsage,
            BootstrapError::RootLost { .. }
            | BootstrapError::RootUnreachable { .. }
            | BootstrapError::Damaged(_) => Code::RemoteError,
            _ => Code::SystemError,
        },
        _ => Code::InternalError,
    }
}

/// Runs the body of the exported function `name`: a failure goes to the log and to `ncclGetLastError`, a panic becomes
/// `ncclInternalError`.
pub(crate) fn enter(name: &str, body: impl FnOnce() -> Outcome) -> c_int {
    match panic::catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(code)) => code as c_int,
        Ok(Err(failure)) => report(name, &failure),
        Err(panic) => report(name, &Failure::panic(&*panic)),
    }
}

#[cold]
fn report(name: &str, failure: &Failure) -> c_int {
    // Neither may unwind into C; both only format and write.
    let _ = panic::catch_unwind(|| {
        last_error::set(&format!("{name}: {}", failure.text));
        log::warn(&format!("{name}: {}", failure.text));
    });
    failure.code as c_int
}

/// What `ncclGetErrorString` says of `code`.
pub(crate) fn error_string(code: c_int) -> &'static CStr {
    match code {
        0 => c"no error",
        1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        2 => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the NCCL developers",
        4 => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        5 => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        8 => c"timeout",
        _ => c"unknown result code",
    }
}
