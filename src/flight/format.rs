//! Bytes of the recorder's file, and of dumps of it. Whoever reads them believes nothing that he has not checked.
//!
//! All values are little-endian words of 64 bits.
//!
//! ```text
//! file     one page    magic, process, clock (unit; ticks, monotonic and wall time at the start, and of a dump at its end), host
//!          extents     one for each rank of each communicator of the process
//! extent   one page    who it is, counters, state, the error, the refused call, whom it waits for
//!          64 KiB      1,024 records of eight words, in a ring
//! record   first operation, call, order (two words of the fingerprint), peer and messages, start, end, last operation and
//!          outcome, checksum over the others and the record's number
//! ```
//!
//! A record whose checksum is wrong was being written when it was read, and is left out.

use std::time::Duration;

use annulus_plan::{CollectiveKind, Fingerprint, Rank};

use super::clock::{Moment, Scale, Unit};
use super::record::{FlightRecord, Operation, Outcome};

/// Most records that are kept of one rank of one communicator.
pub const MAX_RECORDS: usize = 1024;

pub(super) const PAGE_BYTES: usize = 4096;
pub(super) const RECORD_WORDS: usize = 8;
/// Bytes of one rank of one communicator.
pub(super) const EXTENT_BYTES: usize = PAGE_BYTES + MAX_RECORDS * RECORD_WORDS * 8;
/// Most ranks and communicators of one process that are recorded in the file.
pub(super) const MAX_EXTENTS: usize = 4096;

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"ANNFLT01");

/// Words of the file's first page.
pub(super) mod head {
    pub(in super::super) const MAGIC: usize = 0;
    pub(in super::super) const PID: usize = 1;
    pub(in super::super) const EXTENTS: usize = 2;
    pub(in super::super) const UNIT: usize = 3;
    /// Ticks, monotonic, wall.
    pub(in super::super) const START: usize = 4;
    /// The same, of a dump; else zero.
    pub(in super::super) const END: usize = 7;
    pub(in super::super) const HOST: usize = 16;
    pub(in super::super) const HOST_BYTES: usize = 64;
}

/// Words of an extent's first page. Those that change with each operation share a cache line.
pub(super) mod word {
    /// 1 while it belongs to somebody.
    pub(in super::super) const LIVE: usize = 0;
    /// Rank, and world in the upper half.
    pub(in super::super) const RANK: usize = 1;
    pub(in super::super) const TAG: usize = 2;
    pub(in super::super) const BROKEN: usize = 3;
    /// Records begun.
    pub(in super::super) const RECORDS: usize = 4;
    /// Collectives begun when the latest record was begun.
    pub(in super::super) const COLLECTIVES: usize = 5;

    /// Operations started, except that a repetition may be noted only when it waits or fails.
    pub(in super::super) const STARTED: usize = 16;
    pub(in super::super) const COMPLETED: usize = 17;
    /// The operation at whose end there is more to do than counting.
    pub(in super::super) const ATTENTION: usize = 18;
    /// When the clock was last looked at, and in which operation.
    pub(in super::super) const STAMP: usize = 19;
    pub(in super::super) const STAMP_OPERATION: usize = 20;
    /// The latest operation that was seen to wait, and since when.
    pub(in super::super) const WAITING_OPERATION: usize = 21;
    pub(in super::super) const WAITING_SINCE: usize = 22;

    /// Texts: their length in bytes, and their bytes.
    pub(in super::super) const ERROR: usize = 32;
    pub(in super::super) const REFUSED: usize = 160;
    /// Operations completed when the last call was refused.
    pub(in super::super) const REFUSED_AT: usize = 288;
    /// The operation that waits, the number of those it waits for, and the ranks.
    pub(in super::super) const BLOCKED_OPERATION: usize = 289;
    pub(in super::super) const BLOCKED: usize = 290;
}

/// Most bytes of a text.
pub(super) const TEXT_BYTES: usize = 1000;
/// Most ranks in the list of those that are waited for.
pub(super) const MAX_BLOCKED: usize = 64;

/// Why bytes are no flight records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// They begin otherwise.
    #[error("no flight records: the first eight bytes are not ANNFLT01")]
    Magic,
    /// They end too early.
    #[error("flight records are cut off: {got} bytes, where {needed} are needed")]
    Short {
        /// Bytes that are there.
        got: usize,
        /// Bytes that the beginning needs.
        needed: usize,
    },
    /// A value that no recorder writes.
    #[error("flight records: {field} is {value}, which is out of range")]
    Value {
        /// Which value.
        field: &'static str,
        /// What it is.
        value: u64,
    },
}

