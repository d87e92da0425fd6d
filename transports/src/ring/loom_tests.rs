//! Every interleaving of the two ends, within loom's bound on preemptions, of a ring so small that it fills and wraps.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p annulus-transports --lib loom_`

use std::ptr::NonNull;

use annulus_plan::Fingerprint;
use loom::thread;

use super::{Geometry, Peer, Reach, Reference, RingMemory, RingReceiver, RingSender};
use crate::link::{LinkError, RecvLink, SendLink};
use crate::memory::Store;

struct Nowhere;

impl Reach for Nowhere {
    fn name(&self, _: *const u8, _: usize) -> Option<Reference> {
        None
    }

    fn resolve(&mut self, _: Reference) -> Result<NonNull<u8>, LinkError> {
        unreachable!("nothing is sent by reference")
    }
}

fn model(test: fn(RingSender<Nowhere>, RingReceiver<Nowhere>)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let memory = RingMemory::new(Geometry::new(4, 256).expect("powers of two"));
        let peer = |rank| Peer { rank, doorbell: None, transport: "loom" };
        test(
            RingSender::new(memory.clone(), peer(1), Nowhere),
            RingReceiver::new(memory, peer(0), Nowhere),
        );
    });
}

fn call(number: u64) -> Fingerprint {
    Fingerprint { call: number, order: !number, tag: number as u32 }
}

fn send(link: &mut impl SendLink, number: u64, bytes: &[u8]) {
    while link.try_send(&call(number), bytes, 64, Store::Cached).expect("open").is_none() {
        thread::yield_now();
    }
}

fn receive(link: &mut impl RecvLink, number: u64, expected: &[u8]) {
    let mut got = [0; 64];
    loop {
        let bytes = link.try_recv(&call(number), &mut got, Store::Cached).expect("open");
        if let Some(bytes) = bytes {
            return assert_eq!(&got[..bytes], expected);
        }
        thread::yield_now();
    }
}

/// One piece more than there are lines: the sender reuses a line.
#[test]
fn loom_lines_are_reused_in_order() {
    model(|mut sender, mut receiver| {
        let there = thread::spawn(move || {
            for number in 0..5 {
                send(&mut sender, number, &[number as u8; 8]);
            }
            sender
        });
        for number in 0..5 {
            receive(&mut receiver, number, &[number as u8; 8]);
        }
        there.join().expect("no panic");
    });
}

/// More bytes than the data ring holds, in fewer pieces than there are lines on the way at once.
#[test]
fn loom_bytes_are_reused_in_order() {
    model(|mut sender, mut receiver| {
        let there = thread::spawn(move || {
            for number in 0..5 {
                send(&mut sender, number, &[number as u8; 64]);
            }
            sender
        });
        for number in 0..5 {
            receive(&mut receiver, number, &[number as u8; 64]);
        }
        there.join().expect("no panic");
    });
}

/// What was sent before the sender went arrives; then, and only then, its end is noticed.
#[test]
fn loom_a_closed_link_is_drained_first() {
    model(|mut sender, mut receiver| {
        let there = thread::spawn(move || {
            send(&mut sender, 0, &[1; 40]);
            send(&mut sender, 1, &[2; 4]);
        });
        receive(&mut receiver, 0, &[1; 40]);
        receive(&mut receiver, 1, &[2; 4]);
        there.join().expect("no panic");
        let gone =
            (0..1000).find_map(|_| receiver.try_peek().map(|piece| assert!(piece.is_none())).err());
        assert!(matches!(gone, Some(LinkError::Closed { peer: 0, .. })), "{gone:?}");
    });
}
