//! What becomes of a communicator, and what it tells of itself.

use std::ffi::c_int;
use std::sync::Arc;
use std::thread;

use crate::communicator::{Flag, LIVE, Live, find, not_found};
use crate::handles::{Found, Handle};
use crate::init::Out;
use crate::result::{Code, Failure, Outcome};

/// `ncclCommFinalize`
pub(crate) fn finalize(comm: Handle) -> Outcome {
    if comm == Handle::NULL {
        return Ok(Code::Success);
    }
    let live = find(comm)?;
    live.ready()?;
    if live.has(Flag::Revoked) {
        return Err(Failure::usage("the communicator was revoked: destroy it without finalizing"));
    }
    if live.set(Flag::Finalized) {
        return Err(Failure::argument("the communicator was finalized before"));
    }
    Ok(Code::Success)
}

/// `ncclCommDestroy`: waits for what was started, unless its callers poll for it.
pub(crate) fn destroy(comm: Handle) -> Outcome {
    if comm == Handle::NULL {
        return Ok(Code::Success);
    }
    match LIVE.remove(comm) {
        Found::Live(live) => {
            if live.joined().is_none() {
                // It is still joining: its ranks must not wait for it.
                live.abort();
            }
            release(live);
            Ok(Code::Success)
        }
        other => Err(not_found(comm, &other)),
    }
}

/// `ncclCommAbort`
pub(crate) fn abort(comm: Handle) -> Outcome {
    if comm == Handle::NULL {
        return Ok(Code::Success);
    }
    // Before it is removed, which waits for calls that go on: they end now.
    if let Found::Live(live) = LIVE.find(comm) {
        live.abort();
    }
    match LIVE.remove(comm) {
        Found::Live(live) => {
            release(live);
            Ok(Code::Success)
        }
        // Twice is as good as once.
        Found::Gone => Ok(Code::Success),
        other => Err(not_found(comm, &other)),
    }
}

/// Drops the communicator, or lets whoever still uses it do so. Where calls may be going on behind the caller's
/// back, a thread waits for them.
fn release(live: Arc<Live>) {
    if live.has(Flag::Busy) && !live.has(Flag::Aborted) {
        let live = live.clone();
        let release = move || drop(live);
        // Without a thread the call waits itself.
        let _ = thread::Builder::new().name("annulus-destroy".into()).spawn(release);
    }
    drop(live);
}

/// `ncclCommRevoke`
pub(crate) fn revoke(comm: Handle, flags: c_int) -> Outcome {
    if comm == Handle::NULL {
        return Ok(Code::Success);
    }
    let live = find(comm)?;
    if flags != 0 {
        return Err(Failure::argument(format!("revokeFlags is {flags}, but must be 0")));
    }
    if live.set(Flag::Revoked) {
        return Err(Failure::usage("the communicator was revoked before"));
    }
    if let Some(comm) = live.joined() {
        comm.abort();
    }
    Ok(Code::Success)
}

/// `ncclCommGetAsyncError`
pub(crate) fn async_error(comm: Handle, out: Out<c_int>) -> Outcome {
    let live = find(comm)?;
    out.write(live.state() as c_int);
    Ok(Code::Success)
}

/// `ncclCommCount`
pub(crate) fn count(comm: Handle, out: Out<c_int>) -> Outcome {
    let live = find(comm)?;
    live.ready()?;
    out.write(live.world as c_int);
    Ok(Code::Success)
}

/// `ncclCommUserRank`
pub(crate) fn user_rank(comm: Handle, out: Out<c_int>) -> Outcome {
    let live = find(comm)?;
    live.ready()?;
    out.write(live.rank as c_int);
    Ok(Code::Success)
}

/// `ncclCommCuDevice`
pub(crate) fn device(comm: Handle, out: Out<c_int>) -> Outcome {
    let live = find(comm)?;
    live.ready()?;
    out.write(live.device);
    Ok(Code::Success)
}

/// `ncclCommSuspend`: there is no device memory to give back, so that only calls are refused.
pub(crate) fn suspend(comm: Handle, flags: c_int) -> Outcome {
    let live = find(comm)?;
    live.ready()?;
    if flags != 1 {
        let text = format!("flags is {flags}, but the only one is NCCL_SUSPEND_MEM (1)");
        return Err(Failure::argument(text));
    }
    if live.set(Flag::Suspended) {
        return Err(Failure::usage("the communicator is suspended already"));
    }
    Ok(Code::Success)
}

/// `ncclCommResume`
pub(crate) fn resume(comm: Handle) -> Outcome {
    let live = find(comm)?;
    if !live.has(Flag::Suspended) {
        return Err(Failure::usage("the communicator is not suspended"));
    }
    live.clear(Flag::Suspended);
    Ok(Code::Success)
}

/// `ncclCommMemStats`: there is no device memory.
pub(crate) fn memory_statistics(comm: Handle, statistic: c_int, out: Out<u64>) -> Outcome {
    let live = find(comm)?;
    let value = match statistic {
        0 | 2 | 3 => 0,
        1 => u64::from(live.has(Flag::Suspended)),
        _ => {
            let text = format!("stat is {statistic}, but must be 0 to 3");
            return Err(Failure::argument(text));
        }
    };
    out.write(value);
    Ok(Code::Success)
}
