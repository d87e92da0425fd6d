//! What checksums find: bits that change in a ring's memory, and on a TCP stream.

#[path = "loopback/mod.rs"]
mod loopback;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use annulus_plan::{Fingerprint, Rank};
use annulus_transports::checksum::ChecksumFabric;
use annulus_transports::link::{Fabric, LinkError, RecvLink, SendLink};
use annulus_transports::memory::Store;
use annulus_transports::ring::Geometry;
use annulus_transports::shm::{Arena, Inbox, SegmentSource, ShmFabric};
use annulus_transports::tcp::Options;

const CALL: Fingerprint = Fingerprint { call: 5, order: 7 << 32, tag: 11 };

/// In-line pieces, pieces in the ring, and which of them is hit.
const MESSAGES: [usize; 5] = [8, 0, 24, 100, 1000];

fn message(number: usize) -> Vec<u8> {
    (0..MESSAGES[number]).map(|at| (at * 13 + number) as u8).collect()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Receives the messages until one fails: how many came, each as it was sent, and why no more did.
fn receive(receiver: &mut dyn RecvLink, peek: bool) -> (usize, Option<LinkError>) {
    for (number, &bytes) in MESSAGES.iter().enumerate() {
        let mut got = vec![0; bytes];
        let mut done = 0;
        loop {
            let received = if peek {
                receiver.try_peek().map(|piece| {
                    piece.map(|piece| {
                        got[done..][..piece.bytes.len()].copy_from_slice(piece.bytes);
                        assert_eq!(piece.fingerprint, CALL);
                        piece.bytes.len()
                    })
                })
            } else {
                receiver.try_recv(&CALL, &mut got[done..], Store::Cached)
            };
            match received {
                Ok(Some(bytes)) => {
                    if peek {
                        receiver.consume(bytes);
                    }
                    done += bytes;
                    if done == got.len() {
                        break;
                    }
                }
                Ok(None) => thread::yield_now(),
                Err(error) => return (number, Some(error)),
            }
        }
        assert_eq!(got, message(number), "wrong bytes were handed out");
    }
    (MESSAGES.len(), None)
}

fn send_all(sender: &mut dyn SendLink) {
    for number in 0..MESSAGES.len() {
        let message = message(number);
        while sender.try_send(&CALL, &message, usize::MAX, Store::Cached).expect("open").is_none() {
        }
    }
    while !sender.is_idle().expect("open") {}
}

/// Two ranks of shared memory, and the receiver's inbox as a file.
struct Shm {
    sender: Box<dyn SendLink>,
    receiver: Box<dyn RecvLink>,
    inbox: File,
    ring: u64,
    _fabrics: [Arc<ShmFabric>; 2],
}

#[derive(Default)]
struct Table([OnceLock<std::sync::Weak<ShmFabric>>; 2]);

impl SegmentSource for Table {
    fn segment(&self, peer: Rank, id: u32, _: Instant) -> Result<OwnedFd, LinkError> {
        let fabric = self.0[peer].get().and_then(std::sync::Weak::upgrade).expect("alive");
        Ok(fabric.segment(id).expect("a descriptor").expect("a segment"))
    }
}

fn shm() -> Shm {
    let geometry = Geometry::new(64, 1 << 14).expect("powers of two");
    let table = Arc::new(Table::default());
    let mut ring = 0;
    let fabrics = [0, 1].map(|rank| {
        let inbox = Arc::new(Inbox::create(2, geometry).expect("memory"));
        ring = inbox.ring_offset(0, 0) as u64;
        let fabric = ShmFabric::new(rank, 2, vec![0, 1], inbox, Arena::new(), table.clone());
        let fabric = Arc::new(fabric);
        table.0[rank].set(Arc::downgrade(&fabric)).expect("once");
        fabric
    });
    let checked = |rank: usize| ChecksumFabric::new(fabrics[rank].clone());
    let sender = checked(0).open_send(1, 0, soon()).expect("opens");
    let receiver = checked(1).open_recv(0, 0, soon()).expect("opens");
    let inbox = File::from(fabrics[1].segment(0).expect("a descriptor").expect("the inbox"));
    Shm { sender, receiver, inbox, ring, _fabrics: fabrics }
}

fn flip(file: &File, at: u64, bit: u32) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("memory");
    file.write_all_at(&[byte[0] ^ 1 << bit], at).expect("memory");
}

