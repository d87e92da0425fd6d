//! An acceptor and its peers, over loopback and abstract Unix sockets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use annulus_transports::acceptor::{AcceptError, Acceptor, Handler, Stream};
use annulus_transports::connect::{
    AttemptError, ConnectError, Patience, connect_tcp, connect_unix,
};
use annulus_transports::handshake::{HandshakeError, Hello, PROTOCOL_VERSION};
use annulus_transports::secret::Secret;
use annulus_transports::session::Session;
use socket2::{Domain, Socket, Type};

/// Hands every connection to the test.
struct Queue(Mutex<Sender<(Hello, Stream)>>);

impl Handler for Queue {
    fn accepted(&self, hello: Hello, stream: Stream, _: Option<Session>) {
        let _ = self.0.lock().unwrap().send((hello, stream));
    }
}

fn queue() -> (Arc<Queue>, Receiver<(Hello, Stream)>) {
    let (sender, receiver) = channel();
    (Arc::new(Queue(Mutex::new(sender))), receiver)
}

fn hello(rank: u32, target: u32) -> Hello {
    Hello { rank, target, purpose: 7, index: 3, tag: 99 }
}

/// Far beyond what a test needs.
fn patience() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(300)
}

fn loopback(acceptor: &Acceptor) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, acceptor.tcp_address().port()).into()
}

/// A port that refuses connections and that nobody else is given meanwhile.
fn silent_port() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

fn check_both_ways(mut client: impl Read + Write, mut server: impl Read + Write) {
    let mut buffer = [0; 5];
    client.write_all(b"hello").unwrap();
    server.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"hello");
    server.write_all(b"there").unwrap();
    client.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"there");
}

#[test]
fn tcp_connection_reaches_the_rank_it_asks_for() {
    let acceptor = Acceptor::bind(None).unwrap();
    let secret = Secret::random().unwrap();
    let (zero, at_zero) = queue();
    let (one, at_one) = queue();
    let _zero = acceptor.register(&secret, 0, zero);
    let _one = acceptor.register(&secret, 1, one);
    let client = connect_tcp(&[loopback(&acceptor)], &secret, hello(5, 1), patience()).unwrap();
    assert!(client.nodelay().unwrap());
    let (said, stream) = at_one.recv().unwrap();
    assert_eq!(said, hello(5, 1));
    let Stream::Tcp(server) = stream else { panic!("not TCP: {stream:?}") };
    assert!(server.nodelay().unwrap());
    check_both_ways(client, server);
    assert!(at_zero.try_recv().is_err());
    assert_eq!(acceptor.strangers(), 0);
}

/// The other end has taken the connection for good when the client, which was stopped for long, looks at the clock.
#[test]
fn a_verdict_that_is_here_counts_after_the_deadline() {
    let acceptor = Acceptor::bind(None).unwrap();
    let secret = Secret::random().unwrap();
    let (handler, arrivals) = queue();
    let _registration = acceptor.register(&secret, 0, handler);
    let taken = Mutex::new(None);
    // Each look takes so long that what was sent before has been answered, and the last one says that time is up.
    let wanted = || {
        let mut taken = taken.lock().unwrap();
        *taken = taken.take().or_else(|| arrivals.recv_timeout(Duration::from_millis(200)).ok());
        taken.is_none()
    };
    let patience = Patience::new(patience(), &wanted);
    let client = connect_tcp(&[loopback(&acceptor)], &secret, hello(5, 0), patience).unwrap();
    let Some((_, Stream::Tcp(server))) = taken.into_inner().unwrap() else {
        panic!("the client stopped when it had been taken")
    };
    check_both_ways(client, server);
}

#[test]
fn unix_connection_reaches_the_rank() {
    let acceptor = Acceptor::bind(None).unwrap();
    let secret = Secret::random().unwrap();
    let (handler, arrivals) = queue();
    let _registration = acceptor.register(&secret, 0, handler);
    let name = acceptor.unix_name().expect("this system has abstract sockets");
    let client = connect_unix(name, &secret, hello(1, 0), patience()).unwrap();
    let (said, stream) = arrivals.recv().unwrap();
    assert_eq!(said, hello(1, 0));
    let Stream::Unix(server) = stream else { panic!("not Unix: {stream:?}") };
    check_both_ways(client, server);
}

#[test]
fn client_waits_until_the_rank_is_registered() {
    let acceptor = Acceptor::bind(None).unwrap();
    let secret = Secret::random().unwrap();
    let address = loopback(&acceptor);
    let client = {
        let secret = secret.clone();
        std::thread::spawn(move || connect_tcp(&[address], &secret, hello(1, 0), patience()))
    };
    // First the key is unknown, then the key is known and the rank is not.
    std::thread::sleep(Duration::from_millis(20));
    let (other, at_other) = queue();
    let _other = acceptor.register(&secret, 9, other);
    std::thread::sleep(Duration::from_millis(20));
    let (handler, arrivals) = queue();
    let _registration = acceptor.register(&secret, 0, handler);
    client.join().unwrap().unwrap();
    arrivals.recv().unwrap();
    assert!(at_other.try_recv().is_err());
    assert_eq!(acceptor.strangers(), 0);
}

#[test]
fn client_waits_until_somebody_listens() {
    let (_silent, address) = silent_port();
    let secret = Secret::random().unwrap();
    let client = {
        let secret = secret.clone();
        std::thread::spawn(move || connect_tcp(&[address], &secret, hello(1, 0), patience()))
    };
    std::thread::sleep(Duration::from_millis(20));
    let acceptor = Acceptor::bind(Some(address)).unwrap();
    let (handler, arrivals) = queue();
    let _registration = acceptor.register(&secret, 0, handler);
    client.join().unwrap().unwrap();
    arrivals.recv().unwrap();
}

