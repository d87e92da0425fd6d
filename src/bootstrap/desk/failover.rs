//! Finding the root's successor: the lowest rank that is left. All ranks look in the same order, so they find the same one,
//! unless they cannot reach the same ones: then the successor [finds out](roll_call).

pub(super) mod roll_call;

use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use annulus_transports::connect::{AttemptError, ConnectError, connect_tcp};
use annulus_transports::handshake::Hello;
use annulus_transports::interface::reachable_addresses;

use super::{Desk, DeskInbox, RootState, State};
use crate::bootstrap::agreement::Rejoin;
use crate::bootstrap::connection::Connection;
use crate::bootstrap::notice::{Event, Loss};
use crate::bootstrap::peers::purpose;
use crate::bootstrap::reactor::lock;
use crate::bootstrap::root::Standby;
use crate::bootstrap::wire::{FrameKind, frame};

/// A candidate is tried for so long at a time, at first; then the desk may be gone. Twice as long each time: on a busy machine an
/// honest answer may take longer than any one time.
const FIRST_SLICE: Duration = Duration::from_millis(250);
const LONGEST_SLICE: Duration = Duration::from_secs(2);
/// How long a candidate that does not refuse may take, where no heartbeat says.
const PATIENCE: Duration = Duration::from_secs(5);

/// How it is noticed that a process has ended.
pub(super) const REFUSES: &str =
    "its process refuses connections since the root of the job is lost";

/// What came of one attempt.
#[derive(Debug)]
pub(super) enum Attempt {
    Connected(TcpStream),
    /// This host says that there is no such process any more.
    Ended,
    /// Another host says so; or a firewall on the way does, and it lives.
    Refused,
    /// It may yet answer, or cannot be reached at all.
    Silent,
}

impl Desk {
    /// Looks for a new root, on a thread that ends when one is found, nobody is left, or this desk is gone.
    pub(super) fn find_successor(&self) {
        let desk = self.this.clone();
        let search = move || search(&desk);
        if thread::Builder::new().name("annulus-succeed".into()).spawn(search).is_err() {
            self.give_up();
        }
    }

    fn give_up(&self) {
        self.find_nobody(lock(&self.state));
        let noticed = "it finds no root of the job".into();
        self.standby.stand_down(&Event::Lost(Loss { noticed, last_operation: None }));
    }

    /// The lowest rank that is not known to be gone.
    fn candidate(&self) -> Option<u32> {
        let state = lock(&self.state);
        if state.expelled {
            return None;
        }
        (0..self.roster.world()).find(|rank| !state.gone.contains(*rank))
    }

    pub(super) fn attempt(&self, candidate: u32, slice: Duration) -> Attempt {
        let own = self.roster.own();
        let member = &self.roster.members[candidate as usize];
        let addresses =
            reachable_addresses(member.rank, own.host_id, member.host_id, &member.addresses);
        let Ok(addresses) = addresses else { return Attempt::Silent };
        let secret = Standby::secret(&self.roster.secret);
        let (rank, purpose) = (self.roster.rank, purpose::CONTROL);
        let hello = Hello { rank, target: candidate, purpose, index: 0, tag: 0 };
        match connect_tcp(&addresses, &secret, hello, Instant::now() + slice) {
            Ok(stream) => Attempt::Connected(stream),
            Err(ConnectError::Unreachable { attempts, .. })
                if attempts.iter().all(|attempt| is_refusal(attempt.failure.as_ref())) =>
            {
                if own.host_id == member.host_id { Attempt::Ended } else { Attempt::Refused }
            }
            Err(_) => Attempt::Silent,
        }
    }

    /// What this rank says of itself when it comes to another.
    fn rejoin(&self, state: &State) -> Rejoin {
        let (left, lost) = state.gone.left_and_lost();
        Rejoin { rank: self.roster.rank, lost, left }
    }

    /// Comes to `candidate`, at the other end of `stream`, which lets this rank in when all others have come too.
    fn come_to(&self, candidate: u32, stream: TcpStream) -> io::Result<()> {
        let mut state = lock(&self.state);
        let inbox = DeskInbox { desk: self.this.clone(), epoch: state.epoch };
        let connection = Connection::new(stream.into(), Box::new(inbox));
        let rejoin = self.rejoin(&state);
        connection.send(frame(FrameKind::Rejoin, &rejoin.encode()).into());
        // Before any question: the last root may have been lost between its answers.
        for settlement in state.settlements.iter() {
            connection.send(frame(FrameKind::Settled, &settlement.encode()).into());
        }
        let process = self.roster.members[candidate as usize].process();
        state.root_ranks = self.roster.in_process(process);
        state.root = RootState::Coming { candidate };
        state.connection = connection.clone();
        drop(state);
        self.listen_to(&connection)
    }
}

fn search(weak: &Weak<Desk>) {
    let begun = Instant::now();
    let mut since = begun;
    let mut slice = FIRST_SLICE;
    let mut tried = None;
    loop {
        // Held for one attempt at a time: dropping the job's last communicator ends the search.
        let Some(desk): Option<Arc<Desk>> = weak.upgrade() else { return };
        let Some(candidate) = desk.candidate() else { return desk.give_up() };
        if tried.replace(candidate) != Some(candidate) {
            (since, slice) = (Instant::now(), FIRST_SLICE);
        }
        let patience = desk.roster.own().heartbeat.unwrap_or(PATIENCE);
        let attempt = desk.attempt(candidate, slice);
        if let Attempt::Connected(stream) = attempt {
            if desk.come_to(candidate, stream).is_err() {
                desk.give_up();
            } else if candidate == desk.roster.rank {
                drop(desk);
                roll_call::call(weak);
            }
            return;
        }
        match given_up(&attempt, since.elapsed(), begun.elapsed(), patience) {
            Some(noticed) => desk.lose(candidate, noticed),
            None => slice = (slice * 2).min(LONGEST_SLICE),
        }
    }
}

/// How it is noticed that a candidate is gone, if it is, by the last attempt: it was tried for as long as `tried`, of the `search`.
fn given_up(
    attempt: &Attempt,
    tried: Duration,
    search: Duration,
    patience: Duration,
) -> Option<String> {
    match attempt {
        Attempt::Ended => Some(REFUSES.into()),
        // A firewall would refuse them all: so it is not each that takes its time, but the search.
        Attempt::Refused => (search >= patience).then(|| REFUSES.into()),
        Attempt::Silent => (tried >= patience).then(|| {
            format!("it cannot be reached for {patience:.1?} since the root of the job is lost")
        }),
        Attempt::Connected(_) => None,
    }
}

/// Nobody listens there: the process has ended, if it is its host that says so.
fn is_refusal(failure: Option<&AttemptError>) -> bool {
    matches!(failure, Some(AttemptError::Connect(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_host_is_believed_at_once_that_a_process_has_ended() {
        let [none, patience] = [Duration::ZERO, PATIENCE];
        let gone = |attempt, tried, search| given_up(&attempt, tried, search, patience).is_some();
        assert!(gone(Attempt::Ended, none, none));
        assert!(!gone(Attempt::Refused, none, none));
        assert!(gone(Attempt::Refused, none, patience), "after others that refused");
        assert!(!gone(Attempt::Silent, none, patience));
        assert!(gone(Attempt::Silent, patience, patience));
    }
}
