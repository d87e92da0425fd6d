//! Several links and ranks at once, sleepers, and peers that have gone.

use std::thread;
use std::time::Duration;

use annulus_transports::link::LinkError;
use annulus_transports::memory::Store;
use annulus_transports::wait::{Next, Waiter};

use super::Harness;
use super::ends::{call, drain, link, pattern, receive, send, try_send};

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