#[test]
fn wrong_secret_is_refused_and_the_error_tells_all() {
    let acceptor = Acceptor::bind(None).unwrap();
    let (handler, arrivals) = queue();
    let _registration = acceptor.register(&Secret::random().unwrap(), 0, handler);
    let (_silent, nobody) = silent_port();
    let addresses = [nobody, loopback(&acceptor)];
    let error =
        connect_tcp(&addresses, &Secret::random().unwrap(), hello(1, 0), soon()).unwrap_err();
    let text = error.to_string();
    for part in ["rank 1", "rank 0", "refused", &nobody.to_string(), "unique id"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    let ConnectError::Unreachable { attempts, .. } = error else { panic!("{error:?}") };
    assert!(matches!(
        attempts[1].failure,
        Some(AttemptError::Handshake(HandshakeError::NotRegistered))
    ));
    assert!(arrivals.try_recv().is_err());
}

#[test]
fn registration_ends_with_its_guard() {
    let acceptor = Acceptor::bind(None).unwrap();
    let secret = Secret::random().unwrap();
    let (first, at_first) = queue();
    let (second, at_second) = queue();
    let _first = acceptor.register(&secret, 0, first);
    let second = acceptor.register(&secret, 0, second);
    let address = [loopback(&acceptor)];
    connect_tcp(&address, &secret, hello(1, 0), patience()).unwrap();
    at_second.recv().unwrap();
    drop(second);
    connect_tcp(&address, &secret, hello(1, 0), patience()).unwrap();
    at_first.recv().unwrap();
    drop(_first);
    connect_tcp(&address, &secret, hello(1, 0), soon()).unwrap_err();
}

#[test]
fn strangers_do_not_keep_an_honest_client_out() {
    let acceptor = Acceptor::bind(None).unwrap();
    let secret = Secret::random().unwrap();
    let (handler, arrivals) = queue();
    let _registration = acceptor.register(&secret, 0, handler);
    let address = loopback(&acceptor);
    let strangers: Vec<_> = (0..300)
        .map(|number| {
            let mut stream = TcpStream::connect(address).unwrap();
            match number % 3 {
                0 => stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap(),
                1 => stream.write_all(&[0xa2]).unwrap(),
                _ => {}
            }
            stream
        })
        .collect();
    let client = connect_tcp(&[address], &secret, hello(1, 0), patience()).unwrap();
    let (_, Stream::Tcp(server)) = arrivals.recv().unwrap() else { panic!("not TCP") };
    check_both_ways(client, server);
    // A hundred spoke HTTP. The silent two hundred fit beside each other.
    drop(strangers);
    while acceptor.strangers() < 300 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(arrivals.try_recv().is_err());
}

#[test]
fn other_version_is_told_both_versions() {
    let acceptor = Acceptor::bind(None).unwrap();
    let mut stream = TcpStream::connect(loopback(&acceptor)).unwrap();
    let mut opening = b"\xa2annulc\n".to_vec();
    opening.extend_from_slice(&(PROTOCOL_VERSION + 1).to_le_bytes());
    opening.extend_from_slice(&[5; 64]);
    stream.write_all(&opening).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    assert_eq!(reply.len(), 11);
    assert_eq!(reply[8..10], PROTOCOL_VERSION.to_le_bytes());
    assert_eq!(acceptor.strangers(), 0);
}

#[test]
fn something_else_at_the_address_is_named_at_once() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
    });
    let error =
        connect_tcp(&[address], &Secret::random().unwrap(), hello(1, 0), patience()).unwrap_err();
    assert!(error.to_string().contains("does not speak Annulus"), "{error}");
    server.join().unwrap();
}

#[test]
fn unix_name_without_a_listener_is_an_error_at_once() {
    let secret = Secret::random().unwrap();
    let error = connect_unix(b"annulus-nobody-here", &secret, hello(1, 0), patience()).unwrap_err();
    assert!(error.to_string().contains("@annulus-nobody-here: "), "{error}");
    let long = connect_unix(&[b'x'; 200], &secret, hello(1, 0), patience()).unwrap_err();
    assert!(matches!(long, ConnectError::Unreachable { .. }));
}

#[test]
fn port_in_use_names_the_port_and_the_remedy() {
    let holder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let error = Acceptor::bind(Some(holder.local_addr().unwrap())).unwrap_err();
    assert!(matches!(error, AcceptError::Bind { .. }));
    assert!(error.to_string().contains("choose another port"), "{error}");
}

#[test]
fn inherited_listener_is_served() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = Acceptor::from_listener(listener).unwrap();
    let secret = Secret::random().unwrap();
    let (handler, arrivals) = queue();
    let _registration = acceptor.register(&secret, 0, handler);
    connect_tcp(&[address], &secret, hello(1, 0), patience()).unwrap();
    arrivals.recv().unwrap();
}

#[test]
fn handler_that_panics_harms_nobody_else() {
    struct Broken;
    impl Handler for Broken {
        fn accepted(&self, _: Hello, _: Stream, _: Option<Session>) {
            panic!("this handler is broken, as the test wants it");
        }
    }
    let acceptor = Acceptor::bind(None).unwrap();
    let secret = Secret::random().unwrap();
    let (handler, arrivals) = queue();
    let _broken = acceptor.register(&secret, 0, Arc::new(Broken));
    let _good = acceptor.register(&secret, 1, handler);
    let address = [loopback(&acceptor)];
    connect_tcp(&address, &secret, hello(2, 0), patience()).unwrap();
    connect_tcp(&address, &secret, hello(2, 1), patience()).unwrap();
    arrivals.recv().unwrap();
}
