//! The TCP format over streams that are cut anywhere, and over streams that lie.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use annulus_plan::{CollectiveKind, DataType, Fingerprint, MIN_LINK_CHUNKS};
use annulus_transports::link::LinkError;
use annulus_transports::tcp::{HEADER_BYTES, Header, Inbox, Outbox};
use proptest::prelude::*;

const PEER: usize = 3;
const MAX_CHUNK: usize = 512;

fn call(sequence: u64) -> Fingerprint {
    let (kind, dtype) = (CollectiveKind::Broadcast, DataType::U8);
    Fingerprint::from_parts(kind, dtype, None, Some(0), 100, sequence, 77)
}

fn payload(message: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 + message * 7) as u8).collect()
}

/// A stream in memory that takes and gives as many bytes at a time as `steps` says, in turn.
struct Pipe {
    bytes: VecDeque<u8>,
    capacity: usize,
    steps: Vec<usize>,
    turn: usize,
}

impl Pipe {
    fn step(&mut self) -> usize {
        self.turn += 1;
        self.steps[self.turn % self.steps.len()]
    }
}

impl Read for Pipe {
    fn read(&mut self, dst: &mut [u8]) -> io::Result<usize> {
        let bytes = self.step().min(dst.len()).min(self.bytes.len());
        if bytes == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        for (dst, src) in dst.iter_mut().zip(self.bytes.drain(..bytes)) {
            *dst = src;
        }
        Ok(bytes)
    }
}

