//! Ranks of one process that take each other for processes of their own, and a root that the tests play.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;

use annulus_plan::Fingerprint;
use annulus_transports::acceptor::{Handler, Stream};
use annulus_transports::handshake::Hello;
use annulus_transports::secret::Secret;
use socket2::{Domain, Socket, Type};

use super::failover::{Attempt, REFUSES, roll_call};
use super::*;
use crate::bootstrap::agreement::{Ask, MAX_ASK, RankSet};
use crate::bootstrap::control::{Control, Subscription};
use crate::bootstrap::membership::Member;
use crate::bootstrap::notice::Notice;
use crate::bootstrap::peers::purpose;
use crate::bootstrap::wire::{FRAME_HEAD, frame_head};

/// A job, mostly of ranks 0 to 3. Rank 0 is the root, and has no desk.
struct Job {
    world: usize,
    /// Of the ranks from 1.
    desks: Vec<Arc<Desk>>,
    /// The root's ends of their connections.
    root: Vec<Option<UnixStream>>,
}

const WORLD: usize = 4;
const TAG: u64 = 9;
const LONG: Duration = Duration::from_secs(60);

impl Job {
    fn start() -> Self {
        Self::start_of(WORLD, |_| {})
    }

    /// `alters` what everybody knows of each rank.
    fn start_of(world: usize, alters: impl Fn(&mut Member)) -> Self {
        let acceptor = Acceptor::shared().expect("a listener");
        let host_id = HostId::current().expect("a host");
        let address = (Ipv4Addr::LOCALHOST, acceptor.tcp_address().port()).into();
        let member = |rank: usize| {
            let mut member = Member {
                rank,
                host: "here".into(),
                host_id,
                cores: 1,
                pid: 1 + rank as u32,
                addresses: if rank == 0 { Vec::new() } else { vec![address] },
                unix_name: Vec::new(),
                joined_as: rank as u32,
                heartbeat: None,
            };
            alters(&mut member);
            member
        };
        let members: Arc<[Member]> = (0..world).map(member).collect();
        let secret = Secret::random().expect("random numbers");
        let (mut desks, mut root) = (Vec::new(), Vec::new());
        for rank in 1..world as u32 {
            let (near, far) = UnixStream::pair().expect("two sockets");
            let of_root = members[0].process();
            let roster = Roster { rank, members: members.clone(), secret: secret.clone() };
            desks.push(Desk::start(far.into(), roster, of_root, &acceptor).expect("a desk"));
            root.push(Some(near));
        }
        Self { world, desks, root }
    }

    fn desk(&self, rank: usize) -> &Arc<Desk> {
        &self.desks[rank - 1]
    }

    fn loses_root(&mut self, rank: usize) {
        self.root[rank - 1] = None;
    }

    fn root_says(&mut self, to: usize, kind: FrameKind, payload: &[u8]) {
        let stream = self.root[to - 1].as_mut().expect("it has its root");
        stream.write_all(&frame(kind, payload)).expect("sent");
    }

