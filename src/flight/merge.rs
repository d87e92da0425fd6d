//! The records of several ranks side by side: who is where, and where they parted.

use std::collections::BTreeMap;
use std::fmt;

use annulus_plan::{CollectiveKind, Fingerprint, Rank};

use super::record::FlightRecord;

/// The records of one communicator's ranks, as far as they are known.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Merged {
    /// In rank order.
    pub ranks: Vec<FlightRecord>,
    /// Where the ranks parted first.
    pub divergence: Option<Divergence>,
}

/// What is different between ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Divergence {
    /// Two ranks made different calls in the same place.
    Calls {
        /// Number of the collective.
        sequence: u64,
        /// Each call as text, and the ranks that made it.
        calls: Vec<(String, Vec<Rank>)>,
    },
    /// Some ranks have not come as far as the others.
    Behind {
        /// Those that are behind, and what they do.
        behind: Vec<(Rank, String)>,
        /// The collectives that those in front have started.
        reached: u64,
    },
}

impl Merged {
    /// Puts records together by communicator.
    pub fn all(records: Vec<FlightRecord>) -> Vec<Self> {
        let mut groups: BTreeMap<(u32, usize), Vec<FlightRecord>> = BTreeMap::new();
        for record in records {
            groups.entry((record.communicator, record.world)).or_default().push(record);
        }
        groups.into_values().flat_map(apart).map(Self::of).collect()
    }

    fn of(mut ranks: Vec<FlightRecord>) -> Self {
        ranks.sort_by_key(|record| record.rank);
        let divergence = different_calls(&ranks).or_else(|| behind(&ranks));
        Self { ranks, divergence }
    }
}

/// Communicators that live in one process each may have the same number.
fn apart(records: Vec<FlightRecord>) -> Vec<Vec<FlightRecord>> {
    let mut ranks: Vec<Rank> = records.iter().map(|record| record.rank).collect();
    ranks.sort_unstable();
    if ranks.windows(2).all(|pair| pair[0] != pair[1]) {
        return vec![records];
    }
    let mut groups: BTreeMap<(String, u32), Vec<FlightRecord>> = BTreeMap::new();
    for record in records {
        groups.entry((record.host.clone(), record.pid)).or_default().push(record);
    }
    groups.into_values().collect()
}

fn different_calls(ranks: &[FlightRecord]) -> Option<Divergence> {
    // Only where a record begins or ends can calls begin to differ.
    let mut edges: Vec<u64> = ranks
        .iter()
        .flat_map(|record| &record.operations)
        .filter(|operation| operation.is_collective())
        .flat_map(|operation| {
            let first = operation.first_sequence();
            [first, first.saturating_add(operation.repetitions)]
        })
        .collect();
    edges.sort_unstable();
    edges.dedup();
    edges.into_iter().find_map(|sequence| {
        let mut calls: Vec<(Fingerprint, Vec<Rank>)> = Vec::new();
        for record in ranks {
            let Some(call) = record.collective_fingerprint(sequence) else { continue };
            match calls.iter_mut().find(|(known, _)| same_call(*known, call)) {
                Some((_, ranks)) => ranks.push(record.rank),
                None => calls.push((call, vec![record.rank])),
            }
        }
        (calls.len() > 1).then(|| Divergence::Calls {
            sequence,
            calls: calls.into_iter().map(|(c, ranks)| (c.describe().to_string(), ranks)).collect(),
        })
    })
}

fn behind(ranks: &[FlightRecord]) -> Option<Divergence> {
    let reached = ranks.iter().map(|record| record.collectives).max()?;
    let behind: Vec<(Rank, String)> = ranks
        .iter()
        .filter(|record| record.collectives < reached)
        .map(|record| (record.rank, record.summary()))
        .collect();
    (!behind.is_empty()).then_some(Divergence::Behind { behind, reached })
}

/// Whether two ranks that called these in the same place made the same call. Counts of all-to-all-v differ from pair to
/// pair.
pub(crate) fn same_call(one: Fingerprint, other: Fingerprint) -> bool {
    let kind = |call: u64| (call >> 8) as u8;
    let all_to_all_v = CollectiveKind::AllToAllV as u8;
    if kind(one.call) == all_to_all_v && kind(other.call) == all_to_all_v {
        return one.call as u8 == other.call as u8 && one.order == other.order;
    }
    (one.call, one.order) == (other.call, other.order)
}

/// Ranks in few words: `0..5, 7`.
pub(crate) fn ranges(ranks: &[Rank]) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut rest = ranks;
    while let Some(&first) = rest.first() {
        let length = rest.iter().zip(first..).take_while(|(rank, next)| *rank == next).count();
        let last = first + length - 1;
        texts.push(match length {
            1 => first.to_string(),
            2 => format!("{first}, {last}"),
            _ => format!("{first}..{last}"),
        });
        rest = &rest[length..];
    }
    texts.join(", ")
}

fn named(ranks: &[Rank]) -> String {
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, ranges(ranks))
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calls { sequence, calls } => {
                write!(f, "first divergence, at collective {sequence}:")?;
                for (call, ranks) in calls {
                    write!(f, "\n  {} called {call}", named(ranks))?;
                }
                Ok(())
            }
            Self::Behind { behind, reached } => {
                let ranks: Vec<Rank> = behind.iter().map(|(rank, _)| *rank).collect();
                write!(f, "{} have not come to collective {reached}:", named(&ranks))?;
                for (rank, summary) in behind {
                    write!(f, "\n  rank {rank}: {summary}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Merged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.ranks.first() else { return Ok(()) };
        let (known, world) = (self.ranks.len(), first.world);
        writeln!(f, "communicator {:08x}: {known} of {world} ranks", first.communicator)?;
        for record in &self.ranks {
            let FlightRecord { rank, pid, host, .. } = record;
            writeln!(f, "  rank {rank} (pid {pid} on {host}): {}", record.summary())?;
        }
        match &self.divergence {
            Some(divergence) => writeln!(f, "{divergence}"),
            None => writeln!(f, "no divergence in what is recorded"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_in_few_words() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[0, 1, 2, 3, 5, 6, 9]), "0..3, 5, 6, 9");
    }
}
