//! Several transports as one: each peer is reached by the best that leads to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use annulus_plan::Rank;

use crate::link::{Fabric, LinkError, RecvLink, SendLink, Sleeper};

/// How long a rank that waits on several transports sleeps on one of them at a time, at most.
const SLICE: Duration = Duration::from_millis(4);

/// A fabric made of fabrics, of which each peer uses one.
pub struct Composite {
    fabrics: Vec<Arc<dyn Fabric>>,
    /// For each peer the index of its fabric.
    routes: Vec<usize>,
    /// The fabrics that some peer uses, in order.
    used: Vec<usize>,
}

impl Composite {
    /// Reaches each peer `p` through `fabrics[routes[p]]`. The route of the rank to itself is not used.
    ///
    /// When peers use several fabrics, a rank sleeps on the last of them, a few milliseconds at a time, so
    /// that it finds what the others bring at most that much late: put TCP last, and nobody pays
    /// for waking a sleeper in shared memory.
    ///
    /// # Panics
    /// When the fabrics belong to different ranks or worlds, or `routes` does not name one of them for each rank.
    pub fn new(fabrics: Vec<Arc<dyn Fabric>>, routes: Vec<usize>) -> Self {
        let first = fabrics.first().expect("a composite needs a fabric");
        let (rank, world) = (first.rank(), first.world());
        assert!(
            fabrics.iter().all(|fabric| (fabric.rank(), fabric.world()) == (rank, world)),
            "fabrics of different ranks"
        );
        assert_eq!(routes.len(), world, "one route for each rank");
        assert!(routes.iter().all(|&route| route < fabrics.len()), "a route leads nowhere");
        let leads_out = |index: &usize| {
            routes.iter().enumerate().any(|(peer, route)| peer != rank && route == index)
        };
        let used = (0..fabrics.len()).filter(leads_out).collect();
        Self { fabrics, routes, used }
    }

    fn route(&self, peer: Rank) -> &dyn Fabric {
        &*self.fabrics[self.routes[peer]]
    }
}

impl Fabric for Composite {
    fn rank(&self) -> Rank {
        self.fabrics[0].rank()
    }

    fn world(&self) -> usize {
        self.fabrics[0].world()
    }

    fn open_send(
        &self,
        peer: Rank,
        index: usize,
        deadline: Instant,
    ) -> Result<Box<dyn SendLink>, LinkError> {
        self.route(peer).open_send(peer, index, deadline)
    }

    fn open_recv(
        &self,
        peer: Rank,
        index: usize,
        deadline: Instant,
    ) -> Result<Box<dyn RecvLink>, LinkError> {
        self.route(peer).open_recv(peer, index, deadline)
    }

    fn sleeper(&self) -> Box<dyn Sleeper> {
        match *self.used {
            [] => self.fabrics[0].sleeper(),
            [only] => self.fabrics[only].sleeper(),
            [.., last] => Box::new(Slices(self.fabrics[last].sleeper())),
        }
    }

    /// The least of the fabrics that are used.
    fn max_chunk_bytes(&self) -> usize {
        let used = self.used.iter().map(|&index| self.fabrics[index].max_chunk_bytes());
        used.min().unwrap_or_else(|| self.fabrics[0].max_chunk_bytes())
    }

    fn transport(&self, peer: Rank) -> &'static str {
        self.route(peer).transport(peer)
    }
}

/// Sleeps on one fabric, and never long, because the others cannot end the sleep.
struct Slices(Box<dyn Sleeper>);

impl Sleeper for Slices {
    fn announce(&mut self) {
        self.0.announce();
    }

    fn retract(&mut self) {
        self.0.retract();
    }

    fn sleep(&mut self, timeout: Duration) {
        self.0.sleep(timeout.min(SLICE));
    }
}
