//! What is done with connections that a peer has opened.

use std::net::{Ipv4Addr, TcpListener};

use super::*;

const OWN: Rank = 1;
const WORLD: usize = 3;

fn peers() -> Peers {
    let peers = Peers::new(OWN, Secret::random().expect("random numbers"), false);
    let host_id = HostId::current().expect("a host");
    let reach = Reach { host_id, addresses: Vec::new(), unix_name: Vec::new() };
    peers.set_reach(vec![reach; WORLD]);
    peers
}

/// What `peers` does with a new connection: the other end of it.
fn connects(peers: &Peers, rank: Rank, purpose: u8, index: usize) -> TcpStream {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let far = TcpStream::connect(listener.local_addr().expect("its own")).expect("connected");
    let (near, _) = listener.accept().expect("it is here");
    let hello =
        Hello { rank: rank as u32, target: OWN as u32, purpose, index: index as u32, tag: 0 };
    peers.accepted(hello, Stream::Tcp(near), None);
    far.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
    far
}

fn is_closed(mut stream: TcpStream) -> bool {
    matches!(stream.read(&mut [0]), Ok(0))
}

#[test]
fn sockets_that_no_rank_needs_are_closed() {
    let peers = peers();
    for index in [0, MOST_SOCKETS - 1] {
        assert!(!is_closed(connects(&peers, 0, purpose::DATA, index)), "{index}");
        let mut answer = [0];
        connects(&peers, 2, purpose::OFFER, index).read_exact(&mut answer).expect("an answer");
        assert_eq!(Answer::from_code(answer[0]), Some(Answer::Taken), "{index}");
    }
    for index in [MOST_SOCKETS, u32::MAX as usize] {
        assert!(is_closed(connects(&peers, 0, purpose::DATA, index)), "{index}");
        assert!(is_closed(connects(&peers, 2, purpose::OFFER, index)), "{index}");
    }
    assert!(is_closed(connects(&peers, WORLD, purpose::OFFER, 0)), "there is no such rank");
    assert!(is_closed(connects(&peers, 0, purpose::OFFER, 0)), "a lower rank does not ask");
    assert!(is_closed(connects(&peers, 2, purpose::DATA, 0)), "a higher rank asks");
}
