//! Writes a page: what an engine does with each call.

use std::sync::Arc;

use annulus_plan::{Fingerprint, Rank};

use super::clock::ticks;
use super::format::{Entry, word};
use super::page::Page;

/// Calls of so many bytes have a record of their own each.
pub(crate) const LARGE_BYTES: usize = 64 << 10;
/// How many repetitions pass between looks at the clock at most.
const MAX_STRIDE: u64 = 256;
/// Looks that are nearer to each other become rarer, and those that are much farther apart more frequent: some 100 µs.
const TICKS_PER_LOOK: u64 = 1 << 18;

/// One rank's operations of one communicator. One thread at a time has it.
///
/// Each operation is announced and ended, but the repetition of a collective smaller than [`LARGE_BYTES`], without another call in
/// between, need not be announced. Then it costs one store, and others are told of it when it waits, at its end, or when it fails.
#[derive(Debug)]
pub(crate) struct Recorder {
    page: Option<Page>,
    /// The latest record, and its number.
    entry: Entry,
    number: u64,
    /// Whether a repetition of the latest record's call belongs to it.
    open: bool,
    /// How many repetitions pass until the next look at the clock.
    stride: u64,
}

impl Recorder {
    /// `None`: nothing is recorded.
    pub(crate) fn new(page: Option<Arc<Page>>) -> Self {
        let page = page.filter(|_| !super::bench::is_unrecorded());
        Self {
            page: page.map(Arc::unwrap_or_clone),
            entry: Entry::default(),
            number: 0,
            open: false,
            stride: 1,
        }
    }

    #[cfg(test)]
    pub(crate) fn page(&self) -> Option<&Page> {
        self.page.as_ref()
    }

    /// A collective of `bytes` bytes begins.
    pub(crate) fn collective(&mut self, fingerprint: Fingerprint, bytes: usize) {
        let Some(page) = &self.page else { return };
        let next = self.entry.sequence() + page.under_way().wrapping_sub(self.entry.first);
        let repeats = self.open
            && bytes < LARGE_BYTES
            && self.entry.call == fingerprint.call
            && (Fingerprint { order: self.entry.order, ..fingerprint }).at(next) == fingerprint;
        if repeats {
            // It may be about to open links, and wait for that, where nobody sees it wait.
            page.start(page.under_way());
        } else {
            self.begin(fingerprint, 0, fingerprint.order >> 32, bytes < LARGE_BYTES);
        }
    }

    /// A group of `messages` sends and receives begins, of which `fingerprint` is one, with `peer`. `collectives`: begun so far.
    pub(crate) fn exchange(
        &mut self,
        fingerprint: Fingerprint,
        peer: Rank,
        messages: usize,
        collectives: u64,
    ) {
        let messages = u64::try_from(messages).unwrap_or(u64::MAX).clamp(1, u32::MAX.into());
        self.begin(fingerprint, messages << 32 | peer as u64, collectives, false);
    }

    fn begin(&mut self, fingerprint: Fingerprint, detail: u64, collectives: u64, open: bool) {
        let Some(page) = &self.page else { return };
        let operation = page.under_way();
        if self.open && self.entry.first < operation {
            let ended = stamp_since(page, self.entry.first);
            page.write(self.number, &Entry { last: operation - 1, ended, ..self.entry });
            self.number += 1;
        }
        self.entry = Entry {
            first: operation,
            call: fingerprint.call,
            order: fingerprint.order,
            detail,
            started: ticks(),
            ..Entry::default()
        };
        self.open = open;
        self.stride = 1;
        page.write(self.number, &self.entry);
        page.set(word::RECORDS, self.number + 1);
        page.set(word::COLLECTIVES, collectives);
        page.set(word::ATTENTION, if open { operation + self.stride } else { 0 });
        page.start(operation);
    }

