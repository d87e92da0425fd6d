//! Picks how a collective is laid out, by simulated time.
//!
//! A [`Tuner`] compares algorithms, protocols, channels and chunk sizes for a class of calls (one
//! collective, one kind of arithmetic, sizes between two powers of two) when it first meets
//! one, and remembers the outcome. What it picks follows from the topology, the overrides and
//! the call alone: never from the rank, the time, or earlier calls. [`Tuner::explain`] shows the
//! comparison.
//!
//! ```
//! use annulus_plan::algorithms::{Algorithm, Protocol};
//! use annulus_plan::topology::{LocalTransport, Topology};
//! use annulus_plan::tuner::{Overrides, Tuner};
//! use annulus_plan::{Collective, DataType, ReduceOp};
//!
//! let topology = Topology::single_host(2, 2, LocalTransport::SharedMemory);
//! let tuner = Tuner::new(topology.clone(), Overrides::default());
//! let small = Collective::all_reduce(2, DataType::F32, ReduceOp::Sum, 256)?;
//! assert_eq!(tuner.choose(&small).protocol, Protocol::LowLatency);
//! println!("{}", tuner.explain(&small));
//!
//! let variables = |name: &str| (name == "ANNULUS_ALGO").then(|| "ring".to_owned());
//! let tuner = Tuner::new(topology, Overrides::from_vars(variables)?);
//! assert_eq!(tuner.choose(&small).algorithm, Algorithm::Ring);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod candidates;
mod class;
mod cost;
mod explanation;
mod overrides;
mod survey;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::algorithms::{Algorithm, Choice, Protocol};
use crate::topology::Topology;
use crate::{Collective, CollectiveKind};

use class::Class;
pub use explanation::{Candidate, Explanation, Verdict};
pub use overrides::{MAX_CHANNELS, MAX_CHUNK_BYTES, OverrideError, Overrides};
use survey::Survey;

/// Picks a [`Choice`] for each call.
#[derive(Debug)]
pub struct Tuner {
    topology: Topology,
    overrides: Overrides,
    /// Each class is surveyed once, however many ranks of a process ask at the same time.
    chosen: Mutex<HashMap<Class, Arc<OnceLock<Choice>>>>,
}

impl Tuner {
    /// A tuner for the ranks of `topology`. Ranks of a communicator agree if their topologies and
    /// overrides are equal.
    pub fn new(topology: Topology, overrides: Overrides) -> Self {
        Self { topology, overrides, chosen: Mutex::default() }
    }

    /// The topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The overrides.
    pub fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    /// What to use for `call`. There is a plan for it.
    ///
    /// The first call of a class simulates, which takes from tens of microseconds for two ranks to
    /// tens of milliseconds for hundreds and a second or so for thousands; later ones cost a look-up. Equal for all ranks, roots, and in place or not.
    pub fn choose(&self, call: &Collective) -> Choice {
        let class = Class::of(call);
        let chosen = {
            let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
            chosen.entry(class).or_default().clone()
        };
        let choice = *chosen.get_or_init(|| self.survey(class).choice());
        candidates::fitted(choice, call, &self.topology, &self.overrides)
    }

    /// What to use for an [`Exchange`](crate::Exchange): sends and receives, whose sizes only the two ranks
    /// of each know, so that it depends on none of them.
    pub fn choose_exchange(&self) -> Choice {
        let kind = CollectiveKind::PointToPoint;
        let protocol = match self.overrides.protocols(kind) {
            Some(restriction) if !restriction.allowed.contains(&Protocol::Simple) => {
                Protocol::LowLatency
            }
            _ => Protocol::Simple,
        };
        let channels = self.overrides.channels.as_ref().map_or(1, |channels| channels.least);
        let link = self.topology.slowest_link();
        let chunk_bytes =
            candidates::largest_chunk(link.chunk_bytes, &self.topology, &self.overrides);
        Choice { algorithm: Algorithm::Pairwise, protocol, channels, chunk_bytes }
    }

    /// The comparison behind [`choose`](Self::choose), anew. Takes as long as a first call.
    pub fn explain(&self, call: &Collective) -> Explanation {
        let class = Class::of(call);
        let survey = self.survey(class);
        let choice = candidates::fitted(survey.choice(), call, &self.topology, &self.overrides);
        Explanation::new(call, class, choice, survey, &self.overrides)
    }

    fn survey(&self, class: Class) -> Survey {
        Survey::new(class, &self.topology, &self.overrides)
    }
}
