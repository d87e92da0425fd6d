//! Why the root refuses to form a communicator.

use std::fmt;

use annulus_plan::Rank;

use super::wire::{Reader, WireError, Writer};

/// Most ranks that a message names one by one.
const MAX_NAMED: usize = 64;
const MAX_HOST_NAME: u16 = 253;
const MAX_VERSION: u16 = 32;

/// A process that is, or claims to be, a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// Name of its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
}

impl fmt::Display for Claimant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {}", self.pid, self.host)
    }
}

/// Why the root refuses to form a communicator. Every rank that has reached the root gets the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Two processes claim the same rank.
    #[error(
        "rank {rank} is claimed twice, by {first} and by {second}: give each process its own rank"
    )]
    DuplicateRank {
        /// The rank.
        rank: Rank,
        /// Who came first.
        first: Claimant,
        /// Who came then.
        second: Claimant,
    },
    /// The ranks do not agree on how many they are.
    #[error(
        "the world size differs: rank {first_rank} ({first}) says {first_world}, rank {second_rank} ({second}) says \
         {second_world}; all ranks must be given the same"
    )]
    WorldSize {
        /// Who came first.
        first_rank: Rank,
        /// Its process.
        first: Claimant,
        /// What it said.
        first_world: usize,
        /// Who disagreed.
        second_rank: Rank,
        /// Its process.
        second: Claimant,
        /// What it said.
        second_world: usize,
    },
    /// Two ranks would choose their plans by different settings, and their messages would not fit together.
    #[error(
        "the settings of rank {first_rank} ({first}) and rank {second_rank} ({second}) differ: set the same ANNULUS_ and \
         NCCL_ variables on every rank"
    )]
    Settings {
        /// Who came first.
        first_rank: Rank,
        /// Its process.
        first: Claimant,
        /// Who disagreed.
        second_rank: Rank,
        /// Its process.
        second: Claimant,
    },
    /// A rank is no rank of its own world.
    #[error("rank {rank} ({claimant}) is out of range for a world of {world}: ranks are 0 to {}", world.saturating_sub(1))]
    RankOutOfRange {
        /// The rank.
        rank: Rank,
        /// Its process.
        claimant: Claimant,
        /// Its world size.
        world: usize,
    },
    /// The ranks run different versions of this library.
    #[error(
        "rank {rank} ({claimant}) runs Annulus {theirs}, the root runs {ours}: install the same version everywhere"
    )]
    Version {
        /// The rank.
        rank: Rank,
        /// Its process.
        claimant: Claimant,
        /// Its version.
        theirs: String,
        /// The root's.
        ours: String,
    },
    /// Not all ranks came in time.
    #[error(
        "{} of {world} ranks did not come within {:.1} s: {missing}; {}",
        missing.total, *waited_ms as f64 / 1e3,
        if *starved {
            "the root's process, mostly that of rank 0, had too many open files to let them in: raise its limit with `ulimit -n`"
        } else {
            "see whether they were started, and their logs"
        }
    )]
    Missing {
        /// Number of ranks.
        world: usize,
        /// Who did not come.
        missing: MissingRanks,
        /// How long the first rank that gave up has waited, in milliseconds.
        waited_ms: u64,
        /// Whether the root's process had no descriptors left for more ranks.
        starved: bool,
    },
    /// A rank came, and went before all had come.
    #[error("rank {rank} ({claimant}) left before all ranks had come: see its log")]
    Left {
        /// The rank.
        rank: Rank,
        /// Its process.
        claimant: Claimant,
    },
    /// A rank sent what no rank of this version sends.
    #[error("a process that knows the secret sent a damaged record: {what}")]
    Damaged {
        /// What is wrong with it.
        what: String,
    },
}

/// Ranks that did not come: all of them are counted, some are named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRanks {
    /// How many.
    pub total: usize,
    /// The lowest of them, at most 64.
    pub lowest: Vec<Rank>,
}