/// The records in `bytes`: of a dump, or of the recorder's file at this moment on this machine. What belongs to nobody, or makes no sense, is
/// left out.
///
/// # Errors
/// When the beginning makes no sense.
pub fn read_records(bytes: &[u8]) -> Result<Vec<FlightRecord>, FormatError> {
    let head = Head::read(bytes)?;
    let extents = bytes.get(PAGE_BYTES..).unwrap_or_default().chunks_exact(EXTENT_BYTES);
    Ok(extents.take(head.extents).filter_map(|extent| head.record(extent)).collect())
}

/// The file's first page.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) pid: u32,
    pub(super) extents: usize,
    pub(super) host: String,
    scale: Scale,
}

impl Head {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, FormatError> {
        let words = Words(bytes);
        if words.get(head::MAGIC) != Some(MAGIC) {
            return Err(FormatError::Magic);
        }
        if bytes.len() < PAGE_BYTES {
            return Err(FormatError::Short { got: bytes.len(), needed: PAGE_BYTES });
        }
        let word = |index| words.get(index).unwrap_or(0);
        let bounded = |field, value: u64, most: u64| {
            if value <= most { Ok(value) } else { Err(FormatError::Value { field, value }) }
        };
        let unit = word(head::UNIT);
        let unit = Unit::from_code(unit)
            .ok_or(FormatError::Value { field: "unit of the clock", value: unit })?;
        let moment = |index| Moment {
            ticks: word(index),
            monotonic: word(index + 1),
            wall: word(index + 2),
        };
        let (early, end) = (moment(head::START), moment(head::END));
        let late = if end.wall == 0 { Moment::now() } else { end };
        let extents = bounded("number of extents", word(head::EXTENTS), MAX_EXTENTS as u64)?;
        let pid = bounded("process", word(head::PID), u32::MAX.into())?;
        Ok(Self {
            pid: pid as u32,
            extents: extents as usize,
            host: words.text(head::HOST, head::HOST_BYTES),
            scale: Scale { unit, early, late },
        })
    }

    /// What an extent says; `None`: it belongs to nobody.
    pub(super) fn record(&self, extent: &[u8]) -> Option<FlightRecord> {
        let words = Words(extent);
        let word = |index| words.get(index).unwrap_or(0);
        let (rank, world) = (word(word::RANK) as u32 as Rank, (word(word::RANK) >> 32) as usize);
        if word(word::LIVE) != 1 || rank >= world || extent.len() < EXTENT_BYTES {
            return None;
        }
        let completed = word(word::COMPLETED);
        let started = word(word::STARTED).max(completed);
        let waiting = (word(word::WAITING_OPERATION) == started && started > completed)
            .then_some(word(word::WAITING_SINCE));
        let stamp = (word(word::STAMP_OPERATION), word(word::STAMP));
        let counters = Counters { tag: word(word::TAG) as u32, started, completed, waiting, stamp };
        let written = word(word::RECORDS);
        let first = written.saturating_sub(MAX_RECORDS as u64);
        let entries: Vec<Entry> = (first..written)
            .filter_map(|number| Entry::read(&words.entry(number)?, number))
            .filter(|entry| entry.first <= started)
            .collect();
        let operations = entries.iter().map(|entry| self.operation(entry, &counters)).collect();
        let collectives = match entries.last() {
            Some(entry) if entry.is_collective() && entry.last == 0 => {
                entry.sequence().saturating_add(started.saturating_sub(entry.first))
            }
            _ => word(word::COLLECTIVES),
        };
        let blocked = word(word::BLOCKED_OPERATION) == started && started > completed;
        let blocked_on = (0..word(word::BLOCKED).min(MAX_BLOCKED as u64) as usize)
            .map(|index| word(word::BLOCKED + 1 + index) as u32 as Rank)
            .filter(|&peer| blocked && peer < world)
            .collect();
        let text = |index| Some(words.text(index, TEXT_BYTES)).filter(|text| !text.is_empty());
        Some(FlightRecord {
            host: self.host.clone(),
            pid: self.pid,
            rank,
            world,
            communicator: counters.tag,
            error: text(word::ERROR).filter(|_| word(word::BROKEN) == 1),
            started,
            completed,
            collectives,
            waiting_for: blocked_on,
            refused: text(word::REFUSED).filter(|_| word(word::REFUSED_AT) == started + 1),
            taken: self.scale.taken(),
            operations,
        })
    }

