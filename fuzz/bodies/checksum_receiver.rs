//! The receiving end of a link with checksums, over a link that carries anything.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use annulus_plan::{Fingerprint, Rank};
use annulus_transports::checksum::ChecksumFabric;
use annulus_transports::link::{Fabric, LinkError, Piece, RecvLink, SendLink, Sleeper};
use annulus_transports::memory::Store;

const PREFIX: usize = 8;
const CALL: Fingerprint = Fingerprint { call: 8, order: 1, tag: 3 };

/// The first byte tells how many times 8 bytes come at a time (0: whole pieces), the bits of the second how the receiver looks at them,
/// in turn. The others are pieces, each of which begins with a byte that tells what it is, modulo 6:
///
/// * 0: an honest one, of so many bytes as the next byte says;
/// * 1: the same with one byte changed: its place and a mask;
/// * 2: any: its length, and its bytes with prefix;
/// * 3: the last one once more;
/// * 4: an honest one that was cut: its length, and how long it is with its prefix;
/// * 5: a long honest one: 16 bits of length.
///
/// The receiver must show the pieces that have a right prefix, whole, up to the first that has not, and must say what is wrong with
/// that, at each look.
pub(crate) fn run(data: &[u8]) {
    let [step, turns, data @ ..] = data else { return };
    let mut input = Input(data);
    let mut pieces = Vec::new();
    while let Some(piece) = piece(&mut input, &pieces) {
        pieces.push(piece);
    }
    let beneath = Scripted {
        pieces: pieces.iter().cloned().collect(),
        given_back: 0,
        step: match step {
            0 => usize::MAX,
            step => usize::from(*step) * 8,
        },
        waits: false,
    };
    let fabric = ChecksumFabric::new(Arc::new(Beneath(Mutex::new(Some(beneath)))));
    let mut receiver = fabric.open_recv(1, 0, Instant::now()).expect("opens");
    let mut turn = 0;
    for (number, piece) in pieces.iter().enumerate() {
        let Err(fault) = check(piece, number as u64) else {
            receive(&mut *receiver, &piece[PREFIX..], *turns, &mut turn);
            continue;
        };
        let error = look(&mut *receiver, piece, *turns, &mut turn);
        assert_fault(&error, fault, number);
        let again = receiver.try_peek().expect_err("it stays failed");
        assert_fault(&again, fault, number);
        assert!(receiver.try_take_small(&CALL, 0).is_none());
        return;
    }
    assert!(matches!(receiver.try_peek(), Ok(None)), "there is no more");
}

/// The next piece that the input describes.
fn piece(input: &mut Input<'_>, pieces: &[Vec<u8>]) -> Option<Vec<u8>> {
    let number = pieces.len() as u64;
    let kind = input.byte()?;
    if kind % 6 == 3 {
        return pieces.last().cloned();
    }
    let length = usize::from(input.byte()?);
    Some(match kind % 6 {
        0 => honest(length, number),
        1 => {
            let mut piece = honest(length, number);
            let at = usize::from(input.byte()?) % piece.len();
            piece[at] ^= input.byte()?;
            piece
        }
        2 => input.bytes(length),
        4 => {
            let mut piece = honest(length, number);
            piece.truncate(input.byte()?.into());
            piece
        }
        _ => honest(length | usize::from(input.byte()?) << 8, number),
    })
}

/// What a right sender sends as its piece `number`.
fn honest(length: usize, number: u64) -> Vec<u8> {
    let payload: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
    let checksum = checksum(&payload, number);
    [&(length as u32).to_le_bytes(), &checksum.to_le_bytes(), &payload[..]].concat()
}

/// What is wrong with a piece.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Length,
    Checksum { expected: u32, got: u32 },
}

fn check(piece: &[u8], number: u64) -> Result<(), Fault> {
    let Some((prefix, payload)) = piece.split_first_chunk::<PREFIX>() else {
        return Err(Fault::Length);
    };
    let [a, b, c, d, e, f, g, h] = *prefix;
    if u32::from_le_bytes([a, b, c, d]) as usize != payload.len() {
        return Err(Fault::Length);
    }
    let (expected, got) = (u32::from_le_bytes([e, f, g, h]), checksum(payload, number));
    if expected == got { Ok(()) } else { Err(Fault::Checksum { expected, got }) }
}

fn assert_fault(error: &LinkError, fault: Fault, number: usize) {
    match (error, fault) {
        (LinkError::Protocol { peer: 1, what }, Fault::Length) => {
            assert!(what.starts_with(&format!("piece {number} ")), "{what}");
        }
        (
            LinkError::Checksum { peer: 1, index: 0, piece, expected, got, .. },
            Fault::Checksum { expected: right, got: computed },
        ) => assert_eq!((*piece, *expected, *got), (number as u64, right, computed)),
        _ => panic!("{error} of a piece with {fault:?}"),
    }
}

/// CRC-32C bit by bit, over all that the format names.
fn checksum(payload: &[u8], number: u64) -> u32 {
    let mut bytes = Vec::new();
    bytes.extend(CALL.call.to_le_bytes());
    bytes.extend(CALL.order.to_le_bytes());
    bytes.extend(CALL.tag.to_le_bytes());
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(payload);
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}

/// Which of four ways comes next.
fn way(turns: u8, turn: &mut u32) -> u8 {
    *turn += 1;
    turns >> (*turn % 4 * 2) & 3
}

