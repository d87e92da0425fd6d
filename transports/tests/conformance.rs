//! One suite over every transport: what the contract of a link promises, each transport keeps.

#[path = "conformance/suite.rs"]
mod suite;

use annulus_transports::link::Fabric;
use annulus_transports::proc::Hub;
use annulus_transports::ring::Geometry;
use suite::{Buffer, Harness, World, conformance};

conformance!(proc, Proc { headers: 64, data: 1 << 16 });
// A ring that wraps with every message or two.
conformance!(proc_tiny, Proc { headers: 4, data: 1 << 10 });

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
