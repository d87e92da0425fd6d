//! Random operations against a model.

use annulus_plan::Fingerprint;
use annulus_transports::memory::Store;

use super::ends::{call, link, pattern, reserve, try_send};
use super::{Buffer, Harness};

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
