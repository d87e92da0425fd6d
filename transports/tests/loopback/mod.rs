//! TCP fabrics over the loopback interface. Each test uses what it needs.

#![allow(dead_code, reason = "every test that includes this file uses a part of it")]

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use annulus_plan::Rank;
use annulus_transports::handshake::{ClientHandshake, Hello, ServerHandshake};
use annulus_transports::link::LinkError;
use annulus_transports::secret::Secret;
use annulus_transports::session::{Ephemeral, Session, Side};
use annulus_transports::tcp::{Options, StreamSource, TcpFabric, Wire};

/// The fabrics of a world. A pair of sockets is connected when the first of its ranks asks for it.
pub(crate) fn fabrics(world: usize, options: Options) -> Vec<TcpFabric> {
    let sockets = Arc::<Sockets>::default();
    (0..world).map(|rank| fabric(rank, world, &sockets, options)).collect()
}

/// The fabric of one rank of two, and the other end of its socket 0.
pub(crate) fn fabric_and_peer(options: Options) -> (TcpFabric, TcpStream) {
    let [socket, peer] = socket_pair();
    let wire = Wire { stream: socket, session: None };
    let sockets = Arc::new(Mutex::new(HashMap::from([((1, 0, 0), wire)])));
    (fabric(1, 2, &sockets, options), peer)
}

/// The fabrics of two ranks whose socket 0 somebody else holds in the middle: the loose ends, of rank 0 and of rank 1.
pub(crate) fn fabrics_apart(options: Options) -> ([TcpFabric; 2], [TcpStream; 2]) {
    let ([one, near_one], [two, near_two]) = (socket_pair(), socket_pair());
    let [one, two] = wires([one, two]);
    let sockets = Arc::new(Mutex::new(HashMap::from([((0, 1, 0), one), ((1, 0, 0), two)])));
    ([0, 1].map(|rank| fabric(rank, 2, &sockets, options)), [near_one, near_two])
}

pub(crate) fn socket_pair() -> [TcpStream; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let one = TcpStream::connect(listener.local_addr().expect("bound")).expect("listening");
    [one, listener.accept().expect("connected").0]
}

/// Two sockets whose ends have shaken hands, somewhere else.
fn wires([one, two]: [TcpStream; 2]) -> [Wire; 2] {
    let [client, server] = sessions();
    [Wire { stream: one, session: Some(client) }, Wire { stream: two, session: Some(server) }]
}

/// Both ends of a handshake with key pairs.
pub(crate) fn sessions() -> [Session; 2] {
    let secret = Secret::from_bytes([5; 32]);
    let [ours, theirs] = [(); 2].map(|()| Ephemeral::generate().expect("random numbers"));
    let hello = Hello { rank: 0, target: 1, purpose: 0, index: 0, tag: 0 };
    let mut client = ClientHandshake::new(&secret, hello, ours.public());
    let mut server = ServerHandshake::new(theirs.public());
    let mut at_server = None;
    while !client.is_accepted() {
        let said = client.output().to_vec();
        client.sent(said.len());
        server.receive(&said, |_| Some(secret.clone())).expect("an honest client");
        at_server = at_server.or(server.transcript());
        server.accept();
        let answer = server.output().to_vec();
        server.sent(answer.len());
        client.receive(&answer).expect("an honest server");
    }
    let (here, there) = (client.transcript().expect("accepted"), at_server.expect("proved"));
    [ours.into_session(Side::Client, here), theirs.into_session(Side::Server, there)]
}

fn fabric(rank: Rank, world: usize, sockets: &Arc<Sockets>, options: Options) -> TcpFabric {
    let source = Source { rank, sockets: Arc::clone(sockets) };
    TcpFabric::new(rank, world, Arc::new(source), options).expect("an epoll descriptor")
}

/// Ends that their rank has not asked for yet: of this rank, to that one, with this index.
type Sockets = Mutex<HashMap<(Rank, Rank, usize), Wire>>;

struct Source {
    rank: Rank,
    sockets: Arc<Sockets>,
}

impl StreamSource for Source {
    fn stream(&self, peer: Rank, index: usize, _: Instant) -> Result<Wire, LinkError> {
        let mut sockets = self.sockets.lock().expect("unpoisoned");
        Ok(sockets.remove(&(self.rank, peer, index)).unwrap_or_else(|| {
            let [ours, theirs] = wires(socket_pair());
            sockets.insert((peer, self.rank, index), theirs);
            ours
        }))
    }
}
