//! Encrypted TCP links through somebody who reads and changes what goes by.

#[path = "loopback/mod.rs"]
mod loopback;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use annulus_plan::Fingerprint;
use annulus_transports::link::{Fabric, LinkError};
use annulus_transports::memory::Store;
use annulus_transports::tcp::record::RecordError;
use annulus_transports::tcp::{HEADER_BYTES, Options, TcpFabric};

const CALL: Fingerprint = Fingerprint { call: 5, order: 7 << 32, tag: 11 };
const ENCRYPTED: Options = Options {
    max_chunk_bytes: 1 << 16,
    socket_buffer_bytes: 1 << 20,
    encrypt: true,
    patience: None,
};
/// Each message is one record: its header and its bytes.
const MESSAGES: usize = 8;
const BYTES: usize = 200;
const RECORD: usize = 4 + HEADER_BYTES + BYTES + 16;

fn message(number: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 31 + number * 7) as u8).collect()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn send_all(fabric: &TcpFabric, peer: usize) {
    let mut sender = fabric.open_send(peer, 0, soon()).expect("opens");
    for number in 0..MESSAGES {
        let message = message(number);
        while sender.try_send(&CALL, &message, usize::MAX, Store::Cached).expect("open").is_none() {
        }
    }
    while !sender.is_idle().expect("open") {}
}

/// How many messages came, each as it was sent, and why no more did.
fn receive_all(fabric: &TcpFabric, peer: usize) -> (usize, Option<LinkError>) {
    let mut receiver = fabric.open_recv(peer, 0, soon()).expect("opens");
    for number in 0..MESSAGES {
        let (mut got, mut done) = ([0; BYTES], 0);
        while done < BYTES {
            match receiver.try_recv(&CALL, &mut got[done..], Store::Cached) {
                Ok(Some(bytes)) => done += bytes,
                Ok(None) => thread::yield_now(),
                Err(error) => return (number, Some(error)),
            }
        }
        assert!(got[..] == message(number), "wrong bytes were handed out");
    }
    (MESSAGES, None)
}

/// Sends the messages from rank 0 to rank 1 through `change`, which sees the whole stream.
fn through(
    options: Options,
    change: impl FnOnce(Vec<u8>) -> Vec<u8> + Send,
) -> (usize, Option<LinkError>) {
    let ([one, two], [near_one, near_two]) = loopback::fabrics_apart(options);
    thread::scope(|scope| {
        scope.spawn(move || send_all(&one, 1));
        scope.spawn(move || {
            let changed = change(read_all(near_one));
            // The receiver may have seen enough.
            let _ = (&near_two).write_all(&changed);
        });
        receive_all(&two, 0)
    })
}

fn read_all(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("open");
    bytes
}

/// Whether any 16 bytes of a message stand in `stream`.
fn shows_payload(stream: &[u8]) -> bool {
    (0..MESSAGES).any(|number| {
        let message = message(number);
        message.chunks(16).any(|part| stream.windows(part.len()).any(|seen| seen == part))
    })
}

#[test]
fn the_payload_is_not_on_the_wire() {
    for encrypt in [false, true] {
        let (came, error) = through(Options { encrypt, ..ENCRYPTED }, |stream| {
            assert_eq!(shows_payload(&stream), !encrypt);
            // Nor who calls what.
            let call = CALL.call.to_le_bytes();
            assert_eq!(stream.windows(8).any(|seen| seen == call), !encrypt);
            let expected = if encrypt { MESSAGES * RECORD } else { MESSAGES * (RECORD - 20) };
            assert_eq!(stream.len(), expected);
            stream
        });
        assert_eq!(came, MESSAGES, "{error:?}");
    }
}

/// The same plaintext never gives the same ciphertext: not in one stream, nor in both directions, nor again.
#[test]
fn equal_messages_look_different() {
    let mut streams = Vec::new();
    for _ in 0..2 {
        let ([one, two], [near_one, near_two]) = loopback::fabrics_apart(ENCRYPTED);
        streams.extend(thread::scope(|scope| {
            scope.spawn(move || send_all(&one, 1));
            scope.spawn(move || send_all(&two, 0));
            [near_one, near_two].map(read_all)
        }));
    }
    let mut records: Vec<&[u8]> = streams.iter().flat_map(|stream| stream.chunks(RECORD)).collect();
    assert_eq!(records.len(), 4 * MESSAGES);
    records.sort_unstable_by_key(|record| &record[4..]);
    assert!(records.windows(2).all(|pair| pair[0][4..20] != pair[1][4..20]));
}

