//! What can be wrong with plans.

use std::fmt;

use crate::{Buffer, Rank, Span};

/// An instruction of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Whose plan.
    pub rank: Rank,
    /// Position in [`Plan::lanes`](crate::Plan::lanes).
    pub lane: usize,
    /// Position in [`Lane::instructions`](crate::Lane::instructions).
    pub instruction: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, lane, instruction } = self;
        write!(f, "rank {rank}, lane {lane}, instruction {instruction}")
    }
}

/// A link, seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Link {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// Its number among the links from the one to the other.
    pub index: usize,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link {}→{}/{}", self.from, self.to, self.index)
    }
}

/// What a lane waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// A message on this link.
    Message(Link),
    /// Room on this link.
    Room(Link),
}

/// A lane that cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocked {
    /// Where.
    pub at: Place,
    /// For what.
    pub waits: Wait,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.waits {
            Wait::Message(link) => write!(f, "{} waits for a message on {link}", self.at),
            Wait::Room(link) => write!(f, "{} waits for room on {link}", self.at),
        }
    }
}

/// Why plans are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Not one plan for each rank.
    #[error("{plans} plans for {world} ranks")]
    World {
        /// How many there are.
        plans: usize,
        /// How many there should be.
        world: usize,
    },
    /// The ranks' calls differ in more than being in place.
    #[error("rank {rank} calls {call}, rank 0 {first}")]
    Calls {
        /// The rank.
        rank: Rank,
        /// Its call.
        call: String,
        /// Rank 0's call.
        first: String,
    },
    /// A plan is for another rank or world than its position says.
    #[error("the plan of rank {position} is for rank {rank} of {world}")]
    Header {
        /// Position among the plans.
        position: Rank,
        /// The rank that the plan names.
        rank: Rank,
        /// The world that the plan names.
        world: usize,
    },
    /// The chunk is no positive multiple of 8 bytes, or not that of rank 0.
    #[error("rank {rank} cuts messages into {chunk_bytes} bytes, rank 0 into {first}")]
    ChunkBytes {
        /// The rank.
        rank: Rank,
        /// Its chunk.
        chunk_bytes: usize,
        /// Rank 0's chunk.
        first: usize,
    },
    /// A link leads to nobody.
    #[error("{at}: peer {peer} is not one of {world} ranks")]
    Peer {
        /// Where.
        at: Place,
        /// The peer.
        peer: Rank,
        /// The world size.
        world: usize,
    },
    /// A link leads to its own rank.
    #[error("{at}: a link to itself")]
    SelfLink {
        /// Where.
        at: Place,
    },
    /// Two lanes write one link.
    #[error("{link} is written by two lanes: {first} and {second}")]
    Writers {
        /// The link.
        link: Link,
        /// One.
        first: Place,
        /// The other.
        second: Place,
    },
    /// Two lanes read one link.
    #[error("{link} is read by two lanes: {first} and {second}")]
    Readers {
        /// The link.
        link: Link,
        /// One.
        first: Place,
        /// The other.
        second: Place,
    },
    /// A span does not lie within its buffer.
    #[error("{at}: {} exceeds its buffer of {available} bytes", Shown(*span))]
    Bounds {
        /// Where.
        at: Place,
        /// The span.
        span: Span,
        /// Length of the buffer, 0 if the rank has none.
        available: usize,
    },
    /// A span does not begin and end between elements.
    #[error("{at}: {} cuts elements of {unit} bytes", Shown(*span))]
    Alignment {
        /// Where.
        at: Place,
        /// The span.
        span: Span,
        /// Element size.
        unit: usize,
    },
    /// An instruction writes memory that is the caller's to keep.
    #[error("{at}: {} is written but is input", Shown(*span))]
    ReadOnly {
        /// Where.
        at: Place,
        /// The destination.
        span: Span,
    },
    /// The spans of one instruction differ in length.
    #[error("{at}: {} and {} differ in length", Shown(*first), Shown(*second))]
    Lengths {
        /// Where.
        at: Place,
        /// One.
        first: Span,
        /// The other.
        second: Span,
    },
    /// An operand overlaps the destination where it may not.
    #[error("{at}: {} overlaps {}", Shown(*operand), Shown(*dst))]
    Overlap {
        /// Where.
        at: Place,
        /// The operand.
        operand: Span,
        /// The destination.
        dst: Span,
    },
    /// A message without bytes outside a barrier.
    #[error("{at}: an empty message")]
    EmptyMessage {
        /// Where.
        at: Place,
    },
    /// A combination in a call without operator.
    #[error("{at}: combines in a call that has no operator")]
    NoOperator {
        /// Where.
        at: Place,
    },
    /// A message is received with another length than it was sent with.
    #[error(
        "message {message} of {link}: {sent} bytes sent ({sender}), {received} bytes received ({receiver})"
    )]
    MessageLength {
        /// The link.
        link: Link,
        /// Its number on the link, from 0.
        message: usize,
        /// Bytes sent.
        sent: usize,
        /// Where.
        sender: Place,
        /// Bytes received.
        received: usize,
        /// Where.
        receiver: Place,
    },
    /// Messages that nobody receives.
    #[error("{link}: {messages} messages are never received, the first from {sender}")]
    Unreceived {
        /// The link.
        link: Link,
        /// How many.
        messages: usize,
        /// The first one's sender.
        sender: Place,
    },
    /// Nobody can go on.
    #[error("stuck: {}", blocked.iter().map(Blocked::to_string).collect::<Vec<_>>().join("; "))]
    Stuck {
        /// Every lane that has not come to its end.
        blocked: Vec<Blocked>,
    },
    /// Bytes are read that nobody wrote.
    #[error("{at}: reads {}, which is undefined", Shown(*span))]
    Undefined {
        /// Where.
        at: Place,
        /// The element.
        span: Span,
    },
    /// A reduction reads input that it has overwritten: what stands there is no contribution.
    #[error("{at}: reads {} as input, which has been overwritten", Shown(*span))]
    NoContribution {
        /// Where.
        at: Place,
        /// The element.
        span: Span,
    },
    /// A reduction in place reads its contribution through the output, where `premul-sum` does not multiply.
    #[error("{at}: reads its contribution from {}, not from the input", Shown(*span))]
    NotFromInput {
        /// Where.
        at: Place,
        /// The element.
        span: Span,
    },
    /// Two values that do not belong together are combined.
    #[error("{at}: combines {first} with {second}: {reason}")]
    Combination {
        /// Where.
        at: Place,
        /// One value.
        first: String,
        /// The other.
        second: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Two lanes touch the same bytes, one of them writing, and no message orders them.
    #[error("{} is touched by {first} and {second}, which nothing orders", Shown(*span))]
    Race {
        /// One.
        first: Place,
        /// The other.
        second: Place,
        /// The element.
        span: Span,
    },
    /// Bytes that were sent by reference are overwritten while the receiver may still read them.
    #[error("{} sent by {send} is overwritten by {write} before it is known to be received", Shown(*span))]
    Overwritten {
        /// The send.
        send: Place,
        /// The write.
        write: Place,
        /// The element.
        span: Span,
    },
    /// A rank leaves a barrier too early.
    #[error("rank {early} leaves the barrier before rank {late} has come")]
    Barrier {
        /// Who leaves.
        early: Rank,
        /// Who has not come.
        late: Rank,
    },
    /// An output element holds something else than the call promises.
    #[error("rank {rank}: {} holds {found} where {expected} belongs", Shown(*span))]
    Output {
        /// Whose output.
        rank: Rank,
        /// The element.
        span: Span,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: String,
    },
    /// Two ranks combined the same element in different orders, so that their bits may differ.
    #[error("rank {rank}: {} holds {found}, but {other_found} on rank {other}", Shown(*span))]
    OrderDiffers {
        /// One rank.
        rank: Rank,
        /// The element.
        span: Span,
        /// Its order.
        found: String,
        /// The other rank.
        other: Rank,
        /// Its order.
        other_found: String,
    },
    /// A transfer of an exchange has no counterpart of its length.
    #[error("rank {rank} moves {} to or from rank {peer}, which moves no such message", Shown(*span))]
    Unpaired {
        /// Whose transfer.
        rank: Rank,
        /// The other rank.
        peer: Rank,
        /// The bytes.
        span: Span,
    },
    /// A byte that no transfer of an exchange receives was written.
    #[error("rank {rank}: {} belongs to nobody but was written", Shown(*span))]
    Touched {
        /// Whose memory.
        rank: Rank,
        /// The element.
        span: Span,
    },
}

/// Prints a span: `output[64..128]`.
struct Shown(Span);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Span { buffer, offset, bytes } = self.0;
        match buffer {
            Buffer::Input => f.write_str("input")?,
            Buffer::Output => f.write_str("output")?,
            Buffer::Scratch => f.write_str("scratch")?,
            Buffer::Member(member) => write!(f, "member {member}")?,
        }
        write!(f, "[{offset}..{}]", offset.saturating_add(bytes))
    }
}