    /// The operation under way has ended.
    #[inline]
    pub(crate) fn end(&mut self) {
        if let Some(page) = &self.page {
            let operation = page.under_way();
            page.end(operation);
            if operation >= page.get(word::ATTENTION) {
                self.look(operation);
            }
        }
    }

    /// It was a look's turn, or the operation, which has ended, has a record of its own, or has waited.
    #[cold]
    fn look(&mut self, operation: u64) {
        let Some(page) = &self.page else { return };
        let now = ticks();
        if page.get(word::ATTENTION) != 0 {
            let since = now.saturating_sub(page.get(word::STAMP));
            if since < TICKS_PER_LOOK {
                self.stride = (2 * self.stride).min(MAX_STRIDE);
            } else if since > 16 * TICKS_PER_LOOK {
                self.stride = 1;
            }
            page.set(word::STAMP, now);
            page.set(word::STAMP_OPERATION, operation);
        } else {
            let waited = page.get(word::WAITING_OPERATION) == operation;
            let since = page.get(word::WAITING_SINCE);
            if self.entry.first < operation {
                // It was about to be one of many.
                let ended = stamp_since(page, self.entry.first);
                page.write(self.number, &Entry { last: operation - 1, ended, ..self.entry });
                self.number += 1;
                let order = Fingerprint { order: self.entry.order, ..Fingerprint::default() }
                    .at(self.entry.sequence() + (operation - self.entry.first))
                    .order;
                let started = if waited { since } else { 0 };
                self.entry = Entry { first: operation, order, started, ..self.entry };
            }
            page.write(self.number, &Entry { last: operation, ended: now, ..self.entry });
            page.set(word::RECORDS, self.number + 1);
            if self.open {
                // Repetitions have a record waiting for them.
                page.set(word::COLLECTIVES, self.entry.sequence());
                self.number += 1;
                let order = Fingerprint { order: self.entry.order, ..Fingerprint::default() }
                    .at(self.entry.sequence() + 1)
                    .order;
                self.entry = Entry { first: operation + 1, order, started: 0, ..self.entry };
                page.write(self.number, &self.entry);
                page.set(word::RECORDS, self.number + 1);
            } else {
                self.number += 1;
            }
        }
        page.set(word::ATTENTION, operation + self.stride);
    }

    /// The operation under way has failed.
    #[cold]
    pub(crate) fn fail(&mut self) {
        let Some(page) = &self.page else { return };
        let operation = page.under_way();
        page.start(operation);
        page.set(word::COLLECTIVES, page.collectives());
        let entry = Entry { last: operation, ended: ticks(), outcome: 2, ..self.entry };
        page.write(self.number, &entry);
        self.open = false;
    }
}

/// When the clock was last looked at since operation `first`; 0: it was not.
fn stamp_since(page: &Page, first: u64) -> u64 {
    if page.get(word::STAMP_OPERATION) >= first { page.get(word::STAMP) } else { 0 }
}

#[cfg(test)]
mod tests {
    use annulus_plan::{Collective, DataType, ReduceOp};

    use super::super::{FlightRecord, MAX_RECORDS, Outcome};
    use super::*;

    const TAG: u32 = 7;

    fn recorder() -> Recorder {
        Recorder::new(Page::new(1, 2, TAG))
    }

    fn all_reduce(count: usize, sequence: u64) -> Fingerprint {
        let call = Collective::all_reduce(2, DataType::F32, ReduceOp::Sum, count).expect("valid");
        Fingerprint::new(&call, sequence, TAG)
    }

    fn record(recorder: &Recorder) -> FlightRecord {
        recorder.page().expect("two ranks").record().expect("alive")
    }

    fn lines(record: &FlightRecord) -> Vec<(u64, u64, Outcome)> {
        record.operations.iter().map(|o| (o.number, o.repetitions, o.outcome)).collect()
    }

    #[test]
    fn a_world_of_one_records_nothing() {
        assert!(Page::new(0, 1, TAG).is_none());
        let mut alone = Recorder::new(None);
        alone.collective(all_reduce(1, 1), 4);
        alone.end();
        alone.fail();
    }

