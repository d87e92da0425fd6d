//! The variables that restrict the tuner.

use annulus_plan::Collective;
use annulus_plan::algorithms::build;
use annulus_plan::topology::{LocalTransport, Topology};
use annulus_plan::tuner::{Overrides, Tuner};

/// Each line is `NAME=value`. Any value is either refused in words that quote it, or there is still a
/// plan for every call, and the restriction survives being read again.
pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let lines: Vec<_> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let read = || {
        Overrides::from_vars(|name| {
            let set = lines.iter().find(|(variable, _)| *variable == name);
            set.map(|(_, value)| (*value).to_owned())
        })
    };
    let overrides = match read() {
        Ok(overrides) => overrides,
        Err(error) => {
            let message = error.to_string();
            let quotes = |(name, value): &(&str, &str)| {
                message.starts_with(&format!("{name}={}: ", value.trim()))
            };
            assert!(lines.iter().any(quotes), "{message}");
            return;
        }
    };
    assert_eq!(read().as_ref(), Ok(&overrides));

    let call = Collective::barrier(3);
    let topology = Topology::single_host(3, 2, LocalTransport::SharedMemory);
    let tuner = Tuner::new(topology, overrides);
    let choice = tuner.choose(&call);
    build(&call, &choice, 2).expect("every choice has a plan");
    assert!(tuner.choose_exchange().chunk_bytes.is_multiple_of(64));
}