/// Where the pieces' bytes lie: three in their lines (prefix and payload), two in the byte ring at multiples of 64.
#[test]
fn a_bit_flipped_in_shared_memory_is_found() {
    let lines = (0..3).flat_map(|piece| {
        (0..8 + MESSAGES[piece] as u64).map(move |at| (piece, 256 + piece as u64 * 64 + at))
    });
    let data = 64 * 64 + 256_u64;
    let data = data.next_multiple_of(4096);
    let bytes = (0..108)
        .map(|at| (3, data + at))
        .chain((0..1008).step_by(9).map(|at| (4, data + 128 + at)));
    let mut world = shm();
    send_all(&mut *world.sender);
    assert_eq!(receive(&mut *world.receiver, false).0, MESSAGES.len(), "nothing was flipped");
    for (turn, (piece, at)) in lines.chain(bytes).enumerate() {
        let mut world = shm();
        send_all(&mut *world.sender);
        flip(&world.inbox, world.ring + at, turn as u32 % 8);
        let (came, error) = receive(&mut *world.receiver, turn % 2 == 0);
        let error = error.unwrap_or_else(|| panic!("a flipped bit at {at} was overlooked"));
        assert_eq!(came, piece, "{error}");
        match error {
            LinkError::Checksum { peer: 0, index: 0, piece: named, expected, got, .. } => {
                assert_eq!(named, piece as u64);
                assert_ne!(expected, got);
            }
            LinkError::Protocol { peer: 0, ref what } => {
                assert!(what.starts_with(&format!("piece {piece} on link 0 (shm) says")), "{what}");
            }
            error => panic!("{error}"),
        }
        // It stays failed, and says the same.
        let again = world.receiver.try_peek().expect_err("failed").to_string();
        assert_eq!(again, error.to_string());
    }
}

/// The words that say whose call it is.
#[test]
fn a_bit_flipped_in_a_fingerprint_is_found() {
    for word in [4, 5] {
        for bit in 0..64 {
            let mut world = shm();
            send_all(&mut *world.sender);
            flip(&world.inbox, world.ring + 256 + word * 8 + bit / 8, bit as u32 % 8);
            let (came, error) = receive(&mut *world.receiver, false);
            assert!(matches!((came, error), (0, Some(LinkError::Checksum { piece: 0, .. }))));
        }
    }
}

#[test]
fn the_error_names_link_and_piece() {
    let mut world = shm();
    send_all(&mut *world.sender);
    flip(&world.inbox, world.ring + 256 + 8, 3);
    let text = receive(&mut *world.receiver, false).1.expect("found").to_string();
    for part in
        ["rank 0's piece 0 on link 0 (shm)", "checksum 0x", "in place of 0x", "failing memory"]
    {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

/// A small piece is taken without being shown first.
#[test]
fn a_flipped_bit_in_a_small_piece_is_found_by_the_short_cut_too() {
    for at in 0..16 {
        let mut world = shm();
        send_all(&mut *world.sender);
        if at < 15 {
            flip(&world.inbox, world.ring + 256 + at, 5);
        }
        let taken = world.receiver.try_take_small(&CALL, 8);
        if at < 15 {
            assert_eq!(taken, None);
            world.receiver.try_peek().expect_err("found");
        } else {
            let payload = taken.expect("nothing was flipped").map(u64::to_ne_bytes);
            assert_eq!(payload.as_flattened()[..8], message(0));
        }
    }
}

/// Every byte of a stream in turn: header, prefix, payload. Some damage to a TCP header leaves the receiver without the bytes
/// that it announces; that ends with the stream.
#[test]
fn a_bit_flipped_on_a_tcp_stream_is_found() {
    let total: usize = MESSAGES.iter().map(|bytes| 32 + 8 + bytes).sum();
    let mut checksums = 0;
    for target in (0..total).filter(|at| *at < 300 || at % 17 == 0) {
        let ([one, two], [near_one, near_two]) = loopback::fabrics_apart(Options::default());
        let (came, error) = thread::scope(|scope| {
            scope.spawn(move || forward(near_one, near_two, target));
            scope.spawn(move || {
                let fabric = ChecksumFabric::new(Arc::new(one));
                send_all(&mut *fabric.open_send(1, 0, soon()).expect("opens"));
            });
            let fabric = ChecksumFabric::new(Arc::new(two));
            receive(&mut *fabric.open_recv(0, 0, soon()).expect("opens"), target % 2 == 0)
        });
        let error = error.unwrap_or_else(|| panic!("a flipped bit at {target} was overlooked"));
        match error {
            LinkError::Checksum { peer: 0, index: 0, piece, .. } => {
                assert_eq!(piece, came as u64);
                checksums += 1;
            }
            LinkError::Protocol { peer: 0, .. } | LinkError::Closed { peer: 0, .. } => {}
            error => panic!("at {target}: {error}"),
        }
    }
    assert!(checksums > 100, "{checksums} of {total}");
}

/// Carries bytes from one socket to the other and flips a bit of one of them.
fn forward(mut from: std::net::TcpStream, mut to: std::net::TcpStream, target: usize) {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).expect("open");
    bytes[target] ^= 1 << (target % 8);
    // The receiver may have seen enough.
    let _ = to.write_all(&bytes);
}
