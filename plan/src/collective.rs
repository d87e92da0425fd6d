//! A validated call: what every rank must agree on before anything moves.
//!
//! Counts follow NCCL: the number of elements that one rank contributes to, or receives from, each
//! exchange. So all-gather's and gather's `count` is what each rank sends, reduce-scatter's and
//! scatter's what each rank receives, all-to-all's what each rank sends to each other.

use std::fmt;

use crate::{DataType, Fingerprint, ReduceKind, ReduceOp};

/// A rank's number in its communicator, from 0.
pub type Rank = usize;

/// Which collective a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum CollectiveKind {
    /// Every rank gets the reduction of all inputs.
    AllReduce = 0,
    /// The root gets the reduction of all inputs.
    Reduce = 1,
    /// Every rank gets the root's input.
    Broadcast = 2,
    /// Every rank gets all inputs, in rank order.
    AllGather = 3,
    /// Rank r gets the r-th part of the reduction.
    ReduceScatter = 4,
    /// Rank r gets the r-th part of every input, in rank order.
    AllToAll = 5,
    /// All-to-all with counts and displacements for each pair.
    AllToAllV = 6,
    /// The root gets all inputs, in rank order.
    Gather = 7,
    /// Rank r gets the r-th part of the root's input.
    Scatter = 8,
    /// Nobody leaves before all have come.
    Barrier = 9,
    /// One message between two ranks.
    PointToPoint = 10,
}

impl CollectiveKind {
    /// Every kind, by discriminant.
    pub const ALL: [Self; 11] = [
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::AllToAllV,
        Self::Gather,
        Self::Scatter,
        Self::Barrier,
        Self::PointToPoint,
    ];

    /// The kind with this discriminant, as it travels in a [fingerprint](crate::Fingerprint).
    pub const fn from_code(code: u8) -> Option<Self> {
        if (code as usize) < Self::ALL.len() { Some(Self::ALL[code as usize]) } else { None }
    }

    /// Whether the call combines elements.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Whether the call has a root.
    pub const fn rooted(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter)
    }

    /// The name that messages use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::AllToAllV => "all_to_all_v",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Barrier => "barrier",
            Self::PointToPoint => "send/recv",
        }
    }
}

impl fmt::Display for CollectiveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A validated call of a collective whose counts are the same for every rank.
///
/// Equal on every rank of one operation, but for `in_place`, which is each rank's own business; it is
/// the key under which a [`Plan`](crate::Plan) is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Collective {
    kind: CollectiveKind,
    dtype: DataType,
    op: Option<ReduceKind>,
    root: Option<Rank>,
    count: usize,
    world: usize,
    in_place: bool,
}

/// Why a call was refused before anything moved.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The root is not a rank of the communicator.
    #[error("root {root} is out of range: this communicator has ranks 0..{world}")]
    RootOutOfRange {
        /// The root that was asked for.
        root: Rank,
        /// The world size.
        world: usize,
    },
    /// The byte size of the call does not fit the address space.
    #[error("{kind} of {count} elements of {dtype} for {world} ranks exceeds the address space")]
    TooLarge {
        /// The collective.
        kind: CollectiveKind,
        /// Its count.
        count: usize,
        /// Its data type.
        dtype: DataType,
        /// The world size.
        world: usize,
    },
    /// The operator is not defined for the data type.
    #[error("operator {op} does not fit {dtype}: use a scalar of that type that it can represent")]
    OperatorType {
        /// The operator.
        op: ReduceOp,
        /// The data type.
        dtype: DataType,
    },
}

impl Collective {
    /// All-reduce of `count` elements.
    #[inline]
    pub fn all_reduce(
        world: usize,
        dtype: DataType,
        op: ReduceOp,
        count: usize,
    ) -> Result<Self, CallError> {
        Self::validated(CollectiveKind::AllReduce, world, dtype, Some(op), None, count)
    }

    /// Reduce of `count` elements to `root`.
    #[inline]
    pub fn reduce(
        world: usize,
        dtype: DataType,
        op: ReduceOp,
        root: Rank,
        count: usize,
    ) -> Result<Self, CallError> {
        Self::validated(CollectiveKind::Reduce, world, dtype, Some(op), Some(root), count)
    }

    /// Broadcast of `count` elements from `root`.
    #[inline]
    pub fn broadcast(
        world: usize,
        dtype: DataType,
        root: Rank,
        count: usize,
    ) -> Result<Self, CallError> {
        Self::validated(CollectiveKind::Broadcast, world, dtype, None, Some(root), count)
    }

    /// All-gather of `count` elements from each rank.
    #[inline]
    pub fn all_gather(world: usize, dtype: DataType, count: usize) -> Result<Self, CallError> {
        Self::validated(CollectiveKind::AllGather, world, dtype, None, None, count)
    }

    /// Reduce-scatter that leaves `count` elements on each rank.
    #[inline]
    pub fn reduce_scatter(
        world: usize,
        dtype: DataType,
        op: ReduceOp,
        count: usize,
    ) -> Result<Self, CallError> {
        Self::validated(CollectiveKind::ReduceScatter, world, dtype, Some(op), None, count)
    }

    /// All-to-all of `count` elements for each pair.
    pub fn all_to_all(world: usize, dtype: DataType, count: usize) -> Result<Self, CallError> {
        Self::validated(CollectiveKind::AllToAll, world, dtype, None, None, count)
    }