    fn root_hears_question(&mut self, from: usize) -> Ask {
        let stream = self.root[from - 1].as_mut().expect("it has its root");
        let mut head = [0; FRAME_HEAD];
        stream.read_exact(&mut head).expect("a frame");
        let (kind, length) = frame_head(head, MAX_ASK).expect("sound");
        assert_eq!(kind, FrameKind::Ask);
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).expect("all of it");
        Ask::decode(&payload).expect("sound")
    }

    fn root_loses(&mut self, lost: usize, tells: usize) {
        let loss = Loss { noticed: "the root says so".into(), last_operation: None };
        let word = Dispatch { rank: lost as u32, event: Event::Lost(loss) };
        self.root_says(tells, FrameKind::Notice, &word.encode());
    }

    /// What `ranks` agree on, which ask at the same time for the first time.
    fn agree(&self, ranks: &[usize]) -> Vec<Result<Outcome, Unanswered>> {
        self.agree_in(0, ranks)
    }

    /// The same, once they have agreed `round` times.
    fn agree_in(&self, round: u32, ranks: &[usize]) -> Vec<Result<Outcome, Unanswered>> {
        thread::scope(|threads| {
            let asks: Vec<_> = ranks
                .iter()
                .map(|rank| {
                    let desk = self.desk(*rank);
                    threads.spawn(move || {
                        let members = (0..self.world as u32).collect();
                        desk.agree(TAG, round, members, [0].into(), Instant::now() + LONG)
                    })
                })
                .collect();
            asks.into_iter().map(|ask| ask.join().expect("no panic")).collect()
        })
    }

    fn knows(&self, rank: usize, lost: u32) -> bool {
        lock(&self.desk(rank).state).gone.contains(lost)
    }

    fn candidate(&self, rank: usize) -> Option<u32> {
        match lock(&self.desk(rank).state).root {
            RootState::Coming { candidate } => Some(candidate),
            _ => None,
        }
    }
}

fn until(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LONG, "it happens");
        thread::sleep(Duration::from_millis(1));
    }
}

/// All of them go on with these.
fn assert_agreed(outcomes: &[Result<Outcome, Unanswered>], expected: &[u32]) -> [u8; 32] {
    let Ok(Outcome::Agreed { nonce, survivors }) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(survivors.iter().eq(expected), "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{outcomes:?}");
    *nonce
}

#[test]
fn all_find_the_same_root() {
    let mut job = Job::start();
    for rank in [3, 1, 2] {
        job.loses_root(rank);
    }
    assert_agreed(&job.agree(&[1, 2, 3]), &[1, 2, 3]);
}

#[test]
fn an_answer_of_the_last_root_counts() {
    let mut job = Job::start();
    let (nonce, survivors) = ([5; 32], RankSet::from([1, 2, 3]));
    // The last root answers rank 3, and is lost before it answers the others.
    let answer = Answer { number: 0, outcome: Outcome::Agreed { nonce, survivors } };
    let answered = thread::scope(|threads| {
        let desk = job.desk(3).clone();
        let asks = threads
            .spawn(move || desk.agree(TAG, 0, (0..4).collect(), [0].into(), Instant::now() + LONG));
        until(|| lock(&job.desk(3).state).asked.contains_key(&0));
        job.root_says(3, FrameKind::Answer, &answer.encode());
        asks.join().expect("no panic")
    });
    for rank in 1..WORLD {
        job.loses_root(rank);
    }
    let mut outcomes = job.agree(&[1, 2]);
    outcomes.push(answered);
    assert_eq!(assert_agreed(&outcomes, &[1, 2, 3]), nonce);
    // The next time is another agreement.
    let again = job.agree_in(1, &[1, 2, 3]);
    assert_ne!(assert_agreed(&again, &[1, 2, 3]), nonce);
}

/// What a rank is in stays known to it, whatever else it has shrunk since.
#[test]
fn a_communicator_asks_for_its_next_round_however_many_others_were_shrunk() {
    let mut job = Job::start();
    let all = || (0..WORLD as u32).collect::<RankSet>();
    let controls: Vec<_> = (0..=MAX_SETTLED as u64)
        .map(|number| Control::new(job.desk(3).clone(), TAG + number))
        .collect();
    let (first, others) = controls.split_first().expect("there are some");
    thread::scope(|threads| {
        let asks = threads.spawn(|| {
            for control in [first].into_iter().chain(others).chain([first, &first.clone()]) {
                let outcome = control.agree(all(), RankSet::new(), LONG).expect("not alone");
                assert!(matches!(outcome, Ok(Outcome::Agreed { .. })), "{outcome:?}");
            }
        });
        let mut rounds = Vec::new();
        for _ in 0..controls.len() + 2 {
            let Ask { tag, number, round, .. } = job.root_hears_question(3);
            rounds.push((tag, round));
            let outcome = Outcome::Agreed { nonce: [number as u8; 32], survivors: all() };
            job.root_says(3, FrameKind::Answer, &Answer { number, outcome }.encode());
        }
        asks.join().expect("no panic");
        let once = (0..controls.len() as u64).map(|number| (TAG + number, 0));
        assert!(rounds.into_iter().eq(once.chain([(TAG, 1), (TAG, 2)])));
    });
}