/// Takes a sound piece, which must be `payload`, in any number of parts.
fn receive(receiver: &mut dyn RecvLink, payload: &[u8], turns: u8, turn: &mut u32) {
    let mut taken = 0;
    for _ in 0..most_turns(payload.len()) {
        let rest = &payload[taken..];
        let way = way(turns, turn);
        if way == 0 {
            let mut target = vec![0; rest.len()];
            let got = receiver.try_recv(&CALL, &mut target, Store::Cached).expect("sound");
            if let Some(bytes) = got {
                assert_eq!((bytes, &target[..]), (rest.len(), rest));
                return;
            }
        } else if way == 1 && taken == 0 {
            if let Some(words) = receiver.try_take_small(&CALL, rest.len()) {
                let bytes = words.map(u64::to_ne_bytes);
                assert_eq!(&bytes.as_flattened()[..rest.len()], rest);
                return;
            }
        } else if way == 2 {
            receiver.pump().expect("sound");
            receiver.spin(1).expect("sound");
        }
        let Some(piece) = receiver.try_peek().expect("sound") else { continue };
        assert_eq!((piece.fingerprint, piece.bytes, piece.left), (CALL, rest, rest.len()));
        let bytes = if way == 3 { rest.len().min(5) } else { rest.len() };
        receiver.consume(bytes);
        taken += bytes;
        if taken == payload.len() {
            return;
        }
    }
    panic!("the receiver does not get on");
}

/// Looks at a damaged piece until it is refused.
fn look(receiver: &mut dyn RecvLink, piece: &[u8], turns: u8, turn: &mut u32) -> LinkError {
    let length = piece.len().saturating_sub(PREFIX);
    for _ in 0..most_turns(length) {
        let looked = match way(turns, turn) {
            0 => receiver.try_recv(&CALL, &mut vec![0; length], Store::Cached).map(drop),
            1 => {
                let taken = receiver.try_take_small(&CALL, length);
                assert!(taken.is_none(), "{taken:?} of a damaged piece");
                Ok(())
            }
            2 => receiver.spin(1).map(|seen| assert!(!seen)),
            _ => Ok(()),
        };
        let looked = looked.and_then(|()| receiver.try_peek().map(|shown| shown.is_some()));
        match looked {
            Ok(shown) => assert!(!shown, "a damaged piece is shown"),
            Err(error) => return error,
        }
    }
    panic!("the receiver does not get on");
}

/// At every second turn at the latest, some bytes of a piece come or are taken.
fn most_turns(length: usize) -> usize {
    4 * length + 64
}

/// The link underneath: carries what it is told to, now and then later than it is asked.
struct Scripted {
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that were given back.
    given_back: usize,
    step: usize,
    waits: bool,
}

impl RecvLink for Scripted {
    fn try_peek(&mut self) -> Result<Option<Piece<'_>>, LinkError> {
        // What was seen once stays there.
        if self.step != usize::MAX && self.given_back > 0 {
            self.waits = !self.waits;
            if self.waits && self.pieces.front().is_some_and(|piece| piece.len() > self.step) {
                return Ok(None);
            }
        }
        let Some(piece) = self.pieces.front() else { return Ok(None) };
        let rest = &piece[self.given_back..];
        let bytes = &rest[..rest.len().min(self.step)];
        Ok(Some(Piece { fingerprint: CALL, bytes, left: rest.len() }))
    }

    fn consume(&mut self, bytes: usize) {
        self.given_back += bytes;
        let length = self.pieces.front().expect("a piece").len();
        assert!(self.given_back <= length, "more than there is");
        if self.given_back == length {
            self.pieces.pop_front();
            self.given_back = 0;
        }
    }

    fn try_take_small(&mut self, expected: &Fingerprint, bytes: usize) -> Option<[u64; 4]> {
        let piece = self.pieces.front()?;
        if *expected != CALL || piece.len() != bytes || bytes > 32 || self.given_back > 0 {
            return None;
        }
        let mut line = [0; 32];
        line[..bytes].copy_from_slice(piece);
        self.pieces.pop_front();
        let (words, _) = line.as_chunks::<8>();
        Some([0, 1, 2, 3].map(|word| u64::from_ne_bytes(words[word])))
    }

    fn try_recv(
        &mut self,
        _: &Fingerprint,
        _: &mut [u8],
        _: Store,
    ) -> Result<Option<usize>, LinkError> {
        panic!("bytes that were not checked go to the receiver")
    }

    fn pump(&mut self) -> Result<(), LinkError> {
        Ok(())
    }
}

/// The fabric of that one link.
struct Beneath(Mutex<Option<Scripted>>);

impl Fabric for Beneath {
    fn rank(&self) -> Rank {
        0
    }

    fn world(&self) -> usize {
        2
    }

    fn open_send(
        &self,
        peer: Rank,
        index: usize,
        _: Instant,
    ) -> Result<Box<dyn SendLink>, LinkError> {
        Err(LinkError::NoSuchLink { peer, index, why: "it only receives".into() })
    }

    fn open_recv(
        &self,
        peer: Rank,
        index: usize,
        _: Instant,
    ) -> Result<Box<dyn RecvLink>, LinkError> {
        let link = self.0.lock().expect("unpoisoned").take();
        let link = link.ok_or(LinkError::AlreadyOpen { peer, index, transport: "fuzz" })?;
        Ok(Box::new(link))
    }

    fn sleeper(&self) -> Box<dyn Sleeper> {
        Box::new(Restless)
    }

    fn max_chunk_bytes(&self) -> usize {
        1 << 20
    }

    fn transport(&self, _: Rank) -> &'static str {
        "fuzz"
    }
}

/// Nobody sleeps here.
struct Restless;

impl Sleeper for Restless {
    fn announce(&mut self) {}

    fn retract(&mut self) {}

    fn sleep(&mut self, _: Duration) {}
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// As many of `length` as there are.
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let (bytes, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        bytes.to_vec()
    }
}
