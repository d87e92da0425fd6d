//! Bytes of the control connections: frames, and the pieces of which their payloads are made.
//!
//! A frame is its payload's length (u32, little-endian), its kind (u8), and the payload. All integers are
//! little-endian; a text or byte string is its length (u16) and its bytes. Reading is pure, checks every length
//! before it believes it, and allocates no more than what is there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// Bytes of a frame before its payload.
pub(super) const FRAME_HEAD: usize = 5;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameKind {
    /// Rank to root: who I am.
    Join = 1,
    /// Root to rank: everybody.
    Table = 2,
    /// Root to rank: why there is no table.
    Refusal = 3,
    /// Rank to root, and root to all others: something happened.
    Notice = 4,
    /// Rank to root: I leave, and all is well.
    Goodbye = 5,
    /// Either way, when there has been nothing else to say for a while: I am here.
    Heartbeat = 6,
    /// Rank to a new root: I am one of the job whose root is lost.
    Rejoin = 7,
    /// Rank to root: let a communicator go on without some of its ranks.
    Ask = 8,
    /// Root to rank: what has come of that.
    Answer = 9,
    /// Rank to a new root: what had come of an agreement before.
    Settled = 10,
    /// New root to rank: all have come who are left, and I am the root.
    Welcome = 11,
}

impl FrameKind {
    fn from_code(code: u8) -> Option<Self> {
        const ALL: [FrameKind; 11] = [
            FrameKind::Join,
            FrameKind::Table,
            FrameKind::Refusal,
            FrameKind::Notice,
            FrameKind::Goodbye,
            FrameKind::Heartbeat,
            FrameKind::Rejoin,
            FrameKind::Ask,
            FrameKind::Answer,
            FrameKind::Settled,
            FrameKind::Welcome,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == code)
    }
}

/// Why bytes from the other end mean nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end before the value does.
    #[error("{field} is cut off")]
    Short {
        /// What was being read.
        field: &'static str,
    },
    /// Bytes are left over.
    #[error("{extra} bytes too many after {what}")]
    Long {
        /// What was read.
        what: &'static str,
        /// How many are left.
        extra: usize,
    },
    /// A value that this version does not have, or beyond its bound.
    #[error("{field} is {value}, which is out of range")]
    Value {
        /// What was being read.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A text is no UTF-8.
    #[error("{field} is no valid text")]
    Text {
        /// What was being read.
        field: &'static str,
    },
    /// A frame that has no place here.
    #[error("an unexpected frame of kind {kind}")]
    Unexpected {
        /// The kind of the frame.
        kind: u8,
    },
}

/// The head of a frame: its kind and the length of its payload, which is at most `limit`.
pub(super) fn frame_head(
    head: [u8; FRAME_HEAD],
    limit: usize,
) -> Result<(FrameKind, usize), WireError> {
    let [a, b, c, d, kind] = head;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    let kind = FrameKind::from_code(kind).ok_or(WireError::Unexpected { kind })?;
    if length > limit {
        return Err(WireError::Value { field: "length of a frame", value: length as u64 });
    }
    Ok((kind, length))
}

/// A frame among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) kind: FrameKind,
    pub(super) payload: &'a [u8],
    /// What comes after it.
    pub(super) rest: &'a [u8],
}

/// The first frame in `bytes`; `None`: there is more to come.
pub(super) fn split_frame(bytes: &[u8], limit: usize) -> Result<Option<Frame<'_>>, WireError> {
    let Some((head, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let (kind, length) = frame_head(*head, limit)?;
    Ok(rest.split_at_checked(length).map(|(payload, rest)| Frame { kind, payload, rest }))
}

/// A frame.
pub(super) fn frame(kind: FrameKind, payload: &[u8]) -> Vec<u8> {
    let mut writer = Writer::default();
    // Payloads are bounded far below 4 GiB by what they are made of.
    writer.u32(payload.len() as u32);
    writer.u8(kind as u8);
    writer.raw(payload);
    writer.bytes
}

/// Puts values together.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    /// A byte string, cut to `limit` bytes.
    pub(super) fn bytes(&mut self, bytes: &[u8], limit: u16) {
        let length = bytes.len().min(usize::from(limit));
        self.u16(length as u16);
        self.raw(&bytes[..length]);
    }

    /// A text, cut to at most `limit` bytes between two characters.
    pub(super) fn text(&mut self, text: &str, limit: u16) {
        let mut end = text.len().min(usize::from(limit));
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&text.as_bytes()[..end], limit);
    }

    /// A heartbeat in milliseconds; 0: none.
    pub(super) fn heartbeat(&mut self, heartbeat: Option<Duration>) {
        let ms = heartbeat.map_or(0, |time| time.as_millis().max(1));
        self.u32(ms.try_into().unwrap_or(u32::MAX));
    }

    pub(super) fn address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => {
                self.u8(4);
                self.raw(&address.octets());
            }
            IpAddr::V6(address) => {
                self.u8(6);
                self.raw(&address.octets());
            }
        }
    }
}