    fn operation(&self, entry: &Entry, counters: &Counters) -> Operation {
        let Counters { tag, started, completed, waiting, stamp } = *counters;
        // Only the latest record has no end yet.
        let last = if entry.last == 0 { started } else { entry.last.max(entry.first) };
        let age = |ticks: u64| (ticks != 0).then(|| self.scale.age(ticks));
        let outcome = match entry.outcome {
            2 => Outcome::Failed,
            _ if last > completed => Outcome::Pending,
            _ => Outcome::Completed,
        };
        let stamped = (entry.first..=last).contains(&stamp.0).then_some(stamp.1);
        let ended = match outcome {
            Outcome::Pending => waiting,
            _ if entry.last == 0 => stamped,
            _ => Some(entry.ended),
        };
        let pending_since: Option<Duration> = match outcome {
            Outcome::Pending if entry.first == last => age(entry.started).or(waiting.and_then(age)),
            Outcome::Pending => waiting.and_then(age),
            _ => None,
        };
        Operation {
            number: entry.first,
            repetitions: (last - entry.first).saturating_add(1),
            fingerprint: Fingerprint { call: entry.call, order: entry.order, tag },
            peer: (entry.detail >> 32 != 0).then_some(entry.detail as u32 as Rank),
            messages: (entry.detail >> 32) as u32,
            outcome,
            started_ago: age(entry.started),
            seen_ago: ended.and_then(age),
            pending_for: pending_since,
        }
    }
}

/// What an extent's first page says of all its records.
struct Counters {
    tag: u32,
    started: u64,
    completed: u64,
    /// Since when the operation under way has been seen to wait.
    waiting: Option<u64>,
    /// When the clock was last looked at, and before it in which operation.
    stamp: (u64, u64),
}

/// A record as it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) first: u64,
    pub(super) call: u64,
    pub(super) order: u64,
    /// The first peer, and in the upper half how many messages, of sends and receives.
    pub(super) detail: u64,
    pub(super) started: u64,
    pub(super) ended: u64,
    /// 0: up to whatever has been started.
    pub(super) last: u64,
    /// 0: as the counters say; 2: failed.
    pub(super) outcome: u8,
}

impl Entry {
    pub(super) fn words(&self, number: u64) -> [u64; RECORD_WORDS] {
        let Self { first, call, order, detail, started, ended, last, outcome } = *self;
        let last = last << 8 | u64::from(outcome);
        let words = [first, call, order, detail, started, ended, last];
        let [a, b, c, d, e, f, g] = words;
        [a, b, c, d, e, f, g, checksum(&words, number)]
    }

    /// `None`: it was being written, or never was.
    pub(super) fn read(words: &[u64; RECORD_WORDS], number: u64) -> Option<Self> {
        let [first, call, order, detail, started, ended, last, check] = *words;
        if check != checksum(&[first, call, order, detail, started, ended, last], number) {
            return None;
        }
        let (last, outcome) = (last >> 8, last as u8);
        Some(Self { first, call, order, detail, started, ended, last, outcome })
    }

    pub(super) fn sequence(&self) -> u64 {
        self.order >> 32
    }

    pub(super) fn is_collective(&self) -> bool {
        (self.call >> 8) as u8 != CollectiveKind::PointToPoint as u8
    }

    /// The fingerprint of its collective number `sequence`, if it is among them; `started`: operations so far.
    pub(super) fn at(&self, sequence: u64, started: u64, tag: u32) -> Option<Fingerprint> {
        let last = if self.last == 0 { started } else { self.last };
        if !self.is_collective() || self.first > last {
            return None;
        }
        let offset = sequence.checked_sub(self.sequence())?;
        let fingerprint = Fingerprint { call: self.call, order: self.order, tag };
        (offset <= last - self.first).then(|| fingerprint.at(sequence))
    }
}

/// Not against malice: to see that a record is not whole. Never 0 for record 0, so that untouched memory is none.
fn checksum(words: &[u64; RECORD_WORDS - 1], number: u64) -> u64 {
    let mix =
        |sum: u64, word: &u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    words.iter().fold(number ^ MAGIC, mix)
}

/// Bytes as words.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn get(&self, index: usize) -> Option<u64> {
        let bytes = self.0.get(index.checked_mul(8)?..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    }

    fn entry(&self, number: u64) -> Option<[u64; RECORD_WORDS]> {
        let slot = (number % MAX_RECORDS as u64) as usize;
        let start = PAGE_BYTES / 8 + slot * RECORD_WORDS;
        let mut words = [0; RECORD_WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.get(start + index)?;
        }
        Some(words)
    }

    /// A text; what is no text, and what would confuse a terminal, is replaced.
    fn text(&self, index: usize, limit: usize) -> String {
        let length = self.get(index).unwrap_or(0).min(limit as u64) as usize;
        let start = (index + 1) * 8;
        let bytes = self.0.get(start..start + length).unwrap_or_default();
        String::from_utf8_lossy(bytes)
            .chars()
            .map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c })
            .collect()
    }
}
