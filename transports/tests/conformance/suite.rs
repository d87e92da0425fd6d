//! The tests, generic over the transport. A test drives both ends from one thread where it can, so that a failure repeats.

use std::ops::DerefMut;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use annulus_plan::{Fingerprint, MIN_LINK_CHUNKS, Rank};
use annulus_transports::link::{Fabric, LinkError, RecvLink, SendLink};
use annulus_transports::memory::Store;
use annulus_transports::wait::{Next, Waiter};

/// How a transport comes into the suite.
pub(crate) trait Harness: Sync {
    /// The fabrics of a fresh communicator.
    fn world(&self, ranks: usize) -> World;

    /// Whether a receiver can see memory that [`World::allocate`] gave its peer.
    const REFERENCES: bool;
}

pub(crate) struct World {
    pub(crate) fabrics: Vec<Arc<dyn Fabric>>,
    /// Memory of a rank, of the kind that peers see if they can see any.
    pub(crate) allocate: Box<dyn Fn(Rank, usize) -> Buffer + Sync>,
}

pub(crate) type Buffer = Box<dyn DerefMut<Target = [u8]> + Send>;

type Ends = (Box<dyn SendLink>, Box<dyn RecvLink>);

/// Instantiates every test for one transport.
macro_rules! conformance {
    ($name:ident, $harness:expr) => {
        conformance!($name, $harness;
            delivers_messages_in_order,
            delivers_empty_pieces,
            cuts_large_messages_into_pieces,
            blocks_when_full_and_resumes,
            holds_two_chunks_without_a_receiver,
            reservations_arrive_as_committed,
            reservations_without_commit_have_no_effect,
            reservations_have_the_promised_sizes,
            shows_whose_call_a_piece_belongs_to,
            refuses_a_piece_of_another_call,
            refuses_a_piece_longer_than_its_message,
            pieces_are_consumed_bit_by_bit,
            references_are_idle_once_read,
            references_and_copies_keep_their_order,
            links_between_the_same_ranks_are_separate,
            carries_both_directions_at_once,
            wakes_a_sleeper,
            opens_all_pairs,
            notices_that_the_sender_has_gone,
            notices_that_the_receiver_has_gone,
            agrees_with_a_queue,
        );
    };
    ($name:ident, $harness:expr; $($test:ident),* $(,)?) => {
        mod $name {
            use super::*;
            $(#[test] fn $test() { suite::$test(&$harness); })*
        }
    };
}
pub(crate) use conformance;

pub(crate) fn delivers_messages_in_order<H: Harness>(harness: &H) {
    let world = harness.world(2);
    let (mut sender, mut receiver) = link(&world, 0, 1, 0);
    let sizes = [1, 2, 7, 8, 31, 32, 33, 63, 64, 65, 100, 255, 256, 257, 1000, 5000, 70_000];
    thread::scope(|scope| {
        scope.spawn(|| {
            for (number, &size) in sizes.iter().cycle().take(200).enumerate() {
                send(&mut *sender, &call(number), &pattern(number, size), usize::MAX);
            }
        });
        for (number, &size) in sizes.iter().cycle().take(200).enumerate() {
            assert_eq!(receive(&mut *receiver, &call(number), size), pattern(number, size));
        }
    });
}

pub(crate) fn delivers_empty_pieces<H: Harness>(harness: &H) {
    let world = harness.world(2);
    let (mut sender, mut receiver) = link(&world, 0, 1, 0);
    for number in 0..50 {
        assert!(receiver.try_peek().expect("open").is_none());
        send(&mut *sender, &call(number), &[], 64);
        if number % 2 == 0 {
            assert_eq!(receive(&mut *receiver, &call(number), 0), []);
        } else {
            let bytes = peek(&mut *receiver, &mut *sender, |piece, fingerprint| {
                assert_eq!(fingerprint, call(number));
                piece.len()
            });
            assert_eq!(bytes, 0);
            receiver.consume(0);
        }
    }
}

pub(crate) fn cuts_large_messages_into_pieces<H: Harness>(harness: &H) {
    let world = harness.world(2);
    let (mut sender, mut receiver) = link(&world, 0, 1, 0);
    for (number, (size, max_piece)) in
        [(3 << 20, 4096), (100_000, 64), (1 << 20, usize::MAX), (5000, 8), (99_999, 1000)]
            .into_iter()
            .enumerate()
    {
        let message = pattern(number, size);
        thread::scope(|scope| {
            scope.spawn(|| send(&mut *sender, &call(number), &message, max_piece));
            let mut received = Vec::new();
            while received.len() < size {
                if let Some(piece) = receiver.try_peek().expect("open") {
                    assert_eq!(piece.fingerprint, call(number));
                    assert!(!piece.bytes.is_empty() && piece.bytes.len() <= max_piece);
                    let bytes = piece.bytes.len();
                    received.extend_from_slice(piece.bytes);
                    receiver.consume(bytes);
                } else {
                    thread::yield_now();
                }
            }
            assert!(received == message);
        });
    }
}

pub(crate) fn blocks_when_full_and_resumes<H: Harness>(harness: &H) {
    let world = harness.world(2);
    let chunk = world.fabrics[0].max_chunk_bytes();
    let (mut sender, mut receiver) = link(&world, 0, 1, 0);
    for round in 0..3 {
        let message = pattern(round, 32 << 20);
        let mut sent = 0;
        while let Some(bytes) = try_send(&mut *sender, &call(round), &message[sent..], chunk) {
            sent += bytes;
            assert!(sent < message.len(), "a link holds an unbounded number of bytes");
        }
        let message = &message[..sent + 3 * chunk];
        let mut received = vec![0; message.len()];
        let mut done = 0;
        while done < message.len() {
            if sent < message.len() {
                sent += try_send(&mut *sender, &call(round), &message[sent..], chunk).unwrap_or(0);
            }
            sender.is_idle().expect("open");
            done += receiver
                .try_recv(&call(round), &mut received[done..], Store::Cached)
                .expect("open")
                .unwrap_or(0);
        }
        assert!(received == message);
    }
}

pub(crate) fn holds_two_chunks_without_a_receiver<H: Harness>(harness: &H) {
    let world = harness.world(2);
    let chunk = world.fabrics[0].max_chunk_bytes();
    let (mut sender, mut receiver) = link(&world, 0, 1, 0);
    // Different sizes, so that the chunks begin at many places of a ring.
    for number in 0..100 {
        let sizes = [chunk, chunk - number % chunk, 1 + number * 97 % chunk];
        let sizes = [sizes[number % 3], sizes[number / 3 % 3]];
        for size in sizes {
            let message = pattern(number, size);
            let mut sent = 0;
            let mut patience = 10_000;
            while sent < size {
                match try_send(&mut *sender, &call(number), &message[sent..], chunk) {
                    Some(bytes) => sent += bytes,
                    None => patience -= 1,
                }
                sender.is_idle().expect("open");
                receiver.pump().expect("open");
                assert!(patience > 0, "{sent} of {size} bytes fit with {MIN_LINK_CHUNKS} chunks");
            }
        }
        for size in sizes {
            assert!(
                drain(&mut *receiver, &mut *sender, &call(number), size) == pattern(number, size)
            );
        }
    }
}

pub(crate) fn reservations_arrive_as_committed<H: Harness>(harness: &H) {
    let world = harness.world(2);
    let (mut sender, mut receiver) = link(&world, 0, 1, 0);
    for (number, max) in (1..300).chain([1000, 10_000, 100_000, 1 << 20]).enumerate() {
        for store in [Store::Cached, Store::NonTemporal] {
            let room = reserve(&mut *sender, max);
            let room = room.expect("an empty link has room");
            // Now and then less than was reserved.
            let bytes = if number % 5 == 4 { room.len().div_ceil(2) } else { room.len() };
            room[..bytes].copy_from_slice(&pattern(number, bytes));
            sender.commit(&call(number), bytes, store).expect("open");
            assert!(
                drain(&mut *receiver, &mut *sender, &call(number), bytes) == pattern(number, bytes)
            );
        }
    }
}

pub(crate) fn reservations_without_commit_have_no_effect<H: Harness>(harness: &H) {
    let world = harness.world(2);
    let (mut sender, mut receiver) = link(&world, 0, 1, 0);
    for number in 0..100 {
        for max in [8, 100, 1000] {
            reserve(&mut *sender, max).expect("an empty link has room").fill(0xff);
            assert!(receiver.try_peek().expect("open").is_none());
        }
        let message = pattern(number, 1 + number * 3);
        send(&mut *sender, &call(number), &message, usize::MAX);
        assert_eq!(drain(&mut *receiver, &mut *sender, &call(number), message.len()), message);
    }
}

pub(crate) fn reservations_have_the_promised_sizes<H: Harness>(harness: &H) {
    let world = harness.world(2);
    let (mut sender, mut receiver) = link(&world, 0, 1, 0);
    for (number, max) in (1..400).map(|n| n * 7).enumerate() {
        let bytes = match reserve(&mut *sender, max) {
            Some(room) => {
                let bytes = room.len();
                assert!(bytes <= max && bytes >= max.min(56), "{bytes} for {max}");
                assert!(bytes == max || bytes.is_multiple_of(8), "{bytes} for {max}");
                room.copy_from_slice(&pattern(number, bytes));
                bytes
            }
            None => panic!("an empty link has room"),
        };
        sender.commit(&call(number), bytes, Store::Cached).expect("open");
        assert_eq!(
            drain(&mut *receiver, &mut *sender, &call(number), bytes),
            pattern(number, bytes)
        );
    }
}

pub(crate) fn shows_whose_call_a_piece_belongs_to<H: Harness>(harness: &H) {
    let world = harness.world(2);
    let (mut sender, mut receiver) = link(&world, 0, 1, 0);
    let theirs = Fingerprint { call: u64::MAX, order: 0x0123_4567_89ab_cdef, tag: u32::MAX };
    for size in [0, 5, 32, 200] {
        send(&mut *sender, &theirs, &pattern(1, size), 4096);
        peek(&mut *receiver, &mut *sender, |_, fingerprint| assert_eq!(fingerprint, theirs));
        drain(&mut *receiver, &mut *sender, &theirs, size);
    }
}

pub(crate) fn refuses_a_piece_of_another_call<H: Harness>(harness: &H) {
    for differing in [
        Fingerprint { call: 1, ..call(0) },
        Fingerprint { order: 1, ..call(0) },
        Fingerprint { tag: 1, ..call(0) },
    ] {
        let world = harness.world(2);
        let (mut sender, mut receiver) = link(&world, 0, 1, 0);
        send(&mut *sender, &differing, &pattern(0, 40), 4096);
        match try_receive(&mut *receiver, &mut *sender, &call(0), &mut [0; 40]) {
            Err(LinkError::Mismatch { peer: 0, theirs, ours }) => {
                assert_eq!((theirs, ours), (differing, call(0)));
            }
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn refuses_a_piece_longer_than_its_message<H: Harness>(harness: &H) {
    let chunk = harness.world(2).fabrics[0].max_chunk_bytes().min(1 << 16);
    for (sent, room) in [(40, 39), (8, 0), (chunk, chunk - 1)] {
        let world = harness.world(2);
        let (mut sender, mut receiver) = link(&world, 0, 1, 0);
        send(&mut *sender, &call(0), &pattern(0, sent), usize::MAX);
        let mut dst = vec![0; room];
        let mut done = 0;
        let error = loop {
            match try_receive(&mut *receiver, &mut *sender, &call(0), &mut dst[done..]) {
                Ok(bytes) => done += bytes,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, LinkError::Length { peer: 0, .. }), "{error:?}");
    }
}

pub(crate) fn pieces_are_consumed_bit_by_bit<H: Harness>(harness: &H) {
    let world = harness.world(2);
    let (mut sender, mut receiver) = link(&world, 0, 1, 0);
    for (number, size) in [24, 200, 30, 199].into_iter().cycle().take(40).enumerate() {
        let message = pattern(number, size);
        send(&mut *sender, &call(number), &message, usize::MAX);
        let mut received = vec![];
        while received.len() < size {
            let step = 8.min(size - received.len());
            peek(&mut *receiver, &mut *sender, |bytes, _| {
                received.extend_from_slice(&bytes[..step])
            });
            receiver.consume(step);
        }
        assert_eq!(received, message);
    }
}

pub(crate) fn references_are_idle_once_read<H: Harness>(harness: &H) {
    let world = harness.world(2);
    let (mut sender, mut receiver) = link(&world, 0, 1, 0);
    // Larger than the link itself, sometimes.
    for (number, size) in [64, 4096, 1 << 20, 40_000].into_iter().cycle().take(12).enumerate() {
        let mut buffer = (world.allocate)(0, size + 64);
        let bytes = &mut buffer[(number * 8) % 64..][..size];
        bytes.copy_from_slice(&pattern(number, size));
        assert_eq!(sender.can_reference(bytes.as_ptr(), bytes.len()), H::REFERENCES);
        // SAFETY: `buffer` is neither written nor dropped before the link is idle.
        let taken = unsafe { sender.try_send_reference(&call(number), bytes) }.expect("open");
        assert_eq!(taken.is_some(), H::REFERENCES);
        if !H::REFERENCES {
            return;
        }
        assert!(!sender.is_idle().expect("open"));
        peek(&mut *receiver, &mut *sender, |seen, fingerprint| {
            assert_eq!(fingerprint, call(number));
            assert!(seen == bytes);
        });
        receiver.consume(size - 8);
        assert!(!sender.is_idle().expect("open"), "8 bytes are still to be read");
        receiver.consume(8);
        assert!(sender.is_idle().expect("open"));
    }
}

pub(crate) fn references_and_copies_keep_their_order<H: Harness>(harness: &H) {
    if !H::REFERENCES {
        return;
    }
    let world = harness.world(2);
    let (mut sender, mut receiver) = link(&world, 0, 1, 0);
    let mut buffer = (world.allocate)(0, 4096);
    buffer.copy_from_slice(&pattern(7, 4096));
    for _ in 0..20 {
        send(&mut *sender, &call(1), &pattern(1, 50), usize::MAX);
        // SAFETY: `buffer` lives and keeps its contents until after both ends.
        unsafe { sender.try_send_reference(&call(2), &buffer) }.expect("open").expect("room");
        send(&mut *sender, &call(3), &pattern(3, 20), usize::MAX);
        assert_eq!(receive(&mut *receiver, &call(1), 50), pattern(1, 50));
        assert!(!sender.is_idle().expect("open"));
        assert!(receive(&mut *receiver, &call(2), 4096) == pattern(7, 4096));
        assert_eq!(receive(&mut *receiver, &call(3), 20), pattern(3, 20));
        assert!(sender.is_idle().expect("open"));
    }
}

pub(crate) fn links_between_the_same_ranks_are_separate<H: Harness>(harness: &H) {
    let world = harness.world(2);
    let mut links: Vec<_> = (0..8).map(|index| link(&world, 0, 1, index)).collect();
    for round in 0..10 {
        for (index, (sender, _)) in links.iter_mut().enumerate() {
            send(&mut **sender, &call(index), &pattern(index + round, 60 + index), usize::MAX);
        }
        for (index, (sender, receiver)) in links.iter_mut().enumerate().rev() {
            let got = drain(&mut **receiver, &mut **sender, &call(index), 60 + index);
            assert_eq!(got, pattern(index + round, 60 + index));
        }
    }
}

pub(crate) fn carries_both_directions_at_once<H: Harness>(harness: &H) {
    let world = harness.world(2);
    let (there_in, there_out) = link(&world, 0, 1, 0);
    let (back_in, back_out) = link(&world, 1, 0, 0);
    const BYTES: usize = 4 << 20;
    thread::scope(|scope| {
        for (rank, mut sender, mut receiver) in [(0, there_in, back_out), (1, back_in, there_out)] {
            let fabric = &world.fabrics[rank];
            scope.spawn(move || {
                let (ours, theirs) = (pattern(rank, BYTES), pattern(1 - rank, BYTES));
                let (mut sent, mut received, mut got) = (0, 0, vec![0; BYTES]);
                let mut waiter = Waiter::new(false);
                let mut sleeper = fabric.sleeper();
                let mut announced = false;
                while received < BYTES || sent < BYTES || !sender.is_idle().expect("open") {
                    let mut moved = 0;
                    if sent < BYTES {
                        moved += try_send(&mut *sender, &call(rank), &ours[sent..], 16 << 10)
                            .unwrap_or(0);
                        sent += moved;
                    }
                    if received < BYTES {
                        let rest = &mut got[received..];
                        let bytes = receiver.try_recv(&call(1 - rank), rest, Store::Cached);
                        let bytes = bytes.expect("open").unwrap_or(0);
                        received += bytes;
                        moved += bytes;
                    }
                    if moved > 0 {
                        waiter.progressed();
                        if std::mem::take(&mut announced) {
                            sleeper.retract();
                        }
                    } else if let Next::Sleep(slice) = waiter.idle() {
                        if std::mem::replace(&mut announced, true) {
                            sleeper.sleep(slice);
                            announced = false;
                        } else {
                            sleeper.announce();
                        }
                    }
                }
                assert!(got == theirs);
            });
        }
    });
}

/// The receiver sleeps long enough for each lost ring to be felt: were rings lost as a rule, the test
/// would take minutes.
pub(crate) fn wakes_a_sleeper<H: Harness>(harness: &H) {
    const MESSAGES: usize = 200;
    let world = harness.world(2);
    let (mut sender, mut receiver) = link(&world, 0, 1, 0);
    let (acknowledge, acknowledged) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..MESSAGES {
                // Sometimes at once, sometimes when the receiver is asleep.
                if number % 4 != 0 {
                    thread::sleep(Duration::from_micros(100 * (number % 4) as u64));
                }
                send(&mut *sender, &call(number), &pattern(number, 20), usize::MAX);
                while !sender.is_idle().expect("open") {
                    thread::yield_now();
                }
                acknowledged.recv().expect("the receiver goes on");
            }
        });
        let mut sleeper = world.fabrics[1].sleeper();
        for number in 0..MESSAGES {
            let mut got = [0; 20];
            loop {
                sleeper.announce();
                let bytes =
                    receiver.try_recv(&call(number), &mut got, Store::Cached).expect("open");
                if bytes.is_some() {
                    sleeper.retract();
                    break;
                }
                sleeper.sleep(Duration::from_secs(2));
            }
            assert_eq!(got[..], pattern(number, 20));
            acknowledge.send(()).expect("the sender goes on");
        }
    });
}

