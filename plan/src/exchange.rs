//! A validated set of transfers between one rank and its peers: all-to-all-v, and groups of sends
//! and receives.

use crate::{Buffer, CollectiveKind, DataType, Rank, Span};

/// Which way a [`Transfer`] goes, seen from the rank that calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// To the peer.
    Send,
    /// From the peer.
    Receive,
}

/// Bytes that go to or come from one peer. The k-th send to a peer is the peer's k-th receive from
/// this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// The other rank, or this one.
    pub peer: Rank,
    /// Whether the bytes go there or come from there.
    pub direction: Direction,
    /// The memory.
    pub buffer: Buffer,
    /// First byte in the buffer.
    pub offset: usize,
    /// Length in bytes. Nothing is sent for 0, and nothing waited for.
    pub bytes: usize,
}

impl Transfer {
    /// The bytes in this rank's memory.
    pub fn span(&self) -> Span {
        Span { buffer: self.buffer, offset: self.offset, bytes: self.bytes }
    }
}

/// Transfers of one rank that start together and end together, validated as far as one rank can.
///
/// Any order of transfers is free of deadlock, as long as each send has its receive of the same
/// length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Exchange {
    kind: CollectiveKind,
    world: usize,
    rank: Rank,
    transfers: Vec<Transfer>,
}

/// One of the four arrays of an all-to-all-v.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CountArgument {
    /// Elements for each rank.
    #[error("send_counts")]
    SendCounts,
    /// Where in the input they begin, in elements.
    #[error("send_displacements")]
    SendDisplacements,
    /// Elements from each rank.
    #[error("recv_counts")]
    RecvCounts,
    /// Where in the output they go, in elements.
    #[error("recv_displacements")]
    RecvDisplacements,
}

/// Why transfers were refused before anything moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The calling rank is not in the communicator.
    #[error("rank {rank} is out of range: this communicator has ranks 0..{world}")]
    RankOutOfRange {
        /// The rank.
        rank: Rank,
        /// The world size.
        world: usize,
    },
    /// A peer is not in the communicator.
    #[error(
        "peer {peer} of transfer {transfer} is out of range: this communicator has ranks 0..{world}"
    )]
    PeerOutOfRange {
        /// Position in the list of transfers, from 0.
        transfer: usize,
        /// The peer.
        peer: Rank,
        /// The world size.
        world: usize,
    },
    /// An array of an all-to-all-v has not one entry per rank.
    #[error("{argument} has {got} entries: it needs one for each of the {world} ranks")]
    Entries {
        /// The array.
        argument: CountArgument,
        /// Its length.
        got: usize,
        /// The world size.
        world: usize,
    },
    /// An entry of an all-to-all-v in bytes exceeds the address space.
    #[error("{argument}[{peer}] is {elements} elements of {dtype}: that exceeds the address space")]
    TooLarge {
        /// The array: of counts, or of displacements if only the end of the range is out of bounds.
        argument: CountArgument,
        /// Index into the array.
        peer: Rank,
        /// The entry, in elements.
        elements: usize,
        /// The element type.
        dtype: DataType,
    },
    /// The end of a transfer exceeds the address space.
    #[error("transfer {transfer} of {bytes} bytes at offset {offset} exceeds the address space")]
    OutOfAddressSpace {
        /// Position in the list of transfers, from 0.
        transfer: usize,
        /// Its offset in bytes.
        offset: usize,
        /// Its length in bytes.
        bytes: usize,
    },
    /// What a rank sends to itself is not what it receives from itself.
    #[error(
        "rank {rank} sends itself {sent} bytes but receives {received} in transfer {index} of those \
         between it and itself: give both the same count"
    )]
    SelfLength {
        /// The rank.
        rank: Rank,
        /// Counts the non-empty transfers of the rank with itself, from 0.
        index: usize,
        /// Bytes sent, 0 if there is no such send.
        sent: usize,
        /// Bytes received, 0 if there is no such receive.
        received: usize,
    },
    /// Received bytes would land on bytes that another transfer sends or receives.
    #[error(
        "transfers {first} and {second} overlap at byte {offset} of {buffer:?}: received data needs memory \
         of its own"
    )]
    Overlap {
        /// Position of one of them in the list, from 0.
        first: usize,
        /// Position of the other.
        second: usize,
        /// The memory.
        buffer: Buffer,
        /// A byte that both touch.
        offset: usize,
    },
}

