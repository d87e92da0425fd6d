//! A process that exits with living communicators leaves them in good order, so that peers which are still finishing
//! do not take it for lost.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{process, thread};

use crate::communicator::LIVE;
use crate::handles::{Found, Handle};
use crate::result::Code;

/// The process that has communicators; one that was forked from it has not.
static OWNER: OnceLock<u32> = OnceLock::new();

/// Whether ranks meet at this process, which passes on what they say.
static MEETING_PLACE: AtomicBool = AtomicBool::new(false);

/// How long a goodbye may take to be passed on.
const PASSING_ON: Duration = Duration::from_millis(100);

/// Notes that ranks meet at this process.
pub(crate) fn is_meeting_place() {
    MEETING_PLACE.store(true, Ordering::Relaxed);
}

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
        let departed = LIVE.handles().into_iter().filter(|&handle| depart(handle)).count();
        if departed > 0 && MEETING_PLACE.load(Ordering::Relaxed) {
            thread::sleep(PASSING_ON);
        }
    });
}

/// Drops the communicator unless something goes on in it: waiting for that could take for ever. Whether others have
/// to hear of it.
fn depart(handle: Handle) -> bool {
    let Found::Live(live) = LIVE.find(handle) else { return false };
    if live.state() == Code::InProgress {
        return false;
    }
    LIVE.remove(handle);
    live.world > 1
}