    #[test]
    fn repetitions_share_a_record() {
        let mut recorder = recorder();
        recorder.collective(all_reduce(2, 1), 8);
        recorder.end();
        for _ in 2..=300 {
            recorder.end();
        }
        recorder.collective(all_reduce(2, 301), 8);
        recorder.end();
        recorder.collective(all_reduce(3, 302), 12);
        let found = record(&recorder);
        assert_eq!(lines(&found), [(1, 301, Outcome::Completed), (302, 1, Outcome::Pending)]);
        assert_eq!((found.started, found.completed, found.collectives), (302, 301, 302));
        assert_eq!((found.rank, found.world, found.communicator), (1, 2, TAG));
        let page = recorder.page().expect("two ranks");
        for (sequence, count) in [(1, 2), (64, 2), (301, 2), (302, 3)] {
            assert_eq!(page.collective(sequence), Some(all_reduce(count, sequence)));
            let described = all_reduce(count, sequence).describe();
            assert_eq!(found.collective(sequence), Some(described));
        }
        assert_eq!(page.collective(303), None);
        assert_eq!(page.collectives(), 302);
        assert_eq!(found.current_call(), Some(all_reduce(3, 302).describe()));
        let (last, _) = found.last_completed().expect("many");
        assert_eq!(last, all_reduce(2, 301).describe());
    }

    #[test]
    fn the_clock_is_looked_at_after_each_repetition_that_comes_late() {
        let mut recorder = recorder();
        let page = recorder.page().expect("two ranks").clone();
        let looked = |page: &Page| page.get(word::STAMP_OPERATION);
        recorder.collective(all_reduce(2, 1), 8);
        recorder.end();
        let repeat = |recorder: &mut Recorder| {
            recorder.end();
            page.under_way() - 1
        };
        while recorder.stride < MAX_STRIDE {
            // However fast this machine is, no time has passed.
            page.set(word::STAMP, u64::MAX);
            repeat(&mut recorder);
        }
        let first = looked(&page);
        for operation in first + 1..first + MAX_STRIDE {
            assert_eq!((repeat(&mut recorder), looked(&page)), (operation, first));
        }
        page.set(word::STAMP, 1);
        for operation in first + MAX_STRIDE..first + MAX_STRIDE + 5 {
            assert_eq!((repeat(&mut recorder), looked(&page)), (operation, operation));
            page.set(word::STAMP, 1);
        }
    }

    #[test]
    fn large_calls_and_calls_that_wait_have_records_of_their_own() {
        let mut recorder = recorder();
        for sequence in 1..=2 {
            recorder.collective(all_reduce(1 << 20, sequence), 4 << 20);
            recorder.end();
        }
        recorder.collective(all_reduce(2, 3), 8);
        recorder.end();
        for repetition in 4..=9 {
            if repetition == 6 {
                recorder.page().expect("two ranks").waits();
            }
            recorder.end();
        }
        let found = record(&recorder);
        let done = Outcome::Completed;
        let expected = [(1, 1, done), (2, 1, done), (3, 3, done), (6, 1, done), (7, 3, done)];
        assert_eq!(lines(&found), expected);
        let timed = |index: usize| {
            let operation = &found.operations[index];
            operation.started_ago.is_some() && operation.seen_ago.is_some()
        };
        assert!(timed(0) && timed(1) && timed(3));
        assert_eq!(found.collectives, 9);
        assert_eq!(found.collective(6), Some(all_reduce(2, 6).describe()));
        assert_eq!(found.collective(9), Some(all_reduce(2, 9).describe()));
    }

