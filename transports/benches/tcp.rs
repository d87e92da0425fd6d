//! TCP links on the loopback interface, beside the same exchange over bare sockets.
//!
//! `exchange_8` is what an all-reduce of 8 bytes pays between two ranks: each sends 8 bytes (40 with
//! their header) and waits for the other's. `both_ways_8MiB` sends 8 MiB in each direction at once.

#[path = "../tests/loopback/mod.rs"]
mod loopback;

use std::hint::black_box;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use annulus_plan::{CollectiveKind, DataType, Fingerprint};
use annulus_transports::link::{Fabric, RecvLink, SendLink};
use annulus_transports::memory::Store;
use annulus_transports::tcp::{HEADER_BYTES, Options};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const CHUNK: usize = 256 << 10;

fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("exchange_8");
    group.bench_function("link", |bencher| {
        bencher.iter_custom(|n| between_two(n, 8, &link_ends()));
    });
    group.bench_function("reservation", |bencher| {
        bencher.iter_custom(|n| between_two(n, 8, &reserving_ends()));
    });
    group.bench_function("socket", |bencher| {
        bencher.iter_custom(|n| between_two(n, 8 + HEADER_BYTES, &socket_ends()));
    });
    group.finish();

    let bytes = 8 << 20;
    let mut group = criterion.benchmark_group("both_ways_8MiB");
    group.throughput(Throughput::Bytes(bytes as u64)).sample_size(20);
    group.bench_function("link", |bencher| {
        bencher.iter_custom(|n| between_two(n, bytes, &link_ends()));
    });
    group.bench_function("reservation", |bencher| {
        bencher.iter_custom(|n| between_two(n, bytes, &reserving_ends()));
    });
    group.bench_function("socket", |bencher| {
        bencher.iter_custom(|n| between_two(n, bytes, &socket_ends()));
    });
    group.finish();
}

/// One rank's part of an exchange: `src` out, `dst` in. Spins while neither can go on.
trait End: Send {
    fn try_send(&mut self, bytes: &[u8]) -> usize;
    fn try_recv(&mut self, bytes: &mut [u8]) -> usize;
    fn is_idle(&mut self) -> bool {
        true
    }
    fn pump(&mut self) {}
}

/// How long the slower of two ranks takes for `iterations` exchanges of `bytes` bytes each way.
fn between_two(iterations: u64, bytes: usize, ends: &dyn Fn() -> [Box<dyn End>; 2]) -> Duration {
    let (times, results) = mpsc::channel();
    let start = Arc::new(Barrier::new(2));
    let threads = ends().map(|mut end| {
        let (times, start) = (times.clone(), Arc::clone(&start));
        thread::spawn(move || {
            let (src, mut dst) = (vec![1; bytes], vec![0; bytes]);
            exchange(&mut *end, &src, &mut dst);
            start.wait();
            let begin = Instant::now();
            for _ in 0..iterations {
                exchange(&mut *end, black_box(&src), &mut dst);
                black_box(&mut dst);
            }
            times.send(begin.elapsed()).expect("received below");
            start.wait();
        })
    });
    let slower = results.iter().take(2).max().expect("two ranks");
    for thread in threads {
        thread.join().expect("no panic");
    }
    slower
}

fn exchange(end: &mut dyn End, src: &[u8], dst: &mut [u8]) {
    let (mut sent, mut received) = (0, 0);
    while sent < src.len() || received < dst.len() || !end.is_idle() {
        let mut moved = 0;
        if sent < src.len() {
            moved += end.try_send(&src[sent..]);
            sent += moved;
        }
        if received < dst.len() {
            let got = end.try_recv(&mut dst[received..]);
            received += got;
            moved += got;
        }
        if moved == 0 {
            end.pump();
            std::hint::spin_loop();
        }
    }
}

struct Links {
    send: Box<dyn SendLink>,
    recv: Box<dyn RecvLink>,
    reserve: bool,
    call: Fingerprint,
}

impl End for Links {
    fn try_send(&mut self, bytes: &[u8]) -> usize {
        if self.reserve {
            let max = bytes.len().min(CHUNK);
            let Some(room) = self.send.try_reserve(max).expect("open") else { return 0 };
            let taken = room.len();
            room.copy_from_slice(&bytes[..taken]);
            self.send.commit(&self.call, taken, Store::Cached).expect("open");
            return taken;
        }
        self.send.try_send(&self.call, bytes, CHUNK, Store::Cached).expect("open").unwrap_or(0)
    }

    fn try_recv(&mut self, bytes: &mut [u8]) -> usize {
        if self.reserve {
            let Some(piece) = self.recv.try_peek().expect("open") else { return 0 };
            let taken = piece.bytes.len();
            bytes[..taken].copy_from_slice(piece.bytes);
            self.recv.consume(taken);
            return taken;
        }
        self.recv.try_recv(&self.call, bytes, Store::Cached).expect("open").unwrap_or(0)
    }

    fn is_idle(&mut self) -> bool {
        self.send.is_idle().expect("open")
    }

    fn pump(&mut self) {
        self.send.is_idle().expect("open");
        self.recv.pump().expect("open");
    }
}

/// The same over a bare socket, with the same buffers.
struct Socket(TcpStream);

impl End for Socket {
    fn try_send(&mut self, bytes: &[u8]) -> usize {
        taken(self.0.write(&bytes[..bytes.len().min(CHUNK)]))
    }

    fn try_recv(&mut self, bytes: &mut [u8]) -> usize {
        taken(self.0.read(bytes))
    }
}

fn taken(result: std::io::Result<usize>) -> usize {
    match result {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(error) => panic!("a socket failed: {error}"),
    }
}

fn link_ends() -> impl Fn() -> [Box<dyn End>; 2] {
    || ends(false)
}

fn reserving_ends() -> impl Fn() -> [Box<dyn End>; 2] {
    || ends(true)
}

fn ends(reserve: bool) -> [Box<dyn End>; 2] {
    let fabrics = loopback::fabrics(2, Options::default());
    [0, 1].map(|rank| {
        let (fabric, peer, now) = (&fabrics[rank], 1 - rank, Instant::now());
        let (kind, dtype) = (CollectiveKind::AllReduce, DataType::U8);
        Box::new(Links {
            send: fabric.open_send(peer, 0, now).expect("connected"),
            recv: fabric.open_recv(peer, 0, now).expect("connected"),
            reserve,
            call: Fingerprint::from_parts(kind, dtype, None, None, 8, 0, 1),
        }) as Box<dyn End>
    })
}

fn socket_ends() -> impl Fn() -> [Box<dyn End>; 2] {
    || {
        loopback::socket_pair().map(|stream| {
            let socket = socket2::SockRef::from(&stream);
            let bytes = Options::default().socket_buffer_bytes;
            socket.set_send_buffer_size(bytes).expect("allowed");
            socket.set_recv_buffer_size(bytes).expect("allowed");
            stream.set_nodelay(true).expect("a socket");
            stream.set_nonblocking(true).expect("a socket");
            Box::new(Socket(stream)) as Box<dyn End>
        })
    }
}

criterion_group!(tcp, benches);
criterion_main!(tcp);