impl MissingRanks {
    pub(crate) fn new(ranks: impl Iterator<Item = Rank>) -> Self {
        let mut lowest = Vec::new();
        let mut total = 0;
        for rank in ranks {
            total += 1;
            if lowest.len() < MAX_NAMED {
                lowest.push(rank);
            }
        }
        Self { total, lowest }
    }
}

impl fmt::Display for MissingRanks {
    /// `rank 3`, or `ranks 1, 4 to 7, 9 and 20 more`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank{} ", if self.total == 1 { "" } else { "s" })?;
        let runs = self.lowest.chunk_by(|a, b| a + 1 == *b);
        for (i, run) in runs.enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, second] => write!(f, "{comma}{first}, {second}")?,
                [first, .., last] => write!(f, "{comma}{first} to {last}")?,
                [] => {}
            }
        }
        match self.total - self.lowest.len().min(self.total) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl Refusal {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Self::DuplicateRank { rank, first, second } => {
                w.u8(1);
                w.u64(*rank as u64);
                first.encode(&mut w);
                second.encode(&mut w);
            }
            Self::WorldSize {
                first_rank,
                first,
                first_world,
                second_rank,
                second,
                second_world,
            } => {
                w.u8(2);
                for (rank, who, world) in
                    [(first_rank, first, first_world), (second_rank, second, second_world)]
                {
                    w.u64(*rank as u64);
                    who.encode(&mut w);
                    w.u64(*world as u64);
                }
            }
            Self::RankOutOfRange { rank, claimant, world } => {
                w.u8(3);
                w.u64(*rank as u64);
                claimant.encode(&mut w);
                w.u64(*world as u64);
            }
            Self::Version { rank, claimant, theirs, ours } => {
                w.u8(4);
                w.u64(*rank as u64);
                claimant.encode(&mut w);
                w.text(theirs, MAX_VERSION);
                w.text(ours, MAX_VERSION);
            }
            Self::Missing { world, missing, waited_ms, starved } => {
                w.u8(if *starved { 9 } else { 5 });
                w.u64(*world as u64);
                w.u64(*waited_ms);
                w.u64(missing.total as u64);
                w.u8(missing.lowest.len() as u8);
                for rank in &missing.lowest {
                    w.u64(*rank as u64);
                }
            }
            Self::Left { rank, claimant } => {
                w.u8(6);
                w.u64(*rank as u64);
                claimant.encode(&mut w);
            }
            Self::Damaged { what } => {
                w.u8(7);
                w.text(what, 512);
            }
            Self::Settings { first_rank, first, second_rank, second } => {
                w.u8(8);
                for (rank, who) in [(first_rank, first), (second_rank, second)] {
                    w.u64(*rank as u64);
                    who.encode(&mut w);
                }
            }
        }
        w.bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let reason = r.u8("reason")?;
        let refusal = match reason {
            1 => Self::DuplicateRank {
                rank: count(&mut r, "rank")?,
                first: Claimant::decode(&mut r)?,
                second: Claimant::decode(&mut r)?,
            },
            2 => Self::WorldSize {
                first_rank: count(&mut r, "rank")?,
                first: Claimant::decode(&mut r)?,
                first_world: count(&mut r, "world size")?,
                second_rank: count(&mut r, "rank")?,
                second: Claimant::decode(&mut r)?,
                second_world: count(&mut r, "world size")?,
            },
            3 => Self::RankOutOfRange {
                rank: count(&mut r, "rank")?,
                claimant: Claimant::decode(&mut r)?,
                world: count(&mut r, "world size")?,
            },
            4 => Self::Version {
                rank: count(&mut r, "rank")?,
                claimant: Claimant::decode(&mut r)?,
                theirs: r.text(MAX_VERSION, "version")?,
                ours: r.text(MAX_VERSION, "version")?,
            },
            5 | 9 => {
                let world = count(&mut r, "world size")?;
                let waited_ms = r.u64("time waited")?;
                let total = count(&mut r, "number of missing ranks")?;
                let named = usize::from(r.u8("number of named ranks")?);
                if named > MAX_NAMED || named > total {
                    return Err(WireError::Value {
                        field: "number of named ranks",
                        value: named as u64,
                    });
                }
                let lowest = (0..named).map(|_| count(&mut r, "rank")).collect::<Result<_, _>>()?;
                let missing = MissingRanks { total, lowest };
                Self::Missing { world, missing, waited_ms, starved: reason == 9 }
            }
            6 => Self::Left { rank: count(&mut r, "rank")?, claimant: Claimant::decode(&mut r)? },
            7 => Self::Damaged { what: r.text(512, "damage")? },
            8 => Self::Settings {
                first_rank: count(&mut r, "rank")?,
                first: Claimant::decode(&mut r)?,
                second_rank: count(&mut r, "rank")?,
                second: Claimant::decode(&mut r)?,
            },
            reason => return Err(WireError::Value { field: "reason", value: reason.into() }),
        };
        r.finish("a refusal")?;
        Ok(refusal)
    }
}