impl Exchange {
    /// A group of sends and receives of `rank`, in the order in which they were called.
    pub fn group(
        world: usize,
        rank: Rank,
        transfers: Vec<Transfer>,
    ) -> Result<Self, ExchangeError> {
        Self::validated(CollectiveKind::PointToPoint, world, rank, transfers)
    }

    /// An all-to-all-v of `rank`: `send_counts[p]` elements from element `send_displacements[p]` of
    /// the input go to rank p, and `recv_counts[p]` elements from rank p to element
    /// `recv_displacements[p]` of the output. The world size is `send_counts.len()`.
    pub fn all_to_all_v(
        rank: Rank,
        dtype: DataType,
        send_counts: &[usize],
        send_displacements: &[usize],
        recv_counts: &[usize],
        recv_displacements: &[usize],
    ) -> Result<Self, ExchangeError> {
        use CountArgument::{RecvCounts, RecvDisplacements, SendCounts, SendDisplacements};
        let world = send_counts.len();
        let halves = [
            (Direction::Send, (SendCounts, send_counts), (SendDisplacements, send_displacements)),
            (
                Direction::Receive,
                (RecvCounts, recv_counts),
                (RecvDisplacements, recv_displacements),
            ),
        ];
        let mut transfers = Vec::with_capacity(2 * world);
        for (direction, counts, displacements) in halves {
            for (argument, entries) in [counts, displacements] {
                if entries.len() != world {
                    return Err(ExchangeError::Entries { argument, got: entries.len(), world });
                }
            }
            for peer in 0..world {
                let in_bytes = |(argument, entries): (CountArgument, &[usize])| {
                    let elements = entries[peer];
                    elements
                        .checked_mul(dtype.size())
                        .filter(|&bytes| bytes <= isize::MAX as usize)
                        .ok_or(ExchangeError::TooLarge { argument, peer, elements, dtype })
                };
                let buffer = match direction {
                    Direction::Send => Buffer::Input,
                    Direction::Receive => Buffer::Output,
                };
                let (bytes, offset) = (in_bytes(counts)?, in_bytes(displacements)?);
                transfers.push(Transfer { peer, direction, buffer, offset, bytes });
            }
        }
        Self::validated(CollectiveKind::AllToAllV, world, rank, transfers)
    }

    fn validated(
        kind: CollectiveKind,
        world: usize,
        rank: Rank,
        transfers: Vec<Transfer>,
    ) -> Result<Self, ExchangeError> {
        if rank >= world {
            return Err(ExchangeError::RankOutOfRange { rank, world });
        }
        for (transfer, &Transfer { peer, offset, bytes, .. }) in transfers.iter().enumerate() {
            if peer >= world {
                return Err(ExchangeError::PeerOutOfRange { transfer, peer, world });
            }
            if offset.checked_add(bytes).is_none_or(|end| end > isize::MAX as usize) {
                return Err(ExchangeError::OutOfAddressSpace { transfer, offset, bytes });
            }
        }
        refuse_overlaps(&transfers)?;
        let exchange = Self { kind, world, rank, transfers };
        exchange.refuse_unequal_copies()?;
        Ok(exchange)
    }

    fn refuse_unequal_copies(&self) -> Result<(), ExchangeError> {
        let (mut sends, mut receives) =
            (self.with_self(Direction::Send), self.with_self(Direction::Receive));
        for index in 0.. {
            let (sent, received) = (sends.next(), receives.next());
            if sent.is_none() && received.is_none() {
                break;
            }
            let [sent, received] = [sent, received].map(|span| span.map_or(0, |span| span.bytes));
            if sent != received {
                return Err(ExchangeError::SelfLength { rank: self.rank, index, sent, received });
            }
        }
        Ok(())
    }

