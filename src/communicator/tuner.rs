//! One tuner for all communicators of a process that would have equal ones.
//!
//! What a tuner picks follows from the topology and the overrides alone. Ranks that are threads of one process, splits with the
//! same members, and jobs that form again therefore share what the first of them has found out by simulation.

use std::process;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use annulus_plan::topology::Topology;
use annulus_plan::tuner::{Overrides, Tuner};

/// A tuner for `topology` and `overrides`: the one that others of this process use now, if they are equal.
pub(super) fn tuner(topology: Topology, overrides: &Overrides) -> Arc<Tuner> {
    /// With its process: a forked child's may be in the midst of a simulation that nobody goes on with there.
    static IN_USE: Mutex<Vec<(u32, Weak<Tuner>)>> = Mutex::new(Vec::new());
    let process = process::id();
    let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    in_use.retain(|(whose, tuner)| *whose == process && tuner.strong_count() > 0);
    let equal =
        |tuner: &Arc<Tuner>| *tuner.topology() == topology && tuner.overrides() == overrides;
    if let Some(tuner) = in_use.iter().filter_map(|(_, tuner)| tuner.upgrade()).find(equal) {
        return tuner;
    }
    let tuner = Arc::new(Tuner::new(topology, overrides.clone()));
    in_use.push((process, Arc::downgrade(&tuner)));
    tuner
}

#[cfg(test)]
mod tests {
    use annulus_plan::topology::LocalTransport;

    use super::*;

    #[test]
    fn equal_ones_are_one_while_it_is_in_use() {
        // Sizes that no other test of this process has.
        let topology = |ranks| Topology::single_host(ranks, 3, LocalTransport::TcpLoopback);
        let variables = |name: &str| (name == "ANNULUS_ALGO").then(|| "ring".to_owned());
        let ring = Overrides::from_vars(variables).expect("valid");
        let first = tuner(topology(1009), &Overrides::default());
        assert!(Arc::ptr_eq(&first, &tuner(topology(1009), &Overrides::default())));
        let others = [tuner(topology(1013), &Overrides::default()), tuner(topology(1009), &ring)];
        assert!(others.iter().all(|other| !Arc::ptr_eq(&first, other)));
        let ended = Arc::downgrade(&first);
        drop(first);
        assert!(ended.upgrade().is_none());
        assert_eq!(tuner(topology(1009), &ring).overrides(), &ring);
    }
}
