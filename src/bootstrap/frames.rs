//! Reads control frames without a connection, for the fuzz target.

use super::WireError;
use super::agreement::{Answer, Ask, MAX_ASK, Rejoin};
use super::notice::{Dispatch, Heartbeat, MAX_NOTICE};
use super::record::{MAX_RECORD, Record, Table};
use super::refusal::Refusal;
use super::settlement::Settlement;
use super::wire::{FrameKind, frame, split_frame};

/// Reads `bytes` as frames of a job of `world` ranks, until they end or one is damaged; returns how many frames were sound.
///
/// # Panics
/// When a sound frame, written and read again, is another.
#[doc(hidden)]
pub fn read_frames(bytes: &[u8], world: usize) -> usize {
    let limit = Table::limit(world).max(MAX_RECORD).max(MAX_NOTICE).max(MAX_ASK);
    let mut rest = bytes;
    let mut sound = 0;
    while let Ok(Some(next)) = split_frame(rest, limit) {
        let read = match next.kind {
            FrameKind::Join => same(next.payload, Record::decode, Record::encode),
            FrameKind::Table => {
                same(next.payload, |bytes| Table::decode(bytes, world), Table::encode)
            }
            FrameKind::Refusal => same(next.payload, Refusal::decode, Refusal::encode),
            FrameKind::Notice => same(next.payload, Dispatch::decode, Dispatch::encode),
            FrameKind::Goodbye | FrameKind::Welcome => Ok(Vec::new()),
            FrameKind::Rejoin => same(next.payload, Rejoin::decode, Rejoin::encode),
            FrameKind::Ask => same(next.payload, Ask::decode, Ask::encode),
            FrameKind::Settled => same(next.payload, Settlement::decode, Settlement::encode),
            FrameKind::Answer => same(next.payload, Answer::decode, Answer::encode),
            FrameKind::Heartbeat => same(next.payload, Heartbeat::decode, Heartbeat::encode),
        };
        let Ok(written) = read else { return sound };
        let again = frame(next.kind, &written);
        assert_eq!(split_frame(&again, limit).map(|f| f.map(|f| f.payload)), Ok(Some(&*written)));
        sound += 1;
        rest = next.rest;
    }
    sound
}

/// The value in `payload`, as it is written.
fn same<T: PartialEq + std::fmt::Debug>(
    payload: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, WireError>,
    encode: impl Fn(&T) -> Vec<u8>,
) -> Result<Vec<u8>, WireError> {
    let value = decode(payload)?;
    let written = encode(&value);
    assert_eq!(decode(&written).as_ref(), Ok(&value));
    Ok(written)
}
