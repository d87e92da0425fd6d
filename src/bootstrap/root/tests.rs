//! A root that takes over a job, with ranks that the tests play.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use annulus_transports::host::HostId;

use super::*;
use crate::bootstrap::agreement::{Answer, Outcome, RankSet};
use crate::bootstrap::membership::Member;
use crate::bootstrap::notice::{Dispatch, Loss, Report};
use crate::bootstrap::wire::{FRAME_HEAD, frame_head};

/// A rank, at the other end of its seat.
struct Player {
    rank: u32,
    stream: UnixStream,
}

fn set(ranks: &[u32]) -> RankSet {
    ranks.iter().copied().collect()
}

/// The root that takes over a job of `world` ranks, on rank `own`.
fn successor(world: u32, own: u32) -> Arc<Root> {
    successor_among(&vec![None; world as usize], own)
}

/// The same, where the ranks have these heartbeats.
fn successor_among(heartbeats: &[Option<Duration>], own: u32) -> Arc<Root> {
    let secret = Secret::random().expect("random numbers");
    let member = |(rank, heartbeat): (usize, &Option<Duration>)| Member {
        rank,
        host: "here".into(),
        host_id: HostId::from_bytes([0; 16]),
        cores: 1,
        pid: 1 + rank as u32,
        addresses: Vec::new(),
        unix_name: Vec::new(),
        joined_as: rank as u32,
        heartbeat: *heartbeat,
    };
    let members = heartbeats.iter().enumerate().map(member).collect();
    let roster = Roster { rank: own, members, secret: secret.clone() };
    Root::new(&secret, [0; 16], false, Some(Arc::new(roster))).expect("a root")
}

fn lost(rank: u32) -> Dispatch {
    let loss = Loss { noticed: "as the test says".into(), last_operation: None };
    Dispatch { rank, event: Event::Lost(loss) }
}

#[test]
fn the_ranks_of_the_roots_process_are_told_last() {
    let record = |rank: u32, host: u8, pid: u32| Record {
        rank,
        world: 4,
        settings: 0,
        patience: Duration::from_secs(1),
        heartbeat: None,
        version: VERSION.into(),
        pid,
        host_name: "here".into(),
        host_id: [host; 16],
        cores: 1,
        addresses: Vec::new(),
        port: 1,
        unix_name: Vec::new(),
    };
    let records = vec![record(0, 1, 7), record(1, 2, 7), record(2, 1, 7), record(3, 1, 8)];
    let table = Table { root_host_id: [1; 16], root_pid: 7, records };
    let in_order_of_coming = [2, 0, 3, 1].map(|rank| (rank, rank));
    assert_eq!(own_last(in_order_of_coming.into_iter(), &table), [3, 1, 2, 0]);
}

impl Player {
    fn sits(root: &Arc<Root>, rank: u32) -> Self {
        let (stream, far) = UnixStream::pair().expect("two sockets");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        root.admit(far.into()).expect("it is not over");
        Self { rank, stream }
    }

    fn comes(root: &Arc<Root>, rank: u32, lost: &[u32]) -> Self {
        let mut player = Self::sits(root, rank);
        let rejoin = Rejoin { rank, lost: set(lost), left: RankSet::new() };
        player.says(FrameKind::Rejoin, &rejoin.encode());
        player
    }

    fn says(&mut self, kind: FrameKind, payload: &[u8]) {
        self.stream.write_all(&frame(kind, payload)).expect("sent");
    }

    /// Asks to go on without `exclude`, in the communicator `tag` of ranks 0 to 3.
    fn asks(&mut self, tag: u64, exclude: &[u32]) {
        let (members, exclude) = (set(&[0, 1, 2, 3]), set(exclude));
        let (number, patience) = (self.rank, Duration::from_secs(60));
        let ask = Ask { tag, number, round: 0, patience, members, exclude };
        self.says(FrameKind::Ask, &ask.encode());
    }

