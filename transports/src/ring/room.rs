//! Where in the byte ring a piece goes: pure arithmetic.

/// Sizes of a ring. Both ends must agree on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    headers: usize,
    data: usize,
}

/// Pieces begin at multiples of this, a cache line.
pub(crate) const ALIGN: usize = 64;

/// A rest of the ring that is worth a piece of its own whatever the piece's length.
const WORTH_A_PIECE: usize = 4096;

impl Geometry {
    /// A ring of `headers` pieces (a power of two, at least 4) and `data` bytes (a power of two
    /// from 256 to 2^30); `None` for others. A link that keeps all of its contract has at least 64
    /// headers: smaller rings, for tests, hold fewer than
    /// [`MAX_CHUNK_PIECES`](annulus_plan::MAX_CHUNK_PIECES) pieces of each of two chunks.
    pub const fn new(headers: usize, data: usize) -> Option<Self> {
        let headers_fit = headers.is_power_of_two() && headers >= 4 && headers <= 1 << 16;
        let data_fits = data.is_power_of_two() && data >= 4 * ALIGN && data <= 1 << 30;
        if headers_fit && data_fits { Some(Self { headers, data }) } else { None }
    }

    /// What suits `ranks` ranks that share a host. Few ranks get 1 MiB per ring, which is larger than a core's own caches:
    /// lines that have left for the shared cache cross cheaper than lines that are still there. With
    /// more ranks the rings of all pairs together would displace each other from it.
    pub const fn for_local_ranks(ranks: usize) -> Self {
        let pairs = if ranks < 2 { 1 } else { ranks.saturating_mul(ranks - 1) };
        let share = (8 << 20) / pairs;
        let data = match share {
            0..0x2_0000 => 64 << 10,
            0x2_0000..0x4_0000 => 128 << 10,
            0x4_0000..0x8_0000 => 256 << 10,
            0x8_0000..0x10_0000 => 512 << 10,
            _ => 1 << 20,
        };
        Self { headers: 64, data }
    }

    /// Pieces that can be on their way.
    pub const fn headers(self) -> usize {
        self.headers
    }

    /// Bytes of the data ring.
    pub const fn data_bytes(self) -> usize {
        self.data
    }

    /// The longest piece, in bytes: short enough that two always fit, whatever is lost where the ring wraps.
    pub const fn max_chunk_bytes(self) -> usize {
        self.data / 4
    }
}

/// The sender's account of the byte ring. Positions count bytes since the beginning, padding and skipped rests
/// included.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    size: u64,
    /// Where the next piece goes at the earliest.
    head: u64,
    /// Everything before has been given back.
    freed: u64,
}

/// A place for a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// In the ring.
    pub(crate) offset: usize,
    /// Length in bytes; what was wanted, or less where the ring ends.
    pub(crate) bytes: usize,
    /// Position of the place.
    start: u64,
}

impl Room {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self { size: geometry.data as u64, head: 0, freed: 0 }
    }

    /// A place for a piece of `want` bytes, at least 1 and at most the ring's largest chunk; `None`
    /// while there is none. Where the ring ends too early the piece becomes shorter (by at most half,
    /// unless it stays long all the same; always a multiple of 64), or goes to the beginning.
    #[inline]
    pub(crate) fn place(&self, want: usize) -> Option<Place> {
        debug_assert!(want > 0 && want as u64 <= self.size / 4);
        let offset = self.head & (self.size - 1);
        let rest = self.size - offset;
        let want = want as u64;
        let (start, bytes) = if want <= rest {
            (self.head, want)
        } else if rest * 2 >= want || rest >= WORTH_A_PIECE as u64 {
            (self.head, rest)
        } else {
            (self.head + rest, want)
        };
        let end = start + padded(bytes);
        (end - self.freed <= self.size).then_some(Place {
            offset: (start & (self.size - 1)) as usize,
            bytes: bytes as usize,
            start,
        })
    }

    /// Takes the first `bytes` bytes of `place`, the result of the last [`place`](Self::place).
    #[inline]
    pub(crate) fn take(&mut self, place: Place, bytes: usize) {
        debug_assert!(bytes <= place.bytes && place.start >= self.head);
        self.head = place.start + padded(bytes as u64);
    }

    /// The position after the last piece: [`free`](Self::free) it when the receiver has given that back.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.head
    }

    /// Everything before `position` has been given back.
    #[inline]
    pub(crate) fn free(&mut self, position: u64) {
        debug_assert!(self.freed <= position && position <= self.head);
        self.freed = position;
    }
}

#[inline]
fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use annulus_plan::{MAX_CHUNK_PIECES, MIN_LINK_CHUNKS};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Sends messages of every size with at most two chunks on their way, cut into few pieces or many, which must
        /// always find room, and checks that no two pieces overlap.
        #[test]
        fn two_chunks_always_fit(
            log in 8_u32..16,
            messages in prop::collection::vec((1_usize..=1 << 14, 1_usize..=1 << 14), 1..80),
        ) {
            let geometry = Geometry::new(8, 1 << log).expect("powers of two");
            let chunk = geometry.max_chunk_bytes();
            let mut room = Room::new(geometry);
            // The chunks on their way, each with its pieces and their ends.
            let mut chunks: VecDeque<Vec<(Place, usize, u64)>> = VecDeque::new();
            for (message, max_piece) in messages {
                let message = message.min(chunk);
                let fewest = chunk.div_ceil(MAX_CHUNK_PIECES).next_multiple_of(ALIGN);
                let max_piece = max_piece.next_multiple_of(ALIGN).clamp(fewest, chunk);
                if chunks.len() == MIN_LINK_CHUNKS {
                    let oldest = chunks.pop_front().expect("two");
                    room.free(oldest.last().expect("never empty").2);
                }
                let mut pieces = vec![];
                let mut left = message;
                while left > 0 {
                    let place = room.place(left.min(max_piece)).expect("two chunks fit");
                    prop_assert!(place.offset.is_multiple_of(ALIGN));
                    prop_assert!(place.offset + place.bytes <= geometry.data_bytes());
                    prop_assert!(place.bytes == left.min(max_piece) || place.bytes >= ALIGN);
                    prop_assert!(place.bytes == left.min(max_piece) || place.bytes.is_multiple_of(ALIGN));
                    for (other, bytes, _) in chunks.iter().flatten().chain(&pieces) {
                        prop_assert!(
                            place.offset + place.bytes <= other.offset || other.offset + bytes <= place.offset
                        );
                    }
                    room.take(place, place.bytes);
                    pieces.push((place, place.bytes, room.end()));
                    left -= place.bytes;
                }
                prop_assert!(pieces.len() <= MAX_CHUNK_PIECES + 1, "{} pieces", pieces.len());
                chunks.push_back(pieces);
            }
        }
    }

    #[test]
    fn refuses_sizes_that_do_not_work() {
        assert_eq!(Geometry::new(3, 1 << 20), None);
        assert_eq!(Geometry::new(2, 1 << 20), None);
        assert_eq!(Geometry::new(64, 128), None);
        assert_eq!(Geometry::new(64, 1000), None);
        assert_eq!(Geometry::new(64, 1 << 31), None);
    }

    #[test]
    fn rings_shrink_with_the_number_of_ranks() {
        let sizes =
            [1, 2, 4, 8, 256].map(|ranks| Geometry::for_local_ranks(ranks).data_bytes() >> 10);
        assert_eq!(sizes, [1024, 1024, 512, 128, 64]);
    }
}