    /// [`AllToAllV`](CollectiveKind::AllToAllV) or [`PointToPoint`](CollectiveKind::PointToPoint).
    pub fn kind(&self) -> CollectiveKind {
        self.kind
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// The rank whose transfers these are.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The transfers, in the order in which they were given.
    pub fn transfers(&self) -> &[Transfer] {
        &self.transfers
    }

    /// What the rank sends to itself: source and destination, of the same length.
    pub fn copies(&self) -> impl Iterator<Item = (Span, Span)> {
        self.with_self(Direction::Send).zip(self.with_self(Direction::Receive))
    }

    fn with_self(&self, direction: Direction) -> impl Iterator<Item = Span> {
        self.transfers
            .iter()
            .filter(move |t| t.peer == self.rank && t.direction == direction && t.bytes > 0)
            .map(Transfer::span)
    }
}

fn refuse_overlaps(transfers: &[Transfer]) -> Result<(), ExchangeError> {
    let mut order: Vec<usize> = (0..transfers.len()).filter(|&t| transfers[t].bytes > 0).collect();
    order.sort_by_key(|&t| (transfers[t].buffer, transfers[t].offset));
    // The transfer that reaches furthest, of all and of those that write.
    let (mut furthest, mut furthest_written): (Option<usize>, Option<usize>) = (None, None);
    let reaches = |t: usize| transfers[t].offset + transfers[t].bytes;
    for &second in &order {
        let Transfer { buffer, offset, direction, .. } = transfers[second];
        let writes = direction == Direction::Receive;
        let before = if writes { furthest } else { furthest_written };
        if let Some(first) = before
            && transfers[first].buffer == buffer
            && reaches(first) > offset
        {
            return Err(ExchangeError::Overlap { first, second, buffer, offset });
        }
        let further = |old: Option<usize>| {
            old.filter(|&old| transfers[old].buffer == buffer && reaches(old) >= reaches(second))
                .or(Some(second))
        };
        furthest = further(furthest);
        if writes {
            furthest_written = further(furthest_written);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(peer: Rank, direction: Direction, offset: usize, bytes: usize) -> Transfer {
        Transfer { peer, direction, buffer: Buffer::Member(0), offset, bytes }
    }

    #[test]
    fn all_to_all_v_names_the_wrong_argument() {
        let v = |send: &[usize], at: &[usize], recv: &[usize], to: &[usize]| {
            Exchange::all_to_all_v(0, DataType::F64, send, at, recv, to)
        };
        let error = v(&[1, 2], &[0, 1], &[1], &[0, 1]).expect_err("too short");
        assert_eq!(
            error.to_string(),
            "recv_counts has 1 entries: it needs one for each of the 2 ranks"
        );
        let error = v(&[1, 2], &[0, usize::MAX / 8], &[1, 2], &[0, 1]).expect_err("too far");
        assert!(error.to_string().starts_with("send_displacements[1] is 2305843009213693951"));
        let error = v(&[1, 2], &[0, 1], &[2, 2], &[0, 2]).expect_err("self");
        assert_eq!(error, ExchangeError::SelfLength { rank: 0, index: 0, sent: 8, received: 16 });
        let error = v(&[2, 2], &[0, 1], &[2, 2], &[0, 1]).expect_err("overlap");
        assert!(matches!(error, ExchangeError::Overlap { offset: 8, buffer: Buffer::Output, .. }));
        let error = v(&[], &[], &[], &[]).expect_err("no ranks");
        assert_eq!(error, ExchangeError::RankOutOfRange { rank: 0, world: 0 });
        assert!(v(&[2, 2], &[0, 1], &[2, 0], &[0, 1]).is_ok(), "sends may overlap");
    }

    #[test]
    fn groups_are_checked() {
        use Direction::{Receive, Send};
        let group = |transfers: Vec<Transfer>| Exchange::group(3, 1, transfers);
        let error = group(vec![transfer(0, Send, 0, 4), transfer(3, Send, 0, 4)]);
        assert_eq!(
            error.expect_err("peer").to_string(),
            "peer 3 of transfer 1 is out of range: this communicator has ranks 0..3"
        );
        let error = group(vec![transfer(0, Send, usize::MAX, 4)]).expect_err("offset");
        assert!(matches!(error, ExchangeError::OutOfAddressSpace { transfer: 0, .. }));
        let error = group(vec![
            transfer(0, Send, 0, 100),
            transfer(2, Send, 10, 20),
            transfer(2, Receive, 99, 1),
        ]);
        assert!(matches!(error, Err(ExchangeError::Overlap { first: 0, second: 2, .. })));
        let error = group(vec![transfer(1, Send, 0, 4)]).expect_err("nobody receives");
        assert_eq!(error, ExchangeError::SelfLength { rank: 1, index: 0, sent: 4, received: 0 });
    }

    #[test]
    fn copies_pair_sends_and_receives_in_order() {
        use Direction::{Receive, Send};
        let exchange = Exchange::group(
            1,
            0,
            vec![
                transfer(0, Receive, 10, 2),
                transfer(0, Send, 0, 2),
                transfer(0, Send, 2, 0),
                transfer(0, Send, 2, 3),
                transfer(0, Receive, 20, 3),
            ],
        )
        .expect("valid");
        let copies: Vec<_> = exchange.copies().map(|(src, dst)| (src.offset, dst.offset)).collect();
        assert_eq!(copies, [(0, 10), (2, 20)]);
    }
}
