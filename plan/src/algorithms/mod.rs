//! The algorithms: each a file, each a pure function from a call to one rank's [`Plan`].

use std::fmt;

use crate::{Collective, Plan, Rank};

/// How a collective is laid out over the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Neighbours pass blocks round a ring; bandwidth-optimal for any rank count.
    Ring,
    /// Two complementary binary trees, each for half of the data; logarithmic latency at full bandwidth.
    Tree,
    /// Recursive halving and doubling; logarithmic steps, bandwidth-optimal for powers of two.
    HalvingDoubling,
    /// Every rank sends its whole input to every other (one exchange).
    OneShot,
    /// Every rank owns a block, reduces it for all, and sends it to all (two exchanges). For calls
    /// without reduction: one exchange straight between source and destination.
    TwoShot,
    /// Partner by partner; all-to-all and exchanges.
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
    /// Pieces of at most 1 KiB, so that the receiver starts while the sender still writes; a payload of up
    /// to 32 bytes travels in the cache line of its flag.
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
/// Whether there is one depends on `call` and `choice` alone, so all ranks agree about it. Buffers that
/// coincide as [`Collective::in_place`] tells are the same memory to the plan.
pub fn build(call: &Collective, choice: &Choice, rank: Rank) -> Result<Plan, Unsupported> {
    let _ = (call, choice, rank);
    unreachable!("replaced in the next commit")
}