/// Rank 2 loses its connection to a root that lives for the others.
#[test]
fn a_candidate_that_has_its_root_serves_nobody() {
    let mut job = Job::start();
    job.loses_root(2);
    until(|| job.candidate(2) == Some(1));
    // The root tells the others first, and then is lost to them as well.
    for rank in [1, 3] {
        job.root_loses(2, rank);
    }
    until(|| lock(&job.desk(2).state).expelled);
    assert!(!job.knows(2, 1), "rank 1 has done nothing wrong");
    for rank in [1, 3] {
        job.loses_root(rank);
    }
    assert_agreed(&job.agree(&[1, 3]), &[1, 3]);
    assert_eq!(job.agree(&[2]), [Err(Unanswered::Expelled)]);
}

/// Rank 2 cannot reach rank 1, which rank 3 can.
#[test]
fn two_candidates_do_not_make_two_jobs() {
    for is_first_to_come in [false, true] {
        let mut job = Job::start();
        let separate = |job: &Job| job.desk(2).lose(1, "as the test wants it".into());
        if !is_first_to_come {
            separate(&job);
        }
        for rank in [3, 1] {
            job.loses_root(rank);
        }
        until(|| job.candidate(1) == Some(1) || lock(&job.desk(1).state).expelled);
        separate(&job);
        job.loses_root(2);
        assert_agreed(&job.agree(&[2, 3]), &[2, 3]);
        assert!(job.knows(3, 1) && job.knows(2, 1));
        assert_eq!(job.agree(&[1]), [Err(Unanswered::Expelled)]);
    }
}

/// The reactor's thread as the test wants it: busy.
struct Busy {
    began: mpsc::Sender<()>,
    until: Mutex<mpsc::Receiver<()>>,
}

impl Timer for Busy {
    fn expired(&self) {
        let _ = self.began.send(());
        let _ = lock(&self.until).recv_timeout(LONG);
    }
}

/// Rank 1 has been lost by a root that lives. It asks the others even if it comes to itself long after it has set out.
#[test]
fn a_candidate_that_is_slow_to_come_to_itself_calls_the_others() {
    let mut job = Job::start();
    for rank in [2, 3] {
        job.root_loses(1, rank);
        until(|| job.knows(rank, 1));
    }
    let (began, begins) = mpsc::channel();
    let (done, ends) = mpsc::channel();
    let busy: Arc<dyn Timer> = Arc::new(Busy { began, until: Mutex::new(ends) });
    let _ = job.desk(1).reactor.call_at(Instant::now(), Arc::downgrade(&busy));
    begins.recv_timeout(LONG).expect("the reactor calls");
    job.desk(1).root_closed(0, "as the test wants it");
    until(|| job.candidate(1) == Some(1));
    // Several times as long as it waits before it calls.
    thread::sleep(Duration::from_millis(100));
    done.send(()).expect("the reactor waits");
    until(|| job.candidate(1).is_none());
    assert_eq!(job.agree(&[1]), [Err(Unanswered::Expelled)]);
}

/// A called rank that says so when the root serves without it is late, and has another root or none.
#[test]
fn a_rank_whose_root_serves_is_not_expelled_by_one_that_was_given_up() {
    let mut job = Job::start();
    job.root_loses(3, 1);
    for rank in [1, 2] {
        job.loses_root(rank);
    }
    assert_agreed(&job.agree(&[1, 2]), &[1, 2]);
    let event = Event::Lost(Loss { noticed: "rank 3 says so".into(), last_operation: None });
    job.desk(1).is_said_to_be_gone(event);
    assert!(!lock(&job.desk(1).state).expelled);
    assert_agreed(&job.agree_in(1, &[1, 2]), &[1, 2]);
}

