//! Two real processes over shared memory: this test starts itself again as the peer, and both pass their
//! descriptors over a Unix socket.

use std::env;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use annulus_plan::{Fingerprint, Rank};
use annulus_transports::descriptor::{recv_fd, send_fd};
use annulus_transports::link::{Fabric, LinkError, RecvLink, SendLink};
use annulus_transports::memory::Store;
use annulus_transports::ring::Geometry;
use annulus_transports::shm::{Arena, Inbox, SegmentSource, SharedMemory, ShmFabric};

const PEER: &str = "ANNULUS_TEST_SHARED_MEMORY_PEER";
const ROUNDS: usize = 200;
const BYTES: usize = 3 << 20;

#[test]
fn two_processes_exchange_messages() {
    if let Ok(name) = env::var(PEER) {
        let address = SocketAddr::from_abstract_name(name).expect("short");
        return run(1, UnixStream::connect_addr(&address).expect("the parent listens"));
    }
    let name = format!("annulus-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("short");
    let listener = UnixListener::bind_addr(&address).expect("the name is ours");
    let mut peer = Command::new(env::current_exe().expect("known"))
        .args(["--exact", "two_processes_exchange_messages", "--nocapture"])
        .env(PEER, name)
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    run(0, listener.accept().expect("the peer connects").0);
    assert!(peer.wait().expect("ends").success());
}

/// Exchanges the descriptors in a fixed order: both inboxes, then one segment of each arena.
fn run(rank: Rank, stream: UnixStream) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let inbox = Inbox::create(2, Geometry::for_local_ranks(2)).expect("memory");
    let arena = Arena::new();
    let mut memory = arena.alloc(BYTES).expect("memory");
    let segment = arena.segment(1).expect("a descriptor").expect("the first segment");
    for fd in [inbox.fd().try_clone_to_owned().expect("a descriptor"), segment] {
        send_fd(&stream, std::os::fd::AsFd::as_fd(&fd)).expect("passed");
    }
    let theirs = [(); 2].map(|()| recv_fd(&stream, deadline).expect("passed"));
    let source = Arc::new(Passed(Mutex::new(theirs.map(Some))));
    let fabric = ShmFabric::new(rank, 2, vec![0, 1], Arc::new(inbox), arena, source);
    let mut sender = fabric.open_send(1 - rank, 0, deadline).expect("opens");
    let mut receiver = fabric.open_recv(1 - rank, 0, deadline).expect("opens");
    exchange_copies(rank, &mut *sender, &mut *receiver);
    exchange_references(rank, &mut *sender, &mut *receiver, &mut memory);
    // Nobody leaves before the other has read everything.
    while !sender.is_idle().expect("open") {
        thread::yield_now();
    }
}

fn exchange_copies(rank: Rank, sender: &mut dyn SendLink, receiver: &mut dyn RecvLink) {
    for round in 0..ROUNDS {
        let bytes = [8, 100, 5000, 300_000][round % 4];
        let mut got = vec![0; bytes];
        let (mut sent, mut received) = (0, 0);
        let message = vec![(round + rank) as u8; bytes];
        while sent < bytes || received < bytes {
            if sent < bytes {
                let more =
                    sender.try_send(&call(round), &message[sent..], 64 << 10, Store::NonTemporal);
                sent += more.expect("open").unwrap_or(0);
            }
            let more = receiver.try_recv(&call(round), &mut got[received..], Store::Cached);
            match more.expect("open") {
                Some(more) => received += more,
                None => thread::yield_now(),
            }
        }
        assert!(got.iter().all(|&byte| byte == (round + 1 - rank) as u8));
    }
}

fn exchange_references(
    rank: Rank,
    sender: &mut dyn SendLink,
    receiver: &mut dyn RecvLink,
    memory: &mut SharedMemory,
) {
    for round in 0..4 {
        memory.fill((10 * round + rank) as u8);
        // SAFETY: the memory is written again only when the link is idle.
        unsafe { sender.try_send_reference(&call(round), memory) }
            .expect("open")
            .expect("memory of an arena can be referred to");
        let bytes = loop {
            if let Some(piece) = receiver.try_peek().expect("open") {
                assert!(piece.bytes.iter().all(|&byte| byte == (10 * round + 1 - rank) as u8));
                break piece.bytes.len();
            }
            thread::yield_now();
        };
        assert_eq!(bytes, BYTES);
        receiver.consume(bytes);
        while !sender.is_idle().expect("open") {
            thread::yield_now();
        }
    }
}

fn call(round: usize) -> Fingerprint {
    Fingerprint { call: 7, order: round as u64, tag: 1 }
}

/// The peer's descriptors: of its inbox and of its first segment, each asked for once.
struct Passed(Mutex<[Option<OwnedFd>; 2]>);

impl SegmentSource for Passed {
    fn segment(&self, _: Rank, id: u32, _: Instant) -> Result<OwnedFd, LinkError> {
        let fd = self.0.lock().expect("no panic")[id as usize].take();
        Ok(fd.expect("a segment is mapped once, however many links use it"))
    }
}
