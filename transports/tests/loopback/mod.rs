//! TCP fabrics over the loopback interface. Each test uses what it needs.

#![allow(dead_code, reason = "every test that includes this file uses a part of it")]

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use annulus_plan::Rank;
use annulus_transports::link::LinkError;
use annulus_transports::tcp::{Options, StreamSource, TcpFabric};

/// The fabrics of a world. A pair of sockets is connected when the first of its ranks asks for it.
pub(crate) fn fabrics(world: usize, options: Options) -> Vec<TcpFabric> {
    let sockets = Arc::<Sockets>::default();
    (0..world).map(|rank| fabric(rank, world, &sockets, options)).collect()
}

/// The fabric of one rank of two, and the other end of its socket 0.
pub(crate) fn fabric_and_peer(options: Options) -> (TcpFabric, TcpStream) {
    let [socket, peer] = socket_pair();
    let sockets = Arc::new(Mutex::new(HashMap::from([((1, 0, 0), socket)])));
    (fabric(1, 2, &sockets, options), peer)
}

/// The fabrics of two ranks whose socket 0 somebody else holds in the middle: the loose ends, of rank 0 and of rank 1.
pub(crate) fn fabrics_apart(options: Options) -> ([TcpFabric; 2], [TcpStream; 2]) {
    let ([one, near_one], [two, near_two]) = (socket_pair(), socket_pair());
    let sockets = Arc::new(Mutex::new(HashMap::from([((0, 1, 0), one), ((1, 0, 0), two)])));
    ([0, 1].map(|rank| fabric(rank, 2, &sockets, options)), [near_one, near_two])
}

pub(crate) fn socket_pair() -> [TcpStream; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let one = TcpStream::connect(listener.local_addr().expect("bound")).expect("listening");
    [one, listener.accept().expect("connected").0]
}

fn fabric(rank: Rank, world: usize, sockets: &Arc<Sockets>, options: Options) -> TcpFabric {
    let source = Source { rank, sockets: Arc::clone(sockets) };
    TcpFabric::new(rank, world, Arc::new(source), options).expect("an epoll descriptor")
}

/// Ends that their rank has not asked for yet: of this rank, to that one, with this index.
type Sockets = Mutex<HashMap<(Rank, Rank, usize), TcpStream>>;

struct Source {
    rank: Rank,
    sockets: Arc<Sockets>,
}

impl StreamSource for Source {
    fn stream(&self, peer: Rank, index: usize, _: Instant) -> Result<TcpStream, LinkError> {
        let mut sockets = self.sockets.lock().expect("unpoisoned");
        Ok(sockets.remove(&(self.rank, peer, index)).unwrap_or_else(|| {
            let [ours, theirs] = socket_pair();
            sockets.insert((peer, self.rank, index), theirs);
            ours
        }))
    }
}
