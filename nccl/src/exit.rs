//! A process that exits with living communicators leaves them in good order, so that peers which are still finishing
//! do not take it for lost.

use std::process;
use std::sync::OnceLock;
use std::time::Duration;

use annulus::bootstrap::pass_on_goodbyes;

use crate::communicator::LIVE;
use crate::handles::{Found, Handle};
use crate::result::Code;

/// The process that has communicators; one that was forked from it has not.
static OWNER: OnceLock<u32> = OnceLock::new();

/// How long goodbyes may take to be passed on, if ranks have met at this process.
const PASSING_ON: Duration = Duration::from_secs(1);

/// Sees to it, once per process.
pub(crate) fn leave_in_good_order() {
    OWNER.get_or_init(|| {
        // Where it fails, peers see a lost rank.
        // SAFETY: the function takes nothing, returns nothing, and does not unwind.
        unsafe { libc::atexit(leave) };
        process::id()
    });
}

extern "C" fn leave() {
    if OWNER.get() != Some(&process::id()) {
        return;
    }
    let _ = std::panic::catch_unwind(|| {
        LIVE.handles().into_iter().for_each(depart);
        pass_on_goodbyes(PASSING_ON);
    });
}

/// Drops the communicator unless something goes on in it: waiting for that could take for ever.
fn depart(handle: Handle) {
    let Found::Live(live) = LIVE.find(handle) else { return };
    if live.state() != Code::InProgress {
        LIVE.remove(handle);
    }
}
