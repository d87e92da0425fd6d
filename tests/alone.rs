//! A world of one, in a process of its own: what it takes is counted.

use std::fs;

use annulus::{Communicator, Config, ReduceOp, Transport, UniqueId};

/// Shared memory segments that this process holds.
fn segments() -> usize {
    let descriptors = fs::read_dir("/proc/self/fd").expect("procfs");
    let targets = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("memfd:annulus")).count()
}

#[test]
fn a_world_of_one_shares_no_memory() {
    let id = UniqueId::new().expect("a root");
    for transport in [Transport::Auto, Transport::Proc, Transport::Shm, Transport::Tcp] {
        let mut config = Config::default();
        config.transport = transport;
        let alone = Communicator::init(&id, 0, 1, &config).expect("alone");
        let mut buffer = [1.5_f32; 100];
        alone.all_reduce(&mut buffer, ReduceOp::Sum).expect("all-reduce");
        alone.barrier().expect("barrier");
        assert_eq!(buffer, [1.5; 100]);
        assert_eq!(segments(), 0, "{transport:?}");
    }
    let mut config = Config::default();
    config.transport = Transport::Shm;
    let pair = Communicator::local_with(2, &config).expect("ranks meet");
    assert!(segments() >= 2, "two ranks have an inbox each");
    drop(pair);
}
