//! Nothing of a job is left behind. Alone in its process, because it counts the process's threads and descriptors.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use annulus::bootstrap::{Membership, Notice, Options, UniqueId};

const PATIENT: Duration = Duration::from_secs(60);

fn count(directory: &str) -> usize {
    std::fs::read_dir(directory).expect("procfs").count()
}

fn wait_for(mut done: impl FnMut() -> bool, what: &str) {
    let deadline = Instant::now() + PATIENT;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn join_world(world: usize) -> Vec<(Membership, std::sync::mpsc::Receiver<Notice>)> {
    let id = UniqueId::new().expect("a unique id");
    thread::scope(|scope| {
        let threads: Vec<_> = (0..world)
            .map(|rank| {
                let id = id.clone();
                scope.spawn(move || {
                    let (sender, receiver) = channel();
                    let on_notice = Arc::new(move |notice| {
                        let _ = sender.send(notice);
                    });
                    let options = Options {
                        timeout: PATIENT,
                        on_notice,
                        interfaces: None,
                        settings: 0,
                        heartbeat: None,
                        encrypt: false,
                    };
                    (Membership::join(&id, rank, world, &options).expect("joined"), receiver)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// The open TCP sockets that are connected to `port` at the other end, with the port at this end.
fn sockets_to(port: u16) -> Vec<RawFd> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").expect("procfs") {
        let name = entry.expect("an entry").file_name();
        let Ok(fd) = name.to_string_lossy().parse::<RawFd>() else { continue };
        // SAFETY: only looked at; the descriptor may be anything, and is not closed.
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        let peer = rustix::net::getpeername(borrowed).ok().flatten();
        let peer = peer.and_then(|peer| std::net::SocketAddr::try_from(peer).ok());
        if peer.is_some_and(|peer| peer.port() == port) {
            found.push(fd);
        }
    }
    found
}

#[test]
fn lost_connections_are_noticed_and_nothing_is_left() {
    let (threads, descriptors) = (count("/proc/self/task"), count("/proc/self/fd"));

    let alone = Membership::alone(&Options::from_env().expect("options")).expect("alone");
    assert_eq!((count("/proc/self/task"), count("/proc/self/fd")), (threads, descriptors));
    drop(alone);

    let members = join_world(4);
    let port = members[0].0.acceptor().expect("an acceptor").tcp_address().port();
    // The end of a rank's process closes its control connection without a word.
    let control = sockets_to(port);
    assert_eq!(control.len(), 4, "each rank has one connection to the root");
    for fd in &control[..1] {
        // SAFETY: the descriptor is open: its membership is alive.
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd.as_raw_fd()) };
        rustix::net::shutdown(borrowed, rustix::net::Shutdown::Both).expect("shut down");
    }
    let mut lost = Vec::new();
    wait_for(
        || {
            lost.extend(members.iter().filter_map(|(_, notices)| notices.try_recv().ok()));
            lost.iter().filter(|notice| matches!(notice, Notice::Lost { .. })).count() >= 3
        },
        "the loss is noticed by all others",
    );
    drop(members);

    for round in 0..3 {
        drop(join_world(2 + round));
    }
    wait_for(
        || (count("/proc/self/task"), count("/proc/self/fd")) == (threads, descriptors),
        "threads and descriptors go",
    );
}
