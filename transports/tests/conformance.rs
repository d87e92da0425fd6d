//! One suite over every transport: what the contract of a link promises, each transport keeps.

#[path = "loopback/mod.rs"]
mod loopback;
#[path = "conformance/suite.rs"]
mod suite;

use std::sync::Arc;

use annulus_transports::composite::Composite;
use annulus_transports::link::Fabric;
use annulus_transports::proc::Hub;
use annulus_transports::ring::Geometry;
use annulus_transports::tcp::Options;
use suite::{Buffer, Harness, World, conformance};

conformance!(proc, Proc { headers: 64, data: 1 << 16 });
// A ring that wraps with every message or two.
conformance!(proc_tiny, Proc { headers: 4, data: 1 << 10 });
conformance!(tcp, Tcp(Options::default()));
// Kernel buffers much smaller than a chunk.
conformance!(tcp_tight, Tcp(Options { socket_buffer_bytes: 64 << 10, ..Options::default() }));
conformance!(composite, Mixed);

struct Proc {
    headers: usize,
    data: usize,
}

impl Harness for Proc {
    fn world(&self, ranks: usize) -> World {
        let geometry = Geometry::new(self.headers, self.data).expect("powers of two");
        let hub = Hub::new(ranks, geometry).expect("memory");
        World {
            fabrics: (0..ranks).map(|rank| Box::new(hub.fabric(rank)) as Box<dyn Fabric>).collect(),
            allocate: Box::new(|_, bytes| Box::new(vec![0_u8; bytes]) as Buffer),
        }
    }

    const REFERENCES: bool = true;
}

struct Tcp(Options);

impl Harness for Tcp {
    fn world(&self, ranks: usize) -> World {
        let fabrics = loopback::fabrics(ranks, self.0).into_iter();
        World {
            fabrics: fabrics.map(|fabric| Box::new(fabric) as Box<dyn Fabric>).collect(),
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
            Box::new(Composite::new(fabrics, routes)) as Box<dyn Fabric>
        });
        World {
            fabrics: fabrics.collect(),
            allocate: Box::new(|_, bytes| Box::new(vec![0_u8; bytes]) as Buffer),
        }
    }

    const REFERENCES: bool = false;
}
