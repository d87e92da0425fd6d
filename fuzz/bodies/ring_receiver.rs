//! The receiving end of a ring in shared memory whose sender writes anything: control words, header lines and data, and
//! names any memory as its own.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use annulus_plan::{Fingerprint, Rank};
use annulus_transports::link::{Fabric, LinkError, RecvLink};
use annulus_transports::memory::Store;
use annulus_transports::ring::Geometry;
use annulus_transports::shm::{Arena, Inbox, SegmentSource, SharedMemory, ShmFabric};

const LINES: u64 = 4;
const DATA: usize = 4096;
/// As `ring/memory.rs` lays it out.
const CLOSED_AT: u64 = 128;
const LINES_AT: u64 = 256;
const DATA_AT: u64 = 4096;
/// The sender's segment 1; its segment 2 is no memory, and others do not exist.
const SEGMENT: usize = 5000;

/// A list of steps. Each begins with a byte that tells what it is, modulo 8:
///
/// * 0: the next piece's line: 56 bytes; its flag is made right;
/// * 1: the same near what is allowed: kind, and twice 16 bits of offset and length;
/// * 2: bytes anywhere in the ring: 16 bits of offset, 8 of length, the bytes;
/// * 3 to 7: the receiver peeks, consumes, receives, takes a small piece, spins.
///
/// What the receiver shows must be what the memory says, as far as it lies in the ring or the segment; else it must report the
/// sender.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new();
    while let Some(step) = input.byte() {
        let going_on = match step % 8 {
            0 => world.write_line(input.words()),
            1 => world.write_line(input.near_line()),
            2 => {
                let offset = u64::from(input.half()) % (DATA_AT + DATA as u64);
                let length = usize::from(input.byte().unwrap_or(0));
                world.write(offset, input.bytes(length))
            }
            3 => world.peek(),
            4 => world.consume(input.half().into()),
            5 => world.receive(input.half().into()),
            6 => world.take_small(input.byte().unwrap_or(0).into()),
            _ => world.spin(input.byte().unwrap_or(0).into()),
        };
        // A link that has reported its peer is not used any more.
        if !going_on {
            return;
        }
    }
}

/// The receiver, and what it ought to say.
struct World {
    receiver: Box<dyn RecvLink>,
    memory: File,
    ring: u64,
    segment: Arc<SharedMemory>,
    /// Pieces given back.
    consumed: u64,
    current: Option<Expected>,
    _fabric: ShmFabric,
}

/// A piece that the receiver has accepted.
struct Expected {
    fingerprint: Fingerprint,
    place: Place,
    bytes: usize,
    taken: usize,
}

enum Place {
    Line([u8; 32]),
    Ring(u64),
    Segment(usize),
}

impl World {
    fn new() -> Self {
        let geometry = Geometry::new(LINES as usize, DATA).expect("powers of two");
        let theirs = Arena::new();
        let mut segment = theirs.alloc(SEGMENT).expect("memory");
        for (at, byte) in segment.iter_mut().enumerate() {
            *byte = (at * 7) as u8;
        }
        let inbox = Arc::new(Inbox::create(2, geometry).expect("memory"));
        let ring = inbox.ring_offset(0, 0) as u64;
        // The sender's own inbox, whose doorbell the receiver rings.
        let outbox = Inbox::create(2, geometry).expect("memory");
        let source = Arc::new(Hostile { outbox, arena: theirs });
        let fabric = ShmFabric::new(1, 2, vec![0, 1], inbox, Arena::new(), source);
        let memory = fabric.segment(0).expect("a descriptor").expect("the inbox");
        let receiver = fabric.open_recv(0, 0, Instant::now()).expect("opens");
        let world = Self {
            receiver,
            memory: memory.into(),
            ring,
            segment: Arc::new(segment),
            consumed: 0,
            current: None,
            _fabric: fabric,
        };
        let pattern: Vec<u8> = (0..DATA).map(|at| (at * 5 + 1) as u8).collect();
        world.write(DATA_AT, &pattern);
        world
    }

    /// The line of the piece that is due, with its flag.
    fn write_line(&mut self, words: [u64; 7]) -> bool {
        let bytes: Vec<u8> =
            words.iter().chain(&[self.consumed + 1]).flat_map(|word| word.to_ne_bytes()).collect();
        self.write(self.line_at(), &bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        self.memory.write_all_at(bytes, self.ring + offset).expect("memory");
        true
    }

    fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.memory.read_exact_at(&mut read, self.ring + offset).expect("memory");
        read
    }

