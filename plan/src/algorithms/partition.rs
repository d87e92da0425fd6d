//! Cutting bytes into parts: shares of channels, blocks of ranks, halves of trees.

/// A run of bytes within a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// First byte.
    pub(super) offset: usize,
    /// Length in bytes.
    pub(super) bytes: usize,
}

impl Part {
    /// The same bytes, `distance` further on.
    pub(super) fn shifted(self, distance: usize) -> Self {
        Self { offset: self.offset + distance, ..self }
    }

    /// The `index`-th piece of `chunk` bytes; the last piece is shorter, those after it are empty.
    pub(super) fn chunk(self, index: usize, chunk: usize) -> Self {
        let start = index.saturating_mul(chunk).min(self.bytes);
        Self { offset: self.offset + start, bytes: chunk.min(self.bytes - start) }
    }

    /// Its non-empty pieces of at most `chunk` bytes, in order.
    pub(super) fn chunks(self, chunk: usize) -> impl Iterator<Item = Self> {
        (0..self.bytes.div_ceil(chunk)).map(move |index| self.chunk(index, chunk))
    }
}

/// Cuts `whole` into `parts` contiguous parts.
///
/// Where there are 64 bytes for each part, every part begins a multiple of 64 bytes into `whole`;
/// otherwise at an element. In that unit, sizes differ by at most one, the larger parts first; so
/// empty parts, if there are any, are the last.
pub(super) fn partition(whole: Part, element_bytes: usize, parts: usize) -> Partition {
    let aligned = whole.bytes / ALIGNMENT >= parts;
    Partition { whole, parts, unit: if aligned { ALIGNMENT } else { element_bytes } }
}

/// Cache lines are 64 bytes on the hosts that matter; every element size divides it.
const ALIGNMENT: usize = 64;

/// The result of [`partition`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Partition {
    whole: Part,
    parts: usize,
    unit: usize,
}

impl Partition {
    /// The `index`-th part.
    pub(super) fn part(&self, index: usize) -> Part {
        self.range(index, index + 1)
    }

    /// Parts `first` to `last`, `last` excluded, as one.
    pub(super) fn range(&self, first: usize, last: usize) -> Part {
        let (first, last) = (self.start(first), self.start(last));
        Part { offset: self.whole.offset + first, bytes: last - first }
    }

    fn start(&self, index: usize) -> usize {
        let units = self.whole.bytes.div_ceil(self.unit);
        let before = index * (units / self.parts) + index.min(units % self.parts);
        (before * self.unit).min(self.whole.bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_tile_the_whole(
            offset in 0usize..1000,
            elements in 0usize..100_000,
            shift in 0u32..4,
            parts in 1usize..70,
        ) {
            let element = 1 << shift;
            let whole = Part { offset, bytes: elements * element };
            let cut = partition(whole, element, parts);
            let aligned = whole.bytes >= parts * 64;
            let unit = if aligned { 64 } else { element };
            let mut at = offset;
            for index in 0..parts {
                let part = cut.part(index);
                prop_assert_eq!(part.offset, at);
                prop_assert!((part.offset - offset).is_multiple_of(element));
                prop_assert!(part.bytes == 0 || (part.offset - offset).is_multiple_of(unit));
                let units = part.bytes.div_ceil(unit);
                let even = whole.bytes.div_ceil(unit) / parts;
                prop_assert!(units == even || units == even + 1);
                prop_assert!(units <= cut.part(0).bytes.div_ceil(unit));
                prop_assert_eq!(aligned && part.bytes == 0, false);
                at = part.offset + part.bytes;
            }
            prop_assert_eq!(at, offset + whole.bytes);
            prop_assert_eq!(cut.range(0, parts), whole);
        }

        #[test]
        fn chunks_tile_a_part(offset in 0usize..999, bytes in 0usize..9999, chunk in 1usize..300) {
            let part = Part { offset, bytes };
            let mut at = offset;
            for piece in part.chunks(chunk) {
                prop_assert_eq!(piece.offset, at);
                let last = piece.offset + piece.bytes == offset + bytes;
                prop_assert!(piece.bytes > 0 && (last || piece.bytes == chunk));
                at = piece.offset + piece.bytes;
            }
            prop_assert_eq!(at, offset + bytes);
            prop_assert_eq!(part.chunk(bytes.div_ceil(chunk), chunk).bytes, 0);
        }
    }
}
