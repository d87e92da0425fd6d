//! What a choice costs for calls of a class: the simulator, used sparingly.

use std::num::NonZeroUsize;

use crate::algorithms::{Choice, build};
use crate::simulator::{Detail, Simulation, SimulationError, Workload, estimate};
use crate::topology::Topology;
use crate::{Collective, Plan, Rank};

use super::candidates::{must_fit_one_chunk, parts};
use super::class::Class;

/// A call of many chunks is simulated with so many, and half as many, for each block.
const ROUNDS: usize = 4;

/// Messages are followed in at most so many pieces.
const PIECES: NonZeroUsize = NonZeroUsize::new(4).expect("not zero");

/// Instructions of all ranks beyond which some ranks stand for all.
const MOST_INSTRUCTIONS: usize = 32 << 10;

/// How many ranks stand for all.
const SAMPLE: usize = 16;

/// Why there is no prediction.
pub(super) enum Unknown {
    /// There is no plan.
    Unsupported(String),
    /// There is one, but it does not fit the topology.
    Unpredicted(String),
}

/// Times choices on a topology.
pub(super) struct Cost<'a> {
    class: Class,
    /// With hosts whose cache holds everything or nothing, as the class's largest call has it.
    topology: &'a Topology,
}

impl<'a> Cost<'a> {
    pub(super) fn new(class: Class, topology: &'a Topology) -> Self {
        Self { class, topology }
    }

    /// The topology for calls like this one: a shorter one that stands for it finds the caches as full.
    pub(super) fn regime(topology: &Topology, call: &Collective) -> Topology {
        let mut regime = topology.clone();
        let mut footprint = vec![0_usize; topology.hosts().len()];
        for (rank, place) in topology.places().iter().enumerate() {
            let bytes = call.input_bytes(rank).saturating_add(call.output_bytes(rank));
            footprint[place.host] = footprint[place.host].saturating_add(bytes);
        }
        for (host, footprint) in regime.hosts_mut().iter_mut().zip(footprint) {
            host.cache_bytes = if footprint >= host.cache_bytes { 0 } else { usize::MAX };
        }
        regime
    }

    /// Predicted seconds.
    ///
    /// Chunks follow each other in a steady rhythm, so a call of many is extrapolated from two of few.
    pub(super) fn seconds(&self, choice: &Choice) -> Result<f64, Unknown> {
        let (kind, bytes) = (self.class.kind, self.class.bytes());
        let parts = parts(choice.algorithm, kind, self.class.world);
        let round = choice.chunk_bytes.saturating_mul(parts).saturating_mul(choice.channels);
        let (few, many) = (round.saturating_mul(ROUNDS / 2), round.saturating_mul(ROUNDS));
        if bytes <= many || must_fit_one_chunk(choice.algorithm, kind) {
            return self.seconds_of(bytes, choice);
        }
        let (short, long) = (self.seconds_of(few, choice)?, self.seconds_of(many, choice)?);
        Ok(long + (bytes - many) as f64 * (long - short) / (many - few) as f64)
    }

    fn seconds_of(&self, bytes: usize, choice: &Choice) -> Result<f64, Unknown> {
        let unpredicted = |error: SimulationError| Unknown::Unpredicted(error.to_string());
        let call = self.class.call(bytes);
        let call = call.map_err(|error| Unknown::Unpredicted(error.to_string()))?;
        let workload = Workload {
            protocol: choice.protocol,
            dtype: self.class.dtype(),
            detail: Detail::AtMost(PIECES),
        };
        let plan_of =
            |rank| build(&call, choice, rank).map_err(|error| Unknown::Unsupported(error.reason));
        let first = plan_of(0)?;
        if is_long(&first) {
            let plans = self.sample().map(plan_of).collect::<Result<Vec<_>, _>>()?;
            return estimate(self.topology, workload, &plans).map_err(unpredicted);
        }
        let mut simulation = Simulation::new(self.topology, workload);
        simulation.add(&first).map_err(unpredicted)?;
        for rank in 1..call.world() {
            simulation.add(&plan_of(rank)?).map_err(unpredicted)?;
        }
        simulation.run().map(|run| run.seconds).map_err(unpredicted)
    }

    /// Ranks of one host, evenly spaced, the first among them.
    fn sample(&self) -> impl Iterator<Item = Rank> {
        let places = self.topology.places();
        let host = places[0].host;
        let ranks = places.iter().filter(|place| place.host == host).count();
        let stride = ranks.div_ceil(SAMPLE);
        let on_host = places.iter().enumerate().filter(move |(_, place)| place.host == host);
        on_host.map(|(rank, _)| rank).step_by(stride)
    }
}

/// Whether simulating would take long, and one rank's plan tells how long the call takes: where it
/// has as many steps as there are ranks.
fn is_long(plan: &Plan) -> bool {
    let instructions: usize = plan.lanes.iter().map(|lane| lane.instructions.len()).sum();
    instructions >= plan.world && instructions.saturating_mul(plan.world) > MOST_INSTRUCTIONS
}
