//! A process that exits with living communicators leaves them in good order, so that peers which are still finishing
//! do not take it for lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{process, thread};

use crate::communicator::{LIVE, Live};
use crate::handles::{Found, Handle};
use crate::result::Code;

/// The process that has communicators; one that was forked from it has not.
static OWNER: OnceLock<u32> = OnceLock::new();

/// Whether ranks meet at this process, which passes on what they say.
static MEETING_PLACE: AtomicBool = AtomicBool::new(false);

/// When a rank of this process left others last.
static DEPARTURE: Mutex<Option<Instant>> = Mutex::new(None);

/// How long a goodbye may take to be passed on.
const PASSING_ON: Duration = Duration::from_millis(100);

/// Notes that ranks meet at this process.
pub(crate) fn is_meeting_place() {
    MEETING_PLACE.store(true, Ordering::Relaxed);
}

/// Notes that `live` leaves its ranks.
pub(crate) fn departs(live: &Live) {
    if live.world > 1 {
        *DEPARTURE.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
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
        LIVE.handles().into_iter().for_each(depart);
        let departure = *DEPARTURE.lock().unwrap_or_else(PoisonError::into_inner);
        if MEETING_PLACE.load(Ordering::Relaxed)
            && let Some(departure) = departure
        {
            thread::sleep(PASSING_ON.saturating_sub(departure.elapsed()));
        }
    });
}

/// Drops the communicator unless something goes on in it: waiting for that could take for ever.
fn depart(handle: Handle) {
    let Found::Live(live) = LIVE.find(handle) else { return };
    if live.state() != Code::InProgress {
        departs(&live);
        LIVE.remove(handle);
    }
}
