//! What is exported and does nothing yet: each says so.

use std::ffi::c_int;

use crate::result::{Failure, Outcome, enter};
use crate::types::Team;

/// Why a function does nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Missing {
    /// The device side of NCCL.
    DeviceApi,
    /// Windows of symmetric memory.
    Windows,
    /// Put, signal, wait.
    OneSided,
}

impl Missing {
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::DeviceApi => "there is no device API: Annulus works on host memory",
            Self::Windows => {
                "there are no windows: ncclMemAlloc gives memory that peers on the host read in place"
            }
            Self::OneSided => "there are no one-sided operations: use ncclSend and ncclRecv",
        }
    }
}

/// The outcome of a function that does nothing yet.
pub(crate) fn unsupported(missing: Missing) -> Outcome {
    Err(Failure::usage(format!("not supported: {}", missing.reason())))
}

/// The same for those that return a team: an empty one.
pub(crate) fn no_team(name: &str) -> Team {
    enter(name, || unsupported(Missing::DeviceApi));
    Team::default()
}

/// The same for those that return a number.
pub(crate) fn no_number(name: &str, number: c_int) -> c_int {
    enter(name, || unsupported(Missing::DeviceApi));
    number
}