/// Somebody comes to a rank that has just left.
#[test]
fn a_rank_that_has_left_says_so_at_its_door() {
    let mut job = Job::start();
    let standby = job.desk(1).standby.clone();
    drop(job.desks.remove(0));
    let (mut near, far) = UnixStream::pair().expect("two sockets");
    near.set_read_timeout(Some(LONG)).expect("a timeout");
    let hello = Hello { rank: 2, target: 1, purpose: purpose::CONTROL, index: 0, tag: 0 };
    standby.accepted(hello, Stream::Unix(far), None);
    let mut told = Vec::new();
    near.read_to_end(&mut told).expect("an end");
    let word = Dispatch::decode(&told[FRAME_HEAD..]).expect("a notice");
    assert_eq!(word, Dispatch { rank: 1, event: Event::Left });
}

/// Nobody listens there, and nobody can as long as the socket is bound.
fn deserted_port() -> (Socket, u16) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into()).expect("bound");
    let port = socket.local_addr().expect("bound").as_socket().expect("of IP").port();
    (socket, port)
}

/// The first and the last of a job's ranks that can be the root's successor, where more are between them than are called at a time.
const FIRST: usize = 1;
const LAST: usize = FIRST + roll_call::AT_A_TIME + 1;

/// The first has been lost by a root that lives. Only the last can tell it.
#[test]
fn ranks_that_do_not_answer_keep_no_other_from_being_called() {
    let mut job = Job::start_of(LAST + 1, |member| {
        if (FIRST + 1..LAST).contains(&member.rank) {
            member.addresses.clear();
        }
    });
    job.root_loses(FIRST, LAST);
    until(|| job.knows(LAST, FIRST as u32));
    job.loses_root(FIRST);
    until(|| lock(&job.desk(FIRST).state).expelled);
    assert!(!job.knows(FIRST, LAST as u32), "it has done nothing wrong");
}

/// All between them have ended with the root.
#[test]
fn more_ended_processes_than_are_called_at_a_time_are_found_to_have_ended() {
    let (_bound, port) = deserted_port();
    let mut job = Job::start_of(LAST + 1, |member| {
        if (FIRST + 1..LAST).contains(&member.rank) {
            member.addresses = vec![(Ipv4Addr::LOCALHOST, port).into()];
        }
    });
    for rank in [FIRST, LAST] {
        job.loses_root(rank);
    }
    assert_agreed(&job.agree(&[FIRST, LAST]), &[FIRST as u32, LAST as u32]);
    let words = lock(&job.desk(LAST).state).gone.words();
    let (root, others) = words.split_first().expect("the root, and those between");
    assert_eq!((root.rank, others.len()), (0, LAST - FIRST - 1));
    for word in others {
        assert!(matches!(&word.event, Event::Lost(loss) if loss.noticed == REFUSES), "{word:?}");
    }
}

/// Something on the way to another host may refuse in its name.
#[test]
fn a_refusal_counts_for_what_it_is_worth() {
    let (_bound, port) = deserted_port();
    let anywhere = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let afar = HostId::from_bytes([1; 16]);
    let attempt = |host: Option<HostId>, address: SocketAddr| {
        let job = Job::start_of(WORLD, |member| {
            if member.rank == 1 {
                member.host_id = host.unwrap_or(member.host_id);
                member.addresses = vec![address];
            }
        });
        job.desk(2).attempt(1, Duration::from_millis(50))
    };
    // On a busy machine an attempt may end while its last call is under way, and has heard nothing then.
    let answer = |host, address| {
        let is_answer = |attempt: &Attempt| !matches!(attempt, Attempt::Silent);
        (0..100).map(|_| attempt(host, address)).find(is_answer)
    };
    assert!(matches!(answer(None, anywhere(port)), Some(Attempt::Ended)));
    assert!(matches!(answer(Some(afar), anywhere(port)), Some(Attempt::Refused)));
    // An address of this host says nothing of a process elsewhere.
    let loopback = (Ipv4Addr::LOCALHOST, port).into();
    assert!(matches!(attempt(Some(afar), loopback), Attempt::Silent));
}

