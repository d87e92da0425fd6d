//! The time of a call from the plans of a few ranks.

use crate::Plan;
use crate::topology::Topology;

use super::engine::Engine;
use super::program::Program;
use super::{SimulationError, Workload};

/// About how long a call takes of which only some ranks' `plans` are known, in seconds.
///
/// For algorithms whose steps every rank takes part in, one after another, such as a ring: the time is that
/// of the busiest of a rank's lanes, its core, its host's memory and its host's interface, whichever is
/// longest, with the ranks given standing for the others of their hosts. Where most ranks have few
/// steps and wait for others, as in a tree, it is far too low: simulate those.
pub fn estimate(
    topology: &Topology,
    workload: Workload,
    plans: &[Plan],
) -> Result<f64, SimulationError> {
    let mut program = Program::new(topology);
    for plan in plans {
        program.add(plan)?;
    }
    Ok(Engine::new(topology, workload, &program).estimate())
}
