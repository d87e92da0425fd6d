//! Every piece says to which call it belongs, and goes to no other.

use annulus_plan::Fingerprint;
use annulus_transports::link::LinkError;

use super::Harness;
use super::ends::{call, drain, link, pattern, peek, send, try_receive};

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
