//! How long a collective takes, from its plans and a [`Topology`].
//!
//! The model is alpha-beta-gamma: a piece of a message costs its sender's and its receiver's core a fixed
//! time and a time per byte, then a latency until it is seen; reductions cost a time per byte. It is
//! played through event by event:
//!
//! * a rank is one thread: its lanes take turns, piece by piece;
//! * ranks of a host are dealt out to its cores in turn; a rank that has to wait yields to the next
//!   on its core, which may have to yield too, and every time costs a switch;
//! * a link holds so many bytes, then its sender waits for the receiver;
//! * links between hosts share the hosts' interfaces, in each direction;
//! * a call whose buffers do not fit a host's cache shares the host's memory bandwidth.
//!
//! The simulator knows no algorithm. It keeps of each plan only a few bytes per instruction, less where
//! instructions repeat, so that plans of thousands of ranks are taken in one at a time.
//!
//! ```
//! use annulus_plan::simulator::{Detail, Simulation, Workload};
//! use annulus_plan::topology::{LocalTransport, Topology};
//! use annulus_plan::algorithms::Protocol;
//! use annulus_plan::{Buffer, DataType, Instruction, Lane, LinkId, Plan, Span};
//!
//! let span = Span { buffer: Buffer::Input, offset: 0, bytes: 4096 };
//! let steps = [
//!     Instruction::Send { to: LinkId { peer: 1, index: 0 }, src: span },
//!     Instruction::Recv { from: LinkId { peer: 0, index: 0 }, dst: span },
//! ];
//! let topology = Topology::single_host(2, 2, LocalTransport::SharedMemory);
//! let workload =
//!     Workload { protocol: Protocol::Simple, dtype: DataType::F32, detail: Detail::Pieces };
//! let mut simulation = Simulation::new(&topology, workload);
//! for (rank, step) in steps.into_iter().enumerate() {
//!     let lanes = vec![Lane { channel: 0, instructions: vec![step] }];
//!     let plan =
//!         Plan { rank, world: 2, lanes, scratch_bytes: 0, chunk_bytes: 4096, by_reference: false };
//!     simulation.add(&plan)?;
//! }
//! let prediction = simulation.run()?;
//! assert_eq!(prediction.bytes, 4096);
//! assert!(prediction.seconds > 0.0);
//! # Ok::<(), annulus_plan::simulator::SimulationError>(())
//! ```

mod engine;
mod estimate;
mod link_table;
mod program;

#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;

use crate::algorithms::Protocol;
use crate::topology::Topology;
use crate::{DataType, LinkId, Plan, Rank};

use engine::Engine;
pub use estimate::estimate;
use program::Program;

/// What the plans do not say about their run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// How messages travel; it decides what a piece costs.
    pub protocol: Protocol,
    /// The type of the elements; it decides what a reduction costs.
    pub dtype: DataType,
    /// How closely to look.
    pub detail: Detail,
}

/// How closely messages are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Every piece.
    Pieces,
    /// A message is at most so many pieces. Pieces that are taken together cost what they would cost
    /// apart, but are seen only when all have been written. With 1, a message is one piece.
    AtMost(NonZeroUsize),
}

/// What a simulation found.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Seconds until the last rank is through.
    pub seconds: f64,
    /// Seconds until each rank is through.
    pub finish: Vec<f64>,
    /// Bytes that went over links.
    pub bytes: u64,
    /// How often a core went over from one rank to another.
    pub switches: u64,
}

/// Why plans could not be timed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// A plan of another communicator than the topology's.
    #[error("rank {rank}'s plan is for {plan} ranks, but the topology has {topology}")]
    World {
        /// Who has the plan.
        rank: Rank,
        /// World size of the plan.
        plan: usize,
        /// World size of the topology.
        topology: usize,
    },
    /// A rank or a peer that does not exist.
    #[error("rank {rank}'s plan names rank {named}: there are ranks 0..{world}")]
    NoSuchRank {
        /// Who has the plan.
        rank: Rank,
        /// The rank that it names.
        named: Rank,
        /// Number of ranks.
        world: usize,
    },
    /// Two plans for one rank.
    #[error("rank {rank} was given two plans")]
    Twice {
        /// The rank.
        rank: Rank,
    },
    /// A rank without a plan.
    #[error("rank {rank} was given no plan")]
    Missing {
        /// The first such rank.
        rank: Rank,
    },
    /// A message that is shorter or longer than its receiver expects.
    #[error(
        "rank {rank} expects {expected} bytes over link {} from rank {}, but gets more or fewer",
        link.index, link.peer
    )]
    Length {
        /// The receiver.
        rank: Rank,
        /// The link, seen from the receiver.
        link: LinkId,
        /// Bytes that it expects.
        expected: usize,
    },
    /// Plans that wait for each other, or for a message that nobody sends.
    #[error("rank {rank} waits for ever in instruction {instruction} of lane {lane}")]
    Stuck {
        /// The first rank that does.
        rank: Rank,
        /// Its lane.
        lane: usize,
        /// The instruction's index in the lane.
        instruction: usize,
    },
    /// More lanes or links than a simulation can number (2^31).
    #[error("the plans have more lanes or links than can be numbered")]
    TooMany,
}

/// Plans on their way to a [`Prediction`].
#[derive(Debug)]
pub struct Simulation<'a> {
    topology: &'a Topology,
    workload: Workload,
    program: Program,
}

impl<'a> Simulation<'a> {
    /// A simulation without plans.
    pub fn new(topology: &'a Topology, workload: Workload) -> Self {
        Self { topology, workload, program: Program::new(topology) }
    }

    /// Takes in one rank's plan. Ranks come in any order.
    pub fn add(&mut self, plan: &Plan) -> Result<(), SimulationError> {
        self.program.add(plan)
    }

    /// Plays the plans through.
    pub fn run(self) -> Result<Prediction, SimulationError> {
        self.program.check_complete()?;
        Engine::new(self.topology, self.workload, &self.program).run()
    }
}

/// Times the plans that `plan_of` returns for rank 0, 1, ... of the topology.
pub fn simulate(
    topology: &Topology,
    workload: Workload,
    mut plan_of: impl FnMut(Rank) -> Plan,
) -> Result<Prediction, SimulationError> {
    let mut simulation = Simulation::new(topology, workload);
    for rank in 0..topology.world() {
        simulation.add(&plan_of(rank))?;
    }
    simulation.run()
}
