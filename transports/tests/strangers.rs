//! Strangers at an acceptor: what they say, replay and reflect brings nobody in, and is counted in the log.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use annulus_transports::acceptor::{Acceptor, Handler, Stream};
use annulus_transports::connect::connect_tcp;
use annulus_transports::handshake::{ClientHandshake, Hello};
use annulus_transports::secret::Secret;
use annulus_transports::session::Session;

const HELLO: Hello = Hello { rank: 1, target: 0, purpose: 2, index: 0, tag: 0 };
/// Bytes of a client's two frames, and of a server's first.
const OPENING: usize = 50;
const PROOF: usize = 49;
const REPLY: usize = 75;
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts who was let in.
#[derive(Default)]
struct Guests(Mutex<usize>);

impl Handler for Guests {
    fn accepted(&self, _: Hello, _: Stream, _: Option<Session>) {
        *self.0.lock().expect("no panic") += 1;
    }
}

/// What the library has logged in this process.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Keep;

impl log::Log for Keep {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.lock().expect("no panic").push(format!("{} {}", record.level(), record.args()));
    }

    fn flush(&self) {}
}

struct House {
    acceptor: Arc<Acceptor>,
    secret: Secret,
    guests: Arc<Guests>,
    _registration: annulus_transports::acceptor::Registration,
}

fn house() -> House {
    // Another test may have been first.
    let _ = log::set_logger(&Keep);
    log::set_max_level(log::LevelFilter::Trace);
    let acceptor = Acceptor::bind(None).expect("a port");
    let secret = Secret::random().expect("random numbers");
    let guests = Arc::new(Guests::default());
    let registration = acceptor.register(&secret, 0, guests.clone());
    House { acceptor, secret, guests, _registration: registration }
}