    /// Gather of `count` elements from each rank to `root`.
    pub fn gather(
        world: usize,
        dtype: DataType,
        root: Rank,
        count: usize,
    ) -> Result<Self, CallError> {
        Self::validated(CollectiveKind::Gather, world, dtype, None, Some(root), count)
    }

    /// Scatter of `count` elements to each rank from `root`.
    pub fn scatter(
        world: usize,
        dtype: DataType,
        root: Rank,
        count: usize,
    ) -> Result<Self, CallError> {
        Self::validated(CollectiveKind::Scatter, world, dtype, None, Some(root), count)
    }

    /// Barrier.
    pub fn barrier(world: usize) -> Self {
        Self {
            kind: CollectiveKind::Barrier,
            dtype: DataType::U8,
            op: None,
            root: None,
            count: 0,
            world,
            in_place: false,
        }
    }

    /// The call of `world` ranks that has this fingerprint, not in place; `None`: there is none, or it is an all-to-all-v or a
    /// send, whose fingerprint does not say all.
    pub fn from_fingerprint(fingerprint: Fingerprint, world: usize) -> Option<Self> {
        let (kind, dtype) = (fingerprint.kind()?, fingerprint.dtype()?);
        let (op, root) = (fingerprint.op(), fingerprint.root());
        let count = usize::try_from(fingerprint.count()).ok()?;
        let complete = match kind {
            CollectiveKind::AllToAllV | CollectiveKind::PointToPoint => false,
            CollectiveKind::Barrier => return Some(Self::barrier(world)),
            _ => kind.reduces() == op.is_some() && kind.rooted() == root.is_some(),
        };
        if !complete || root.is_some_and(|root| root >= world) {
            return None;
        }
        let bytes = count.checked_mul(dtype.size())?.checked_mul(world)?;
        (bytes <= isize::MAX as usize).then_some(Self {
            kind,
            dtype,
            op,
            root,
            count,
            world,
            in_place: false,
        })
    }

    /// The same call, by a rank whose input and output coincide as the collective allows
    /// (see [`Collective::in_place`]).
    pub fn with_in_place(self, in_place: bool) -> Self {
        Self { in_place, ..self }
    }

    fn validated(
        kind: CollectiveKind,
        world: usize,
        dtype: DataType,
        op: Option<ReduceOp>,
        root: Option<Rank>,
        count: usize,
    ) -> Result<Self, CallError> {
        if let Some(root) = root
            && root >= world
        {
            return Err(CallError::RootOutOfRange { root, world });
        }
        if let Some(op) = op
            && !op.fits(dtype)
        {
            return Err(CallError::OperatorType { op, dtype });
        }
        count
            .checked_mul(dtype.size())
            .and_then(|bytes| bytes.checked_mul(world))
            .filter(|&bytes| bytes <= isize::MAX as usize)
            .ok_or(CallError::TooLarge { kind, count, dtype, world })?;
        Ok(Self { kind, dtype, op: op.map(ReduceOp::kind), root, count, world, in_place: false })
    }

    /// Which collective.
    #[inline]
    pub fn kind(&self) -> CollectiveKind {
        self.kind
    }

    /// Element type.
    #[inline]
    pub fn dtype(&self) -> DataType {
        self.dtype
    }

    /// Operator, for the collectives that reduce.
    #[inline]
    pub fn op(&self) -> Option<ReduceKind> {
        self.op
    }

    /// Root, for the collectives that have one.
    #[inline]
    pub fn root(&self) -> Option<Rank> {
        self.root
    }

    /// Elements, in the sense of the module's first paragraph.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// `count` in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// Number of ranks.
    #[inline]
    pub fn world(&self) -> usize {
        self.world
    }

    /// Whether this rank's input and output coincide, as NCCL defines it:
    ///
    /// | collective | the buffers coincide when |
    /// |---|---|
    /// | all-reduce, reduce, broadcast | output = input |
    /// | reduce-scatter | output = input + rank · count |
    /// | all-gather | input = output + rank · count |
    /// | gather (at root) | input = output + root · count |
    /// | scatter (at root) | output = input + root · count |
    /// | all-to-all | never |
    #[inline]
    pub fn in_place(&self) -> bool {
        self.in_place
    }

    /// Bytes of `rank`'s input buffer. 0 where the rank has none.
    pub fn input_bytes(&self, rank: Rank) -> usize {
        let bytes = self.bytes();
        match self.kind {
            CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => bytes * self.world,
            CollectiveKind::Scatter if self.root == Some(rank) => bytes * self.world,
            CollectiveKind::Scatter => 0,
            CollectiveKind::Broadcast if self.root != Some(rank) => 0,
            _ => bytes,
        }
    }

    /// Bytes of `rank`'s output buffer. 0 where the rank has none.
    pub fn output_bytes(&self, rank: Rank) -> usize {
        let bytes = self.bytes();
        match self.kind {
            CollectiveKind::AllGather | CollectiveKind::AllToAll => bytes * self.world,
            CollectiveKind::Gather if self.root == Some(rank) => bytes * self.world,
            CollectiveKind::Gather | CollectiveKind::Reduce if self.root != Some(rank) => 0,
            _ => bytes,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(count {}, {}", self.kind, self.count, self.dtype)?;
        if let Some(op) = self.op {
            write!(f, ", {op}")?;
        }
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        f.write_str(")")
    }
}