    #[test]
    fn a_repetition_is_told_when_it_waits_or_fails() {
        for fails in [false, true] {
            let mut recorder = recorder();
            let page = recorder.page().expect("two ranks").clone();
            recorder.collective(all_reduce(2, 1), 8);
            recorder.end();
            assert_eq!((page.started(), page.collectives(), page.collective(2)), (1, 1, None));
            if fails {
                recorder.fail();
            } else {
                page.waits();
            }
            assert_eq!((page.started(), page.collectives()), (2, 2));
            assert_eq!(page.collective(2), Some(all_reduce(2, 2)));
            let outcome = if fails { Outcome::Failed } else { Outcome::Pending };
            let found = record(&recorder);
            assert_eq!(lines(&found), [(1, 2, outcome)]);
            assert_eq!((found.started, found.completed), (2, 1));
        }
    }

    #[test]
    fn a_new_call_is_looked_at_as_often_as_the_first() {
        let mut recorder = recorder();
        recorder.collective(all_reduce(2, 1), 8);
        recorder.end();
        recorder.stride = MAX_STRIDE;
        recorder.collective(all_reduce(3, 2), 12);
        recorder.end();
        recorder.end();
        let page = recorder.page().expect("two ranks");
        assert_eq!(page.get(word::STAMP_OPERATION), 3);
    }

    /// It may be about to open links.
    #[test]
    fn a_repetition_can_be_announced() {
        let mut recorder = recorder();
        let page = recorder.page().expect("two ranks").clone();
        for sequence in 1..=2 {
            recorder.collective(all_reduce(2, sequence), 8);
            assert_eq!(page.started(), sequence);
            assert_eq!(page.collective(sequence), Some(all_reduce(2, sequence)));
            recorder.end();
        }
        assert_eq!(lines(&record(&recorder)), [(1, 2, Outcome::Completed)]);
    }

    #[test]
    fn a_record_that_waits_for_repetitions_is_none() {
        let mut recorder = recorder();
        recorder.collective(all_reduce(2, 1), 8);
        recorder.page().expect("two ranks").waits();
        recorder.end();
        let page = recorder.page().expect("two ranks").clone();
        assert_eq!(page.collectives(), 1);
        assert_eq!(page.collective(2), None);
        recorder.exchange(Fingerprint { call: 10 << 8, ..all_reduce(0, 5) }, 0, 3, 1);
        let found = record(&recorder);
        assert_eq!(lines(&found), [(1, 1, Outcome::Completed), (2, 1, Outcome::Pending)]);
        assert_eq!(found.collectives, 1);
        let exchange = found.current().expect("under way");
        assert_eq!((exchange.peer, exchange.messages), (Some(0), 3));
        assert!(!exchange.is_collective());
    }

    #[test]
    fn failures_and_refusals_are_told() {
        let mut recorder = recorder();
        let page = recorder.page().expect("two ranks").clone();
        page.refused("rank 1: root 7 is out of range");
        assert_eq!(record(&recorder).refused.as_deref(), Some("rank 1: root 7 is out of range"));
        recorder.collective(all_reduce(2, 1), 8);
        page.waits();
        page.waits_for(&[0]);
        let found = record(&recorder);
        assert_eq!(found.refused, None, "another call was made since");
        assert_eq!(found.waiting_for, [0]);
        assert!(found.current().expect("under way").pending_for.is_some());
        recorder.fail();
        page.broke(&"x".repeat(5000));
        let found = record(&recorder);
        assert_eq!(lines(&found), [(1, 1, Outcome::Failed)]);
        assert_eq!(found.error.expect("broken").len(), 1000);
    }

    #[test]
    fn the_last_records_are_kept() {
        let mut recorder = recorder();
        for sequence in 1..=3000 {
            recorder.collective(all_reduce(1 + sequence as usize % 2, sequence), 8);
            recorder.end();
        }
        let found = record(&recorder);
        assert_eq!(found.operations.len(), MAX_RECORDS);
        assert_eq!(found.operations[0].number, 3000 - MAX_RECORDS as u64 + 1);
        assert_eq!(found.completed, 3000);
        assert!(found.to_string().lines().count() >= MAX_RECORDS);
    }
}
