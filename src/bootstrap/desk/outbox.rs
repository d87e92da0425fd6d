//! What this rank reports while nobody passes it on: it waits for the next root. No socket, no clock.
//!
//! A root may be dead for a while before anybody notices. So what was told lately counts as untold once the root is lost, and the next
//! one is told again: that a rank has failed, or has dropped a communicator, is the same when it is heard twice.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::bootstrap::notice::Report;

/// Most reports that are remembered for the case that the root is dead already.
pub(super) const MAX_TOLD: usize = 256;
/// Most reports that wait for a root; then the communicator breaks that the next one is about.
pub(super) const MAX_WAITING: usize = 1024;
/// Of so many broken so the others are told.
const MAX_BROKEN: usize = 1024;

/// A report about a communicator.
type Told = (u64, Report);

/// See the module.
#[derive(Debug)]
pub(super) struct Outbox {
    /// A lost root may have been dead for so long.
    unnoticed: Duration,
    /// What the present root was told, and when.
    told: VecDeque<(Instant, Told)>,
    /// What the next one is to be told.
    waiting: VecDeque<Told>,
    /// The communicators of which reports could not be kept.
    broken: HashSet<u64>,
}

/// A report cannot be kept, and the communicator is broken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) report: Report,
}

impl Outbox {
    /// A root may be dead for as long as `unnoticed` before this rank takes notice.
    pub(super) fn new(unnoticed: Duration) -> Self {
        let (told, waiting) = (VecDeque::new(), VecDeque::new());
        Self { unnoticed, told, waiting, broken: HashSet::new() }
    }

    /// The root is told `report` about the communicator `tag`.
    pub(super) fn told(&mut self, tag: u64, report: &Report, now: Instant) {
        self.forget_before(now);
        if !may_be_repeated(report) {
            return;
        }
        if self.told.len() == MAX_TOLD {
            self.told.pop_front();
        }
        self.told.push_back((now, (tag, report.clone())));
    }

    /// The root is lost.
    pub(super) fn root_lost(&mut self, now: Instant) {
        self.forget_before(now);
        for (_, told) in self.told.drain(..).rev() {
            self.waiting.push_front(told);
        }
    }

    /// `report` about the communicator `tag` waits for a root.
    pub(super) fn keep(&mut self, tag: u64, report: Report) -> Result<(), Full> {
        if self.broken.contains(&tag) {
            return Ok(()); // the others will hear of worse
        }
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back((tag, report));
            return Ok(());
        }
        let reason = format!(
            "more reports than are kept ({MAX_WAITING}) came together while the job had no root: one of this communicator's was dropped"
        );
        let report = Report::Broken { reason };
        if self.broken.len() < MAX_BROKEN {
            self.broken.insert(tag);
            self.waiting.push_back((tag, report.clone()));
        }
        Err(Full { report })
    }

    /// There is a root: what it is to be told, in order.
    pub(super) fn take(&mut self, now: Instant) -> Vec<Told> {
        self.broken.clear();
        let waiting: Vec<Told> = std::mem::take(&mut self.waiting).into();
        for (tag, report) in &waiting {
            self.told(*tag, report, now);
        }
        waiting
    }

    fn forget_before(&mut self, now: Instant) {
        let is_old = |at: Instant| now.saturating_duration_since(at) > self.unnoticed;
        while self.told.front().is_some_and(|(at, _)| is_old(*at)) {
            self.told.pop_front();
        }
    }
}

/// Whether it says nothing new when it is heard again. Joins are numbered by the root that hears of them, and belong to it: a rank that
/// has joined is cut off when its root is lost.
fn may_be_repeated(report: &Report) -> bool {
    match report {
        Report::Broken { .. }
        | Report::Aborted { .. }
        | Report::Mismatch { .. }
        | Report::Deadlock { .. }
        | Report::Lost { .. }
        | Report::Departed { .. } => true,
        Report::Joined { .. } | Report::Announced { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPARTED: Report = Report::Departed { panicked: false };
    const JOINED: Report = Report::Joined { epoch: 0, sequence: 1, order: 0 };
    const UNNOTICED: Duration = Duration::from_secs(10);

    fn tags(told: &[Told]) -> Vec<u64> {
        told.iter().map(|(tag, _)| *tag).collect()
    }

    #[test]
    fn what_was_told_lately_is_told_again_before_what_waits() {
        let (mut outbox, start) = (Outbox::new(UNNOTICED), Instant::now());
        outbox.told(1, &DEPARTED, start);
        outbox.told(2, &DEPARTED, start + UNNOTICED / 2);
        outbox.told(3, &JOINED, start + UNNOTICED / 2);
        outbox.told(4, &DEPARTED, start + UNNOTICED);
        let lost = start + UNNOTICED + Duration::from_millis(1);
        outbox.root_lost(lost);
        outbox.keep(5, JOINED).expect("there is room");
        outbox.keep(6, DEPARTED).expect("there is room");
        // The first candidate is lost too, and nothing with it.
        outbox.root_lost(lost);
        assert_eq!(tags(&outbox.take(lost)), [2, 4, 5, 6]);
        assert!(outbox.take(lost).is_empty());
        outbox.root_lost(lost);
        assert_eq!(tags(&outbox.take(lost)), [2, 4, 6]);
    }

    #[test]
    fn what_cannot_be_kept_breaks_its_communicator_once() {
        let mut outbox = Outbox::new(UNNOTICED);
        for tag in 0..MAX_WAITING as u64 {
            outbox.keep(tag, DEPARTED).expect("there is room");
        }
        for tag in [7, 8] {
            let full = outbox.keep(tag, DEPARTED).expect_err("there is none");
            assert!(matches!(full.report, Report::Broken { .. }));
            assert_eq!(outbox.keep(tag, DEPARTED), Ok(()));
        }
        let told = outbox.take(Instant::now());
        assert_eq!(told.len(), MAX_WAITING + 2);
        let [(7, Report::Broken { .. }), (8, Report::Broken { .. })] = told[MAX_WAITING..] else {
            panic!("{:?}", &told[MAX_WAITING..]);
        };
        assert_eq!(outbox.told.len(), MAX_TOLD);
        outbox.keep(7, DEPARTED).expect("there is room again");
    }

    #[test]
    fn what_breaks_without_being_told_is_bounded() {
        let mut outbox = Outbox::new(UNNOTICED);
        for tag in 0..10_000 {
            let _ = outbox.keep(tag, DEPARTED);
        }
        assert_eq!(outbox.waiting.len(), MAX_WAITING + MAX_BROKEN);
        assert!(outbox.keep(10_000, DEPARTED).is_err());
    }
}