    fn hears(&mut self) -> (FrameKind, Vec<u8>) {
        let mut head = [0; FRAME_HEAD];
        self.stream.read_exact(&mut head).expect("a frame");
        let (kind, length) = frame_head(head, 1 << 16).expect("sound");
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).expect("all of it");
        (kind, payload)
    }

    fn hears_notice(&mut self) -> Dispatch {
        let (kind, payload) = self.hears();
        assert_eq!(kind, FrameKind::Notice);
        Dispatch::decode(&payload).expect("sound")
    }

    fn hears_that_it_is_lost(&mut self) {
        let word = self.hears_notice();
        assert!(
            matches!(word, Dispatch { rank, event: Event::Lost(_) } if rank == self.rank),
            "{word:?}"
        );
        self.hears_the_end();
    }

    fn is_welcome(&mut self) {
        assert_eq!(self.hears(), (FrameKind::Welcome, Vec::new()));
    }

    /// The next answer, whatever is said before.
    fn hears_answer(&mut self) -> Outcome {
        loop {
            if let (FrameKind::Answer, payload) = self.hears() {
                let Answer { number, outcome } = Answer::decode(&payload).expect("sound");
                assert_eq!(number, self.rank);
                return outcome;
            }
        }
    }

    /// The other end has closed.
    fn hears_the_end(&mut self) {
        assert_eq!(self.stream.read(&mut [0]).expect("an end"), 0);
    }
}

