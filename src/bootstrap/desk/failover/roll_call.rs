//! What the root's successor does about ranks that do not come to it: it calls them.
//!
//! One whose process has ended is dead. One that answers may be late; or it has a root, and knows the caller to be lost. Then
//! the caller is the one that must not be the root.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use super::{Attempt, FIRST_SLICE, REFUSES};
use crate::bootstrap::connection::{Connection, Inbox};
use crate::bootstrap::desk::{Desk, RootState};
use crate::bootstrap::notice::{Dispatch, Event, Heartbeat, Loss};
use crate::bootstrap::reactor::lock;
use crate::bootstrap::wire::{FrameKind, WireError, frame};

/// Most come by themselves within so long, and between two rounds of calls.
const PAUSE: Duration = Duration::from_millis(20);
/// So many ranks are called at a time: each of thousands once before they are given up, though none answers.
pub(in crate::bootstrap::desk) const AT_A_TIME: usize = 64;

/// Calls, until the root on this rank waits for nobody any more.
pub(super) fn call(weak: &Weak<Desk>) {
    let mut calls: Vec<Call> = Vec::new();
    loop {
        thread::sleep(PAUSE);
        // Held for one attempt at a time, as in a search.
        let Some(desk) = weak.upgrade() else { return };
        let roll = desk.roll();
        drop(desk);
        let absent = match roll {
            Roll::NotYet => continue,
            Roll::Waiting(absent) => absent,
            Roll::Over => return,
        };
        calls.retain(|call| absent.contains(&call.to) && !call.over.load(Ordering::Acquire));
        let is_called = |rank: &u32| calls.iter().any(|call| call.to == *rank);
        let uncalled: Vec<u32> = absent.into_iter().filter(|rank| !is_called(rank)).collect();
        for some in uncalled.chunks(AT_A_TIME) {
            let Some(desk) = weak.upgrade() else { return };
            calls.extend(desk.call_some(some));
        }
    }
}

/// How far the root on this rank is.
enum Roll {
    /// The own rank is on its way to it.
    NotYet,
    /// It waits for these.
    Waiting(Vec<u32>),
    /// The own rank has been let in, or turned away.
    Over,
}

/// A connection to an absent rank; dropping it hangs up.
struct Call {
    to: u32,
    connection: Arc<Connection>,
    over: Arc<AtomicBool>,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.connection.close();
    }
}

impl Desk {
    fn roll(&self) -> Roll {
        let own = self.roster.rank;
        let comes =
            |root: &RootState| matches!(root, RootState::Coming { candidate } if *candidate == own);
        if !comes(&lock(&self.state).root) {
            return Roll::Over;
        }
        self.standby.absent().map_or(Roll::NotYet, Roll::Waiting)
    }

    /// Calls `ranks` at the same time. Those whose processes have ended are lost.
    fn call_some(&self, ranks: &[u32]) -> Vec<Call> {
        let attempts: Vec<Attempt> = thread::scope(|threads| {
            let calls: Vec<_> = ranks
                .iter()
                .map(|rank| {
                    let thread = thread::Builder::new().name("annulus-call".into());
                    thread.spawn_scoped(threads, || self.attempt(*rank, FIRST_SLICE))
                })
                .collect();
            // Without a thread there is no call this time.
            let outcome = |call: ScopedJoinHandle<'_, Attempt>| call.join().ok();
            calls
                .into_iter()
                .map(|call| call.ok().and_then(outcome).unwrap_or(Attempt::Silent))
                .collect()
        });
        let mut calls = Vec::new();
        for (&rank, attempt) in ranks.iter().zip(attempts) {
            match attempt {
                Attempt::Connected(stream) => {
                    let over = Arc::new(AtomicBool::new(false));
                    let inbox = CallInbox { desk: self.this.clone(), over: over.clone() };
                    let connection = Connection::new(stream.into(), Box::new(inbox));
                    let rejoin = self.rejoin(&lock(&self.state));
                    connection.send(frame(FrameKind::Rejoin, &rejoin.encode()).into());
                    if self.listen_to(&connection).is_ok() {
                        calls.push(Call { to: rank, connection, over });
                    }
                }
                Attempt::Ended => {
                    let loss = Loss { noticed: REFUSES.into(), last_operation: None };
                    self.standby.learn(&[Dispatch { rank, event: Event::Lost(loss) }]);
                }
                // The root gives them up when it has waited long enough.
                Attempt::Refused | Attempt::Silent => {}
            }
        }
        calls
    }

    /// A called rank says that this one is gone. So it is, unless the root here serves the others already: they cannot be taken back.
    pub(in crate::bootstrap::desk) fn is_said_to_be_gone(&self, event: Event) {
        if self.standby.stand_down(&event) {
            self.dispatch(Dispatch { rank: self.roster.rank, event });
        }
    }
}

/// Takes what a called rank answers.
struct CallInbox {
    desk: Weak<Desk>,
    over: Arc<AtomicBool>,
}

impl Inbox for CallInbox {
    fn frame(&self, kind: FrameKind, payload: &[u8]) -> Result<(), WireError> {
        match kind {
            FrameKind::Notice => {
                let dispatch = Dispatch::decode(payload)?;
                // Of others it will speak when it comes.
                if let Some(desk) = self.desk.upgrade().filter(|d| d.roster.rank == dispatch.rank)
                    && matches!(dispatch.event, Event::Left | Event::Lost(_))
                {
                    desk.is_said_to_be_gone(dispatch.event);
                }
                Ok(())
            }
            FrameKind::Heartbeat => Heartbeat::decode(payload).map(drop),
            _ => Err(WireError::Unexpected { kind: kind as u8 }),
        }
    }

    fn closed(&self, _: Option<WireError>) {
        self.over.store(true, Ordering::Release);
    }

    fn silent(&self, _: Duration) {
        self.over.store(true, Ordering::Release);
    }

    fn heartbeat(&self) -> Vec<u8> {
        Heartbeat { operation: None }.encode()
    }
}