pub(crate) fn opens_all_pairs<H: Harness>(harness: &H) {
    const RANKS: usize = 4;
    let world = harness.world(RANKS);
    for (rank, fabric) in world.fabrics.iter().enumerate() {
        assert_eq!((fabric.rank(), fabric.world()), (rank, RANKS));
    }
    let pairs = (0..RANKS).flat_map(|from| (0..RANKS).map(move |to| (from, to)));
    // A link lives as long as its communicator: both directions of a pair may share a connection.
    let mut open = vec![];
    for (from, to) in pairs.filter(|(from, to)| from != to) {
        let (mut sender, mut receiver) = link(&world, from, to, 0);
        let number = from * RANKS + to;
        send(&mut *sender, &call(number), &pattern(number, 100), usize::MAX);
        let got = drain(&mut *receiver, &mut *sender, &call(number), 100);
        assert_eq!(got, pattern(number, 100));
        open.push((sender, receiver));
    }
}

pub(crate) fn notices_that_the_sender_has_gone<H: Harness>(harness: &H) {
    let world = harness.world(2);
    let (mut sender, mut receiver) = link(&world, 0, 1, 0);
    send(&mut *sender, &call(0), &pattern(0, 100), usize::MAX);
    while !sender.is_idle().expect("open") {}
    drop(sender);
    assert_eq!(
        receive(&mut *receiver, &call(0), 100),
        pattern(0, 100),
        "what was sent still arrives"
    );
    let error = loop {
        match receiver.try_peek() {
            Ok(None) => thread::yield_now(),
            Ok(Some(piece)) => panic!("{piece:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LinkError::Closed { peer: 0, .. }), "{error:?}");
}

pub(crate) fn notices_that_the_receiver_has_gone<H: Harness>(harness: &H) {
    let world = harness.world(2);
    let (mut sender, receiver) = link(&world, 0, 1, 0);
    drop(receiver);
    let message = pattern(0, 1 << 16);
    let error = loop {
        match sender.try_send(&call(0), &message, 4096, Store::Cached) {
            Ok(_) => thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LinkError::Closed { peer: 1, .. }), "{error:?}");
}

/// Random operations at both ends in any order, against a queue of messages.
pub(crate) fn agrees_with_a_queue<H: Harness>(harness: &H) {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    #[derive(Clone, Debug)]
    enum Operation {
        Send { size: usize, max_piece: usize },
        Reserve { max: usize, commit: usize },
        Reference { size: usize },
        Peek { consume: usize },
        Receive,
    }

    let size = || prop_oneof![0_usize..80, 0_usize..2000, 0_usize..20_000];
    let operation = prop_oneof![
        3 => (size(), prop_oneof![1_usize..100, 1_usize..30_000])
            .prop_map(|(size, max_piece)| Operation::Send { size, max_piece }),
        2 => (size(), size()).prop_map(|(max, commit)| Operation::Reserve { max: max + 1, commit }),
        1 => size().prop_map(|size| Operation::Reference { size }),
        4 => size().prop_map(|consume| Operation::Peek { consume }),
        4 => Just(Operation::Receive),
    ];
    let mut runner =
        TestRunner::new(Config { cases: 48, failure_persistence: None, ..Config::default() });
    let run = runner.run(&prop::collection::vec(operation, 0..120), |operations| {
        let world = harness.world(2);
        let (mut sender, mut receiver) = link(&world, 0, 1, 0);
        // Messages that have begun, with what has not been received of each; and the last one's unsent rest.
        let mut queue = std::collections::VecDeque::<(Fingerprint, Vec<u8>)>::new();
        let mut unsent: Option<(Fingerprint, Vec<u8>, usize)> = None;
        let mut lent: Vec<Buffer> = vec![];
        for (number, operation) in operations.into_iter().enumerate() {
            let fingerprint = call(number);
            if let Some((fingerprint, rest, max_piece)) = unsent.take() {
                let sent = try_send(&mut *sender, &fingerprint, &rest, max_piece).unwrap_or(0);
                if sent < rest.len() {
                    unsent = Some((fingerprint, rest[sent..].to_vec(), max_piece));
                }
            }
            match operation {
                Operation::Send { size, max_piece } if unsent.is_none() => {
                    let message = pattern(number, size);
                    if let Some(sent) = try_send(&mut *sender, &fingerprint, &message, max_piece) {
                        if sent < size {
                            unsent = Some((fingerprint, message[sent..].to_vec(), max_piece));
                        }
                        queue.push_back((fingerprint, message));
                    }
                }
                Operation::Reserve { max, commit } if unsent.is_none() => {
                    if let Some(room) = reserve(&mut *sender, max) {
                        let commit = commit.min(room.len());
                        room.fill(0xee);
                        room[..commit].copy_from_slice(&pattern(number, commit));
                        sender.commit(&fingerprint, commit, Store::Cached).expect("open");
                        queue.push_back((fingerprint, pattern(number, commit)));
                    }
                }
                Operation::Reference { size } if unsent.is_none() && H::REFERENCES => {
                    let mut buffer = (world.allocate)(0, size.max(1));
                    buffer[..size].copy_from_slice(&pattern(number, size));
                    // SAFETY: `buffer` goes to `lent`, which outlives both ends' use of it.
                    let taken = unsafe { sender.try_send_reference(&fingerprint, &buffer[..size]) };
                    if taken.expect("open").is_some() {
                        queue.push_back((fingerprint, pattern(number, size)));
                        lent.push(buffer);
                    }
                }
                Operation::Peek { consume } => {
                    if let Some(piece) = receiver.try_peek().expect("open") {
                        let (theirs, rest) = queue.front_mut().expect("nothing came of nothing");
                        prop_assert_eq!(piece.fingerprint, *theirs);
                        let shown = piece.bytes.len();
                        prop_assert!(rest.starts_with(piece.bytes));
                        let consume = consume.min(shown);
                        if consume > 0 || shown == 0 {
                            receiver.consume(consume);
                            rest.drain(..consume);
                            if rest.is_empty() {
                                queue.pop_front();
                            }
                        }
                    }
                }
                Operation::Receive => {
                    if let Some((theirs, rest)) = queue.front_mut() {
                        let mut got = vec![0; rest.len()];
                        let bytes =
                            receiver.try_recv(theirs, &mut got, Store::Cached).expect("open");
                        if let Some(bytes) = bytes {
                            prop_assert_eq!(&got[..bytes], &rest[..bytes]);
                            rest.drain(..bytes);
                            if rest.is_empty() {
                                queue.pop_front();
                            }
                        }
                    } else {
                        prop_assert!(receiver.try_peek().expect("open").is_none());
                    }
                }
                _ => {}
            }
            sender.is_idle().expect("open");
        }
        while let Some((theirs, rest)) = queue.front_mut() {
            if let Some((fingerprint, bytes, max_piece)) = unsent.take() {
                let sent = try_send(&mut *sender, &fingerprint, &bytes, max_piece).unwrap_or(0);
                if sent < bytes.len() {
                    unsent = Some((fingerprint, bytes[sent..].to_vec(), max_piece));
                }
            }
            let mut got = vec![0; rest.len()];
            if let Some(bytes) = receiver.try_recv(theirs, &mut got, Store::Cached).expect("open") {
                prop_assert_eq!(&got[..bytes], &rest[..bytes]);
                rest.drain(..bytes);
                if rest.is_empty() {
                    queue.pop_front();
                }
            }
            sender.is_idle().expect("open");
        }
        prop_assert!(sender.is_idle().expect("open"));
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

/// Opens both ends of a link, each from a thread of its own: either may wait for the other.
fn link(world: &World, from: Rank, to: Rank, index: usize) -> Ends {
    let deadline = Instant::now() + Duration::from_secs(60);
    thread::scope(|scope| {
        let sender = scope.spawn(|| world.fabrics[from].open_send(to, index, deadline));
        let receiver = world.fabrics[to].open_recv(from, index, deadline).expect("opens");
        (sender.join().expect("no panic").expect("opens"), receiver)
    })
}

fn call(number: usize) -> Fingerprint {
    Fingerprint { call: 0x55, order: (number as u64) << 32, tag: 99 }
}

/// Repeats itself only after a prime number of bytes.
fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    const PERIOD: usize = 4093;
    let once = (0..bytes.min(PERIOD)).map(|at| ((at * 31) ^ (at >> 5) ^ (seed * 101)) as u8);
    let mut pattern: Vec<u8> = once.collect();
    while pattern.len() < bytes {
        pattern.extend_from_within(..(bytes - pattern.len()).min(PERIOD));
    }
    pattern
}

fn try_send(
    link: &mut dyn SendLink,
    call: &Fingerprint,
    bytes: &[u8],
    max_piece: usize,
) -> Option<usize> {
    let sent = link.try_send(call, bytes, max_piece, Store::Cached).expect("open");
    if let Some(sent) = sent {
        assert!(sent <= bytes.len().min(max_piece) && (sent > 0 || bytes.is_empty()));
    }
    sent
}

/// Sends all of `bytes`; someone else receives if that is more than fits.
fn send(link: &mut dyn SendLink, call: &Fingerprint, bytes: &[u8], max_piece: usize) {
    let mut sent = 0;
    loop {
        match try_send(link, call, &bytes[sent..], max_piece) {
            Some(more) => sent += more,
            None => thread::yield_now(),
        }
        if sent == bytes.len() {
            return;
        }
    }
}

fn reserve(link: &mut dyn SendLink, max: usize) -> Option<&mut [u8]> {
    link.try_reserve(max).expect("open")
}

/// Receives a message of `size` bytes that somebody else sends.
fn receive(link: &mut dyn RecvLink, call: &Fingerprint, size: usize) -> Vec<u8> {
    let mut got = vec![0; size];
    let mut done = 0;
    loop {
        match link.try_recv(call, &mut got[done..], Store::Cached).expect("open") {
            Some(bytes) => done += bytes,
            None => {
                thread::yield_now();
                continue;
            }
        }
        if done == size {
            return got;
        }
    }
}

/// Receives a message that has been sent, while its sender moves what it still holds.
fn drain(
    link: &mut dyn RecvLink,
    sender: &mut dyn SendLink,
    call: &Fingerprint,
    size: usize,
) -> Vec<u8> {
    let mut got = vec![0; size];
    let mut done = 0;
    loop {
        done += try_receive(link, sender, call, &mut got[done..]).expect("open");
        if done == size {
            return got;
        }
    }
}

fn try_receive(
    link: &mut dyn RecvLink,
    sender: &mut dyn SendLink,
    call: &Fingerprint,
    dst: &mut [u8],
) -> Result<usize, LinkError> {
    loop {
        if let Some(bytes) = link.try_recv(call, dst, Store::Cached)? {
            return Ok(bytes);
        }
        sender.is_idle().expect("open");
        thread::yield_now();
    }
}

/// Shows `look` the next bytes once they are there.
fn peek<T>(
    link: &mut dyn RecvLink,
    sender: &mut dyn SendLink,
    look: impl FnOnce(&[u8], Fingerprint) -> T,
) -> T {
    while link.try_peek().expect("open").is_none() {
        sender.is_idle().expect("open");
        thread::yield_now();
    }
    let piece = link.try_peek().expect("open").expect("still there");
    look(piece.bytes, piece.fingerprint)
}