/// Waits for what the reactor's thread does.
fn until(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it happens");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A rank that was stopped while the others found a new root must not go on to look for another.
#[test]
fn who_was_given_up_is_told_by_the_new_root_too() {
    for is_served in [false, true] {
        let root = successor(4, 1);
        let mut own = Player::comes(&root, 1, &[0, 2]);
        until(|| root.state().gone.contains_key(&2));
        let _third = is_served.then(|| {
            let third = Player::comes(&root, 3, &[]);
            own.is_welcome();
            third
        });
        Player::comes(&root, 2, &[]).hears_that_it_is_lost();
        root.end();
    }
}

/// The rank that others take for the successor may still have its root.
#[test]
fn nobody_is_let_in_before_the_own_rank_has_come() {
    let root = successor(4, 1);
    let mut second = Player::comes(&root, 2, &[0]);
    let mut third = Player::comes(&root, 3, &[0]);
    until(|| [2, 3].iter().all(|rank| root.state().seat_of(*rank).is_some()));
    assert!(root.state().phase == Phase::Assembling);
    assert!(root.state().gone.is_empty(), "nobody is believed yet");
    // Its root is there, and has lost rank 2.
    root.learn(&[lost(2)]);
    second.hears_that_it_is_lost();
    // Now it has lost the root too.
    let mut own = Player::comes(&root, 1, &[0]);
    for player in [&mut own, &mut third] {
        player.is_welcome();
        let words = [player.hears_notice().rank, player.hears_notice().rank];
        assert_eq!(words, [0, 2]);
    }
    root.end();
}

#[test]
fn nobody_is_let_in_before_all_have_come_or_are_known_to_be_gone() {
    let root = successor(5, 1);
    let mut own = Player::comes(&root, 1, &[0]);
    let mut second = Player::comes(&root, 2, &[]);
    until(|| root.state().absent() == [3, 4]);
    assert!(root.state().phase == Phase::Assembling);
    root.learn(&[lost(3)]);
    assert_eq!(root.state().absent(), [4]);
    assert!(root.state().phase == Phase::Assembling);
    let _last = Player::comes(&root, 4, &[]);
    own.is_welcome();
    second.is_welcome();
    root.end();
}

/// One that notices late must not be given up by one that notices early.
#[test]
fn who_may_notice_late_is_waited_for_longer() {
    let seconds = |count| Some(Duration::from_secs(count));
    for (others, expected) in [
        ([seconds(1), seconds(1)], 5),
        ([seconds(20), seconds(1)], 40),
        ([seconds(1), None], 30),
        ([seconds(20), None], 40),
    ] {
        let root = successor_among(&[seconds(1), others[0], others[1]], 0);
        let before = Instant::now();
        let _own = Player::comes(&root, 0, &[]);
        until(|| root.state().absent() == [1, 2]);
        assert!(root.state().deadline >= before + Duration::from_secs(expected), "{others:?}");
        assert_eq!(root.state().coming_time(), Duration::from_secs(expected), "{others:?}");
        root.end();
    }
    // Who is there, or gone, is not waited for.
    let root = successor_among(&[seconds(1), None, seconds(20), seconds(4)], 0);
    let _second = Player::comes(&root, 2, &[]);
    root.learn(&[lost(1)]);
    until(|| root.state().seat_of(2).is_some());
    assert_eq!(root.state().coming_time(), Duration::from_secs(8));
    root.end();
}

/// Those whom a root serves cannot be taken back, whoever says so too late.
#[test]
fn a_root_that_serves_does_not_stand_down() {
    let root = successor(3, 0);
    let mut own = Player::comes(&root, 0, &[]);
    let mut second = Player::comes(&root, 2, &[]);
    until(|| root.state().absent() == [1]);
    root.learn(&[lost(1)]);
    for player in [&mut own, &mut second] {
        player.is_welcome();
        assert_eq!(player.hears_notice().rank, 1);
    }
    assert!(!root.stand_down(&lost(0).event));
    own.asks(9, &[3]);
    second.asks(9, &[3]);
    let Outcome::Agreed { survivors, .. } = own.hears_answer() else { panic!("agreed") };
    assert_eq!(survivors, set(&[0, 2]));
    root.end();
    assert!(!root.stand_down(&lost(0).event), "it is over");
}

/// So that survivors agree on who died, whichever of them the last root told.
#[test]
fn who_is_gone_to_one_is_gone_to_all() {
    let root = successor(4, 0);
    let mut accused = Player::comes(&root, 2, &[]);
    let mut own = Player::comes(&root, 0, &[]);
    until(|| root.state().absent() == [1, 3]);
    let mut accuser = Player::comes(&root, 3, &[2]);
    accused.hears_that_it_is_lost();
    let _first = Player::comes(&root, 1, &[]);
    for player in [&mut own, &mut accuser] {
        player.is_welcome();
        assert_eq!(player.hears_notice().rank, 2);
    }
    root.end();
}

#[test]
fn those_who_wait_for_a_rank_that_leaves_are_told() {
    for is_given_up in [false, true] {
        let root = successor(3, 1);
        let mut waits = Player::comes(&root, 2, &[0]);
        until(|| root.state().seat_of(2).is_some());
        let event = if is_given_up { lost(1).event } else { Event::Left };
        assert!(root.stand_down(&event));
        assert_eq!(waits.hears_notice(), Dispatch { rank: 1, event });
        waits.hears_the_end();
        let (socket, _) = UnixStream::pair().expect("two sockets");
        assert!(root.admit(socket.into()).is_err(), "it is over");
    }
}

#[test]
fn who_leaves_before_it_is_let_in_is_not_waited_for() {
    let root = successor(3, 0);
    let mut own = Player::comes(&root, 0, &[]);
    let dies = Player::comes(&root, 2, &[]);
    until(|| root.state().absent() == [1]);
    drop(dies);
    until(|| root.state().absent() == [1, 2]);
    let mut leaves = Player::comes(&root, 1, &[]);
    leaves.says(FrameKind::Goodbye, &[]);
    until(|| root.state().gone.get(&1) == Some(&Event::Left));
    root.learn(&[lost(2)]);
    own.is_welcome();
    root.end();
}

/// The last root was lost between its answers: rank 3 has got one, which goes on without 0; 1 and 2 still ask, and so does rank
/// 0, which was only excluded.
#[test]
fn an_answer_that_one_rank_has_got_is_that_of_all() {
    for tells_last in [true, false] {
        let root = successor(4, 0);
        let mut players: Vec<_> = (0..4).map(|rank| Player::comes(&root, rank, &[])).collect();
        until(|| root.state().phase == Phase::Running);
        let survivors = set(&[1, 2, 3]);
        let nonce = [7; 32];
        let settlement = Settlement {
            tag: 9,
            round: 0,
            nonce,
            survivors: survivors.clone(),
            exclude: set(&[0]),
        };
        if tells_last {
            players[1].asks(9, &[]);
            players[2].asks(9, &[0]);
            until(|| root.state().agreements.contains_key(&(9, 0)));
        }
        players[3].says(FrameKind::Settled, &settlement.encode());
        until(|| root.state().settlements.iter().any(|one| one.tag == 9));
        if !tells_last {
            players[1].asks(9, &[]);
            players[2].asks(9, &[0]);
        }
        for player in &mut players[1..3] {
            let (nonce, survivors) = (nonce, survivors.clone());
            assert_eq!(player.hears_answer(), Outcome::Agreed { nonce, survivors });
        }
        players[0].asks(9, &[]);
        assert_eq!(players[0].hears_answer(), Outcome::Excluded { by: 3 });
        assert!(root.state().agreements.is_empty());
        root.end();
    }
}

#[test]
fn a_rank_that_tells_of_another_result_loses_its_connection() {
    let root = successor(2, 0);
    let mut players: Vec<_> = (0..2).map(|rank| Player::comes(&root, rank, &[])).collect();
    until(|| root.state().phase == Phase::Running);
    players[0].is_welcome();
    let one = |nonce| Settlement {
        tag: 9,
        round: 0,
        nonce: [nonce; 32],
        survivors: set(&[0, 1]),
        exclude: set(&[]),
    };
    players[0].says(FrameKind::Settled, &one(1).encode());
    until(|| root.state().settlements.iter().any(|one| one.tag == 9));
    players[1].says(FrameKind::Settled, &one(2).encode());
    let word = players[0].hears_notice();
    assert!(matches!(word, Dispatch { rank: 1, event: Event::Lost(_) }), "{word:?}");
    root.end();
}

/// A member may not hold more of the root than its share.
#[test]
fn a_rank_may_wait_for_so_many_agreements_and_no_more() {
    let root = successor(4, 0);
    let mut players: Vec<_> = (0..4).map(|rank| Player::comes(&root, rank, &[])).collect();
    until(|| root.state().phase == Phase::Running);
    let most = agreements::MAX_OPEN;
    for tag in 0..=most as u64 {
        players[0].asks(tag, &[]);
    }
    assert_eq!(players[0].hears_answer(), Outcome::TooMany { most: most as u32 });
    // Neither one that another rank has opened.
    players[1].asks(1000, &[]);
    until(|| root.state().agreements.contains_key(&(1000, 0)));
    players[0].asks(1000, &[]);
    assert_eq!(players[0].hears_answer(), Outcome::TooMany { most: most as u32 });
    // One that nobody asks for any more is forgotten.
    let report = Report::Departed { panicked: false };
    let word = Dispatch { rank: 1, event: Event::Report { tag: 1000, report } };
    players[1].says(FrameKind::Notice, &word.encode());
    until(|| !root.state().agreements.contains_key(&(1000, 0)));
    // The same once more is none more, and when it is over there is room.
    players[0].asks(0, &[]);
    for player in &mut players[1..3] {
        player.asks(0, &[3]);
    }
    let Outcome::Agreed { survivors, .. } = players[0].hears_answer() else { panic!("agreed") };
    assert_eq!(survivors, set(&[0, 1, 2]));
    players[0].asks(most as u64, &[]);
    until(|| root.state().agreements.contains_key(&(most as u64, 0)));
    root.end();
}

#[test]
fn a_process_may_be_one_rank_only() {
    let secret = Secret::random().expect("random numbers");
    let root = Root::new(&secret, [0; 16], false, None).expect("a root");
    let record = |rank| Record {
        rank,
        world: 3,
        settings: 0,
        patience: Duration::from_secs(60),
        heartbeat: None,
        version: VERSION.into(),
        pid: 1,
        host_name: "here".into(),
        host_id: [0; 16],
        cores: 1,
        addresses: Vec::new(),
        port: 1,
        unix_name: Vec::new(),
    };
    let mut players: Vec<_> = [0, 2]
        .into_iter()
        .map(|rank| {
            let mut player = Player::sits(&root, rank);
            player.says(FrameKind::Join, &record(rank).encode());
            until(|| root.state().seats.values().any(|seat| seat.rank == Some(rank)));
            player
        })
        .collect();
    players[0].says(FrameKind::Join, &record(1).encode());
    for player in &mut players {
        let (kind, payload) = player.hears();
        assert_eq!(kind, FrameKind::Refusal);
        let refusal = Refusal::decode(&payload).expect("sound");
        assert!(
            refusal.to_string().contains("rank 0 describes itself again, as rank 1"),
            "{refusal}"
        );
    }
    root.end();
}

/// The news of a departure and a question may pass each other.
#[test]
fn who_asks_before_it_hears_of_a_departure_does_not_wait_for_it() {
    let root = successor(4, 0);
    let mut players: Vec<_> = (0..4).map(|rank| Player::comes(&root, rank, &[])).collect();
    until(|| root.state().phase == Phase::Running);
    let event = Event::Report { tag: 9, report: Report::Departed { panicked: false } };
    players[3].says(FrameKind::Notice, &Dispatch { rank: 3, event }.encode());
    until(|| root.state().departures.of(9).eq([3]));
    for player in &mut players[..3] {
        player.asks(9, &[]);
    }
    for player in &mut players[..3] {
        let Outcome::Agreed { survivors, .. } = player.hears_answer() else { panic!("agreed") };
        assert_eq!(survivors, set(&[0, 1, 2]));
    }
    // That says nothing of other communicators.
    players[0].asks(10, &[1, 2]);
    until(|| {
        root.state().agreements.get(&(10, 0)).is_some_and(|o| o.agreement.missing() == set(&[3]))
    });
    root.end();
}
