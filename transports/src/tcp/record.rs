//! An encrypted stream: a sequence of records over any reader and writer.
//!
//! ```text
//! byte 0             length      u32, little-endian: bytes of plaintext, 1 to 65536
//!      4             ciphertext  as many bytes
//!      4 + length    tag         16 bytes
//! ```
//!
//! Each record is sealed by AES-256-GCM under its direction's own key, with its number as the nonce and its length as additional data. The
//! number does not travel: a record that was changed, left out, repeated or moved fails, and so does all that follows it. After
//! 2^20 records (64 GiB at most) both ends go on with a key that follows from the last and does not lead back to it.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

/// The most plaintext in a record.
pub const MAX_RECORD: usize = 64 << 10;
/// What a record has beside its plaintext.
pub const RECORD_OVERHEAD: usize = HEADER_BYTES + TAG_BYTES;

const HEADER_BYTES: usize = 4;
const TAG_BYTES: usize = 16;
/// Records under one key.
#[cfg(not(test))]
const RECORDS_PER_KEY: u64 = 1 << 20;
#[cfg(test)]
const RECORDS_PER_KEY: u64 = 4;
/// Room for the records of small messages; it grows for the first that is larger.
const SMALL_BUFFER: usize = 8 << 10;
/// Room for any record, and for the beginning of the next.
const FULL_BUFFER: usize = 2 * (MAX_RECORD + RECORD_OVERHEAD);

/// The key of one direction of a stream, and how many records it has sealed or opened.
pub struct RecordKey {
    bytes: [u8; 32],
    key: LessSafeKey,
    records: u64,
}

/// Why a record was refused. A stream that has failed stays failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// It says that it is empty, or longer than any may be.
    #[error(
        "encrypted record {record} says that it has {length} bytes, where 1 to {MAX_RECORD} are allowed"
    )]
    Length {
        /// Number of the record on its stream, from 0.
        record: u64,
        /// What it says.
        length: usize,
    },
    /// It is not what the other end sealed as that record.
    #[error(
        "encrypted record {record} fails its authentication: it was changed, repeated or left out on the way"
    )]
    Damaged {
        /// Number of the record on its stream, from 0.
        record: u64,
    },
}

impl RecordKey {
    /// A key that nothing was sealed with.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self { bytes, key: schedule(&bytes), records: 0 }
    }

    /// The number of the next record.
    fn number(&self) -> u64 {
        self.records
    }

    fn nonce(&self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.records.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    /// One record more. Numbers go on under the next key: none comes twice in 2^64 records.
    fn advance(&mut self) {
        self.records += 1;
        if self.records.is_multiple_of(RECORDS_PER_KEY) {
            self.bytes = blake3::derive_key("annulus 2026 next record key", &self.bytes);
            self.key = schedule(&self.bytes);
        }
    }
}

fn schedule(bytes: &[u8; 32]) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM, bytes);
    LessSafeKey::new(key.expect("AES-256 takes 32 bytes"))
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordKey").field("records", &self.records).finish_non_exhaustive()
    }
}

/// The sending half. Holds at most one record that the stream has not taken.
#[derive(Debug)]
pub struct Sealer {
    key: RecordKey,
    record: Vec<u8>,
    sent: usize,
}

impl Sealer {
    /// Seals with `key`.
    pub fn new(key: RecordKey) -> Self {
        Self { key, record: Vec::new(), sent: 0 }
    }

    /// Seals the beginning of `parts` as a record and writes as much of that as `stream` takes; returns how many bytes of `parts` were
    /// sealed. `WouldBlock`: the stream has not taken the last record yet.
    pub fn write(&mut self, stream: &mut impl Write, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.flush(stream)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let length = total.min(MAX_RECORD);
        if length == 0 {
            return Ok(0);
        }
        let header = (length as u32).to_le_bytes();
        self.sent = 0;
        self.record.clear();
        self.record.reserve(length + RECORD_OVERHEAD);
        self.record.extend_from_slice(&header);
        for part in parts {
            let room = HEADER_BYTES + length - self.record.len();
            self.record.extend_from_slice(&part[..part.len().min(room)]);
        }
        let (nonce, plaintext) = (self.key.nonce(), &mut self.record[HEADER_BYTES..]);
        let sealed = self.key.key.seal_in_place_separate_tag(nonce, Aad::from(header), plaintext);
        let tag = sealed.map_err(|_| io::Error::other("the record is too long for its cipher"))?;
        self.record.extend_from_slice(tag.as_ref());
        self.key.advance();
        self.flush(stream)?;
        Ok(length)
    }

