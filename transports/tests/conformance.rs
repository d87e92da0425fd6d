//! One suite over every transport: what the contract of a link promises, each transport keeps.

#[path = "conformance/suite.rs"]
mod suite;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use annulus_plan::Rank;
use annulus_transports::link::{Fabric, LinkError};
use annulus_transports::proc::Hub;
use annulus_transports::ring::Geometry;
use annulus_transports::shm::{Arena, Inbox, SegmentSource, ShmFabric};
use suite::{Buffer, Harness, World, conformance};

conformance!(proc, Proc { headers: 64, data: 1 << 16 });
// A ring that wraps with every message or two.
conformance!(proc_tiny, Proc { headers: 4, data: 1 << 10 });
conformance!(shm, Shm { headers: 64, data: 1 << 16 });
conformance!(shm_tiny, Shm { headers: 4, data: 1 << 10 });

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
