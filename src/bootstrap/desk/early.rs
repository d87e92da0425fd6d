//! Reports about communicators that this rank has not made its part of yet: the others may be ahead. No socket, no clock.

use std::collections::{HashMap, VecDeque};

use crate::bootstrap::notice::Dispatch;

/// Most reports that are kept of one communicator.
pub(super) const MAX_OF_ONE: usize = 256;
/// Most reports that are kept at all; then the communicator goes without that has waited longest.
const MAX_REPORTS: usize = 4096;
/// Of so many communicators it is known that reports were dropped. Only a member that makes communicators up comes to more.
const MAX_MARKS: usize = 1 << 16;

/// Keeps them until they are asked for, and knows what it could not keep. Most are of communicators to which this rank
/// will never belong.
#[derive(Debug, Default)]
pub(super) struct EarlyReports {
    by_tag: HashMap<u64, Early>,
    /// The communicators of which reports are kept, in the order of the first.
    kept: VecDeque<u64>,
    /// Those of which they are not any more.
    dropped: VecDeque<u64>,
    total: usize,
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
        let early = self.by_tag.entry(tag).or_insert_with(|| {
            self.kept.push_back(tag);
            Early::default()
        });
        if early.missed > 0 || early.reports.len() == MAX_OF_ONE {
            early.missed += 1;
            return;
        }
        early.reports.push(report);
        self.total += 1;
        while self.total > MAX_REPORTS
            && let Some(oldest) = self.kept.pop_front()
        {
            self.drop_reports(oldest);
        }
    }

    fn drop_reports(&mut self, tag: u64) {
        if let Some(early) = self.by_tag.get_mut(&tag) {
            self.total -= early.reports.len();
            early.missed += std::mem::take(&mut early.reports).len() as u64;
            self.dropped.push_back(tag);
        }
        if self.dropped.len() > MAX_MARKS
            && let Some(oldest) = self.dropped.pop_front()
        {
            self.by_tag.remove(&oldest);
        }
    }

    /// What came about `tag`; from now on nobody need keep it.
    pub(super) fn take(&mut self, tag: u64) -> Early {
        let Some(early) = self.by_tag.remove(&tag) else { return Early::default() };
        self.total -= early.reports.len();
        self.kept.retain(|other| *other != tag);
        self.dropped.retain(|other| *other != tag);
        early
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
        assert_eq!((early.take(2), early.total), (Early::default(), 0));
        assert!(early.kept.is_empty() && early.dropped.is_empty() && early.by_tag.is_empty());
    }

    #[test]
    fn what_is_dropped_is_counted() {
        let mut early = EarlyReports::default();
        for tag in 0..100_000 {
            early.keep(tag, report(tag, 0));
            early.keep(tag, report(tag, 1));
            assert!(early.total <= MAX_REPORTS);
        }
        assert!(early.by_tag.len() <= MAX_MARKS + MAX_REPORTS);
        assert_eq!(early.take(99_999).reports, [report(99_999, 0), report(99_999, 1)]);
        let (reports, missed) = (Vec::new(), 2);
        assert_eq!(early.take(90_000), Early { reports, missed });
        // It may go on meanwhile.
        early.keep(90_001, report(90_001, 2));
        assert_eq!(early.take(90_001).missed, 3);
    }
}
