//! The contract of a link: what every transport gives, and all that an executor knows of one.
//!
//! A link carries messages in order from one rank to another. A message is cut into **pieces**; each
//! opens with the call's [`Fingerprint`] and its length. A link holds at least
//! [`MIN_LINK_CHUNKS`](annulus_plan::MIN_LINK_CHUNKS) chunks (of [`Fabric::max_chunk_bytes`]) that
//! nobody has received, so that this much can be sent without waiting for the receiver; also when
//! each is cut into [`MAX_CHUNK_PIECES`](annulus_plan::MAX_CHUNK_PIECES) pieces.
//!
//! Nothing here blocks. A call that cannot go on says so, and the caller comes back later, after
//! it has spun, yielded or slept on its [`Doorbell`](crate::doorbell::Doorbell).

use std::time::{Duration, Instant};

use annulus_plan::{Fingerprint, Rank};

use crate::memory::Store;

/// The sending end.
pub trait SendLink: Send {
    /// Sends the beginning of `bytes`, as much as there is room for, as one piece of at most
    /// `max_piece` bytes; returns how many bytes were taken. `None`: no room now.
    ///
    /// An empty `bytes` sends an empty piece and returns `Some(0)`. A stream transport may take a
    /// piece partly: until the message is through, the caller presents the rest of the same
    /// bytes in the next call. `store` is how memory transports write their slots.
    fn try_send(
        &mut self,
        fingerprint: &Fingerprint,
        bytes: &[u8],
        max_piece: usize,
        store: Store,
    ) -> Result<Option<usize>, LinkError>;

    /// Whether the receiver can read `bytes` bytes at `address` in place. Asked before each reference, so
    /// it must be quick.
    fn can_reference(&self, address: *const u8, bytes: usize) -> bool;

    /// Hands the receiver a reference to `bytes` instead of a copy, where it can see that memory;
    /// `None`: it cannot, or no room now: use [`try_send`](Self::try_send). The whole of `bytes` is one piece.
    ///
    /// # Safety
    /// `bytes` stays valid, and is not written while the receiver may read it, until
    /// [`is_idle`](Self::is_idle) returns true.
    unsafe fn try_send_reference(
        &mut self,
        fingerprint: &Fingerprint,
        bytes: &[u8],
    ) -> Result<Option<()>, LinkError>;

    /// Room for a piece of at most `max` bytes (`max` > 0) for the caller to write before
    /// [`commit`](Self::commit); possibly shorter, but never shorter than 56 bytes unless `max` is.
    /// `None`: no room now. The slice's length is a multiple of 8 unless it is `max`.
    /// Its contents are unspecified. A reservation that is not committed has no effect.
    fn try_reserve(&mut self, max: usize) -> Result<Option<&mut [u8]>, LinkError>;

    /// The room of the last reservation, with what has been written there since; empty when there is none, or it was
    /// committed.
    fn reserved(&mut self) -> &mut [u8];

    /// Sends the first `bytes` bytes of the last reservation as one piece. `store` tells how they
    /// were written: non-temporal stores need a fence before the flag.
    fn commit(
        &mut self,
        fingerprint: &Fingerprint,
        bytes: usize,
        store: Store,
    ) -> Result<(), LinkError>;

    /// Moves on what the link itself still holds; true when nothing sent needs this process or the
    /// caller's memory any longer: staged bytes are with the kernel, referenced bytes have been read.
    fn is_idle(&mut self) -> Result<bool, LinkError>;
}

/// The receiving end.
pub trait RecvLink: Send {
    /// The next bytes of the current piece, or the next piece, where they lie. `None`: nothing yet.
    ///
    /// The bytes are at most what remains of the piece; a stream transport may show its beginning before the
    /// rest arrives, always a multiple of 8 bytes unless the piece ends there.
    fn try_peek(&mut self) -> Result<Option<Piece<'_>>, LinkError>;

    /// Polls up to `turns` times for the next bytes, with a pause between polls; true: they are there. For a caller that
    /// waits for nothing else: the tighter the loop, the sooner it sees them.
    fn spin(&mut self, turns: u32) -> Result<bool, LinkError> {
        let _ = turns;
        Ok(self.try_peek()?.is_some())
    }

    /// Takes and gives back the next piece in one call if it carries `expected` and exactly `bytes` bytes, at most 32, which
    /// the result begins with. `None` says nothing: use [`try_peek`](Self::try_peek).
    fn try_take_small(&mut self, expected: &Fingerprint, bytes: usize) -> Option<[u64; 4]> {
        let _ = (expected, bytes);
        None
    }

    /// Gives `bytes` bytes of the piece that [`try_peek`](Self::try_peek) showed back to the sender.
    /// An empty piece is given back with 0.
    fn consume(&mut self, bytes: usize);

    /// Receives the beginning of a message straight into `dst`, where that saves a copy; the default
    /// copies from [`try_peek`](Self::try_peek). Returns the bytes received. `None`: nothing yet.
    /// The message must carry `expected`.
    fn try_recv(
        &mut self,
        expected: &Fingerprint,
        dst: &mut [u8],
        store: Store,
    ) -> Result<Option<usize>, LinkError>;

    /// Lets bytes that have arrived in the kernel in, as far as the link's own room allows, so that a
    /// sender is not held up while this rank waits elsewhere. Memory transports have nothing to do.
    fn pump(&mut self) -> Result<(), LinkError>;
}

