//! What the root's successor does about ranks that do not come to it: it calls them.
//!
//! One whose process refuses the connection is dead. One that answers may be late; or it has a root, and knows the caller to be lost. Then
//! the caller is the one that must not be the root.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use super::{Attempt, FIRST_SLICE};
use crate::bootstrap::connection::{Connection, Inbox};
use crate::bootstrap::desk::Desk;
use crate::bootstrap::notice::{Dispatch, Event, Heartbeat, Loss};
use crate::bootstrap::reactor::lock;
use crate::bootstrap::wire::{FrameKind, WireError, frame};

/// Most come by themselves within so long, and between two rounds of calls.
const PAUSE: Duration = Duration::from_millis(20);
/// So many ranks are called at a time.
const AT_A_TIME: usize = 16;

/// Calls, until the root on this rank waits for nobody any more.
pub(super) fn call(desk: &Weak<Desk>) {
    let mut calls: Vec<Call> = Vec::new();
    loop {
        thread::sleep(PAUSE);
        let Some(desk) = desk.upgrade() else { return };
        let Some(absent) = desk.standby.absent() else { return };
        calls.retain(|call| absent.contains(&call.to) && !call.over.load(Ordering::Acquire));
        let is_called = |rank: &u32| calls.iter().any(|call| call.to == *rank);
        let uncalled: Vec<u32> = absent.into_iter().filter(|rank| !is_called(rank)).collect();
        for some in uncalled.chunks(AT_A_TIME) {
            calls.extend(desk.call_some(some));
        }
    }
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
    /// Calls `ranks` at the same time. Those whose processes have ended are lost.
    fn call_some(&self, ranks: &[u32]) -> Vec<Call> {
        let attempts: Vec<Attempt> = thread::scope(|threads| {
            let calls: Vec<_> = ranks
                .iter()
                .map(|rank| threads.spawn(|| self.attempt(*rank, FIRST_SLICE)))
                .collect();
            calls.into_iter().map(|call| call.join().unwrap_or(Attempt::Silent)).collect()
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
                Attempt::Refused => {
                    let noticed =
                        "its process refuses connections since the root of the job is lost";
                    let loss = Loss { noticed: noticed.into(), last_operation: None };
                    self.standby.learn(&[Dispatch { rank, event: Event::Lost(loss) }]);
                }
                Attempt::Silent => {}
            }
        }
        calls
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
                    desk.dispatch(dispatch);
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