    fn line_at(&self) -> u64 {
        LINES_AT + self.consumed % LINES * 64
    }

    /// What the memory says about the piece that is due: nothing, a piece, or nonsense.
    fn due(&self) -> Option<Result<Expected, ()>> {
        let line = self.read(self.line_at(), 64);
        let word =
            |at: usize| u64::from_ne_bytes(line[at * 8..][..8].try_into().expect("eight bytes"));
        if word(7) != self.consumed + 1 {
            return None;
        }
        let fingerprint = Fingerprint { call: word(4), order: word(5), tag: word(6) as u32 };
        let length = (word(6) >> 32 & ((1 << 30) - 1)) as usize;
        let inside = |offset: u64, bytes: u64, size: usize| {
            offset.checked_add(bytes).is_some_and(|end| end <= size as u64)
        };
        let (place, bytes) = match word(6) >> 62 {
            0 if length <= 32 => {
                (Place::Line(line[..32].try_into().expect("thirty-two bytes")), length)
            }
            1 if inside(word(0), length as u64, DATA) => (Place::Ring(word(0)), length),
            2 if word(0) == 1 && inside(word(1), word(2), SEGMENT) => {
                (Place::Segment(word(1) as usize), word(2) as usize)
            }
            _ => return Some(Err(())),
        };
        Some(Ok(Expected { fingerprint, place, bytes, taken: 0 }))
    }

    /// What is left of the current piece.
    fn rest(&self) -> Option<(Fingerprint, Vec<u8>)> {
        let Expected { fingerprint, ref place, bytes, taken } = *self.current.as_ref()?;
        let left = bytes - taken;
        let rest = match place {
            Place::Line(payload) => payload[taken..bytes].to_vec(),
            Place::Ring(offset) => self.read(DATA_AT + offset + taken as u64, left),
            Place::Segment(offset) => self.segment[offset + taken..][..left].to_vec(),
        };
        Some((fingerprint, rest))
    }

    /// Lets the due piece become the current one. `Err` holds whether the receiver must fail.
    fn arrive(&mut self) -> Result<(), Failure> {
        if self.current.is_none() {
            match self.due() {
                None => {}
                Some(Ok(piece)) => self.current = Some(piece),
                Some(Err(())) => return Err(Failure::Nonsense),
            }
        }
        Ok(())
    }

    fn peek(&mut self) -> bool {
        let expected = self.arrive();
        match (expected, self.receiver.try_peek()) {
            (Ok(()), Ok(None)) => assert!(self.current.is_none(), "a piece was overlooked"),
            (Ok(()), Ok(Some(piece))) => {
                let shown = (piece.fingerprint, piece.bytes.to_vec());
                assert_eq!(Some(shown), self.rest());
            }
            (expected, Err(error)) => return self.failed(expected, &error),
            (Err(_), Ok(piece)) => panic!("{piece:?} of nonsense"),
        }
        true
    }

    fn consume(&mut self, bytes: usize) -> bool {
        if !self.peek() {
            return false;
        }
        if let Some(piece) = &mut self.current {
            let bytes = bytes.min(piece.bytes - piece.taken);
            if bytes > 0 || piece.bytes == 0 {
                self.receiver.consume(bytes);
                piece.taken += bytes;
                self.give_back();
            }
        }
        true
    }

    fn give_back(&mut self) {
        if self.current.as_ref().is_some_and(|piece| piece.taken == piece.bytes) {
            self.current = None;
            self.consumed += 1;
            assert_eq!(self.read(0, 8), self.consumed.to_ne_bytes());
        }
    }

