//! Reports about communicators that this rank has not made its part of yet: the others may be ahead. No socket, no clock.

use std::collections::VecDeque;

use crate::bootstrap::notice::Dispatch;

/// Most reports that are kept of one communicator.
pub(super) const MAX_OF_ONE: usize = 128;
/// Most reports that are kept at all; then the oldest goes.
const MAX_REPORTS: usize = 256;
/// Of so many communicators it is known that reports were dropped.
const MAX_MARKS: usize = 1 << 12;
/// So many communicators that this rank has had are known, whose last reports nobody waits for.
const MAX_PAST: usize = 64;

/// Keeps them until they are asked for, and knows what it could not keep. Most are of communicators to which this rank
/// will never belong.
#[derive(Debug, Default)]
pub(super) struct EarlyReports {
    /// With their communicators, the oldest first.
    reports: VecDeque<(u64, Dispatch)>,
    /// How many were dropped, by communicator.
    dropped: VecDeque<(u64, u64)>,
    /// The communicators that have been taken.
    past: VecDeque<u64>,
}

/// What came about one communicator.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Early {
    pub(super) reports: Vec<Dispatch>,
    /// So many were dropped.
    pub(super) missed: u64,
}

impl EarlyReports {
    /// `report` is about the communicator `tag`.
    pub(super) fn keep(&mut self, tag: u64, report: Dispatch) {
        if self.past.contains(&tag) {
            return; // this rank has dropped it
        }
        // One communicator's burst displaces no other's.
        if self.reports.iter().filter(|(other, _)| *other == tag).count() == MAX_OF_ONE {
            return self.miss(tag);
        }
        if self.reports.len() == MAX_REPORTS
            && let Some((oldest, _)) = self.reports.pop_front()
        {
            self.miss(oldest);
        }
        self.reports.push_back((tag, report));
    }

    fn miss(&mut self, tag: u64) {
        if let Some((_, missed)) = self.dropped.iter_mut().find(|(other, _)| *other == tag) {
            *missed += 1;
            return;
        }
        if self.dropped.len() == MAX_MARKS {
            self.dropped.pop_front();
        }
        self.dropped.push_back((tag, 1));
    }

    /// What came about `tag`; from now on nobody need keep it.
    pub(super) fn take(&mut self, tag: u64) -> Early {
        if self.past.len() == MAX_PAST {
            self.past.pop_front();
        }
        self.past.push_back(tag);
        let of_tag = self.reports.iter().filter(|(other, _)| *other == tag);
        let reports = of_tag.map(|(_, report)| report.clone()).collect();
        self.reports.retain(|(other, _)| *other != tag);
        let missed = self.dropped.iter().find(|(other, _)| *other == tag).map_or(0, |mark| mark.1);
        self.dropped.retain(|(other, _)| *other != tag);
        Early { reports, missed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::notice::{Event, Report};

    fn report(tag: u64, rank: u32) -> Dispatch {
        let report = Report::Departed { panicked: false };
        Dispatch { rank, event: Event::Report { tag, report } }
    }

    #[test]
    fn a_burst_about_others_displaces_nothing() {
        let mut early = EarlyReports::default();
        early.keep(1, report(1, 7));
        for rank in 0..10_000 {
            early.keep(2, report(2, rank));
        }
        assert_eq!(early.take(1), Early { reports: vec![report(1, 7)], missed: 0 });
        let burst = early.take(2);
        assert_eq!((burst.reports.len(), burst.missed), (MAX_OF_ONE, 10_000 - MAX_OF_ONE as u64));
        early.keep(2, report(2, 0));
        assert_eq!(early.take(2), Early::default(), "nobody asks for it again");
        assert!(early.reports.is_empty() && early.dropped.is_empty());
    }

    #[test]
    fn what_is_dropped_is_counted() {
        let mut early = EarlyReports::default();
        for tag in 0..10_000 {
            early.keep(tag, report(tag, 0));
            early.keep(tag, report(tag, 1));
        }
        assert_eq!((early.reports.len(), early.dropped.len()), (MAX_REPORTS, MAX_MARKS));
        assert_eq!(early.take(9_999).reports, [report(9_999, 0), report(9_999, 1)]);
        assert_eq!(early.take(9_000), Early { reports: Vec::new(), missed: 2 });
    }
}
