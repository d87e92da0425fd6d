//! Ranks as threads.

use std::thread;
use std::time::Duration;

use annulus::{Communicator, Config};

/// What `work` gives on each of `world` ranks.
pub(crate) fn on_ranks<R: Send>(world: usize, work: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    on_ranks_with(world, &Config::default(), work)
}

/// The same with a configuration of one's own, but for the timeout.
pub(crate) fn on_ranks_with<R: Send>(
    world: usize,
    config: &Config,
    work: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let mut config = config.clone();
    config.timeout = Duration::from_secs(60);
    let ranks = Communicator::local_with(world, &config).expect("ranks meet");
    thread::scope(|threads| {
        let work = &work;
        let running: Vec<_> =
            ranks.into_iter().map(|comm| threads.spawn(move || work(comm))).collect();
        running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}
