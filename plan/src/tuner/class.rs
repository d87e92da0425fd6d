//! Calls that are treated alike.

use crate::{CallError, Collective, CollectiveKind, DataType, ReduceOp};

/// A collective, a kind of arithmetic and a range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Class {
    pub(super) kind: CollectiveKind,
    pub(super) world: usize,
    arithmetic: Arithmetic,
    log2_bytes: u32,
}

/// What a reduction costs, in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Arithmetic {
    None,
    Native,
    Half,
    Quarter,
}

/// All sizes up to 2^6 bytes are one class: a line.
const SMALLEST: u32 = 6;

/// Sizes of more than 2^26 bytes for each rank are one class: nothing changes any more.
const LARGEST_PER_RANK: u32 = 26;

impl Class {
    pub(super) fn of(call: &Collective) -> Self {
        let largest = LARGEST_PER_RANK + call.world().max(1).ilog2();
        let log2_bytes = usize::BITS - call.bytes().saturating_sub(1).leading_zeros();
        Self {
            kind: call.kind(),
            world: call.world(),
            arithmetic: match call.dtype() {
                _ if !call.kind().reduces() => Arithmetic::None,
                DataType::F16 | DataType::Bf16 => Arithmetic::Half,
                DataType::F8E4M3 | DataType::F8E5M2 => Arithmetic::Quarter,
                _ => Arithmetic::Native,
            },
            log2_bytes: log2_bytes.clamp(SMALLEST, largest),
        }
    }

    /// The largest call of the class, in the sense of [`Collective::bytes`].
    pub(super) fn bytes(self) -> usize {
        1 << self.log2_bytes
    }

    /// The smallest and the largest call of the class; the largest is `None` where there is no limit.
    pub(super) fn range(self) -> (usize, Option<usize>) {
        let smallest = if self.log2_bytes == SMALLEST { 0 } else { self.bytes() / 2 + 1 };
        let open = self.log2_bytes == LARGEST_PER_RANK + self.world.max(1).ilog2();
        (smallest, (!open).then_some(self.bytes()))
    }

    pub(super) fn dtype(self) -> DataType {
        match self.arithmetic {
            Arithmetic::None => DataType::U8,
            Arithmetic::Native => DataType::F32,
            Arithmetic::Half => DataType::Bf16,
            Arithmetic::Quarter => DataType::F8E4M3,
        }
    }

    /// A call of the class, but of about `bytes` bytes. Its root is rank 0.
    pub(super) fn call(self, bytes: usize) -> Result<Collective, CallError> {
        let Self { world, .. } = self;
        let (dtype, op) = (self.dtype(), ReduceOp::Sum);
        let count = bytes / dtype.size();
        match self.kind {
            CollectiveKind::AllReduce => Collective::all_reduce(world, dtype, op, count),
            CollectiveKind::Reduce => Collective::reduce(world, dtype, op, 0, count),
            CollectiveKind::Broadcast => Collective::broadcast(world, dtype, 0, count),
            CollectiveKind::AllGather => Collective::all_gather(world, dtype, count),
            CollectiveKind::ReduceScatter => Collective::reduce_scatter(world, dtype, op, count),
            CollectiveKind::AllToAll => Collective::all_to_all(world, dtype, count),
            CollectiveKind::Gather => Collective::gather(world, dtype, 0, count),
            CollectiveKind::Scatter => Collective::scatter(world, dtype, 0, count),
            // The others are no `Collective`s.
            CollectiveKind::Barrier | CollectiveKind::AllToAllV | CollectiveKind::PointToPoint => {
                Ok(Collective::barrier(world))
            }
        }
    }
}
