//! A TCP link whose peer sends anything.

use std::io::{self, Read, Write};

use annulus_plan::Fingerprint;
use annulus_transports::link::LinkError;
use annulus_transports::tcp::{HEADER_BYTES, Inbox, Outbox};

const MAX_CHUNK: usize = 256;
const MESSAGES: [usize; 4] = [8, 0, 600, 1];

/// The first byte tells how many bytes come at a time, the bits of the second how the receiver looks at them, in
/// turn, the third what the others are:
///
/// * even: the stream. Whatever it is, the link ends with an error and holds little memory;
/// * odd: a mask over the stream of an honest sender (short masks go on with zeros). The bytes must
///   arrive if the mask leaves the headers alone, and be as many as were sent.
pub(crate) fn run(data: &[u8]) {
    let [step, turns, mode, data @ ..] = data else { return };
    let step = usize::from(*step).max(1);
    let mut inbox = Inbox::new(1, MAX_CHUNK);
    if mode % 2 == 0 {
        let mut stream = Stream { bytes: data, step };
        let error = receive(&mut inbox, &mut stream, *turns, &[data.len() + 1]);
        assert!(error.is_err(), "a message longer than its stream");
    } else {
        let (mut stream, headers) = honest();
        let mut intact = true;
        for (at, mask) in data.iter().enumerate().take(stream.len()) {
            stream[at] ^= mask;
            intact &= *mask == 0
                || !headers.iter().any(|header| (*header..header + HEADER_BYTES).contains(&at));
        }
        let mut cut = Stream { bytes: &stream, step };
        let received = receive(&mut inbox, &mut cut, *turns, &MESSAGES);
        assert!(!intact || received.is_ok(), "an honest header was refused: {received:?}");
    }
    assert!(inbox.memory_bytes() <= Inbox::max_memory_bytes(MAX_CHUNK));
}

/// Receives messages of these lengths, the n-th of call n.
fn receive(
    inbox: &mut Inbox,
    stream: &mut Stream<'_>,
    turns: u8,
    messages: &[usize],
) -> Result<(), LinkError> {
    let mut turn = 0;
    for (number, &length) in messages.iter().enumerate() {
        let mut dst = vec![0; length];
        let mut done = 0;
        loop {
            turn += 1;
            let received = match turns >> (turn % 4 * 2) & 3 {
                0 => {
                    inbox.pump(stream)?;
                    inbox.try_recv(stream, &call(number), &mut dst[done..])?
                }
                1 => inbox.try_recv(stream, &call(number), &mut dst[done..])?,
                _ => {
                    let shown = inbox.try_peek(stream)?;
                    let shown = shown.map(|piece| piece.bytes.len().min(length - done));
                    if let Some(bytes) = shown {
                        inbox.consume(bytes);
                    }
                    shown
                }
            };
            done += received.unwrap_or(0);
            if received.is_some() && done == length {
                break;
            }
        }
    }
    Ok(())
}

/// What an honest sender sends, and where its headers begin.
fn honest() -> (Vec<u8>, Vec<usize>) {
    let mut stream = Collector::default();
    let mut outbox = Outbox::new(0, MAX_CHUNK);
    let mut headers = Vec::new();
    for (number, length) in MESSAGES.into_iter().enumerate() {
        let message = vec![number as u8; length];
        let mut sent = 0;
        loop {
            headers.push(stream.0.len());
            sent += outbox
                .try_send(&mut stream, &call(number), &message[sent..], MAX_CHUNK)
                .expect("a vector takes all")
                .expect("at once");
            if sent == length {
                break;
            }
        }
    }
    (stream.0, headers)
}

fn call(number: usize) -> Fingerprint {
    Fingerprint { call: 8, order: number as u64, tag: 3 }
}

/// Bytes that come a few at a time, and then end.
struct Stream<'a> {
    bytes: &'a [u8],
    step: usize,
}

impl Read for Stream<'_> {
    fn read(&mut self, dst: &mut [u8]) -> io::Result<usize> {
        let bytes = self.step.min(dst.len());
        self.bytes.read(&mut dst[..bytes])
    }
}

#[derive(Default)]
struct Collector(Vec<u8>);

impl Write for Collector {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn write_vectored(&mut self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
