//! The root's bookkeeping while the ranks come: no socket, no clock.

use annulus_plan::Rank;

use super::record::{MAX_WORLD, Record};
use super::refusal::{Claimant, MissingRanks, Refusal};

/// Collects the records of all ranks.
#[derive(Debug)]
pub(super) struct Gather {
    version: &'static str,
    /// By rank; as long as the first rank to come says. Empty before.
    records: Vec<Option<Record>>,
    /// Who came first: the one to compare with.
    first: Option<Rank>,
    present: usize,
}

impl Gather {
    /// Nobody is here. Only ranks of the library's `version` may come.
    pub(super) fn new(version: &'static str) -> Self {
        Self { version, records: Vec::new(), first: None, present: 0 }
    }

    /// A rank has come: true when it was the last.
    pub(super) fn add(&mut self, record: Record) -> Result<bool, Refusal> {
        let (rank, world) = (record.rank as usize, record.world as usize);
        if record.version != self.version {
            return Err(Refusal::Version {
                rank,
                claimant: claimant(&record),
                theirs: record.version,
                ours: self.version.into(),
            });
        }
        if rank >= world || world > MAX_WORLD {
            return Err(Refusal::RankOutOfRange { rank, claimant: claimant(&record), world });
        }
        match self.first {
            None => {
                self.first = Some(rank);
                self.records.resize_with(world, || None);
            }
            Some(first_rank) if world != self.records.len() => {
                return Err(Refusal::WorldSize {
                    first_rank,
                    first: self.claimant(first_rank),
                    first_world: self.records.len(),
                    second_rank: rank,
                    second: claimant(&record),
                    second_world: world,
                });
            }
            Some(first_rank) if self.settings(first_rank) != Some(record.settings) => {
                return Err(Refusal::Settings {
                    first_rank,
                    first: self.claimant(first_rank),
                    second_rank: rank,
                    second: claimant(&record),
                });
            }
            Some(_) => {}
        }
        if self.records[rank].is_some() {
            let second = claimant(&record);
            return Err(Refusal::DuplicateRank { rank, first: self.claimant(rank), second });
        }
        self.records[rank] = Some(record);
        self.present += 1;
        Ok(self.present == self.records.len())
    }

    /// What to tell everybody when `rank`, which had come, goes.
    pub(super) fn left(&self, rank: Rank) -> Refusal {
        Refusal::Left { rank, claimant: self.claimant(rank) }
    }

    /// What to tell everybody when time is up. `starved`: nobody could be let in any more.
    pub(super) fn missing(&self, waited_ms: u64, starved: bool) -> Refusal {
        let absent = self.records.iter().enumerate().filter(|(_, record)| record.is_none());
        let missing = MissingRanks::new(absent.map(|(rank, _)| rank));
        Refusal::Missing { world: self.records.len(), missing, waited_ms, starved }
    }

    /// The records of all ranks that have come, in order.
    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().flatten()
    }

    fn settings(&self, rank: Rank) -> Option<u64> {
        self.records.get(rank)?.as_ref().map(|record| record.settings)
    }

    fn claimant(&self, rank: Rank) -> Claimant {
        match self.records.get(rank) {
            Some(Some(record)) => claimant(record),
            _ => Claimant { host: "an unknown host".into(), pid: 0 },
        }
    }
}

fn claimant(record: &Record) -> Claimant {
    Claimant { host: record.host_name.clone(), pid: record.pid }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn record(rank: u32, world: u32) -> Record {
        Record {
            rank,
            world,
            settings: 5,
            patience: Duration::from_secs(1),
            heartbeat: None,
            version: "1".into(),
            pid: 100 + rank,
            host_name: format!("node{rank}"),
            host_id: [0; 16],
            addresses: Vec::new(),
            port: 1,
            cores: 1,
            unix_name: Vec::new(),
        }
    }

    fn text(refusal: Result<bool, Refusal>) -> String {
        refusal.expect_err("refused").to_string()
    }

    #[test]
    fn all_come_in_any_order() {
        let mut gather = Gather::new("1");
        assert_eq!(gather.add(record(2, 3)), Ok(false));
        assert_eq!(gather.add(record(0, 3)), Ok(false));
        assert_eq!(gather.add(record(1, 3)), Ok(true));
        let ranks: Vec<_> = gather.records().map(|record| record.rank).collect();
        assert_eq!(ranks, [0, 1, 2]);
    }

    #[test]
    fn contradictions_are_refused() {
        let mut gather = Gather::new("1");
        assert_eq!(gather.add(record(2, 4)), Ok(false));
        assert!(
            text(gather.add(record(1, 3))).starts_with(
                "the world size differs: rank 2 (process 102 on node2) says 4, rank 1 (process 101 on node1) says 3"
            )
        );
        let differing = Record { settings: 6, ..record(1, 4) };
        assert_eq!(
            text(gather.add(differing)),
            "the settings of rank 2 (process 102 on node2) and rank 1 (process 101 on node1) differ: \
             set the same ANNULUS_ and NCCL_ variables on every rank"
        );
        let again = Record { pid: 7, ..record(2, 4) };
        assert!(text(gather.add(again)).starts_with(
            "rank 2 is claimed twice, by process 102 on node2 and by process 7 on node2"
        ));
        assert_eq!(
            text(gather.add(record(4, 4))),
            "rank 4 (process 104 on node4) is out of range for a world of 4: ranks are 0 to 3"
        );
        assert!(text(gather.add(record(0, 0))).contains("out of range"));
        assert!(text(gather.add(record(0, u32::MAX))).contains("out of range"));
        let other = Record { version: "2".into(), ..record(0, 4) };
        assert!(text(gather.add(other)).contains("runs Annulus 2, the root runs 1"));
        assert!(gather.missing(1000, false).to_string().contains("3 of 4 ranks"));
        assert!(gather.left(2).to_string().starts_with("rank 2 (process 102 on node2) left"));
    }
}