    /// Writes what is left of the last record; whether all of it is out.
    pub fn flush(&mut self, stream: &mut impl Write) -> io::Result<bool> {
        while self.sent < self.record.len() {
            match stream.write(&self.record[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// The receiving half. Hands out no byte of a record before all of it has proved authentic; holds two records at most.
#[derive(Debug)]
pub struct Opener {
    key: RecordKey,
    buffer: Vec<u8>,
    /// Plaintext that nobody has taken yet.
    open: std::ops::Range<usize>,
    /// Bytes of the stream that follow: the next record, as far as it is here.
    sealed: std::ops::Range<usize>,
    failed: Option<RecordError>,
}

impl Opener {
    /// Opens with `key`.
    pub fn new(key: RecordKey) -> Self {
        Self { key, buffer: Vec::new(), open: 0..0, sealed: 0..0, failed: None }
    }

    /// Reads plaintext, as [`Read::read_vectored`] does: 0 is the end of the stream, also in the midst of a record. A
    /// [`RecordError`] is the inner error of an [`ErrorKind::InvalidData`].
    pub fn read(
        &mut self,
        stream: &mut impl Read,
        parts: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        while self.open.is_empty() {
            if let Some(error) = self.failed {
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
            match self.open_record() {
                Ok(0) => {}
                Ok(missing) => {
                    self.make_room(missing);
                    let read = stream.read(&mut self.buffer[self.sealed.end..])?;
                    if read == 0 {
                        return Ok(0);
                    }
                    self.sealed.end += read;
                }
                Err(error) => self.failed = Some(error),
            }
        }
        let mut copied = 0;
        for part in parts {
            let bytes = part.len().min(self.open.len());
            part[..bytes].copy_from_slice(&self.buffer[self.open.start..][..bytes]);
            self.open.start += bytes;
            copied += bytes;
        }
        Ok(copied)
    }

    /// Opens the next record where it lies; how many bytes of it are missing, at least, 0 if it is open.
    fn open_record(&mut self) -> Result<usize, RecordError> {
        let record = self.key.number();
        let sealed = &mut self.buffer[self.sealed.clone()];
        let here = sealed.len();
        let Some((header, rest)) = sealed.split_first_chunk_mut::<HEADER_BYTES>() else {
            return Ok(HEADER_BYTES + 1 + TAG_BYTES - here);
        };
        let length = u32::from_le_bytes(*header) as usize;
        if length == 0 || length > MAX_RECORD {
            return Err(RecordError::Length { record, length });
        }
        let total = length + RECORD_OVERHEAD;
        if here < total {
            return Ok(total - here);
        }
        let (nonce, rest) = (self.key.nonce(), &mut rest[..length + TAG_BYTES]);
        let opened = self.key.key.open_in_place(nonce, Aad::from(*header), rest);
        opened.map_err(|_| RecordError::Damaged { record })?;
        self.key.advance();
        let start = self.sealed.start + HEADER_BYTES;
        self.open = start..start + length;
        self.sealed.start += total;
        Ok(0)
    }

    /// Makes room for `bytes` bytes more of the record that has begun. Nothing is open.
    fn make_room(&mut self, bytes: usize) {
        if self.sealed.is_empty() {
            self.sealed = 0..0;
        }
        if self.buffer.len() - self.sealed.end >= bytes {
            return;
        }
        let here = self.sealed.len();
        let size = if here + bytes <= SMALL_BUFFER { SMALL_BUFFER } else { FULL_BUFFER };
        if self.buffer.len() < size {
            let mut larger = vec![0; size];
            larger[..here].copy_from_slice(&self.buffer[self.sealed.clone()]);
            self.buffer = larger;
        } else {
            self.buffer.copy_within(self.sealed.clone(), 0);
        }
        self.sealed = 0..here;
    }

    /// Memory that this end holds, in bytes; bounded whatever the stream brings.
    pub fn memory_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The most of it.
    pub const MAX_MEMORY_BYTES: usize = FULL_BUFFER;
}

/// The other way to the record's error.
pub(super) fn record_error(error: &io::Error) -> Option<RecordError> {
    error.get_ref()?.downcast_ref().copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A stream that takes and gives a few bytes at a time.
    struct Pipe {
        bytes: Vec<u8>,
        read: usize,
        step: usize,
    }

    impl Write for &mut Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.step);
            self.bytes.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for &mut Pipe {
        fn read(&mut self, dst: &mut [u8]) -> io::Result<usize> {
            let rest = &self.bytes[self.read..];
            let bytes = rest.len().min(dst.len()).min(self.step);
            dst[..bytes].copy_from_slice(&rest[..bytes]);
            self.read += bytes;
            Ok(bytes)
        }
    }

    fn ends() -> (Sealer, Opener) {
        (Sealer::new(RecordKey::new([3; 32])), Opener::new(RecordKey::new([3; 32])))
    }

    fn seal(sealer: &mut Sealer, messages: &[Vec<u8>]) -> Vec<u8> {
        let mut pipe = Pipe { bytes: vec![], read: 0, step: usize::MAX };
        for message in messages {
            let mut sent = 0;
            while sent < message.len() {
                sent +=
                    sealer.write(&mut &mut pipe, &[IoSlice::new(&message[sent..])]).expect("room");
            }
        }
        pipe.bytes
    }

    fn open(opener: &mut Opener, bytes: Vec<u8>, step: usize) -> (Vec<u8>, Option<RecordError>) {
        let mut pipe = Pipe { bytes, read: 0, step };
        let (mut opened, mut part, mut rest) = (vec![], [0; 100], [0; 10]);
        loop {
            let mut parts = [IoSliceMut::new(&mut part), IoSliceMut::new(&mut rest)];
            match opener.read(&mut &mut pipe, &mut parts) {
                Ok(0) => return (opened, None),
                Ok(bytes) => {
                    opened.extend_from_slice(&part[..bytes.min(100)]);
                    opened.extend_from_slice(&rest[..bytes.saturating_sub(100)]);
                }
                Err(error) => return (opened, Some(record_error(&error).expect("a record's"))),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// Keys change every four records here.
        #[test]
        fn opens_what_was_sealed_however_it_is_cut(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..3000), 0..12),
            step in 1_usize..5000,
        ) {
            let (mut sealer, mut opener) = ends();
            let sealed = seal(&mut sealer, &messages);
            prop_assert_eq!(open(&mut opener, sealed, step), (messages.concat(), None));
        }

        /// One bit anywhere: what was whole before it is handed out, and nothing after.
        #[test]
        fn refuses_a_flipped_bit(at in 0_usize..1000, bit in 0..8) {
            let (mut sealer, mut opener) = ends();
            let messages: Vec<_> = (1..8).map(|n| vec![n as u8; n * 30]).collect();
            let mut sealed = seal(&mut sealer, &messages);
            let at = at % sealed.len();
            sealed[at] ^= 1_u8 << bit;
            let (opened, error) = open(&mut opener, sealed, 77);
            prop_assert!(messages.concat().starts_with(&opened));
            prop_assert!(opened.len() < messages.concat().len());
            // A length that grew may swallow the rest of the stream and wait for more.
            prop_assert!(error.is_some() || opened.len() < messages.concat().len());
        }
    }

    fn records() -> Vec<Vec<u8>> {
        let (mut sealer, _) = ends();
        (0..10).map(|n| seal(&mut sealer, &[vec![n; 20 + n as usize]])).collect()
    }

    #[test]
    fn refuses_records_that_are_repeated_moved_left_out_or_from_elsewhere() {
        let records = records();
        let arrange = |order: &[usize]| order.iter().flat_map(|&n| records[n].clone()).collect();
        for (order, good) in [
            (vec![0, 0], 1),
            (vec![0, 2], 1),
            (vec![1, 0], 0),
            (vec![0, 1, 2, 3, 4, 5, 6, 5], 7),
            (vec![4], 0),
        ] {
            let (opened, error) = open(&mut ends().1, arrange(&order), 1000);
            assert_eq!(opened.len(), (0..good).map(|n| 20 + n).sum::<usize>(), "{order:?}");
            assert_eq!(error, Some(RecordError::Damaged { record: good as u64 }), "{order:?}");
        }
        let other = seal(&mut Sealer::new(RecordKey::new([4; 32])), &[vec![1; 20]]);
        assert_eq!(open(&mut ends().1, other, 9).1, Some(RecordError::Damaged { record: 0 }));
        assert_eq!(open(&mut ends().1, arrange(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), 7).1, None);
    }

    #[test]
    fn refuses_lengths_before_it_waits_for_them() {
        for length in [0, MAX_RECORD as u32 + 1, u32::MAX] {
            let mut opener = ends().1;
            let (opened, error) = open(&mut opener, length.to_le_bytes().to_vec(), 4);
            assert_eq!(opened, []);
            assert_eq!(error, Some(RecordError::Length { record: 0, length: length as usize }));
            assert!(opener.memory_bytes() <= SMALL_BUFFER);
        }
    }

    #[test]
    fn nothing_of_the_key_is_shown() {
        let shown = format!("{:?} {:?}", ends().0, RecordKey::new([0xab; 32]));
        assert!(!shown.contains("171") && !shown.contains("ab, "), "{shown}");
    }
}
