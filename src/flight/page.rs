//! The memory of one rank of one communicator, which one thread writes and any thread or process may read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use annulus_plan::{Fingerprint, Rank};

use super::clock::ticks;
use super::file::{Extent, File, first_page};
use super::format::{
    EXTENT_BYTES, Entry, Head, MAX_BLOCKED, MAX_RECORDS, PAGE_BYTES, RECORD_WORDS, TEXT_BYTES, word,
};
use super::record::FlightRecord;

/// See the [module](super). All accesses are atomic and none waits: a reader may see a value that is about to change, and leaves out
/// records that are not whole. Clones are the same memory.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    extent: Extent,
    tag: u32,
}

/// The pages of this process.
static PAGES: Mutex<Vec<Weak<Page>>> = Mutex::new(Vec::new());

impl Page {
    /// A page for `rank` of `world` ranks of the communicator `tag`; `None` for a world of one.
    pub(crate) fn new(rank: Rank, world: usize, tag: u32) -> Option<Arc<Self>> {
        if world <= 1 {
            return None;
        }
        let page = Self { extent: Extent::take(), tag };
        page.set(word::RANK, rank as u64 | (world as u64) << 32);
        page.set(word::TAG, tag.into());
        page.set(word::ATTENTION, 1);
        page.word(word::LIVE).store(1, Ordering::Release);
        let page = Arc::new(page);
        let mut pages = PAGES.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|other| other.strong_count() > 0);
        pages.push(Arc::downgrade(&page));
        Some(page)
    }

    /// Those of this process that are in use.
    pub(super) fn all() -> Vec<Arc<Self>> {
        let pages = PAGES.lock().unwrap_or_else(PoisonError::into_inner);
        pages.iter().filter_map(Weak::upgrade).collect()
    }

    #[inline]
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        self.extent.word(index)
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Relaxed);
    }

    /// Writes record `number`.
    pub(super) fn write(&self, number: u64, entry: &Entry) {
        let start = entry_start(number);
        for (index, value) in entry.words(number).into_iter().enumerate() {
            self.set(start + index, value);
        }
    }

    fn read(&self, number: u64) -> Option<Entry> {
        let start = entry_start(number);
        let words: [u64; RECORD_WORDS] = std::array::from_fn(|index| self.get(start + index));
        Entry::read(&words, number)
    }

    /// Notes that the operation under way waits.
    #[inline]
    pub(crate) fn waits(&self) {
        let operation = self.under_way();
        if self.get(word::WAITING_OPERATION) != operation {
            self.set(word::WAITING_SINCE, ticks());
            self.set(word::WAITING_OPERATION, operation);
            self.set(word::ATTENTION, 0);
            self.start(operation);
        }
    }

    /// Notes for whom it waits.
    pub(crate) fn waits_for(&self, peers: &[Rank]) {
        let peers = &peers[..peers.len().min(MAX_BLOCKED)];
        for (index, &peer) in peers.iter().enumerate() {
            self.set(word::BLOCKED + 1 + index, peer as u64);
        }
        self.set(word::BLOCKED, peers.len() as u64);
        self.set(word::BLOCKED_OPERATION, self.started());
    }

    /// Notes what broke the communicator.
    pub(crate) fn broke(&self, error: &str) {
        if self.get(word::BROKEN) == 0 {
            self.text(word::ERROR, error);
            self.word(word::BROKEN).store(1, Ordering::Release);
        }
    }

    /// Notes that the last call was refused for its arguments.
    pub(crate) fn refused(&self, error: &str) {
        self.text(word::REFUSED, error);
        self.set(word::REFUSED_AT, self.started() + 1);
    }

    /// Notes that operation `number` has been started, after all that was written before.
    #[inline]
    pub(super) fn start(&self, number: u64) {
        self.word(word::STARTED).store(number, Ordering::Release);
    }

    /// Notes that operation `number` has ended, after all that was written before.
    #[inline]
    pub(super) fn end(&self, number: u64) {
        self.word(word::COMPLETED).store(number, Ordering::Release);
    }

    /// The number of the operation under way; if there is none, of the next.
    pub(super) fn under_way(&self) -> u64 {
        self.get(word::COMPLETED) + 1
    }

    /// How many operations have been started, but for a repetition that has not waited yet. Records that are read after this are at least as new.
    pub(crate) fn started(&self) -> u64 {
        let started = self.word(word::STARTED).load(Ordering::Acquire);
        started.max(self.word(word::COMPLETED).load(Ordering::Acquire))
    }

    /// How many collectives have been started.
    pub(crate) fn collectives(&self) -> u64 {
        let latest = self.get(word::RECORDS).checked_sub(1).and_then(|number| self.read(number));
        match latest {
            Some(entry) if entry.is_collective() && entry.last == 0 => {
                // A record that waits for its first operation ends before it begins.
                (entry.sequence() + self.started() + 1).saturating_sub(entry.first + 1)
            }
            _ => self.get(word::COLLECTIVES),
        }
    }

    /// Which collective was number `sequence` here, if it has been started and is still known.
    pub(crate) fn collective(&self, sequence: u64) -> Option<Fingerprint> {
        let (written, started) = (self.get(word::RECORDS), self.started());
        (written.saturating_sub(MAX_RECORDS as u64)..written)
            .rev()
            .filter_map(|number| self.read(number))
            .find_map(|entry| entry.at(sequence, started, self.tag))
    }

    /// All that it says.
    pub(crate) fn record(&self) -> Option<FlightRecord> {
        Head::read(&first_page(self.file(), 1)).ok()?.record(&self.bytes())
    }

    pub(super) fn file(&self) -> Option<&File> {
        self.extent.file()
    }

    /// A copy.
    pub(super) fn bytes(&self) -> Vec<u8> {
        (0..EXTENT_BYTES / 8).flat_map(|index| self.get(index).to_le_bytes()).collect()
    }

    fn text(&self, index: usize, text: &str) {
        let mut end = text.len().min(TEXT_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        for (offset, chunk) in text.as_bytes()[..end].chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            self.set(index + 1 + offset, u64::from_le_bytes(bytes));
        }
        self.set(index, end as u64);
    }
}

fn entry_start(number: u64) -> usize {
    PAGE_BYTES / 8 + (number % MAX_RECORDS as u64) as usize * RECORD_WORDS
}