impl House {
    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.acceptor.tcp_address().port()).into()
    }

    fn knock(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream
    }

    fn wait_for_strangers(&self, count: u64) {
        let begin = Instant::now();
        while self.acceptor.strangers() < count {
            assert!(begin.elapsed() < PATIENCE, "{} of {count}", self.acceptor.strangers());
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn guests(&self) -> usize {
        *self.guests.0.lock().expect("no panic")
    }

    /// An honest client still comes in.
    fn is_open(&self) {
        let before = self.guests();
        connect_tcp(&[self.address()], &self.secret, HELLO, Instant::now() + PATIENCE)
            .expect("it comes in");
        let begin = Instant::now();
        while self.guests() == before {
            assert!(begin.elapsed() < PATIENCE);
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What comes back before the other end hangs up.
fn answer(mut stream: TcpStream) -> Vec<u8> {
    let (mut bytes, mut part) = (Vec::new(), [0; 256]);
    // A reset is a way to hang up too.
    while let Ok(count @ 1..) = stream.read(&mut part) {
        bytes.extend_from_slice(&part[..count]);
    }
    bytes
}

#[test]
fn other_protocols_get_no_answer() {
    let house = house();
    let speakers: [&[u8]; 9] = [
        b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
        // A TLS 1.2 record with a ClientHello.
        b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03 random bytes follow",
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
        // The magic number with which NCCL's sockets greet each other, and a rank.
        b"\xad\xde\xef\xbe\x0d\xf0\xad\xba\x00\x00\x00\x00\x01\x00\x00\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        // A frame of the control connection, before any handshake, of 4 GiB.
        b"\xff\xff\xff\xff\x01",
        &[0; 200],
        &[0xff; 200],
        b"\xa2annuls\n\x01\x00",
    ];
    for (number, bytes) in speakers.iter().enumerate() {
        let mut stream = house.knock();
        stream.write_all(bytes).expect("it listens");
        assert_eq!(answer(stream), [], "{}", String::from_utf8_lossy(bytes));
        house.wait_for_strangers(number as u64 + 1);
    }
    assert_eq!(house.guests(), 0);
    house.is_open();
}

/// A client's two frames, and the reply between them.
fn honest_frames(house: &House, hello: Hello) -> [Vec<u8>; 3] {
    let mut stream = house.knock();
    let mut client = ClientHandshake::new(&house.secret, hello, [7; 32]);
    let opening = client.output().to_vec();
    stream.write_all(&opening).expect("it listens");
    client.sent(opening.len());
    let mut reply = [0; REPLY];
    stream.read_exact(&mut reply).expect("an answer");
    client.receive(&reply).expect("the server is honest");
    let proof = client.output().to_vec();
    assert_eq!((opening.len(), proof.len()), (OPENING, PROOF));
    [opening, reply.to_vec(), proof]
}

#[test]
fn a_recorded_handshake_lets_nobody_in() {
    let house = house();
    let [opening, reply, proof] = honest_frames(&house, HELLO);
    // Closed before its proof.
    house.wait_for_strangers(1);
    for replay in 0..20 {
        let mut stream = house.knock();
        stream.write_all(&opening).expect("it listens");
        if replay % 2 == 0 {
            stream.write_all(&proof).expect("it listens");
        }
        let mut other = [0; REPLY];
        stream.read_exact(&mut other).expect("an answer");
        assert_ne!(other[11..43], reply[11..43], "the nonce was used before");
        if replay % 2 == 1 {
            stream.write_all(&proof).expect("it listens");
        }
        assert_eq!(answer(stream), [], "no verdict");
    }
    house.wait_for_strangers(21);
    assert_eq!(house.guests(), 0);
    house.is_open();
}

#[test]
fn a_reflected_handshake_lets_nobody_in() {
    let house = house();
    let [opening, ..] = honest_frames(&house, HELLO);
    let greet = || {
        let mut stream = house.knock();
        stream.write_all(&opening).expect("it listens");
        let mut reply = [0; REPLY];
        stream.read_exact(&mut reply).expect("an answer");
        (stream, reply)
    };
    // The server's own proof, with a hello, to itself and crosswise to another connection.
    let hello = [&1_u32.to_le_bytes()[..], &0_u32.to_le_bytes(), &[2], &[0; 8]].concat();
    let ((mut first, of_first), (mut second, of_second)) = (greet(), greet());
    first.write_all(&[&hello, &of_second[43..]].concat()).expect("it listens");
    second.write_all(&[&hello, &of_second[43..]].concat()).expect("it listens");
    assert_eq!((answer(first), answer(second)), (vec![], vec![]));
    let (mut third, _) = greet();
    third.write_all(&[&hello, &of_first[43..]].concat()).expect("it listens");
    assert_eq!(answer(third), []);
    // All of a reply, as a client's first frame.
    let mut fourth = house.knock();
    fourth.write_all(&of_first).expect("it listens");
    assert_eq!(answer(fourth), []);
    house.wait_for_strangers(5);
    assert_eq!(house.guests(), 0);
    house.is_open();
}

/// A server that reflects what a client says proves nothing to the client either.
#[test]
fn a_client_believes_no_mirror() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("bound");
    let mirror = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut bytes = [0; OPENING];
        stream.read_exact(&mut bytes).expect("an opening");
        // The client may have hung up after the first bytes.
        let _ = stream.write_all(&bytes);
    });
    let secret = Secret::random().expect("random numbers");
    let error =
        connect_tcp(&[address], &secret, HELLO, Instant::now() + PATIENCE).expect_err("no proof");
    assert!(error.to_string().contains("does not speak Annulus"), "{error}");
    mirror.join().expect("no panic");
}

#[test]
fn cut_off_handshakes_are_counted_and_let_nobody_in() {
    let house = house();
    let [opening, _, proof] = honest_frames(&house, HELLO);
    let whole = [opening, proof].concat();
    let mut cuts = 1;
    for length in (0..whole.len()).step_by(3) {
        let mut stream = house.knock();
        stream.write_all(&whole[..length]).expect("it listens");
        drop(stream);
        cuts += 1;
    }
    house.wait_for_strangers(cuts);
    assert_eq!(house.guests(), 0);
    house.is_open();
    assert_eq!(house.acceptor.strangers(), cuts);
}

/// Neither a key that is known with a wrong proof, nor a proof under another secret.
#[test]
fn a_wrong_secret_lets_nobody_in() {
    let house = house();
    for round in 0..10 {
        let mut stream = house.knock();
        let mut opening = honest_opening(&house.secret);
        if round % 2 == 1 {
            opening = honest_opening(&Secret::random().expect("random numbers"));
        }
        stream.write_all(&opening).expect("it listens");
        stream.write_all(&[9; PROOF]).expect("it listens");
        // It says that it does not know the key, or proves itself and hears nonsense.
        let expected = if round % 2 == 1 { 11 } else { REPLY };
        let got = answer(stream);
        assert!(got.len() == expected || got.is_empty(), "{} bytes", got.len());
    }
    house.wait_for_strangers(5);
    assert_eq!(house.guests(), 0);
    house.is_open();
}

fn honest_opening(secret: &Secret) -> Vec<u8> {
    ClientHandshake::new(secret, HELLO, [3; 32]).output().to_vec()
}

/// One line at once, and the others together: a flood of strangers is no flood of lines.
#[test]
fn the_log_counts_strangers_and_tells_no_secret() {
    let house = house();
    for _ in 0..100 {
        house.knock().write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it listens");
    }
    house.wait_for_strangers(100);
    house.is_open();
    let secret = house.secret.clone();
    drop(house);
    let lines = LINES.lock().expect("no panic").clone();
    let of_this = |line: &&String| line.contains("(100 in all)");
    let begin = Instant::now();
    let mut last = lines.iter().find(of_this).cloned();
    while last.is_none() {
        // The acceptor's thread says its last words while it ends.
        assert!(begin.elapsed() < PATIENCE, "{lines:?}");
        thread::sleep(Duration::from_millis(5));
        last = LINES.lock().expect("no panic").iter().find(of_this).cloned();
    }
    let last = last.expect("found");
    assert!(last.starts_with("WARN refused 99 connections from strangers"), "{last}");
    assert!(last.contains("127.0.0.1:") && last.contains("it is another program"), "{last}");
    let all = LINES.lock().expect("no panic").join("\n");
    let hex: String = secret.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(!all.to_lowercase().contains(&hex[..16]));
    let numbers = format!("{:?}", &secret.as_bytes()[..6]);
    assert!(!all.contains(numbers.trim_matches(['[', ']'])));
}