    /// Into more room than is given, so that a byte too many would be seen.
    fn receive(&mut self, room: usize) -> bool {
        let expected = self.arrive();
        let rest = self.rest();
        let call = match &rest {
            // Now and then the receiver is in another call.
            Some((fingerprint, _)) if room % 16 != 15 => *fingerprint,
            _ => Fingerprint { call: 1, order: 2, tag: 3 },
        };
        let mut target = vec![0xaa; room + 64];
        match (expected, self.receiver.try_recv(&call, &mut target[..room], Store::Cached)) {
            (Ok(()), Ok(None)) => assert!(rest.is_none(), "a piece was overlooked"),
            (Ok(()), Ok(Some(bytes))) => {
                assert_eq!(rest, Some((call, target[..bytes].to_vec())));
                assert!(target[bytes..].iter().all(|&byte| byte == 0xaa));
                if let Some(piece) = &mut self.current {
                    piece.taken += bytes;
                }
                self.give_back();
            }
            (Ok(()), Err(LinkError::Mismatch { theirs, .. })) => {
                assert!(
                    rest.is_some_and(|(fingerprint, _)| fingerprint == theirs && theirs != call)
                );
                return false;
            }
            (Ok(()), Err(LinkError::Length { got, expected, .. })) => {
                assert_eq!((Some(got), expected), (rest.map(|(_, rest)| rest.len()), room));
                assert!(got > room);
                return false;
            }
            (expected, Err(error)) => return self.failed(expected, &error),
            (Err(_), Ok(bytes)) => panic!("{bytes:?} bytes of nonsense"),
        }
        true
    }

    fn take_small(&mut self, bytes: usize) -> bool {
        let due = if self.current.is_none() { self.due() } else { None };
        let call = match &due {
            Some(Ok(piece)) => piece.fingerprint,
            _ => Fingerprint::default(),
        };
        let taken = self.receiver.try_take_small(&call, bytes);
        match (due, taken) {
            (Some(Ok(Expected { place: Place::Line(payload), bytes: there, .. })), Some(words))
                if bytes == there =>
            {
                assert_eq!(words.map(u64::to_ne_bytes).as_flattened(), payload);
                self.consumed += 1;
                assert_eq!(self.read(0, 8), self.consumed.to_ne_bytes());
            }
            (Some(Ok(Expected { place: Place::Line(_), bytes: there, .. })), None) => {
                assert_ne!(bytes, there, "a small piece was overlooked");
            }
            (_, None) => {}
            (_, Some(words)) => panic!("{words:?} of nothing"),
        }
        true
    }

    fn spin(&mut self, turns: u32) -> bool {
        // With a piece there, spinning says so and looks no further.
        let there = self.current.is_some() || self.due().is_some();
        match self.receiver.spin(turns) {
            Ok(seen) => {
                assert_eq!(seen, there);
                if turns == 0 && seen {
                    let _ = self.arrive();
                }
                true
            }
            Err(error) => {
                let expected = self.arrive();
                self.failed(expected, &error)
            }
        }
    }

    /// An error must have its reason. Ends the run.
    fn failed(&self, expected: Result<(), Failure>, error: &LinkError) -> bool {
        match error {
            LinkError::Protocol { peer: 0, .. } | LinkError::Segment { peer: 0, .. } => {
                assert!(expected.is_err(), "{error}");
            }
            LinkError::Closed { peer: 0, .. } => {
                assert!(self.current.is_none() && self.due().is_none(), "{error}");
                assert_ne!(self.read(CLOSED_AT, 4), [0; 4], "{error}");
            }
            _ => panic!("{error}"),
        }
        false
    }
}

enum Failure {
    Nonsense,
}

struct Hostile {
    outbox: Inbox,
    arena: Arc<Arena>,
}

impl SegmentSource for Hostile {
    fn segment(&self, peer: Rank, id: u32, _: Instant) -> Result<OwnedFd, LinkError> {
        match id {
            0 => Ok(self.outbox.fd().try_clone_to_owned().expect("a descriptor")),
            1 => Ok(self.arena.segment(1).expect("a descriptor").expect("allocated")),
            2 => Ok(std::io::pipe().expect("descriptors").0.into()),
            _ => Err(LinkError::Protocol { peer, what: format!("no segment {id}") }),
        }
    }
}

/// Takes the input apart; what is missing is zero.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn half(&mut self) -> u16 {
        u16::from_le_bytes([self.byte().unwrap_or(0), self.byte().unwrap_or(0)])
    }

    fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    fn words(&mut self) -> [u64; 7] {
        std::array::from_fn(|_| {
            let mut word = [0; 8];
            let bytes = self.bytes(8);
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        })
    }

    fn near_line(&mut self) -> [u64; 7] {
        let kind = u64::from(self.byte().unwrap_or(0));
        let (offset, bytes) = (u64::from(self.half()) % 5100, u64::from(self.half()) % 5100);
        let length = (kind & 3) << 62 | bytes << 32 | 7;
        if kind & 3 == 2 {
            [kind >> 2, offset, bytes, 0, 5, 6, length]
        } else {
            [offset, 2, 3, 4, 5, 6, length]
        }
    }
}
