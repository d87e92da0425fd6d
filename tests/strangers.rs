//! A job starts among a thousand strangers, whose memory and descriptors are bounded.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use annulus::bootstrap::UniqueId;
use annulus::{Communicator, Config, ReduceOp};
use annulus_transports::connect::connect_tcp;
use annulus_transports::handshake::{ClientHandshake, Hello};
use annulus_transports::secret::Secret;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PATIENCE: Duration = Duration::from_secs(60);
const RANKS: usize = 4;
const STRANGERS: usize = 1000;
/// Set in the job's process only.
const MARK: &str = "ANNULUS_TEST_JOB_AMONG_STRANGERS";
/// What ranks ask for when they want the root, and what for.
const ROOT: u32 = u32::MAX;
const CONTROL: u8 = 1;

/// Not a test by itself: the process of the job. It waits for a line before its ranks join, and for another before it ends.
#[test]
fn job_process() {
    if std::env::var_os(MARK).is_none() {
        return;
    }
    log::set_logger(&Stderr).expect("the first");
    log::set_max_level(log::LevelFilter::Trace);
    let id = UniqueId::new().expect("a root");
    println!("\nid {}", hex(&id.to_bytes()));
    let wait = || std::io::stdin().lock().lines().next().expect("a line").expect("text");
    wait();
    thread::scope(|threads| {
        for rank in 0..RANKS {
            let id = &id;
            threads.spawn(move || {
                let config = Config::from_vars(|name| {
                    (name == "ANNULUS_TRANSPORT").then(|| "tcp".to_owned())
                });
                let config = config.expect("sound");
                let comm = Communicator::init(id, rank, RANKS, &config).expect("all join");
                let mut sum = [rank as u64; 1000];
                comm.all_reduce(&mut sum, ReduceOp::Sum).expect("all-reduce");
                assert_eq!(sum, [6; 1000]);
            });
        }
    });
    println!("\ndone");
    wait();
}

struct Stderr;

impl log::Log for Stderr {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        eprintln!("{} {}", record.level(), record.args());
    }

    fn flush(&self) {}
}

struct Job {
    process: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    id: [u8; 128],
}