/// Every byte of a record: length, ciphertext, tag.
#[test]
fn a_flipped_bit_is_refused() {
    for at in (0..RECORD).filter(|at| *at < 8 || at % 7 == 0 || *at >= RECORD - 16) {
        let (came, error) = through(ENCRYPTED, |mut stream| {
            stream[2 * RECORD + at] ^= 1 << (at % 8);
            stream
        });
        assert_eq!(came, 2);
        match error.expect("refused") {
            LinkError::Record { peer: 0, source: RecordError::Damaged { record: 2 } } => {}
            LinkError::Record { peer: 0, source: RecordError::Length { record: 2, .. } } => {
                assert!(at < 4);
            }
            // A length that grew waits for bytes that do not come, until the stream ends.
            LinkError::Closed { peer: 0, .. } => assert!(at < 4),
            error => panic!("at {at}: {error}"),
        }
    }
}

#[test]
fn replayed_reordered_and_missing_records_are_refused() {
    type Change = fn(Vec<&[u8]>) -> Vec<&[u8]>;
    let changes: [(&str, usize, Change); 4] = [
        ("replayed", 3, |mut records| {
            records.insert(3, records[2]);
            records
        }),
        ("replayed much later", MESSAGES - 1, |mut records| {
            records[MESSAGES - 1] = records[0];
            records
        }),
        ("reordered", 4, |mut records| {
            records.swap(4, 5);
            records
        }),
        ("missing", 5, |mut records| {
            records.remove(5);
            records
        }),
    ];
    for (what, good, change) in changes {
        let (came, error) =
            through(ENCRYPTED, |stream| change(stream.chunks(RECORD).collect()).concat());
        assert_eq!(came, good, "{what}");
        let error = error.expect(what);
        assert!(
            matches!(error, LinkError::Record { peer: 0, source: RecordError::Damaged { record } } if record == good as u64),
            "{what}: {error}"
        );
        assert!(error.to_string().contains("fails its authentication"), "{error}");
    }
}

/// A stream that was recorded in one connection says nothing in another; nor does one's own.
#[test]
fn recorded_and_reflected_streams_are_refused() {
    let mut recording = Vec::new();
    through(ENCRYPTED, |stream| {
        recording.clone_from(&stream);
        stream
    });
    let (came, error) = through(ENCRYPTED, |_| recording);
    assert!(matches!((came, error), (0, Some(LinkError::Record { .. }))));

    let ([one, _two], [near_one, _near_two]) = loopback::fabrics_apart(ENCRYPTED);
    let (came, error) = thread::scope(|scope| {
        scope.spawn(|| {
            let mut back = near_one.try_clone().expect("a descriptor");
            let mut bytes = vec![0; RECORD];
            (&near_one).read_exact(&mut bytes).expect("open");
            back.write_all(&bytes).expect("open");
        });
        let mut sender = one.open_send(1, 0, soon()).expect("opens");
        sender.try_send(&CALL, &message(0), usize::MAX, Store::Cached).expect("open");
        receive_all(&one, 1)
    });
    assert!(matches!((came, error), (0, Some(LinkError::Record { .. }))));
}

/// A stream that ends early is the end of the link, at a record's border and within.
#[test]
fn a_stream_that_is_cut_ends_the_link() {
    for keep in [0, 3, RECORD, 2 * RECORD - 1, 3 * RECORD + 10] {
        let (came, error) = through(ENCRYPTED, |mut stream| {
            stream.truncate(keep);
            stream
        });
        assert_eq!(came, keep / RECORD);
        assert!(matches!(error, Some(LinkError::Closed { peer: 0, .. })), "{error:?}");
    }
}

/// One end encrypts and the other does not: settings are compared when ranks join, so this is damage.
#[test]
fn a_plain_stream_is_no_encrypted_one() {
    let plain = Options { encrypt: false, ..ENCRYPTED };
    let mut recording = Vec::new();
    through(plain, |stream| {
        recording.clone_from(&stream);
        stream
    });
    let (came, error) = through(ENCRYPTED, |_| recording);
    assert!(matches!(
        (came, error),
        (0, Some(LinkError::Record { .. } | LinkError::Closed { .. }))
    ));
}

/// Ranks that offered no public key get no link, rather than one in the clear.
#[test]
fn without_a_session_there_is_no_link() {
    let (fabric, _peer) = loopback::fabric_and_peer(ENCRYPTED);
    let error = fabric.open_recv(0, 0, soon()).err().expect("no session");
    assert!(error.to_string().contains("ANNULUS_ENCRYPT"), "{error}");
}
