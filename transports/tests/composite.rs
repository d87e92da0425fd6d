//! A fabric that reaches one peer in memory and another over TCP.

#[path = "loopback/mod.rs"]
mod loopback;

use std::sync::Arc;
use std::time::{Duration, Instant};

use annulus_plan::Fingerprint;
use annulus_transports::composite::Composite;
use annulus_transports::link::{Fabric, SendLink};
use annulus_transports::memory::Store;
use annulus_transports::proc::Hub;
use annulus_transports::ring::Geometry;
use annulus_transports::tcp::Options;
use annulus_transports::wait::{Next, Waiter};

const CALL: Fingerprint = Fingerprint { call: 1, order: 2, tag: 3 };

/// Rank 0 beside rank 1, which it reaches over TCP, and rank 2, in memory.
fn world() -> Vec<Composite> {
    let hub = Hub::new(3, Geometry::for_local_ranks(3)).expect("memory");
    let tcp = loopback::fabrics(3, Options::default()).into_iter().enumerate();
    tcp.map(|(rank, tcp)| {
        let fabrics: Vec<Arc<dyn Fabric>> = vec![Arc::new(hub.fabric(rank)), Arc::new(tcp)];
        Composite::new(fabrics, (0..3).map(|peer| (rank + peer) % 2).collect())
    })
    .collect()
}

#[test]
fn each_peer_has_its_transport() {
    let world = world();
    let names = |rank: usize| [0, 1, 2].map(|peer| world[rank].transport(peer));
    assert_eq!(names(0), ["proc", "tcp", "proc"]);
    assert_eq!(names(1), ["tcp", "proc", "tcp"]);
    let least = loopback::fabrics(1, Options::default())[0].max_chunk_bytes();
    assert!(world[0].max_chunk_bytes() <= least);
    assert!(world[0].max_chunk_bytes() < world[1].max_chunk_bytes(), "rank 1 uses TCP alone");
}

/// One that spins, or looks every few microseconds, would use all of its core.
#[test]
fn a_sleeper_leaves_its_core_to_others() {
    let used = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let (mut sleeper, mut waiter) = (world()[0].sleeper(), Waiter::new(true));
    let (begin, before) = (Instant::now(), used());
    while begin.elapsed() < Duration::from_secs(1) {
        if let Next::Sleep(slice) = waiter.idle() {
            sleeper.announce();
            sleeper.sleep(slice);
        }
    }
    let share = (used() - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    assert!(share < 0.02, "{:.2} % of a core", 100.0 * share);
}

/// Nobody asserts how long a sleep lasts: this ends only because the sleeps end.
#[test]
fn a_sleeper_finds_what_comes_either_way() {
    let (world, now) = (world(), Instant::now() + Duration::from_secs(60));
    let open = |from: usize| {
        let sender = world[from].open_send(0, 0, now).expect("opens");
        (sender, world[0].open_recv(from, 0, now).expect("opens"))
    };
    let (mut senders, mut receivers): (Vec<_>, Vec<_>) = [open(1), open(2)].into_iter().unzip();
    let mut sleeper = world[0].sleeper();
    let (go, gone) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for turn in gone {
                std::thread::sleep(Duration::from_millis(3));
                let sender: &mut Box<dyn SendLink> = &mut senders[turn % 2];
                sender
                    .try_send(&CALL, &[turn as u8; 16], 16, Store::Cached)
                    .expect("open")
                    .expect("room");
            }
        });
        for turn in 0..20 {
            go.send(turn).expect("the sender goes on");
            let mut got = [0; 16];
            loop {
                sleeper.announce();
                let receiver = &mut receivers[turn % 2];
                if receiver.try_recv(&CALL, &mut got, Store::Cached).expect("open").is_some() {
                    sleeper.retract();
                    break;
                }
                sleeper.sleep(Duration::from_secs(3600));
            }
            assert_eq!(got, [turn as u8; 16]);
        }
        drop(go);
    });
}
