//! What one rank must do, as data.
//!
//! A [`Plan`] is a set of **lanes**. A lane is a short list of instructions that run one after
//! another; lanes run concurrently and share nothing but the links between ranks: no two lanes of a
//! plan may touch the same bytes unless messages order the accesses (the verifier proves it). A
//! *channel* of a collective, an independent share of its bytes, is one or more lanes.
//!
//! A link is one direction between two ranks. It carries messages in order: the k-th `Send` of one
//! rank on a link is received by the k-th `Recv` of the other, and has the same length. Each link is
//! written by exactly one lane of the sender and read by exactly one lane of the receiver. A
//! message is cut into pieces of at most [`Plan::chunk_bytes`]; a link holds at least
//! [`MIN_LINK_CHUNKS`] chunks that nobody has received yet, so that many bytes can be sent
//! without waiting. A message of length 0 is a message.
//!
//! ```
//! use annulus_plan::{Buffer, Instruction, LinkId, Span};
//!
//! // Wait for a piece of rank 1's data, add our own, and keep the result.
//! let own = Span { buffer: Buffer::Input, offset: 0, bytes: 4096 };
//! let step = Instruction::RecvReduce {
//!     from: LinkId { peer: 1, index: 0 },
//!     with: own,
//!     dst: Span { buffer: Buffer::Output, ..own },
//!     finish: true,
//! };
//! assert_eq!(step.bytes(), 4096);
//! ```

use crate::Rank;

/// How many chunks any link holds before a sender has to wait for the receiver.
pub const MIN_LINK_CHUNKS: usize = 2;

/// The most pieces that a message of one chunk is cut into. A link holds [`MIN_LINK_CHUNKS`] chunks
/// in that many pieces each.
pub const MAX_CHUNK_PIECES: usize = 16;

/// What one rank must do for one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The rank that runs this plan.
    pub rank: Rank,
    /// Number of ranks of the communicator.
    pub world: usize,
    /// The concurrent instruction lists.
    pub lanes: Vec<Lane>,
    /// Bytes of [`Buffer::Scratch`] that the plan uses.
    pub scratch_bytes: usize,
    /// The largest piece that messages are cut into, in bytes; a multiple of every element size.
    pub chunk_bytes: usize,
    /// Whether a sender may hand out a reference to its buffer in place of a copy: nothing
    /// in the plan overwrites bytes of a `Send` before the receiver has read them, even when the `Send`
    /// itself does not wait for that.
    pub by_reference: bool,
}

/// Instructions that run one after another.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Lane {
    /// The channel whose share of the bytes this lane works on.
    pub channel: usize,
    /// In order.
    pub instructions: Vec<Instruction>,
}

/// One end of a link, seen from the rank that owns the plan. Whether the link leads to the peer or
/// comes from it follows from the instruction's field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId {
    /// The other rank.
    pub peer: Rank,
    /// Tells several links in the same direction between the same two ranks apart.
    pub index: usize,
}

/// Which memory a span lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The call's input.
    Input,
    /// The call's output.
    Output,
    /// Memory of the communicator, undefined at the start of the call.
    Scratch,
    /// The buffer of the n-th member of a group of sends and receives.
    Member(usize),
}

/// A range of bytes. Offsets and lengths are multiples of the element size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The memory.
    pub buffer: Buffer,
    /// First byte.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// One step of a lane. `finish` marks the last combination of its elements: there, `avg` divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Sends `src`.
    Send {
        /// Link to the peer.
        to: LinkId,
        /// What.
        src: Span,
    },
    /// Receives into `dst`.
    Recv {
        /// Link from the peer.
        from: LinkId,
        /// Where to.
        dst: Span,
    },
    /// `dst = with ⊕ received`.
    RecvReduce {
        /// Link from the peer.
        from: LinkId,
        /// The local operand; may equal `dst`.
        with: Span,
        /// The result.
        dst: Span,
        /// Last combination of these elements.
        finish: bool,
    },
    /// Sends `with ⊕ received`, and keeps it in `dst` if given.
    RecvReduceSend {
        /// Link from one peer.
        from: LinkId,
        /// Link to another, or back.
        to: LinkId,
        /// The local operand; may equal `dst`.
        with: Span,
        /// Where the result is kept.
        dst: Option<Span>,
        /// Last combination of these elements.
        finish: bool,
    },
    /// Receives into `dst` and passes it on.
    RecvCopySend {
        /// Link from one peer.
        from: LinkId,
        /// Link to another.
        to: LinkId,
        /// Where to.
        dst: Span,
    },
    /// Copies within the rank.
    Copy {
        /// From.
        src: Span,
        /// To; same length, never overlapping unless equal (then nothing moves).
        dst: Span,
    },
    /// `dst = a ⊕ b` within the rank.
    Reduce {
        /// First operand; may equal `dst`.
        a: Span,
        /// Second operand.
        b: Span,
        /// The result.
        dst: Span,
        /// Last combination of these elements.
        finish: bool,
    },
}

impl Instruction {
    /// Length of what the instruction moves, in bytes.
    pub fn bytes(&self) -> usize {
        match *self {
            Self::Send { src, .. } => src.bytes,
            Self::Recv { dst, .. } => dst.bytes,
            Self::RecvReduce { with, .. } | Self::RecvReduceSend { with, .. } => with.bytes,
            Self::RecvCopySend { dst, .. } | Self::Copy { dst, .. } | Self::Reduce { dst, .. } => {
                dst.bytes
            }
        }
    }

    /// The link that the instruction receives from.
    pub fn from(&self) -> Option<LinkId> {
        match *self {
            Self::Recv { from, .. }
            | Self::RecvReduce { from, .. }
            | Self::RecvReduceSend { from, .. }
            | Self::RecvCopySend { from, .. } => Some(from),
            Self::Send { .. } | Self::Copy { .. } | Self::Reduce { .. } => None,
        }
    }

    /// The link that the instruction sends to.
    pub fn to(&self) -> Option<LinkId> {
        match *self {
            Self::Send { to, .. }
            | Self::RecvReduceSend { to, .. }
            | Self::RecvCopySend { to, .. } => Some(to),
            Self::Recv { .. }
            | Self::RecvReduce { .. }
            | Self::Copy { .. }
            | Self::Reduce { .. } => None,
        }
    }
}

impl Span {
    /// The part of this span that begins `offset` bytes into it.
    ///
    /// # Panics
    /// When the part does not lie within the span.
    pub fn part(self, offset: usize, bytes: usize) -> Self {
        assert!(offset + bytes <= self.bytes, "part {offset}+{bytes} of {} bytes", self.bytes);
        Self { offset: self.offset + offset, bytes, ..self }
    }
}
