//! Both ends of a link, driven step by step.

use std::thread;
use std::time::{Duration, Instant};

use annulus_plan::{Fingerprint, Rank};
use annulus_transports::link::{LinkError, RecvLink, SendLink};
use annulus_transports::memory::Store;

use super::{Ends, World};

/// Opens both ends of a link, each from a thread of its own: either may wait for the other.
pub(super) fn link(world: &World, from: Rank, to: Rank, index: usize) -> Ends {
    let deadline = Instant::now() + Duration::from_secs(60);
    thread::scope(|scope| {
        let sender = scope.spawn(|| world.fabrics[from].open_send(to, index, deadline));
        let receiver = world.fabrics[to].open_recv(from, index, deadline).expect("opens");
        (sender.join().expect("no panic").expect("opens"), receiver)
    })
}

pub(super) fn call(number: usize) -> Fingerprint {
    Fingerprint { call: 0x55, order: (number as u64) << 32, tag: 99 }
}

/// Repeats itself only after a prime number of bytes.
pub(super) fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    const PERIOD: usize = 4093;
    let once = (0..bytes.min(PERIOD)).map(|at| ((at * 31) ^ (at >> 5) ^ (seed * 101)) as u8);
    let mut pattern: Vec<u8> = once.collect();
    while pattern.len() < bytes {
        pattern.extend_from_within(..(bytes - pattern.len()).min(PERIOD));
    }
    pattern
}

pub(super) fn try_send(
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
pub(super) fn send(link: &mut dyn SendLink, call: &Fingerprint, bytes: &[u8], max_piece: usize) {
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

pub(super) fn reserve(link: &mut dyn SendLink, max: usize) -> Option<&mut [u8]> {
    link.try_reserve(max).expect("open")
}

/// Receives a message of `size` bytes that somebody else sends.
pub(super) fn receive(link: &mut dyn RecvLink, call: &Fingerprint, size: usize) -> Vec<u8> {
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
pub(super) fn drain(
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

pub(super) fn try_receive(
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
pub(super) fn peek<T>(
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
