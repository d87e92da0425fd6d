//! The algorithms: each a file, each a pure function from a call to one rank's [`Plan`].

mod dissemination;
mod double_tree;
mod halving_doubling;
mod layout;
mod one_shot;
mod pairwise;
mod partition;
mod ring;
mod tree;
mod two_shot;

use std::fmt;

use crate::{Collective, CollectiveKind, Exchange, Plan, Rank};

use layout::{Layout, Steps, input, output};

/// How a collective is laid out over the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Neighbours pass chunks round a ring; bandwidth-optimal for any rank count. All-reduce,
    /// reduce-scatter, all-gather, broadcast, reduce.
    Ring,
    /// Two complementary binary trees, each for half of the data; logarithmic latency at full
    /// bandwidth. All-reduce, broadcast, reduce.
    Tree,
    /// Recursive halving and doubling; logarithmic steps, bandwidth-optimal for powers of two.
    /// All-reduce, reduce-scatter, all-gather.
    HalvingDoubling,
    /// One exchange straight between source and destination; sums in rank order. All-reduce (every
    /// rank sends its whole input to every other; each channel's share must fit one chunk), reduce,
    /// reduce-scatter, all-gather, broadcast, gather, scatter.
    OneShot,
    /// Two exchanges: every rank owns a block, reduces it for all, and sends it to all. All-reduce;
    /// broadcast (the root scatters blocks, which their owners pass on).
    TwoShot,
    /// Partner by partner. All-to-all, and every [`Exchange`].
    Pairwise,
    /// Barrier in ⌈log2 n⌉ rounds.
    Dissemination,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 7] = [
        Self::Ring,
        Self::Tree,
        Self::HalvingDoubling,
        Self::OneShot,
        Self::TwoShot,
        Self::Pairwise,
        Self::Dissemination,
    ];

    /// The name that options and tables use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::HalvingDoubling => "halving-doubling",
            Self::OneShot => "one-shot",
            Self::TwoShot => "two-shot",
            Self::Pairwise => "pairwise",
            Self::Dissemination => "dissemination",
        }
    }

    /// Whether the algorithm knows the collective. There may still be calls of the kind that it has
    /// no plan for.
    pub const fn supports(self, kind: CollectiveKind) -> bool {
        use CollectiveKind::{
            AllGather, AllReduce, AllToAll, AllToAllV, Barrier, Broadcast, Gather, PointToPoint,
            Reduce, ReduceScatter, Scatter,
        };
        match self {
            Self::Ring => {
                matches!(kind, AllReduce | ReduceScatter | AllGather | Broadcast | Reduce)
            }
            Self::Tree => matches!(kind, AllReduce | Broadcast | Reduce),
            Self::HalvingDoubling => matches!(kind, AllReduce | ReduceScatter | AllGather),
            Self::OneShot => matches!(
                kind,
                AllReduce | Reduce | ReduceScatter | AllGather | Broadcast | Gather | Scatter
            ),
            Self::TwoShot => matches!(kind, AllReduce | Broadcast),
            Self::Pairwise => matches!(kind, AllToAll | AllToAllV | PointToPoint),
            Self::Dissemination => matches!(kind, Barrier),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How messages are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// Large pieces: full bandwidth.
    Simple,
    /// Pieces of 1 KiB, so that the receiver starts while the sender still writes; of a 16th of a
    /// chunk where that is more. A payload of up to 32 bytes travels in the cache line of its flag.
    LowLatency,
}

impl Protocol {
    /// The name that options and tables use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::LowLatency => "low-latency",
        }
    }
}

/// Everything about a plan that is not the call itself. Equal on every rank of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// How messages are cut.
    pub protocol: Protocol,
    /// Number of channels, at least 1: independent shares of the bytes.
    pub channels: usize,
    /// The unit of pipelining in bytes: a positive multiple of 64.
    pub chunk_bytes: usize,
}

/// Why an algorithm has no plan for a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{algorithm} has no plan for {call}: {reason}")]
pub struct Unsupported {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The call.
    pub call: String,
    /// Why, such as `its message of 4 MiB does not fit one chunk`.
    pub reason: String,
}