/// Takes values apart.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn raw(
        &mut self,
        length: usize,
        field: &'static str,
    ) -> Result<&'a [u8], WireError> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(WireError::Short { field })?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], WireError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(WireError::Short { field })?;
        self.rest = rest;
        Ok(*bytes)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, WireError> {
        self.array(field).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        self.array(field).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, WireError> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        self.array(field).map(u64::from_le_bytes)
    }

    pub(super) fn bytes(&mut self, limit: u16, field: &'static str) -> Result<&'a [u8], WireError> {
        let length = self.u16(field)?;
        if length > limit {
            return Err(WireError::Value { field, value: length.into() });
        }
        self.raw(length.into(), field)
    }

    pub(super) fn text(&mut self, limit: u16, field: &'static str) -> Result<String, WireError> {
        let bytes = self.bytes(limit, field)?;
        let text = std::str::from_utf8(bytes).map_err(|_| WireError::Text { field })?;
        // It will stand in error messages, on terminals.
        Ok(text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect())
    }

    pub(super) fn heartbeat(&mut self, field: &'static str) -> Result<Option<Duration>, WireError> {
        let ms = self.u32(field)?;
        Ok((ms > 0).then(|| Duration::from_millis(ms.into())))
    }

    pub(super) fn address(&mut self, field: &'static str) -> Result<IpAddr, WireError> {
        match self.u8(field)? {
            4 => Ok(Ipv4Addr::from(self.array::<4>(field)?).into()),
            6 => Ok(Ipv6Addr::from(self.array::<16>(field)?).into()),
            family => Err(WireError::Value { field, value: family.into() }),
        }
    }

    /// Ends: nothing may be left.
    pub(super) fn finish(self, what: &'static str) -> Result<(), WireError> {
        match self.rest.len() {
            0 => Ok(()),
            extra => Err(WireError::Long { what, extra }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_apart() {
        let mut bytes = frame(FrameKind::Notice, b"abc");
        bytes.extend(frame(FrameKind::Goodbye, b""));
        let first = split_frame(&bytes, 3).expect("sound").expect("whole");
        assert_eq!((first.kind, first.payload), (FrameKind::Notice, b"abc".as_slice()));
        let second = split_frame(first.rest, 3).expect("sound").expect("whole");
        assert_eq!((second.kind, second.payload), (FrameKind::Goodbye, b"".as_slice()));
        assert!(second.rest.is_empty());
        for cut in 0..8 {
            assert_eq!(split_frame(&bytes[..cut], 3), Ok(None));
        }
    }

    #[test]
    fn bad_heads_are_refused_before_the_payload() {
        let long = frame(FrameKind::Notice, b"abcd");
        let error = WireError::Value { field: "length of a frame", value: 4 };
        assert_eq!(split_frame(&long[..5], 3), Err(error));
        assert_eq!(split_frame(&[0, 0, 0, 0, 99], 3), Err(WireError::Unexpected { kind: 99 }));
    }

    #[test]
    fn texts_are_cut_between_characters_and_cleaned() {
        let mut writer = Writer::default();
        writer.text("aéb", 2);
        writer.text("x\u{1b}[2J\n", 100);
        let mut reader = Reader::new(&writer.bytes);
        assert_eq!(reader.text(2, "t"), Ok("a".into()));
        assert_eq!(reader.text(100, "t"), Ok("x\u{fffd}[2J\n".into()));
        assert_eq!(reader.finish("all"), Ok(()));
    }

    #[test]
    fn lengths_are_checked() {
        assert_eq!(Reader::new(&[5, 0, 1]).bytes(9, "b"), Err(WireError::Short { field: "b" }));
        let error = WireError::Value { field: "b", value: 10 };
        assert_eq!(Reader::new(&[10, 0]).bytes(9, "b"), Err(error));
        assert_eq!(Reader::new(&[1]).finish("x"), Err(WireError::Long { what: "x", extra: 1 }));
    }
}
