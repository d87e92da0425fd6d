//! One suite over every transport: what the contract of a link promises, each transport keeps.

#[path = "loopback/mod.rs"]
mod loopback;
#[path = "conformance/suite/mod.rs"]
mod suite;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use annulus_plan::Rank;
use annulus_transports::checksum::ChecksumFabric;
use annulus_transports::composite::Composite;
use annulus_transports::link::{Fabric, LinkError};
use annulus_transports::proc::Hub;
use annulus_transports::ring::Geometry;
use annulus_transports::shm::{Arena, Inbox, SegmentSource, ShmFabric};
use annulus_transports::tcp::Options;
use suite::{Buffer, Harness, World, conformance};

conformance!(proc, Proc { headers: 64, data: 1 << 16 });
// A ring that wraps with every message or two.
conformance!(proc_tiny, Proc { headers: 4, data: 1 << 10 });
conformance!(shm, Shm { headers: 64, data: 1 << 16 });
conformance!(shm_tiny, Shm { headers: 4, data: 1 << 10 });
conformance!(tcp, Tcp(Options::default()));
// Kernel buffers much smaller than a chunk.
conformance!(tcp_tight, Tcp(Options { socket_buffer_bytes: 64 << 10, ..Options::default() }));
conformance!(tcp_encrypted, Tcp(Options { encrypt: true, ..Options::default() }));
conformance!(
    tcp_encrypted_tight,
    Tcp(Options { socket_buffer_bytes: 64 << 10, encrypt: true, ..Options::default() })
);
conformance!(composite, Mixed);
conformance!(checksum_proc, Checked(Proc { headers: 64, data: 1 << 16 }));
conformance!(checksum_proc_tiny, Checked(Proc { headers: 8, data: 1 << 10 }));
conformance!(checksum_shm, Checked(Shm { headers: 64, data: 1 << 16 }));
conformance!(checksum_tcp, Checked(Tcp(Options::default())));
conformance!(
    checksum_tcp_tight,
    Checked(Tcp(Options { socket_buffer_bytes: 64 << 10, ..Options::default() }))
);

struct Proc {
    headers: usize,
    data: usize,
}

impl Harness for Proc {
    fn world(&self, ranks: usize) -> World {
        let geometry = Geometry::new(self.headers, self.data).expect("powers of two");
        let hub = Hub::new(ranks, geometry).expect("memory");
        World {
            fabrics: (0..ranks).map(|rank| Arc::new(hub.fabric(rank)) as Arc<dyn Fabric>).collect(),
            allocate: Box::new(|_, bytes| Box::new(vec![0_u8; bytes]) as Buffer),
        }
    }

    const REFERENCES: bool = true;
}

struct Shm {
    headers: usize,
    data: usize,
}

/// Hands descriptors from fabric to fabric within the test's process.
#[derive(Default)]
struct Table(Mutex<Vec<Weak<ShmFabric>>>);

impl SegmentSource for Table {
    fn segment(&self, peer: Rank, id: u32, _: Instant) -> Result<OwnedFd, LinkError> {
        let fabric = self.0.lock().expect("no panic")[peer].upgrade();
        let fabric = fabric.ok_or(LinkError::Closed { peer, transport: "shm" })?;
        let segment = fabric.segment(id).expect("a descriptor");
        segment.ok_or(LinkError::Protocol { peer, what: format!("no segment {id}") })
    }
}

impl Harness for Shm {
    fn world(&self, ranks: usize) -> World {
        let geometry = Geometry::new(self.headers, self.data).expect("powers of two");
        let table = Arc::new(Table::default());
        let arenas: Vec<_> = (0..ranks).map(|_| Arena::new()).collect();
        let fabrics: Vec<_> = (0..ranks)
            .map(|rank| {
                let inbox = Arc::new(Inbox::create(ranks, geometry).expect("memory"));
                let (locals, arena) = ((0..ranks).collect(), Arc::clone(&arenas[rank]));
                let source = Arc::clone(&table) as Arc<dyn SegmentSource>;
                Arc::new(ShmFabric::new(rank, ranks, locals, inbox, arena, source))
            })
            .collect();
        *table.0.lock().expect("no panic") = fabrics.iter().map(Arc::downgrade).collect();
        World {
            fabrics: fabrics.into_iter().map(|fabric| fabric as Arc<dyn Fabric>).collect(),
            allocate: Box::new(move |rank, bytes| {
                Box::new(arenas[rank].alloc(bytes).expect("memory")) as Buffer
            }),
        }
    }

    const REFERENCES: bool = true;
}

/// Any of the others with checksums.
struct Checked<H>(H);

impl<H: Harness> Harness for Checked<H> {
    fn world(&self, ranks: usize) -> World {
        let World { fabrics, allocate } = self.0.world(ranks);
        let checked = |fabric| Arc::new(ChecksumFabric::new(fabric)) as Arc<dyn Fabric>;
        World { fabrics: fabrics.into_iter().map(checked).collect(), allocate }
    }

    const REFERENCES: bool = false;
}

struct Tcp(Options);

impl Harness for Tcp {
    fn world(&self, ranks: usize) -> World {
        let fabrics = loopback::fabrics(ranks, self.0).into_iter();
        World {
            fabrics: fabrics.map(|fabric| Arc::new(fabric) as Arc<dyn Fabric>).collect(),
            allocate: Box::new(|_, bytes| Box::new(vec![0_u8; bytes]) as Buffer),
        }
    }

    const REFERENCES: bool = false;
}

/// Two "hosts": ranks meet their neighbours over TCP, and every second rank in memory.
struct Mixed;

impl Harness for Mixed {
    fn world(&self, ranks: usize) -> World {
        let hub = Hub::new(ranks, Geometry::for_local_ranks(ranks)).expect("memory");
        let tcp = loopback::fabrics(ranks, Options::default());
        let fabrics = tcp.into_iter().enumerate().map(|(rank, tcp)| {
            let routes = (0..ranks).map(|peer| (rank + peer) % 2).collect();
            let fabrics: Vec<Arc<dyn Fabric>> = vec![Arc::new(hub.fabric(rank)), Arc::new(tcp)];
            Arc::new(Composite::new(fabrics, routes)) as Arc<dyn Fabric>
        });
        World {
            fabrics: fabrics.collect(),
            allocate: Box::new(|_, bytes| Box::new(vec![0_u8; bytes]) as Buffer),
        }
    }

    const REFERENCES: bool = false;
}