/// What has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// What the sender called.
    pub fingerprint: Fingerprint,
    /// Its bytes, as far as they are here.
    pub bytes: &'a [u8],
    /// How many bytes of it have not been given back, whether they are here or not.
    pub left: usize,
}

/// Why a link failed. A link that has failed stays failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The other end is gone.
    #[error("rank {peer} closed its link ({transport})")]
    Closed {
        /// The other rank.
        peer: Rank,
        /// Name of the transport.
        transport: &'static str,
    },
    /// The sender is in another call than the receiver.
    #[error(
        "rank {peer} is in {}, this rank in {}: all ranks must make the same calls in the same order",
        theirs.describe(), ours.describe()
    )]
    Mismatch {
        /// The other rank.
        peer: Rank,
        /// What it called.
        theirs: Fingerprint,
        /// What this rank called.
        ours: Fingerprint,
    },
    /// A piece is longer than the rest of its message.
    #[error("rank {peer} sent {got} bytes where {expected} were left in {}", ours.describe())]
    Length {
        /// The other rank.
        peer: Rank,
        /// What this rank called.
        ours: Fingerprint,
        /// Bytes that the message still had room for.
        expected: usize,
        /// Bytes that came.
        got: usize,
    },
    /// A piece arrived with other bytes than it was sent with. Found where
    /// [`checksum`](crate::checksum) watches over the links.
    #[error(
        "rank {peer}'s piece {piece} on link {index} ({transport}) has checksum {got:#010x} in place of {expected:#010x}: \
         its bytes changed on the way, so look for failing memory or network hardware"
    )]
    Checksum {
        /// The other rank.
        peer: Rank,
        /// Number of the link.
        index: usize,
        /// Number of the piece on that link, from 0.
        piece: u64,
        /// What the sender computed.
        expected: u32,
        /// What the bytes have that arrived.
        got: u32,
        /// Name of the transport.
        transport: &'static str,
    },
    /// A record of an encrypted stream is not what the other end has sent.
    #[error("link with rank {peer}: {source}")]
    Record {
        /// The other rank.
        peer: Rank,
        /// What is wrong with it.
        source: crate::tcp::record::RecordError,
    },
    /// The other end broke the format.
    #[error("rank {peer} sent a damaged message: {what}")]
    Protocol {
        /// The other rank.
        peer: Rank,
        /// What is wrong with it.
        what: String,
    },
    /// An end of a link was opened a second time. An end belongs to whoever opened it first.
    #[error("link {index} with rank {peer} is already open ({transport})")]
    AlreadyOpen {
        /// The other rank.
        peer: Rank,
        /// Number of the link.
        index: usize,
        /// Name of the transport.
        transport: &'static str,
    },
    /// There is no such link.
    #[error("no link {index} with rank {peer}: {why}")]
    NoSuchLink {
        /// The other rank.
        peer: Rank,
        /// Number of the link.
        index: usize,
        /// Which bound it exceeds.
        why: String,
    },
    /// Memory cannot be shared with the other rank.
    #[error("link with rank {peer}: {source}")]
    Segment {
        /// The other rank.
        peer: Rank,
        /// The cause.
        source: crate::shm::SegmentError,
    },
    /// The operating system failed.
    #[error("link with rank {peer}: {operation}: {source}")]
    Io {
        /// The other rank.
        peer: Rank,
        /// What was tried.
        operation: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}

/// Opens links from one rank to its peers. Both ranks of a link open their end before using it, but neither waits for the other
/// to do so: what is sent before the receiver opens its end is kept for it.
///
/// An end that is dropped closes the link. The two links of the same index between two ranks may share a
/// connection and then close together, so that links are kept as long as any is used.
pub trait Fabric: Send + Sync {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Number of ranks.
    fn world(&self) -> usize;

    /// The sending end of link `index` to `peer`. May block while the peer is being connected, at most until `deadline`.
    fn open_send(
        &self,
        peer: Rank,
        index: usize,
        deadline: Instant,
    ) -> Result<Box<dyn SendLink>, LinkError>;

    /// The receiving end of link `index` from `peer`.
    fn open_recv(
        &self,
        peer: Rank,
        index: usize,
        deadline: Instant,
    ) -> Result<Box<dyn RecvLink>, LinkError>;

    /// What this rank's executor sleeps on when no link can move. One is enough for all links.
    fn sleeper(&self) -> Box<dyn Sleeper>;

    /// The largest chunk that this fabric's links take, in bytes.
    fn max_chunk_bytes(&self) -> usize;

    /// Name of the transport between this rank and `peer`: `proc`, `shm`, `tcp`.
    fn transport(&self, peer: Rank) -> &'static str;
}

/// How a rank that has nothing to do sleeps: on its doorbell, in epoll, or both.
///
/// To lose no wake-up, an executor announces that it is about to sleep, tries all its lanes once more, and
/// only then sleeps, or retracts.
pub trait Sleeper: Send {
    /// From here on peers ring.
    fn announce(&mut self);

    /// Takes the announcement back.
    fn retract(&mut self);

    /// Blocks until something may have happened on a link, at most `timeout`; retracts the announcement.
    /// A ring that races with the announcement may be missed, which costs at most `timeout`.
    fn sleep(&mut self, timeout: Duration);
}
