//! TCP links over real sockets, on the loopback interface.

#[path = "loopback/mod.rs"]
mod loopback;

use std::io::Write;
use std::time::{Duration, Instant};

use annulus_plan::{CollectiveKind, DataType, Fingerprint};
use annulus_transports::link::{Fabric, LinkError, RecvLink, SendLink};
use annulus_transports::memory::Store;
use annulus_transports::tcp::{Header, Options, TcpFabric};
use loopback::fabric_and_peer;

fn fabrics(options: Options) -> (TcpFabric, TcpFabric) {
    let mut fabrics = loopback::fabrics(2, options).into_iter();
    (fabrics.next().expect("two"), fabrics.next().expect("two"))
}

fn open_send(fabric: &TcpFabric, index: usize) -> Box<dyn SendLink> {
    let peer = 1 - fabric.rank();
    fabric.open_send(peer, index, Instant::now()).expect("connected")
}

fn open_recv(fabric: &TcpFabric, index: usize) -> Box<dyn RecvLink> {
    let peer = 1 - fabric.rank();
    fabric.open_recv(peer, index, Instant::now()).expect("connected")
}

fn call(sequence: u64) -> Fingerprint {
    let (kind, dtype) = (CollectiveKind::Broadcast, DataType::U8);
    Fingerprint::from_parts(kind, dtype, None, Some(0), 100, sequence, 77)
}

fn payload(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i / 251 + i * 31 + seed * 7) as u8).collect()
}

/// One rank's exchange: sends and receives a message of the same length on the same index, both at once.
fn exchange(
    send: &mut dyn SendLink,
    recv: &mut dyn RecvLink,
    src: &[u8],
    dst: &mut [u8],
    chunk: usize,
) {
    let (mut sent, mut received) = (0, 0);
    while sent < src.len() || received < dst.len() || !send.is_idle().expect("open") {
        let mut moved = 0;
        if sent < src.len() {
            let step = send.try_send(&call(0), &src[sent..], chunk, Store::Cached).expect("open");
            moved += step.unwrap_or(0);
            sent += step.unwrap_or(0);
        }
        if received < dst.len() {
            let step = recv.try_recv(&call(0), &mut dst[received..], Store::Cached).expect("open");
            moved += step.unwrap_or(0);
            received += step.unwrap_or(0);
        }
        if moved == 0 {
            recv.pump().expect("open");
            std::thread::yield_now();
        }
    }
}

fn exchange_between_threads(bytes: usize, chunk: usize, options: Options) {
    let (one, two) = fabrics(options);
    std::thread::scope(|scope| {
        for fabric in [&one, &two] {
            scope.spawn(move || {
                let (mut send, mut recv) = (open_send(fabric, 0), open_recv(fabric, 0));
                let src = payload(fabric.rank(), bytes);
                let mut dst = vec![0; bytes];
                exchange(&mut *send, &mut *recv, &src, &mut dst, chunk);
                assert!(dst == payload(1 - fabric.rank(), bytes));
            });
        }
    });
}

#[test]
fn both_directions_at_once() {
    exchange_between_threads(8 << 20, 256 << 10, Options::default());
}

#[test]
fn a_socket_that_takes_little_at_a_time() {
    let options = Options {
        max_chunk_bytes: 64 << 10,
        socket_buffer_bytes: 64 << 10,
        encrypt: false,
        patience: None,
    };
    exchange_between_threads(1_000_003, 10_000, options);
}

/// Room for two chunks, although the receiver has other things to do than to receive from this link:
/// it only pumps.
#[test]
fn two_chunks_are_sent_while_the_receiver_only_pumps() {
    let options = Options {
        max_chunk_bytes: 1 << 20,
        socket_buffer_bytes: 64 << 10,
        encrypt: false,
        patience: None,
    };
    let (one, two) = fabrics(options);
    let (mut send, mut recv) = (open_send(&one, 0), open_recv(&two, 0));
    let chunk = payload(5, 1 << 20);
    for reserved in [true, false] {
        let mut sent = 0;
        while sent < chunk.len() {
            if reserved {
                match send.try_reserve(chunk.len()).expect("open") {
                    Some(room) => {
                        room.copy_from_slice(&chunk);
                        send.commit(&call(0), chunk.len(), Store::Cached).expect("open");
                        sent += chunk.len();
                    }
                    None => recv.pump().expect("open"),
                }
            } else {
                let step = send.try_send(&call(0), &chunk[sent..], chunk.len(), Store::Cached);
                sent += step.expect("open").unwrap_or(0);
                recv.pump().expect("open");
            }
        }
    }
    while !send.is_idle().expect("open") {
        recv.pump().expect("open");
    }
    for _ in 0..2 {
        let (mut dst, mut got) = (vec![0; chunk.len()], 0);
        while got < dst.len() {
            got +=
                recv.try_recv(&call(0), &mut dst[got..], Store::Cached).expect("open").unwrap_or(0);
        }
        assert!(dst == chunk);
    }
}