impl Job {
    fn start() -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "job_process", "--nocapture", "--test-threads=1"])
            .env(MARK, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let mut job = Self { process, lines, id: [0; 128] };
        let id = job.wait_for("id ");
        for (byte, digits) in job.id.iter_mut().zip(id.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).expect("digits");
            *byte = u8::from_str_radix(digits, 16).expect("digits");
        }
        job
    }

    /// What follows `start` in the line that begins so.
    fn wait_for(&mut self, start: &str) -> String {
        loop {
            let line = self.lines.next().expect("the job goes on").expect("text");
            if let Some(rest) = line.strip_prefix(start) {
                return rest.to_owned();
            }
        }
    }

    fn go_on(&mut self) {
        self.process.stdin.as_mut().expect("piped").write_all(b"go\n").expect("it reads");
    }

    fn address(&self) -> SocketAddr {
        let id = UniqueId::from_bytes(&self.id).expect("sound");
        (Ipv4Addr::LOCALHOST, id.root_addresses()[0].port()).into()
    }

    /// It stands in the id after eight bytes of magic and version.
    fn secret(&self) -> Secret {
        Secret::from_bytes(self.id[8..40].try_into().expect("32 bytes"))
    }

    /// Memory in KiB, and descriptors.
    fn usage(&self) -> (usize, usize) {
        let pid = self.process.id();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
        let kib = rss.trim().trim_end_matches(" kB").parse().expect("a number");
        (kib, fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives").count())
    }

    /// Lets it end: what it has logged.
    fn end(mut self) -> String {
        self.go_on();
        let mut log = String::new();
        let mut stderr = self.process.stderr.take().expect("piped");
        stderr.read_to_string(&mut log).expect("text");
        assert!(self.process.wait().expect("ours").success(), "{log}");
        log
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Everything that strangers do, in turn.
struct Army {
    address: SocketAddr,
    opening: Vec<u8>,
    recorded_proof: Vec<u8>,
}

impl Army {
    fn new(job: &Job) -> Self {
        let hello = Hello { rank: 0, target: ROOT, purpose: CONTROL, index: 0, tag: 0 };
        let mut client = ClientHandshake::new(&job.secret(), hello, [1; 32]);
        let opening = client.output().to_vec();
        client.sent(opening.len());
        let mut stream = TcpStream::connect(job.address()).expect("it listens");
        stream.write_all(&opening).expect("it listens");
        let mut reply = [0; 75];
        stream.read_exact(&mut reply).expect("a reply");
        client.receive(&reply).expect("an honest root");
        Self { address: job.address(), opening, recorded_proof: client.output().to_vec() }
    }

    /// Whether the acceptor can tell such a one from a rank that is early. It cannot where the key is one that may yet come.
    const fn is_plain(number: usize) -> bool {
        number % 10 != 5
    }

    fn attack(&self, number: usize) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        let unknown = Secret::random().expect("random numbers");
        let hello = Hello { rank: 0, target: ROOT, purpose: CONTROL, index: 0, tag: 0 };
        let says = match number % 10 {
            0 => Vec::new(),
            1 => b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".to_vec(),
            2 => b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03".to_vec(),
            3 => b"SSH-2.0-OpenSSH_9.2p1\r\n".to_vec(),
            4 => vec![0xff; 4096],
            5 => ClientHandshake::new(&unknown, hello, [2; 32]).output().to_vec(),
            6 => [&self.opening[..], &[9; 49]].concat(),
            7 => [&self.opening[..], &self.recorded_proof].concat(),
            8 => self.opening[..33].to_vec(),
            _ => self.opening[..5].to_vec(),
        };
        // It may have been thrown out already.
        let _ = stream.write_all(&says);
        // Number 8 hangs up; the others stay as long as they may.
        (number % 10 != 8).then_some(stream)
    }
}

#[test]
fn a_job_starts_among_a_thousand_strangers() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = 2 * STRANGERS as u64 + 500;
    if limit.current.is_some_and(|current| current < wanted) {
        if limit.maximum.is_some_and(|maximum| maximum < wanted) {
            eprintln!("skipped: fewer than {wanted} files may be open here");
            return;
        }
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).expect("within the limit");
    }
    let mut job = Job::start();
    let army = Army::new(&job);
    let (memory, descriptors) = job.usage();
    // A thousand that stay, before the first rank comes.
    let _waiting: Vec<_> = (0..STRANGERS).map(|number| army.attack(number)).collect();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(300) {
        let (memory_now, descriptors_now) = job.usage();
        let (more, held) = (memory_now.saturating_sub(memory), descriptors_now - descriptors);
        assert!(held <= 256 + 2, "{held} descriptors for strangers");
        assert!(more <= 4096, "{more} KiB for strangers");
        thread::sleep(Duration::from_millis(5));
    }
    // And others all the time while the ranks join.
    let (over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|threads| {
        threads.spawn(|| {
            let mut held = std::collections::VecDeque::new();
            while !over.load(Ordering::Relaxed) {
                let number = count.fetch_add(1, Ordering::Relaxed);
                held.push_back(army.attack(number));
                if held.len() > STRANGERS {
                    held.pop_front();
                }
            }
        });
        job.go_on();
        job.wait_for("done");
        over.store(true, Ordering::Relaxed);
    });
    let plain = (0..STRANGERS).filter(|number| Army::is_plain(*number)).count();
    let secret = job.secret();
    let log = job.end();
    let counted = log.lines().filter(|line| line.starts_with("WARN refused ")).filter_map(|line| {
        let (_, rest) = line.split_once('(')?;
        rest.split_once(" in all)")?.0.parse::<usize>().ok()
    });
    let counted = counted.max().unwrap_or(0);
    // The last ones that came may still be waited for.
    assert!(counted + 256 >= plain, "{counted} of {plain} strangers in the log:\n{log}");
    assert!(log.lines().filter(|line| line.contains(" from strangers ")).count() <= 30, "{log}");
    let digits = hex(secret.as_bytes());
    assert!(!log.contains(&digits[..16]) && !log.contains(&digits[48..]));
}

/// Whoever knows the secret and sends nonsense loses its own connection; the others' job starts.
#[test]
fn nonsense_from_one_that_knows_the_secret_harms_nobody() {
    let mut job = Job::start();
    let frame = |length: u32, kind: u8, payload: &[u8]| {
        [&length.to_le_bytes()[..], &[kind], payload].concat()
    };
    for nonsense in [
        frame(u32::MAX, 1, &[]),
        frame(1 << 30, 4, &[0; 100]),
        frame(3, 99, b"abc"),
        // A notice and a table from somebody who has not joined.
        frame(2, 4, &[1, 2]),
        frame(2, 2, &[1, 2]),
        // The beginning of a frame.
        frame(200, 1, &[1; 10]),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ] {
        let hello = Hello { rank: 2, target: ROOT, purpose: CONTROL, index: 0, tag: 0 };
        let deadline = Instant::now() + PATIENCE;
        let mut stream = connect_tcp(&[job.address()], &job.secret(), hello, deadline).expect("in");
        stream.write_all(&nonsense).expect("it listens");
        stream.shutdown(std::net::Shutdown::Write).expect("open");
        // It hangs up, or resets.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let (memory, _) = job.usage();
    assert!(memory < 100 << 10, "{memory} KiB");
    job.go_on();
    job.wait_for("done");
    job.end();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
