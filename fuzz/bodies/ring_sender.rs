//! The sending end of a ring in shared memory whose receiver owns the memory, and writes anything there.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use annulus_plan::{Fingerprint, Rank};
use annulus_transports::link::{Fabric, LinkError, SendLink};
use annulus_transports::memory::Store;
use annulus_transports::ring::Geometry;
use annulus_transports::shm::{Arena, Inbox, SegmentSource, ShmFabric};

const LINES: u64 = 4;
const DATA: usize = 4096;
/// As `ring/memory.rs` lays it out: the receiver's word, both ends' words, and all of the ring.
const CONSUMED_AT: u64 = 0;
const CLOSED_AT: u64 = 132;
const RING: u64 = 8192;

/// The first byte tells which byte of the receiver's inbox the next one is added to before the sender maps it. Then a list of
/// steps; each begins with a byte that tells what it is, modulo 8:
///
/// * 0: the receiver gives pieces back: as many as it has been sent, less 8 bits;
/// * 1: it says any number: 64 bits;
/// * 2: it writes bytes anywhere in the ring: 16 bits of offset, 8 of length, the bytes;
/// * 3: it closes;
/// * 4 to 7: the sender sends, reserves and commits, sends a reference, asks whether it is idle.
///
/// The sender must report a receiver that gives back what it was not sent, and write nothing outside of the ring.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let (at, change) = (input.byte(), input.byte());
    let geometry = Geometry::new(LINES as usize, DATA).expect("powers of two");
    let theirs = Inbox::create(2, geometry).expect("memory");
    let (ring, after) = (theirs.ring_offset(1, 0) as u64, theirs.ring_offset(1, 1) as u64);
    assert_eq!(after - ring, RING);
    let memory = File::from(theirs.fd().try_clone_to_owned().expect("a descriptor"));
    let (at, change) = (u64::from(at.unwrap_or(0)) % 40, change.unwrap_or(0));
    let mut byte = [0];
    memory.read_exact_at(&mut byte, at).expect("memory");
    memory.write_all_at(&[byte[0].wrapping_add(change)], at).expect("memory");
    let inbox = Arc::new(Inbox::create(2, geometry).expect("memory"));
    let arena = Arena::new();
    let lent = arena.alloc(3000).expect("memory");
    let fabric =
        ShmFabric::new(1, 2, vec![0, 1], inbox, arena, Arc::new(Hostile { inbox: theirs }));
    let sender = match fabric.open_send(0, 0, Instant::now()) {
        Ok(sender) => sender,
        Err(error) => {
            assert!(matches!(error, LinkError::Segment { peer: 0, .. }) && change != 0, "{error}");
            return;
        }
    };
    assert_eq!(change, 0, "an inbox of another kind was believed");
    let mut world = World { sender, memory, ring, sent: 0, known: 0, sound: true };
    while let Some(step) = input.byte() {
        let result = match step % 8 {
            0 => {
                let back = world.sent.wrapping_sub(u64::from(input.byte().unwrap_or(0)));
                world.write(CONSUMED_AT, &back.to_ne_bytes())
            }
            1 => world.write(CONSUMED_AT, &input.word().to_ne_bytes()),
            2 => {
                let offset = u64::from(input.half()) % (RING - 255);
                let length = usize::from(input.byte().unwrap_or(0));
                world.write(offset, input.bytes(length))
            }
            3 => world.write(CLOSED_AT, &1_u32.to_ne_bytes()),
            4 => world.send(input.half().into(), input.half().into()),
            5 => world.reserve(input.half().into(), input.half().into()),
            6 => world.lend(&lent[..usize::from(input.half()) % 3001]),
            _ => world.sender.is_idle().map(drop),
        };
        world.look();
        if let Err(error) = result {
            world.check_error(&error);
            break;
        }
    }
    let mut behind = [0; 256];
    world.memory.read_exact_at(&mut behind, after).expect("memory");
    assert_eq!(behind, [0; 256], "the sender wrote behind its ring");
}

struct World {
    sender: Box<dyn SendLink>,
    memory: File,
    ring: u64,
    /// Pieces sent.
    sent: u64,
    /// The most that an honest receiver can have given back, as far as was seen.
    known: u64,
    /// Whether what the receiver's word has said could all be true.
    sound: bool,
}

impl World {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), LinkError> {
        self.memory.write_all_at(bytes, self.ring + offset).expect("memory");
        Ok(())
    }

    fn word(&self, offset: u64) -> u64 {
        let mut word = [0; 8];
        self.memory.read_exact_at(&mut word, self.ring + offset).expect("memory");
        u64::from_ne_bytes(word)
    }

    /// Takes note of what the receiver says.
    fn look(&mut self) {
        let says = self.word(CONSUMED_AT);
        self.sound &= (self.known..=self.sent).contains(&says);
        self.known = self.known.max(says.min(self.sent));
    }

    fn send(&mut self, length: usize, max_piece: usize) -> Result<(), LinkError> {
        let message = vec![7; length];
        let taken = self.sender.try_send(&CALL, &message, max_piece, Store::Cached)?;
        if let Some(taken) = taken {
            assert!(taken <= length.min(max_piece.max(1)) && (taken > 0 || length == 0));
            self.sent += 1;
        }
        Ok(())
    }

    fn reserve(&mut self, max: usize, commit: usize) -> Result<(), LinkError> {
        let max = max.max(1);
        let Some(room) = self.sender.try_reserve(max)? else { return Ok(()) };
        assert!(room.len() <= max && room.len() >= max.min(64));
        let commit = commit.min(room.len());
        room.fill(9);
        self.sender.commit(&CALL, commit, Store::NonTemporal)?;
        self.sent += 1;
        Ok(())
    }

    fn lend(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        // SAFETY: nobody writes `bytes`, and they live until after the link.
        if unsafe { self.sender.try_send_reference(&CALL, bytes) }?.is_some() {
            self.sent += 1;
        }
        Ok(())
    }

    fn check_error(&self, error: &LinkError) {
        match error {
            LinkError::Protocol { peer: 0, .. } => assert!(!self.sound, "{error}"),
            LinkError::Closed { peer: 0, .. } => assert_ne!(self.word(CLOSED_AT) as u32, 0),
            _ => panic!("{error}"),
        }
    }
}

const CALL: Fingerprint = Fingerprint { call: 1, order: 2, tag: 3 };

struct Hostile {
    inbox: Inbox,
}

impl SegmentSource for Hostile {
    fn segment(&self, _: Rank, _: u32, _: Instant) -> Result<OwnedFd, LinkError> {
        Ok(self.inbox.fd().try_clone_to_owned().expect("a descriptor"))
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

    fn word(&mut self) -> u64 {
        let mut word = [0; 8];
        let bytes = self.bytes(8);
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }
}