#[test]
fn links_of_different_indices_do_not_mix() {
    let (one, two) = fabrics(Options::default());
    // Opened in different orders at the two ends.
    let mut sends: Vec<_> = (0..3).map(|index| open_send(&one, index)).collect();
    let mut recvs: Vec<_> = (0..3).rev().map(|index| open_recv(&two, index)).collect();
    recvs.reverse();
    for (index, send) in sends.iter_mut().enumerate() {
        let step = send.try_send(&call(0), &[index as u8; 24], 1 << 20, Store::Cached);
        assert_eq!(step.expect("open"), Some(24));
    }
    for (index, recv) in recvs.iter_mut().enumerate().rev() {
        let mut dst = [0; 24];
        while recv.try_recv(&call(0), &mut dst, Store::Cached).expect("open").is_none() {}
        assert_eq!(dst, [index as u8; 24]);
    }
    assert_eq!(one.transport(1), "tcp");
    assert!(matches!(one.open_send(1, 0, Instant::now()), Err(LinkError::Io { peer: 1, .. })));
}

/// The error that waiting for a message ends with.
fn wait_for_failure(recv: &mut dyn RecvLink) -> LinkError {
    loop {
        match recv.try_recv(&call(0), &mut [0; 64], Store::Cached) {
            Ok(_) => std::thread::yield_now(),
            Err(error) => return error,
        }
    }
}

#[test]
fn a_peer_that_goes_closes_its_links() {
    let (one, two) = fabrics(Options::default());
    let (send, mut recv) = (open_send(&one, 0), open_recv(&two, 0));
    drop(send);
    let error = wait_for_failure(&mut *recv);
    assert!(matches!(error, LinkError::Closed { peer: 0, transport: "tcp" }), "{error}");

    // The other direction lives on, until its receiver goes.
    let (mut back, mut from) = (open_send(&two, 0), open_recv(&one, 0));
    back.try_send(&call(0), &[9; 64], 64, Store::Cached).expect("open");
    let mut dst = [0; 64];
    while from.try_recv(&call(0), &mut dst, Store::Cached).expect("open").is_none() {}
    drop((from, one));
    let error = loop {
        match back.try_send(&call(0), &[9; 64], 64, Store::Cached) {
            Ok(_) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LinkError::Closed { peer: 0, transport: "tcp" }), "{error}");
    assert!(
        matches!(back.is_idle(), Err(LinkError::Closed { .. })),
        "a link that has failed stays failed"
    );
}

#[test]
fn a_stream_that_breaks_the_format_is_refused() {
    let good = Header { fingerprint: call(0), length: 64, sequence: 0 };
    let giant = Header { length: u32::MAX as usize, ..good };
    let late = Header { sequence: 1, ..good };
    for (bytes, what) in [
        (giant.to_bytes(), "a piece of 4294967295 bytes"),
        (late.to_bytes(), "piece 1 where piece 0 was due"),
        ([0xA5; 32], "piece 11936128518282651045 where piece 0 was due"),
    ] {
        let (two, mut stranger) = fabric_and_peer(Options::default());
        let mut recv = open_recv(&two, 0);
        stranger.write_all(&bytes).expect("open");
        let error = wait_for_failure(&mut *recv);
        assert!(matches!(error, LinkError::Protocol { peer: 0, .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
}

/// Nobody asserts how long a sleep lasts: this ends only because the sleeps end.
#[test]
fn a_sleeper_wakes_for_bytes_for_room_and_for_the_end() {
    let options = Options {
        max_chunk_bytes: 1 << 20,
        socket_buffer_bytes: 64 << 10,
        encrypt: false,
        patience: None,
    };
    let (one, two) = fabrics(options);
    let hour = Duration::from_secs(3600);
    let bytes = 4 << 20;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut send, mut sleeper) = (open_send(&one, 0), one.sleeper());
            let (src, mut sent) = (payload(1, bytes), 0);
            while sent < bytes {
                match send.try_send(&call(0), &src[sent..], 1 << 20, Store::Cached).expect("open") {
                    Some(taken) => sent += taken,
                    None => sleeper.sleep(hour),
                }
            }
        });
        let (mut recv, mut sleeper) = (open_recv(&two, 0), two.sleeper());
        let (mut dst, mut got) = (vec![0; bytes], 0);
        while got < bytes {
            match recv.try_recv(&call(0), &mut dst[got..], Store::Cached).expect("open") {
                Some(taken) => got += taken,
                None => sleeper.sleep(hour),
            }
        }
        assert!(dst == payload(1, bytes));
        // Unread bytes keep nobody awake, and the end of the stream comes after them.
        while recv.try_recv(&call(0), &mut [0; 8], Store::Cached).is_ok() {
            sleeper.sleep(hour);
        }
    });
}