/// The plan of `rank` for `call` under `choice`.
///
/// Whether there is one depends on `call` and `choice` alone, so all ranks agree about it. Buffers
/// that coincide as [`Collective::in_place`] tells are the same memory to the plan. In a call that
/// reduces, [`Buffer::Input`](crate::Buffer::Input) is read exactly where this rank's own
/// contribution is meant, and never written, in place too: that is where
/// [`ReduceOp::PreMulSum`](crate::ReduceOp::PreMulSum) multiplies.
///
/// Messages have at most `choice.chunk_bytes` bytes, whatever the protocol: the plan relies on
/// links that hold [`MIN_LINK_CHUNKS`](crate::MIN_LINK_CHUNKS) times as much, also when the
/// low-latency protocol cuts a message into up to [`MAX_CHUNK_PIECES`](crate::MAX_CHUNK_PIECES)
/// pieces of [`Plan::chunk_bytes`].
///
/// The time to build is in proportion to the number of instructions. One rank alone copies its
/// input, if anything; a call of no elements has an empty plan.
pub fn build(call: &Collective, choice: &Choice, rank: Rank) -> Result<Plan, Unsupported> {
    let refused =
        |reason| Unsupported { algorithm: choice.algorithm, call: call.to_string(), reason };
    if let Some(reason) = choice.obstacle(call.kind()) {
        return Err(refused(reason));
    }
    if rank >= call.world() {
        return Err(refused(format!("rank {rank} is not in a world of {}", call.world())));
    }
    let layout = Layout { call, choice, rank };
    if call.world() == 1 {
        return Ok(alone(&layout));
    }
    match choice.algorithm {
        Algorithm::Ring => Ok(ring::plan(&layout)),
        Algorithm::Tree => Ok(tree::plan(&layout)),
        Algorithm::HalvingDoubling => Ok(halving_doubling::plan(&layout)),
        Algorithm::OneShot => match one_shot::obstacle(&layout) {
            Some(reason) => Err(refused(reason)),
            None => Ok(one_shot::plan(&layout)),
        },
        Algorithm::TwoShot => Ok(two_shot::plan(&layout)),
        Algorithm::Pairwise => Ok(pairwise::plan(&layout)),
        Algorithm::Dissemination => Ok(dissemination::plan(&layout)),
    }
}

/// The plan of an [`Exchange`] under `choice`, whose algorithm must be [`Algorithm::Pairwise`].
///
/// Every channel, peer and direction has a lane of its own, so the order of the transfers does not
/// matter but among those with the same peer and direction. A transfer is one message for each
/// channel that has a share of it, of any length; a rank's transfers with itself are copies.
pub fn exchange(exchange: &Exchange, choice: &Choice) -> Result<Plan, Unsupported> {
    match choice.obstacle(exchange.kind()) {
        Some(reason) => Err(Unsupported {
            algorithm: choice.algorithm,
            call: format!("{} ({} transfers)", exchange.kind(), exchange.transfers().len()),
            reason,
        }),
        None => Ok(pairwise::exchange(exchange, choice)),
    }
}

impl Choice {
    fn obstacle(&self, kind: CollectiveKind) -> Option<String> {
        let Self { algorithm, channels, chunk_bytes, .. } = *self;
        if !algorithm.supports(kind) {
            Some("it does not know this collective".to_owned())
        } else if channels == 0 {
            Some("it needs at least one channel".to_owned())
        } else if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(64) {
            Some(format!("chunks of {chunk_bytes} bytes are no positive multiple of 64"))
        } else {
            None
        }
    }
}

/// The plan of the only rank.
fn alone(layout: &Layout<'_>) -> Plan {
    let lanes = layout.shares().map(|(channel, share)| {
        let mut steps = Steps::new(channel);
        if !layout.call.in_place() {
            steps.copy(input(share), output(share));
        }
        steps
    });
    layout.plan(lanes.collect(), 0, true)
}
