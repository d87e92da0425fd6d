//! What each message says about the call that it belongs to.
//!
//! A message opens with 32 bytes: these three words and, from the link, the piece's length and its
//! position in the link. The receiver compares them with its own call, so that two ranks which
//! disagree find out at the first message and not by a hang.
//!
//! ```text
//! word 0   count (48 bits) | collective (8) | dtype (8)
//! word 1   sequence (32)   | root (24)      | operator (8)
//! tag      communicator (32)
//! ```

use std::fmt;

use crate::{Collective, CollectiveKind, DataType, Rank, ReduceKind};

/// The packed signature of one call. Two ranks take part in the same call exactly when they are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Fingerprint {
    /// Count, collective, data type.
    pub call: u64,
    /// Sequence number, root, operator.
    pub order: u64,
    /// The communicator.
    pub tag: u32,
}

const NO_ROOT: u64 = 0xff_ffff;
const NO_OP: u64 = 0xff;

impl Fingerprint {
    /// The fingerprint of the `sequence`-th call of the communicator `tag`. The sequence
    /// number travels modulo 2^32, the count modulo 2^48.
    #[inline]
    pub fn new(call: &Collective, sequence: u64, tag: u32) -> Self {
        Self::from_parts(
            call.kind(),
            call.dtype(),
            call.op(),
            call.root(),
            call.count() as u64,
            sequence,
            tag,
        )
    }

    /// The same from its parts, for calls that are no [`Collective`] (send and receive).
    #[inline]
    pub fn from_parts(
        kind: CollectiveKind,
        dtype: DataType,
        op: Option<ReduceKind>,
        root: Option<Rank>,
        count: u64,
        sequence: u64,
        tag: u32,
    ) -> Self {
        let root = root.map_or(NO_ROOT, |root| root as u64 & NO_ROOT);
        let op = op.map_or(NO_OP, |op| op as u64);
        Self {
            call: count << 16 | (kind as u64) << 8 | dtype as u64,
            order: (sequence & 0xffff_ffff) << 32 | root << 8 | op,
            tag,
        }
    }

    /// This fingerprint at another sequence number.
    #[inline]
    pub const fn at(self, sequence: u64) -> Self {
        Self { order: self.order & 0xffff_ffff | sequence << 32, ..self }
    }

    /// Which collective; `None`: there is no such one.
    pub fn kind(self) -> Option<CollectiveKind> {
        CollectiveKind::from_code((self.call >> 8) as u8)
    }

    /// Number of elements.
    pub fn count(self) -> u64 {
        self.call >> 16
    }

    /// The lower half of the sequence number.
    pub fn sequence(self) -> u32 {
        (self.order >> 32) as u32
    }

    /// The root, if there is one.
    pub fn root(self) -> Option<Rank> {
        let root = self.order >> 8 & NO_ROOT;
        (root != NO_ROOT).then_some(root as Rank)
    }

    /// Element type; `None`: there is no such one.
    pub(crate) fn dtype(self) -> Option<DataType> {
        DataType::from_code(self.call as u8)
    }

    /// Operator, if there is one, and it is known.
    pub(crate) fn op(self) -> Option<ReduceKind> {
        ReduceKind::from_code(self.order as u8)
    }

    /// What the other rank called, for messages. Unknown codes, from a damaged message, print as numbers.
    pub fn describe(self) -> Description {
        Description(self)
    }
}

/// Prints a [`Fingerprint`] the way [`Collective`] prints, with its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description(Fingerprint);

impl Description {
    /// What it describes.
    pub fn fingerprint(self) -> Fingerprint {
        self.0
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fingerprint { call, order, .. } = self.0;
        let (kind, dtype, op) = ((call >> 8) as u8, call as u8, order as u8);
        match CollectiveKind::from_code(kind) {
            Some(kind) => write!(f, "{kind}(count {}, ", call >> 16)?,
            None => write!(f, "collective {kind}(count {}, ", call >> 16)?,
        }
        match DataType::from_code(dtype) {
            Some(dtype) => write!(f, "{dtype}")?,
            None => write!(f, "dtype {dtype}")?,
        }
        match ReduceKind::from_code(op) {
            Some(op) => write!(f, ", {op}")?,
            None if u64::from(op) == NO_OP => {}
            None => write!(f, ", operator {op}")?,
        }
        let root = order >> 8 & NO_ROOT;
        if root != NO_ROOT {
            write!(f, ", root {root}")?;
        }
        write!(f, ") as operation {}", order >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReduceOp;

    #[test]
    fn a_call_comes_back_from_its_fingerprint() {
        let (dtype, op) = (DataType::F64, ReduceOp::Avg);
        let calls = [
            Collective::all_reduce(4, dtype, op, 9),
            Collective::reduce(4, dtype, op, 3, 9),
            Collective::broadcast(4, dtype, 0, 9),
            Collective::all_gather(4, dtype, 0),
            Collective::reduce_scatter(4, dtype, op, 9),
            Collective::all_to_all(4, dtype, 9),
            Collective::gather(4, dtype, 1, 9),
            Collective::scatter(4, dtype, 2, 9),
            Ok(Collective::barrier(4)),
        ];
        for call in calls.map(|call| call.expect("valid")) {
            let fingerprint = Fingerprint::new(&call, 1 << 33 | 5, 1);
            assert_eq!(Collective::from_fingerprint(fingerprint, 4), Some(call));
            assert_eq!(fingerprint.sequence(), 5);
            if call.root() == Some(3) {
                assert_eq!(Collective::from_fingerprint(fingerprint, 3), None, "no such root");
            }
        }
        let exchange = Fingerprint { call: 6 << 8, ..Fingerprint::default() };
        assert_eq!(Collective::from_fingerprint(exchange, 4), None);
        let unknown = Fingerprint { call: 200 << 8, order: u64::MAX, tag: 0 };
        assert_eq!(Collective::from_fingerprint(unknown, 4), None);
    }

    #[test]
    fn describes_the_call() {
        let call = Collective::reduce(4, DataType::Bf16, ReduceOp::Max, 3, 1000).expect("valid");
        let text = Fingerprint::new(&call, 7, 1).describe().to_string();
        assert_eq!(text, "reduce(count 1000, bf16, max, root 3) as operation 7");
        let moved = Fingerprint::new(&call, 7, 1).at(8);
        assert_eq!(moved, Fingerprint::new(&call, 8, 1));
    }
}