/// The candidate leaves in good order while others wait for it.
#[test]
fn a_candidate_that_leaves_is_not_lost() {
    let mut job = Job::start();
    for rank in [2, 3] {
        job.loses_root(rank);
    }
    until(|| [2, 3].iter().all(|rank| job.candidate(*rank) == Some(1)));
    drop(job.desks.remove(0));
    let [second, third] = &job.desks[..] else { panic!("two are left") };
    for desk in [second, third] {
        until(|| lock(&desk.state).gone.contains(1));
        assert!(lock(&desk.state).gone.has_left(1));
    }
}

/// The others are far ahead of rank 1, which then makes its part of their communicator.
#[test]
fn reports_that_came_too_early_are_not_missed_silently() {
    let mut job = Job::start();
    let departed = |tag| {
        let event = Event::Report { tag, report: Report::Departed { panicked: false } };
        Dispatch { rank: 3, event }.encode()
    };
    job.root_says(1, FrameKind::Notice, &departed(70));
    for _ in 0..=early::MAX_OF_ONE {
        job.root_says(1, FrameKind::Notice, &departed(71));
    }
    job.root_says(1, FrameKind::Notice, &departed(72));
    // It comes behind them.
    job.root_loses(2, 1);
    until(|| job.knows(1, 2));
    let heard = |tag| {
        let (sends, hears) = mpsc::channel();
        let on_notice = Arc::new(move |notice| drop(sends.send(notice)));
        let control = Control::new(job.desk(1).clone(), tag);
        let subscription = control.subscribe(&[1, 3], on_notice);
        drop(subscription);
        hears.try_iter().collect::<Vec<_>>()
    };
    let left = Notice::Left { rank: 1 };
    assert_eq!((heard(72), heard(70)), (vec![left.clone()], vec![left]));
    let notices = heard(71);
    assert_eq!(notices.len(), early::MAX_OF_ONE + 1);
    let Some(Notice::Broken { rank: 0, reason }) = notices.last() else { panic!("{notices:?}") };
    assert!(reason.ends_with("are kept (128): dropped 1"), "{reason}");
    // The others hear of it.
    let mut told = vec![0; 200];
    let stream = job.root[0].as_mut().expect("the root");
    let count = stream.read(&mut told).expect("a frame");
    let word = Dispatch::decode(&told[FRAME_HEAD..count]).expect("a notice");
    assert!(
        matches!(word.event, Event::Report { tag: 71, report: Report::Broken { .. } }),
        "{word:?}"
    );
}

/// What `rank` hears of the communicator `tag` of ranks 1 to 3.
fn listen(job: &Job, rank: usize, tag: u64) -> (Subscription, mpsc::Receiver<Notice>) {
    let (sends, hears) = mpsc::channel();
    let on_notice = Arc::new(move |notice| drop(sends.send(notice)));
    (Control::new(job.desk(rank).clone(), tag).subscribe(&[1, 2, 3], on_notice), hears)
}

fn heard(hears: &mpsc::Receiver<Notice>) -> Notice {
    hears.recv_timeout(LONG).expect("it comes")
}

/// Rank 3 reports to a root that is dead already, which nobody has noticed; and then to none.
#[test]
fn what_is_reported_without_a_root_reaches_the_others() {
    let mut job = Job::start();
    let (_first, at_first) = listen(&job, 1, TAG);
    let (_second, at_second) = listen(&job, 2, TAG);
    let control = Control::new(job.desk(3).clone(), TAG);
    control.report(Report::Departed { panicked: false });
    job.loses_root(3);
    until(|| job.candidate(3) == Some(1));
    control.report(Report::Aborted { reason: "as the test wants it".into() });
    for rank in [1, 2] {
        job.loses_root(rank);
    }
    for hears in [at_first, at_second] {
        assert_eq!(heard(&hears), Notice::RootLost);
        assert_eq!(heard(&hears), Notice::Left { rank: 2 });
        assert!(matches!(heard(&hears), Notice::Aborted { rank: 2, .. }));
    }
}

