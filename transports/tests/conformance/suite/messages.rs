//! How messages travel: in order, in pieces, with back pressure, copied or written in place.

use std::thread;

use annulus_plan::MIN_LINK_CHUNKS;
use annulus_transports::memory::Store;

use super::Harness;
use super::ends::{call, drain, link, pattern, peek, receive, reserve, send, try_send};

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