impl Claimant {
    fn encode(&self, w: &mut Writer) {
        w.text(&self.host, MAX_HOST_NAME);
        w.u32(self.pid);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { host: r.text(MAX_HOST_NAME, "host name")?, pid: r.u32("process id")? })
    }
}

/// A rank or a number of ranks: it came as 32 bits, so no sound value is above that.
fn count(r: &mut Reader<'_>, field: &'static str) -> Result<usize, WireError> {
    let value = r.u64(field)?;
    u32::try_from(value).map(|n| n as usize).map_err(|_| WireError::Value { field, value })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claimant(pid: u32) -> Claimant {
        Claimant { host: format!("node{pid}"), pid }
    }

    #[test]
    fn all_refusals_survive() {
        let missing = MissingRanks::new((3..200).filter(|n| n % 3 > 0));
        for refusal in [
            Refusal::DuplicateRank { rank: 3, first: claimant(1), second: claimant(2) },
            Refusal::WorldSize {
                first_rank: 0,
                first: claimant(1),
                first_world: 2,
                second_rank: 5,
                second: claimant(2),
                second_world: 8,
            },
            Refusal::RankOutOfRange { rank: 4, claimant: claimant(1), world: 4 },
            Refusal::Version {
                rank: 4,
                claimant: claimant(1),
                theirs: "0.2.0".into(),
                ours: "0.1.0".into(),
            },
            Refusal::Missing {
                world: 200,
                missing: missing.clone(),
                waited_ms: 1500,
                starved: false,
            },
            Refusal::Missing { world: 200, missing, waited_ms: 1500, starved: true },
            Refusal::Left { rank: 1, claimant: claimant(9) },
            Refusal::Damaged { what: "rank is cut off".into() },
            Refusal::Settings {
                first_rank: 2,
                first: claimant(1),
                second_rank: 0,
                second: claimant(2),
            },
        ] {
            let bytes = refusal.encode();
            assert_eq!(Refusal::decode(&bytes).as_ref(), Ok(&refusal));
            assert!(Refusal::decode(&bytes[..bytes.len() - 1]).is_err(), "{refusal}");
        }
    }

    #[test]
    fn messages_name_ranks_and_processes() {
        let refusal = Refusal::DuplicateRank { rank: 3, first: claimant(1), second: claimant(2) };
        assert_eq!(
            refusal.to_string(),
            "rank 3 is claimed twice, by process 1 on node1 and by process 2 on node2: give each process its own rank"
        );
        let missing = MissingRanks::new([1, 4, 5, 6, 9, 10].into_iter());
        let refusal = Refusal::Missing { world: 12, missing, waited_ms: 1500, starved: false };
        assert_eq!(
            refusal.to_string(),
            "6 of 12 ranks did not come within 1.5 s: ranks 1, 4 to 6, 9, 10; see whether they were started, and their logs"
        );
        assert_eq!(MissingRanks::new(0..100).to_string(), "ranks 0 to 63 and 36 more");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(refusal) = Refusal::decode(&bytes) {
                let _ = refusal.to_string();
            }
        }
    }
}
