//! Ranks as threads that find each other by what a launcher's variables say.

use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use annulus::bootstrap::{BootstrapError, Membership, Options, Refusal};
use annulus::launch::Launch;

const PATIENT: Duration = Duration::from_secs(60);

/// The launch of a rank by `NAME=value` words.
fn launch(rank: usize, words: &str) -> Launch {
    let words = words.replace("{rank}", &rank.to_string());
    Launch::from_vars(|name| {
        let mut pairs = words.split_whitespace().filter_map(|word| word.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    })
    .expect("sound variables")
}

fn join(rank: usize, words: &str, timeout: Duration) -> Result<Membership, BootstrapError> {
    let options = Options {
        timeout,
        on_notice: Arc::new(|_| {}),
        interfaces: None,
        settings: 0,
        heartbeat: None,
        encrypt: false,
    };
    Membership::launched(&launch(rank, words), &options)
}

fn join_all(world: usize, words: &str) -> Vec<Membership> {
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..world).map(|rank| scope.spawn(move || join(rank, words, PATIENT))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic").expect("joined"))
            .collect()
    })
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("::", 0)).expect("a port");
    listener.local_addr().expect("bound").port()
}

/// Names a job as no other test, here or in another process, does.
fn run_id(test: &str) -> String {
    format!("TORCHELASTIC_RUN_ID={test}-{}", std::process::id())
}

#[test]
fn torchrun_ranks_of_one_host_meet_again_and_again() {
    let words = format!(
        "RANK={{rank}} WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 {}",
        run_id("again")
    );
    let mut tags = Vec::new();
    for _ in 0..3 {
        let members = join_all(3, &words);
        assert!(members.iter().all(|member| member.tag() == members[0].tag()));
        tags.push(members[0].tag());
    }
    tags.dedup();
    assert_eq!(tags.len(), 3, "each time another communicator");
}

#[test]
fn torchrun_ranks_meet_beside_the_stores_port() {
    // The store holds the port before; it is the test's listener here.
    let (store, port) = loop {
        let store = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = store.local_addr().expect("bound").port();
        if port < u16::MAX && TcpListener::bind(("::", port + 1)).is_ok() {
            break (store, port);
        }
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // The host's own name need not be known to a resolver; an address is.
    let host = if std::net::ToSocketAddrs::to_socket_addrs(&(host.as_str(), port)).is_ok() {
        host
    } else {
        "0.0.0.0".into()
    };
    let words = format!(
        "RANK={{rank}} WORLD_SIZE=2 MASTER_ADDR={host} MASTER_PORT={port} {}",
        run_id("beside")
    );
    for _ in 0..2 {
        assert_eq!(join_all(2, &words).len(), 2);
    }
    drop(store);
}

#[test]
fn annulus_run_ranks_meet_at_an_inherited_listener() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let fd = listener.into_raw_fd();
    let words = format!(
        "ANNULUS_RANK={{rank}} ANNULUS_WORLD_SIZE=2 ANNULUS_ROOT=127.0.0.1:{port} ANNULUS_LISTEN_FD={fd} \
         ANNULUS_SECRET={}",
        "5a".repeat(32)
    );
    for _ in 0..2 {
        assert_eq!(join_all(2, &words).len(), 2, "and the second time without it");
    }
}

#[test]
fn a_wrong_secret_at_the_root_is_refused() {
    let port = free_port();
    let words = |secret: &str| {
        format!(
            "ANNULUS_RANK={{rank}} ANNULUS_WORLD_SIZE=2 ANNULUS_ROOT=127.0.0.1:{port} ANNULUS_SECRET={}",
            secret.repeat(32)
        )
    };
    let timeout = Duration::from_millis(800);
    let (zero, one) = thread::scope(|scope| {
        let zero = scope.spawn(|| join(0, &words("11"), timeout));
        let one = scope.spawn(|| join(1, &words("22"), timeout));
        (zero.join().expect("no panic"), one.join().expect("no panic"))
    });
    assert!(matches!(zero, Err(BootstrapError::Refused(Refusal::Missing { .. }))));
    let error = one.expect_err("refused").to_string();
    assert!(error.contains(&format!("ANNULUS_ROOT=127.0.0.1:{port}")), "{error}");
}

#[test]
fn a_port_in_use_is_named() {
    let holder = TcpListener::bind(("::", 0)).expect("a port");
    let port = holder.local_addr().expect("bound").port();
    let words = format!(
        "RANK={{rank}} WORLD_SIZE=2 MASTER_ADDR=192.0.2.1 MASTER_PORT=7 ANNULUS_PORT={port}"
    );
    let error = join(0, &words, Duration::from_millis(200)).expect_err("in use");
    let text = error.to_string();
    assert!(matches!(error, BootstrapError::RootPort { port: p, .. } if p == port), "{text}");
    for word in ["MASTER_ADDR=192.0.2.1", "ANNULUS_PORT to a free port", "ss -ltnp"] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn a_missing_rank_zero_is_named() {
    let words = format!(
        "RANK={{rank}} WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 {}",
        run_id("nobody")
    );
    let error = join(1, &words, Duration::from_millis(100)).expect_err("nobody there").to_string();
    assert!(
        error.contains("TORCHELASTIC_RUN_ID=nobody") && error.contains("ANNULUS_ROOT"),
        "{error}"
    );
}

#[test]
fn a_second_rank_zero_is_refused() {
    let words = format!(
        "RANK={{rank}} WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 {}",
        run_id("twice")
    );
    thread::scope(|scope| {
        let first = scope.spawn(|| join(0, &words, Duration::from_secs(5)));
        // Until the other one has the name, this one may have it, for a moment.
        let attempt = || {
            let joined = join(0, &words, Duration::from_millis(50));
            thread::sleep(Duration::from_millis(150));
            joined.expect_err("rank 1 never comes")
        };
        let refused = std::iter::repeat_with(attempt)
            .take(20)
            .find(|error| matches!(error, BootstrapError::HostMeetingTaken { .. }));
        let text = refused.expect("refused").to_string();
        assert!(text.contains("TORCHELASTIC_RUN_ID=twice"), "{text}");
        assert!(first.join().expect("no panic").is_err());
    });
}

#[test]
fn an_unknown_root_name_is_named() {
    let words = "ANNULUS_RANK={rank} ANNULUS_WORLD_SIZE=2 ANNULUS_ROOT=no-such-host.invalid:9";
    let error = join(1, words, Duration::from_millis(100)).expect_err("unknown");
    assert!(matches!(error, BootstrapError::RootUnresolved { rank: 1, .. }), "{error}");
    assert!(error.to_string().contains("ANNULUS_ROOT=no-such-host.invalid:9"));
}
