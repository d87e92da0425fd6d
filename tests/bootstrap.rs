//! Ranks as threads that join over sockets.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use annulus::bootstrap::{
    BootstrapError, Membership, Notice, OnNotice, Options, Refusal, Report, Segments, UniqueId,
};
use annulus_transports::link::LinkError;
use annulus_transports::shm::SegmentSource;
use annulus_transports::tcp::StreamSource;

/// Long enough for the busiest machine.
const PATIENT: Duration = Duration::from_secs(60);

type Joined = Result<(Membership, Receiver<Notice>), BootstrapError>;

fn join(id: &UniqueId, rank: usize, world: usize, timeout: Duration) -> Joined {
    let (sender, receiver) = channel();
    let on_notice = Arc::new(move |notice| {
        let _ = sender.send(notice);
    });
    let options = Options {
        timeout,
        on_notice,
        interfaces: None,
        settings: 0,
        heartbeat: None,
        encrypt: false,
    };
    Membership::join(id, rank, world, &options).map(|membership| (membership, receiver))
}

/// Joins each (rank, world) in a thread of its own.
fn join_each(ranks: &[(usize, usize)], timeout: Duration) -> Vec<Joined> {
    let id = UniqueId::new().expect("a unique id");
    let bytes = id.to_bytes();
    thread::scope(|scope| {
        let join = |&(rank, world): &(usize, usize)| {
            let id = UniqueId::from_bytes(&bytes).expect("sound bytes");
            scope.spawn(move || join(&id, rank, world, timeout))
        };
        let threads: Vec<_> = ranks.iter().map(join).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn join_world(world: usize) -> Vec<(Membership, Receiver<Notice>)> {
    let ranks: Vec<_> = (0..world).map(|rank| (rank, world)).collect();
    join_each(&ranks, PATIENT).into_iter().map(|joined| joined.expect("joined")).collect()
}

fn refusal(joined: &Joined) -> &Refusal {
    match joined {
        Err(BootstrapError::Refused(refusal)) => refusal,
        Err(other) => panic!("not refused: {other}"),
        Ok(_) => panic!("joined"),
    }
}

fn next(notices: &Receiver<Notice>) -> Notice {
    notices.recv_timeout(PATIENT).expect("a notice")
}

#[test]
fn worlds_of_many_sizes_join() {
    for world in [1, 2, 8, 64] {
        let members = join_world(world);
        for (rank, (membership, _)) in members.iter().enumerate() {
            assert_eq!((membership.rank(), membership.world()), (rank, world));
            assert_eq!(membership.tag(), members[0].0.tag());
            for (peer, member) in membership.members().iter().enumerate() {
                assert_eq!(member.rank, peer);
                assert_eq!(member.pid, std::process::id());
                assert!(membership.is_local(peer));
                assert_eq!(member.addresses.is_empty(), world == 1);
            }
        }
        assert_eq!(members[0].0.acceptor().is_none(), world == 1);
    }
}

#[test]
fn a_duplicate_rank_is_told_to_all() {
    let joined = join_each(&[(0, 3), (1, 3), (1, 3)], PATIENT);
    for joined in &joined {
        let Refusal::DuplicateRank { rank: 1, first, second } = refusal(joined) else {
            panic!("{}", refusal(joined));
        };
        assert_eq!((first.pid, second.pid), (std::process::id(), std::process::id()));
    }
}

#[test]
fn different_world_sizes_are_told_to_all() {
    for joined in join_each(&[(0, 3), (1, 4)], PATIENT) {
        let Refusal::WorldSize { first_world, second_world, .. } = refusal(&joined) else {
            panic!("{}", refusal(&joined));
        };
        assert_eq!(first_world + second_world, 7);
    }
}

#[test]
fn a_rank_out_of_range_is_told_to_all() {
    for joined in join_each(&[(0, 2), (2, 2)], PATIENT) {
        assert!(matches!(refusal(&joined), Refusal::RankOutOfRange { rank: 2, world: 2, .. }));
    }
}

/// The one at fault comes first, and the other when the root has refused the job already.
#[test]
fn who_comes_after_the_refusal_is_told_too() {
    let id = UniqueId::new().expect("a unique id");
    thread::scope(|threads| {
        let first = threads.spawn(|| join(&id, 2, 2, PATIENT));
        let is_out = |joined: &Joined| matches!(refusal(joined), Refusal::RankOutOfRange { .. });
        assert!(is_out(&first.join().expect("no panic")));
        assert!(is_out(&join(&id, 0, 2, PATIENT)));
    });
}

#[test]
fn impossible_worlds_are_refused_at_once() {
    let id = UniqueId::new().expect("a unique id");
    let error = |rank, world| join(&id, rank, world, PATIENT).expect_err("refused");
    assert!(matches!(error(0, 0), BootstrapError::WorldSize { world: 0 }));
    assert!(matches!(error(0, 1 << 20), BootstrapError::WorldSize { .. }));
    assert!(matches!(error(1, 1), BootstrapError::RankOutOfRange { rank: 1, world: 1 }));
}

#[test]
fn missing_ranks_are_named() {
    for joined in join_each(&[(0, 4), (2, 4)], Duration::from_millis(700)) {
        let Refusal::Missing { world: 4, missing, .. } = refusal(&joined) else {
            panic!("{}", refusal(&joined));
        };
        assert_eq!(missing.to_string(), "ranks 1, 3");
    }
}

#[test]
fn a_late_rank_learns_why_there_is_no_job() {
    let id = UniqueId::new().expect("a unique id");
    let timeout = Duration::from_millis(1500);
    let first = join(&id, 0, 2, timeout);
    assert!(matches!(refusal(&first), Refusal::Missing { .. }));
    let late = join(&id, 1, 2, PATIENT);
    assert!(matches!(refusal(&late), Refusal::Missing { .. }));
}

#[test]
fn a_rank_too_many_does_not_disturb_the_others() {
    let id = UniqueId::new().expect("a unique id");
    let members = thread::scope(|scope| {
        let threads = [0, 1].map(|rank| {
            scope.spawn({
                let id = &id;
                move || join(id, rank, 2, PATIENT)
            })
        });
        threads.map(|thread| thread.join().expect("no panic").expect("joined"))
    });
    let third = join(&id, 1, 2, PATIENT);
    assert!(matches!(refusal(&third), Refusal::DuplicateRank { rank: 1, .. }));
    members[0].0.control().report(Report::Aborted { reason: "test".into() });
    assert_eq!(next(&members[1].1), Notice::Aborted { rank: 0, reason: "test".into() });
}

#[test]
fn a_wrong_secret_does_not_come_in() {
    let id = UniqueId::new().expect("a unique id");
    let other = UniqueId::new().expect("a unique id");
    // The same root, by another job's secret.
    let mut bytes = id.to_bytes();
    bytes[8..40].copy_from_slice(&other.to_bytes()[8..40]);
    bytes[8] ^= 1;
    let checksum = blake3::hash(&bytes[..120]);
    bytes[120..].copy_from_slice(&checksum.as_bytes()[..8]);
    let forged = UniqueId::from_bytes(&bytes).expect("sound bytes");
    let error = join(&forged, 0, 2, Duration::from_millis(300)).expect_err("refused");
    assert!(matches!(error, BootstrapError::RootUnreachable { rank: 0, .. }), "{error}");
}

#[test]
fn an_unreachable_root_is_named() {
    // A port that nobody listens at: it was free a moment ago.
    let port = std::net::TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .expect("a port")
        .port();
    let id = UniqueId::new().expect("a unique id");
    let mut bytes = id.to_bytes();
    bytes[56..58].copy_from_slice(&port.to_le_bytes());
    let checksum = blake3::hash(&bytes[..120]);
    bytes[120..].copy_from_slice(&checksum.as_bytes()[..8]);
    let id = UniqueId::from_bytes(&bytes).expect("sound bytes");
    let error = join(&id, 1, 2, Duration::from_millis(300)).expect_err("nobody there").to_string();
    assert!(error.contains("the unique id") && error.contains(&port.to_string()), "{error}");
}

#[test]
fn reports_reach_all_others() {
    let members = join_world(4);
    members[2].0.control().report(Report::Broken { reason: "link with rank 1".into() });
    for rank in [0, 1, 3] {
        let expected = Notice::Broken { rank: 2, reason: "link with rank 1".into() };
        assert_eq!(next(&members[rank].1), expected);
    }
    assert!(members[2].1.try_recv().is_err(), "not to the one who says it");
}

/// A link breaks at both ends at once: the root reads either question while it answers the other.
#[test]
fn two_ranks_may_ask_about_each_other() {
    let id = UniqueId::new().expect("a unique id");
    let (tell, entered) = channel();
    let (release, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    // Holds up the one thread that serves the root and all ranks of this process.
    let hold: OnNotice = Arc::new(move |_| {
        let _ = tell.send(());
        let _ = wait.lock().expect("no panic").recv_timeout(PATIENT);
    });
    let mut members: Vec<(Membership, Receiver<Notice>)> = Vec::new();
    let third = thread::scope(|scope| {
        let third = scope.spawn(|| {
            let options = Options {
                timeout: PATIENT,
                on_notice: hold,
                interfaces: None,
                settings: 0,
                heartbeat: None,
                encrypt: false,
            };
            Membership::join(&id, 2, 3, &options).expect("joined")
        });
        let others: Vec<_> = (0..2)
            .map(|rank| {
                scope.spawn({
                    let id = &id;
                    move || join(id, rank, 3, PATIENT)
                })
            })
            .collect();
        for other in others {
            members.push(other.join().expect("no panic").expect("joined"));
        }
        third.join().expect("no panic")
    });
    members[0].0.control().report(Report::Broken { reason: "x".into() });
    entered.recv_timeout(PATIENT).expect("rank 2 hears it");
    assert!(members[0].0.inquire(1) && members[1].0.inquire(0));
    drop(release);
    for (rank, (_, notices)) in members.iter().enumerate() {
        let answer = Notice::Present { rank: 1 - rank };
        while next(notices) != answer {}
    }
    drop(third);
}

#[test]
fn a_drop_says_goodbye() {
    let mut members = join_world(3);
    let (gone, _) = members.remove(1);
    drop(gone);
    for (_, notices) in &members {
        assert_eq!(next(notices), Notice::Left { rank: 1 });
    }
}

#[test]
fn split_communicators_share_the_control_connection_and_hear_their_own() {
    let members = join_world(4);
    let split = |rank: usize, order: &[usize]| {
        let (sender, receiver) = channel();
        let on_notice = Arc::new(move |notice| {
            let _ = sender.send(notice);
        });
        (members[rank].0.split(order, 7, on_notice), receiver)
    };
    let (three, three_notices) = split(3, &[3, 1]);
    let (one, one_notices) = split(1, &[3, 1]);
    let (three, one) = (three.expect("a member"), one.expect("a member"));
    assert!(split(0, &[3, 1]).0.is_none(), "not among them");
    assert!(split(3, &[3, 3]).0.is_none() && split(3, &[3, 9]).0.is_none());
    assert_eq!((three.rank(), one.rank(), one.world()), (0, 1, 2));
    assert_eq!(three.tag(), one.tag());
    assert_ne!(one.tag(), members[1].0.tag());
    assert_eq!(one.members()[0].rank, 0);

    one.control().report(Report::Broken { reason: "x".into() });
    assert_eq!(next(&three_notices), Notice::Broken { rank: 1, reason: "x".into() });
    assert!(members[0].1.try_recv().is_err(), "the parent is sound");
    // A child's child.
    let grandchild = three.split(&[1, 0], 0, Arc::new(|_| {})).expect("a member");
    assert_eq!(grandchild.rank(), 1);
    drop((three, grandchild));
    let mut members = members;
    drop(members.remove(3));
    assert_eq!(next(&one_notices), Notice::Left { rank: 0 }, "renumbered");
}

#[test]
fn streams_connect_ranks_pairwise() {
    use std::io::{Read, Write};
    let members = join_world(3);
    let deadline = Instant::now() + PATIENT;
    let barrier = Barrier::new(3);
    thread::scope(|scope| {
        for (rank, (membership, _)) in members.iter().enumerate() {
            let barrier = &barrier;
            scope.spawn(move || {
                for peer in (0..3).filter(|peer| *peer != rank) {
                    for index in 0..2 {
                        let mut stream = membership
                            .peers()
                            .stream(peer, index, deadline)
                            .expect("connected")
                            .stream;
                        stream.write_all(&[rank as u8, index as u8]).expect("sent");
                        let mut got = [0; 2];
                        stream.read_exact(&mut got).expect("received");
                        assert_eq!(got, [peer as u8, index as u8]);
                    }
                }
                barrier.wait();
            });
        }
    });
}

/// The higher rank need not wait for the lower one's call, whatever that one is doing.
#[test]
fn a_stream_is_there_before_the_lower_rank_asks_for_it() {
    use std::io::{Read, Write};
    let members = join_world(2);
    let [zero, one] = [0, 1].map(|rank| members[rank].0.peers());
    let mut offered = one.stream(0, 3, Instant::now() + PATIENT).expect("connected").stream;
    offered.write_all(b"from one").expect("sent");
    let mut taken = zero.stream(1, 3, Instant::now() + PATIENT).expect("connected").stream;
    taken.write_all(b"from zero").expect("sent");
    drop(taken.shutdown(std::net::Shutdown::Write));
    let mut got = [0; 8];
    taken.read_exact(&mut got).expect("received");
    assert_eq!(&got, b"from one");
    let mut rest = Vec::new();
    offered.read_to_end(&mut rest).expect("received");
    assert_eq!(rest, b"from zero", "and nothing before it");
}

/// The lower rank comes at about the time at which the higher one loses patience, a little before or after.
#[test]
fn two_that_connect_at_once_agree_on_one_stream() {
    use std::io::{Read, Write};
    let members = join_world(2);
    let deadline = Instant::now() + PATIENT;
    thread::scope(|scope| {
        for (rank, (membership, _)) in members.iter().enumerate() {
            scope.spawn(move || {
                for index in 0..40_u8 {
                    if rank == 0 {
                        thread::sleep(Duration::from_micros(17_000 + 200 * u64::from(index)));
                    }
                    let peers = membership.peers();
                    let wire = peers.stream(1 - rank, index.into(), deadline);
                    let mut stream = wire.expect("connected").stream;
                    stream.write_all(&[rank as u8, index]).expect("sent");
                    let mut got = [0; 2];
                    stream.read_exact(&mut got).expect("received");
                    assert_eq!(got, [1 - rank as u8, index]);
                }
            });
        }
    });
}

/// The higher rank has taken the stream that the lower one has opened. Whoever asks for it once more waits for ever.
fn use_up(lower: &Membership, higher: &Membership) {
    let deadline = Instant::now() + PATIENT;
    thread::scope(|scope| {
        let connecting = scope.spawn(|| lower.peers().stream(higher.rank(), 0, deadline));
        higher.peers().stream(lower.rank(), 0, deadline).expect("connected");
        connecting.join().expect("no panic").expect("connected");
    });
}

#[test]
fn waiting_for_a_stream_ends_when_the_peer_leaves() {
    let mut members = join_world(2);
    let (one, _) = members.remove(1);
    let (zero, _) = members.remove(0);
    use_up(&zero, &one);
    let waiter =
        thread::spawn(move || one.peers().stream(0, 0, Instant::now() + PATIENT).map(drop));
    drop(zero);
    let error = waiter.join().expect("no panic").expect_err("gone");
    assert!(matches!(error, LinkError::Closed { peer: 0, .. }), "{error}");
}

#[test]
fn waiting_for_a_stream_ends_when_the_communicator_fails() {
    for by_report in [true, false] {
        let mut members = join_world(3);
        let (two, notices) = members.remove(2);
        use_up(&members[0].0, &two);
        let peers = two.peers().clone();
        let waiter =
            thread::spawn(move || peers.stream(0, 0, Instant::now() + 10 * PATIENT).map(drop));
        if by_report {
            members[1].0.control().report(Report::Broken { reason: "test".into() });
            assert_eq!(next(&notices), Notice::Broken { rank: 1, reason: "test".into() });
        } else {
            two.peers().interrupt();
        }
        let error = waiter.join().expect("no panic").expect_err("failed");
        assert!(error.to_string().contains("rank 0"), "{error}");
        let LinkError::Io { source, .. } = error else { panic!("{error}") };
        assert_eq!(source.to_string(), "the communicator has failed");
    }
}

#[test]
fn segments_are_handed_over_also_to_who_asks_too_early() {
    use std::os::fd::{AsFd, OwnedFd};
    let members = join_world(2);
    let deadline = Instant::now() + PATIENT;
    let memory = |name: &str| -> OwnedFd {
        let fd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        rustix::io::write(&fd, name.as_bytes()).expect("written");
        fd
    };
    let content = |fd: &OwnedFd| {
        let mut buffer = [0; 16];
        let count = rustix::io::pread(fd.as_fd(), &mut buffer, 0).expect("read");
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    };
    let fds = [memory("zero"), memory("one")];
    let serve: Segments = Arc::new(move |id| match fds.get(id as usize) {
        Some(fd) => fd.try_clone().map(Some),
        None => Ok(None),
    });
    let [zero, one] = [0, 1].map(|rank| members[rank].0.peers());
    zero.serve_segments(serve.clone());
    assert_eq!(content(&one.segment(0, 1, deadline).expect("a segment")), "one");
    assert!(one.segment(0, 2, deadline).is_err(), "there is none");
    thread::scope(|scope| {
        let waiter = scope.spawn(move || zero.segment(1, 0, deadline));
        one.serve_segments(serve);
        assert_eq!(content(&waiter.join().expect("no panic").expect("a segment")), "zero");
    });
}
