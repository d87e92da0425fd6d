//! There and back between two threads: over process memory, and over shared memory as two processes would
//! use it. Each rank polls as an executor does.

use std::hint::{black_box, spin_loop};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use annulus_plan::{Fingerprint, Rank};
use annulus_transports::link::{Fabric, LinkError, RecvLink, SendLink};
use annulus_transports::memory::Store;
use annulus_transports::proc::Hub;
use annulus_transports::ring::Geometry;
use annulus_transports::shm::{Arena, Inbox, SegmentSource, ShmFabric};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const CALL: Fingerprint = Fingerprint { call: 1, order: 2, tag: 3 };

fn round_trip(criterion: &mut Criterion) {
    let transports: [(&str, [Arc<dyn Fabric>; 2]); 2] = [("proc", proc()), ("shm", shm())];
    for (name, [near, far]) in transports {
        let mut group = criterion.benchmark_group(format!("link_round_trip/{name}"));
        let mut there = Link::between(&*near, &*far);
        let mut back = Link::between(&*far, &*near);
        for bytes in [8, 4 << 10, 128 << 10] {
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_with_input(
                BenchmarkId::from_parameter(bytes),
                &bytes,
                |bencher, &bytes| {
                    let over = AtomicBool::new(false);
                    let (there, back) = (&mut there, &mut back);
                    thread::scope(|scope| {
                        let Link { sender, receiver: answer } = &mut *there;
                        let Link { sender: answerer, receiver } = &mut *back;
                        scope.spawn(|| {
                            let mut buffer = vec![1_u8; bytes];
                            while receive(&mut **answer, &mut buffer, Some(&over)) {
                                send(&mut **answerer, &buffer);
                            }
                        });
                        let mut buffer = vec![1_u8; bytes];
                        bencher.iter(|| {
                            send(&mut **sender, black_box(&buffer));
                            receive(&mut **receiver, &mut buffer, None);
                        });
                        over.store(true, Ordering::Release);
                    });
                },
            );
        }
        group.finish();
    }
}

struct Link {
    sender: Box<dyn SendLink>,
    receiver: Box<dyn RecvLink>,
}

impl Link {
    fn between(from: &dyn Fabric, to: &dyn Fabric) -> Self {
        let deadline = Instant::now() + Duration::from_secs(10);
        Self {
            sender: from.open_send(to.rank(), 0, deadline).expect("opens"),
            receiver: to.open_recv(from.rank(), 0, deadline).expect("opens"),
        }
    }
}

fn send(link: &mut dyn SendLink, bytes: &[u8]) {
    let mut sent = 0;
    while sent < bytes.len() {
        match link.try_send(&CALL, &bytes[sent..], 128 << 10, Store::Cached).expect("open") {
            Some(more) => sent += more,
            None => spin_loop(),
        }
    }
}

/// False when `over` turns true instead.
fn receive(link: &mut dyn RecvLink, buffer: &mut [u8], over: Option<&AtomicBool>) -> bool {
    let mut received = 0;
    while received < buffer.len() {
        match link.try_recv(&CALL, &mut buffer[received..], Store::Cached).expect("open") {
            Some(more) => received += more,
            None if over.is_some_and(|over| over.load(Ordering::Acquire)) => return false,
            None => spin_loop(),
        }
    }
    true
}

fn proc() -> [Arc<dyn Fabric>; 2] {
    let hub = Hub::new(2, Geometry::for_local_ranks(2)).expect("memory");
    [0, 1].map(|rank| Arc::new(hub.fabric(rank)) as Arc<dyn Fabric>)
}

fn shm() -> [Arc<dyn Fabric>; 2] {
    #[derive(Default)]
    struct Table(Mutex<Vec<Weak<ShmFabric>>>);

    impl SegmentSource for Table {
        fn segment(&self, peer: Rank, id: u32, _: Instant) -> Result<OwnedFd, LinkError> {
            let fabric = self.0.lock().expect("no panic")[peer].upgrade().expect("alive");
            Ok(fabric.segment(id).expect("a descriptor").expect("a segment"))
        }
    }

    let table = Arc::new(Table::default());
    let fabrics = [0, 1].map(|rank| {
        let inbox = Inbox::create(2, Geometry::for_local_ranks(2)).expect("memory");
        let source = Arc::clone(&table) as Arc<dyn SegmentSource>;
        Arc::new(ShmFabric::new(rank, 2, vec![0, 1], Arc::new(inbox), Arena::new(), source))
    });
    *table.0.lock().expect("no panic") = fabrics.iter().map(Arc::downgrade).collect();
    // The links hold what they need of the fabrics.
    fabrics.map(|fabric| fabric as Arc<dyn Fabric>)
}

criterion_group!(benches, round_trip);
criterion_main!(benches);
