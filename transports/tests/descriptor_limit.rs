//! An acceptor in a process that has run out of descriptors; alone in its process, whose limit it lowers.

use std::io::Read;
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use annulus_transports::acceptor::{Acceptor, Handler, Stream};
use annulus_transports::connect::connect_tcp;
use annulus_transports::handshake::Hello;
use annulus_transports::secret::Secret;
use annulus_transports::session::Session;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

struct Queue(Sender<Stream>);

impl Handler for Queue {
    fn accepted(&self, _: Hello, stream: Stream, _: Option<Session>) {
        let _ = self.0.send(stream);
    }
}

#[test]
fn acceptor_goes_on_when_descriptors_are_free_again() {
    let acceptor = Acceptor::bind(None).unwrap();
    let address = (Ipv4Addr::LOCALHOST, acceptor.tcp_address().port()).into();
    let secret = Secret::random().unwrap();
    let (sender, arrivals) = channel();
    let _registration = acceptor.register(&secret, 0, Arc::new(Queue(sender)));

    // A client's descriptor is had before there are none left; the acceptor's is not.
    let client = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let before = getrlimit(Resource::Nofile);
    let free = std::fs::File::open("/dev/null").unwrap();
    let next = std::os::fd::AsRawFd::as_raw_fd(&free) as u64;
    drop(free);
    setrlimit(Resource::Nofile, Rlimit { current: Some(next), ..before }).unwrap();
    client.connect(&std::net::SocketAddr::into(address)).unwrap();
    client.send(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(acceptor.strangers(), 0, "nobody can have been accepted");
    assert!(acceptor.is_starved());

    setrlimit(Resource::Nofile, before).unwrap();
    let mut stranger = TcpStream::from(client);
    assert!(!matches!(stranger.read(&mut [0]), Ok(1..)), "strangers get no answer");
    let hello = Hello { rank: 1, target: 0, purpose: 0, index: 0, tag: 0 };
    let deadline = Instant::now() + Duration::from_secs(60);
    connect_tcp(&[address], &secret, hello, deadline).unwrap();
    arrivals.recv().unwrap();
    assert!(!acceptor.is_starved());
    assert_eq!(acceptor.strangers(), 1);
}