/// Rank 3 has dropped the communicator, which the root did not live to pass on.
#[test]
fn a_shrink_does_not_wait_for_one_whose_departure_died_with_the_root() {
    for is_noticed in [false, true] {
        let mut job = Job::start();
        let control = Control::new(job.desk(3).clone(), TAG);
        if is_noticed {
            job.loses_root(3);
            until(|| job.candidate(3) == Some(1));
        }
        control.report(Report::Departed { panicked: false });
        for rank in [1, 2, 3] {
            job.loses_root(rank);
        }
        assert_agreed(&job.agree(&[1, 2]), &[1, 2]);
    }
}

/// The root's process ends after its rank has left, and the others join.
#[test]
fn reports_wait_for_the_successor_of_a_root_that_has_retired() {
    let mut job = Job::start();
    let (_second, at_second) = listen(&job, 2, TAG);
    let (_third, at_third) = listen(&job, 3, TAG);
    let left = Dispatch { rank: 0, event: Event::Left }.encode();
    for rank in [1, 2, 3] {
        job.root_says(rank, FrameKind::Notice, &left);
        job.loses_root(rank);
    }
    for hears in [&at_second, &at_third] {
        assert_eq!(heard(hears), Notice::RootLost, "whoever has joined is cut off");
    }
    let control = Control::new(job.desk(3).clone(), TAG);
    control.report(Report::Joined { epoch: 0, sequence: 7, order: 0 });
    for hears in [at_second, at_third] {
        assert_eq!(heard(&hears), Notice::Joined { rank: 2, epoch: 0, sequence: 7, order: 0 });
    }
    assert!(!job.knows(1, 2) && !job.knows(3, 2));
}

#[test]
fn a_rank_that_finds_no_root_says_so_to_all_its_communicators() {
    let mut job = Job::start();
    let (_third, early) = listen(&job, 3, TAG);
    job.root_loses(3, 3);
    job.loses_root(3);
    assert!(matches!(heard(&early), Notice::Lost { rank: 2, .. }));
    assert_eq!(heard(&early), Notice::NoRoot);
    let (_again, late) = listen(&job, 3, TAG + 1);
    assert!(matches!(heard(&late), Notice::Lost { rank: 2, .. }));
    assert_eq!(heard(&late), Notice::NoRoot);
}

/// Rank 3 reports more than is kept.
#[test]
fn a_report_that_cannot_be_kept_breaks_its_communicator_on_all_ranks() {
    let mut job = Job::start();
    let (_second, at_second) = listen(&job, 2, TAG);
    let (_third, at_third) = listen(&job, 3, TAG);
    job.loses_root(3);
    until(|| job.candidate(3) == Some(1));
    let control = Control::new(job.desk(3).clone(), TAG);
    for sequence in 0..=outbox::MAX_WAITING as u64 {
        control.report(Report::Announced { sequence, call: Fingerprint::default() });
    }
    assert_eq!(heard(&at_third), Notice::RootLost);
    assert!(matches!(heard(&at_third), Notice::Broken { rank: 2, .. }));
    for rank in [1, 2] {
        job.loses_root(rank);
    }
    assert_eq!(heard(&at_second), Notice::RootLost);
    for number in 0..outbox::MAX_WAITING as u64 {
        let word = heard(&at_second);
        assert!(matches!(word, Notice::Announced { sequence, .. } if sequence == number));
    }
    let Notice::Broken { rank: 2, reason } = heard(&at_second) else { panic!("it is broken") };
    assert!(reason.contains("(1024)"), "{reason}");
}