impl Write for Pipe {
    fn write(&mut self, src: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(src)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let room = self.step().min(self.capacity - self.bytes.len());
        let before = self.bytes.len();
        self.bytes.extend(parts.iter().flat_map(|part| part.iter()).take(room));
        match self.bytes.len() - before {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            bytes => Ok(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Clone, Debug)]
struct Message {
    bytes: usize,
    /// Composed in reservations, or sent from the caller's memory.
    reserved: bool,
    /// Looked at where it lies, or received into the caller's memory.
    peeked: bool,
}

fn messages() -> impl Strategy<Value = Vec<Message>> {
    let bytes = prop_oneof![0usize..80, 0..3 * MAX_CHUNK];
    let message = (bytes, any::<bool>(), any::<bool>())
        .prop_map(|(bytes, reserved, peeked)| Message { bytes, reserved, peeked });
    prop::collection::vec(message, 1..12)
}

/// One attempt to go on with a message of which `done` bytes are sent; whether it is through.
fn send(
    outbox: &mut Outbox,
    pipe: &mut Pipe,
    index: usize,
    message: &Message,
    done: &mut usize,
) -> bool {
    let (call, bytes) = (call(index as u64), payload(index, message.bytes));
    let rest = &bytes[*done..];
    if message.reserved && !rest.is_empty() {
        let Some(room) = outbox.try_reserve(pipe, rest.len()).expect("pipes do not fail") else {
            return false;
        };
        assert!(room.len() == rest.len() || room.len() % 8 == 0 && room.len() >= 64);
        let taken = room.len();
        room.copy_from_slice(&rest[..taken]);
        outbox.commit(pipe, &call, taken).expect("pipes do not fail");
        *done += taken;
    } else {
        match outbox.try_send(pipe, &call, rest, 200).expect("pipes do not fail") {
            Some(taken) => *done += taken,
            None => return false,
        }
    }
    *done == message.bytes
}

/// The same at the other end.
fn recv(
    inbox: &mut Inbox,
    pipe: &mut Pipe,
    index: usize,
    message: &Message,
    got: &mut Vec<u8>,
) -> bool {
    let call = call(index as u64);
    let left = message.bytes - got.len();
    if message.peeked {
        let Some(piece) = inbox.try_peek(pipe).expect("a good stream") else { return false };
        assert_eq!(piece.fingerprint, call);
        assert!(piece.bytes.len() <= left && piece.bytes.len() <= MAX_CHUNK);
        // Not all at once, every other time.
        let taken =
            if index.is_multiple_of(2) { piece.bytes.len() } else { piece.bytes.len().div_ceil(2) };
        got.extend(&piece.bytes[..taken]);
        inbox.consume(taken);
    } else {
        let mut dst = vec![0; left];
        let Some(taken) = inbox.try_recv(pipe, &call, &mut dst).expect("a good stream") else {
            return false;
        };
        got.extend(&dst[..taken]);
    }
    got.len() == message.bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn whatever_the_cuts_messages_arrive_in_order(
        messages in messages(),
        capacity in 1usize..2000,
        mut steps in prop::collection::vec(0usize..700, 1..8),
        pumps: [bool; 4],
    ) {
        steps.push(40);
        let mut pipe = Pipe { bytes: VecDeque::new(), capacity, steps, turn: 0 };
        let (mut outbox, mut inbox) = (Outbox::new(PEER, MAX_CHUNK), Inbox::new(PEER, MAX_CHUNK));
        let (mut sending, mut done) = (0, 0);
        let (mut receiving, mut got) = (0, Vec::new());
        for turn in 0..200_000 {
            if sending < messages.len() {
                if send(&mut outbox, &mut pipe, sending, &messages[sending], &mut done) {
                    (sending, done) = (sending + 1, 0);
                }
            } else {
                outbox.is_idle(&mut pipe).expect("pipes do not fail");
            }
            if pumps[turn % 4] {
                inbox.pump(&mut pipe).expect("pipes do not fail");
            }
            if recv(&mut inbox, &mut pipe, receiving, &messages[receiving], &mut got) {
                prop_assert!(got == payload(receiving, messages[receiving].bytes));
                (receiving, got) = (receiving + 1, Vec::new());
            }
            if receiving == messages.len() {
                break;
            }
        }
        prop_assert_eq!(receiving, messages.len());
        prop_assert!(outbox.is_idle(&mut pipe).expect("pipes do not fail"));
        prop_assert!(inbox.memory_bytes() <= Inbox::max_memory_bytes(MAX_CHUNK));
    }

    #[test]
    fn a_stream_of_anything_does_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..4000), peek: bool) {
        let mut stream = &bytes[..];
        let mut inbox = Inbox::new(PEER, MAX_CHUNK);
        let error = loop {
            let step = if peek {
                inbox.try_peek(&mut stream).map(|piece| piece.map(|piece| piece.bytes.len()))
            } else {
                inbox.try_recv(&mut stream, &call(0), &mut [0; 600])
            };
            match step {
                Ok(Some(taken)) if peek => inbox.consume(taken),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        let known = matches!(error, LinkError::Closed { .. } | LinkError::Protocol { .. });
        prop_assert!(known, "{error}");
        prop_assert!(inbox.memory_bytes() <= Inbox::max_memory_bytes(MAX_CHUNK));
    }
}

/// Counts calls of a stream that takes and gives all it is asked to.
#[derive(Default)]
struct Counter {
    bytes: VecDeque<u8>,
    calls: usize,
}

impl Counter {
    fn take(&mut self, dst: &mut [u8]) -> usize {
        let bytes = dst.len().min(self.bytes.len());
        for (dst, byte) in dst.iter_mut().zip(self.bytes.drain(..bytes)) {
            *dst = byte;
        }
        bytes
    }
}

impl Read for Counter {
    fn read(&mut self, dst: &mut [u8]) -> io::Result<usize> {
        self.calls += 1;
        Ok(self.take(dst))
    }

    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.calls += 1;
        let mut read = 0;
        for part in parts {
            read += self.take(part);
        }
        Ok(read)
    }
}

impl Write for Counter {
    fn write(&mut self, src: &[u8]) -> io::Result<usize> {
        self.calls += 1;
        self.bytes.write(src)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.calls += 1;
        self.bytes.write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_small_message_costs_one_call_at_each_end() {
    let mut stream = Counter::default();
    let (mut outbox, mut inbox) = (Outbox::new(PEER, 1 << 20), Inbox::new(PEER, 1 << 20));
    let (message, mut dst) = (payload(0, 1000), [0; 1000]);
    for number in 0..10 {
        outbox.try_send(&mut stream, &call(number), &message, 1 << 20).expect("open");
        assert_eq!(std::mem::take(&mut stream.calls), 1, "sent from the caller's memory");
        inbox.try_recv(&mut stream, &call(number), &mut dst).expect("open");
        assert_eq!(std::mem::take(&mut stream.calls), 1, "received");

        let room = outbox.try_reserve(&mut stream, 1000).expect("open").expect("room");
        room.copy_from_slice(&message);
        outbox.commit(&mut stream, &call(number), 1000).expect("open");
        assert!(outbox.is_idle(&mut stream).expect("open"));
        assert_eq!(std::mem::take(&mut stream.calls), 1, "sent from a reservation");
        inbox.try_peek(&mut stream).expect("open").expect("here");
        inbox.consume(1000);
        assert_eq!(std::mem::take(&mut stream.calls), 1, "peeked");
    }
}

/// Large pieces that follow each other cost one read each: the header of the next comes along.
#[test]
fn the_next_header_comes_with_the_end_of_a_piece() {
    let mut stream = Counter::default();
    let (mut outbox, mut inbox) = (Outbox::new(PEER, 1 << 20), Inbox::new(PEER, 1 << 20));
    let message = payload(0, 10 << 16);
    let mut sent = 0;
    while sent < message.len() {
        let step = outbox.try_send(&mut stream, &call(0), &message[sent..], 1 << 16);
        sent += step.expect("open").expect("room");
    }
    assert_eq!(std::mem::take(&mut stream.calls), 10);
    let (mut dst, mut got) = (vec![0; message.len()], 0);
    while got < message.len() {
        got += inbox.try_recv(&mut stream, &call(0), &mut dst[got..]).expect("open").expect("here");
    }
    assert!(dst == message);
    assert_eq!(stream.calls, 11);
}

/// A stream of these pieces, numbered from 0, and then its end.
fn stream(pieces: &[(Fingerprint, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (sequence, (fingerprint, payload)) in pieces.iter().enumerate() {
        let header =
            Header { fingerprint: *fingerprint, length: payload.len(), sequence: sequence as u64 };
        bytes.extend(header.to_bytes());
        bytes.extend(*payload);
    }
    bytes
}

/// What comes of receiving `dst` bytes of call 0 from `bytes`, twice: a failure stays.
fn failure(bytes: &[u8], dst: usize) -> LinkError {
    let (mut stream, mut inbox) = (bytes, Inbox::new(PEER, MAX_CHUNK));
    let mut dst = vec![0; dst];
    let first = inbox.try_recv(&mut stream, &call(0), &mut dst).expect_err("must fail");
    let again = inbox.try_recv(&mut stream, &call(0), &mut dst).expect_err("stays failed");
    assert_eq!(first.to_string(), again.to_string());
    let peeked = inbox.try_peek(&mut stream).expect_err("stays failed");
    assert_eq!(first.to_string(), peeked.to_string());
    first
}

#[test]
fn another_call_is_a_mismatch() {
    let other = stream(&[(call(1), &[1; 8])]);
    let LinkError::Mismatch { peer: PEER, theirs, ours } = failure(&other, 8) else {
        panic!("no mismatch")
    };
    assert_eq!((theirs, ours), (call(1), call(0)));
}

#[test]
fn lengths_are_checked_before_they_are_believed() {
    let mut giant = stream(&[(call(0), &[1; 8])]);
    giant[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
    let text = failure(&giant, 8).to_string();
    assert_eq!(
        text,
        "rank 3 sent a damaged message: a piece of 4294967295 bytes, where at most 512 are allowed"
    );

    let long = stream(&[(call(0), &[1; 9])]);
    assert!(matches!(failure(&long, 8), LinkError::Length { expected: 8, got: 9, .. }));
    let empty = stream(&[(call(0), &[])]);
    assert!(matches!(failure(&empty, 8), LinkError::Length { expected: 8, got: 0, .. }));
    assert!(matches!(failure(&long, 0), LinkError::Length { expected: 0, got: 9, .. }));
}

#[test]
fn a_piece_that_is_missing_or_comes_twice_is_noticed() {
    let first = stream(&[(call(0), &[1; 8])]);
    let twice = [&first[..], &first[..]].concat();
    let (mut stream, mut inbox) = (&twice[..], Inbox::new(PEER, MAX_CHUNK));
    let mut dst = [0; 16];
    assert_eq!(inbox.try_recv(&mut stream, &call(0), &mut dst).expect("the first"), Some(8));
    let error = inbox.try_recv(&mut stream, &call(0), &mut dst[8..]).expect_err("again");
    assert_eq!(error.to_string(), "rank 3 sent a damaged message: piece 0 where piece 1 was due");
}

#[test]
fn what_came_before_the_end_is_delivered() {
    let bytes = stream(&[(call(0), &[1; 20]), (call(1), &[2; 20])]);
    let cut = &bytes[..bytes.len() - 7];
    let (mut stream, mut inbox) = (cut, Inbox::new(PEER, MAX_CHUNK));
    inbox.pump(&mut stream).expect("the end is no failure of a pump");
    inbox.pump(&mut stream).expect("nor of the next");
    let mut dst = [0; 20];
    assert_eq!(inbox.try_recv(&mut stream, &call(0), &mut dst).expect("whole"), Some(20));
    let piece = inbox.try_peek(&mut stream).expect("a part").expect("a part");
    assert_eq!(piece.bytes, [2; 8], "a multiple of 8 of the 13 bytes that came");
    inbox.consume(8);
    let error = inbox.try_peek(&mut stream).expect_err("the rest never comes");
    assert!(matches!(error, LinkError::Closed { peer: PEER, transport: "tcp" }));
}

#[test]
fn a_pump_takes_two_chunks_and_then_leaves_the_rest() {
    let piece = (call(0), &[5; MAX_CHUNK][..]);
    let bytes = stream(&[piece; 5]);
    let (mut stream, mut inbox) = (&bytes[..], Inbox::new(PEER, MAX_CHUNK));
    inbox.pump(&mut stream).expect("good");
    let taken = bytes.len() - stream.len();
    assert_eq!(taken, MIN_LINK_CHUNKS * (HEADER_BYTES + MAX_CHUNK));
    inbox.pump(&mut stream).expect("good");
    assert_eq!(bytes.len() - stream.len(), taken, "no room");
    for left in (1..=5).rev() {
        let mut dst = vec![0; left * MAX_CHUNK];
        let mut got = 0;
        while got < MAX_CHUNK {
            got += inbox
                .try_recv(&mut stream, &call(0), &mut dst[got..])
                .expect("good")
                .expect("here");
            inbox.pump(&mut stream).expect("good");
        }
        assert!(dst[..MAX_CHUNK].iter().all(|&byte| byte == 5));
    }
}
