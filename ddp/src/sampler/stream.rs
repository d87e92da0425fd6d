//! Streams: data whose length is not known.

use crate::Error;

/// What becomes of the last items of a stream, if they do not suffice for all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// They are left out: all ranks get equally many, as training needs where ranks do not
    /// [join](crate::Reducer::join).
    Drop,
    /// The first ranks get one each: every item is seen once, as evaluation needs.
    Keep,
}

/// One rank's share of a stream that every rank reads: items rank, rank + world, rank + 2 world ...
///
/// Reads up to a whole round ahead of what it gives, one item for each rank, and keeps one of them.
#[derive(Clone, Debug)]
pub struct Shard<I> {
    stream: I,
    world: usize,
    rank: usize,
    tail: Tail,
}

impl<I: Iterator> Shard<I> {
    /// Rank `rank` of `world`'s share of `stream`, which must give the same items on every rank.
    ///
    /// # Errors
    /// [`Error::Rank`] if there is no such rank.
    pub fn new(stream: I, world: usize, rank: usize, tail: Tail) -> Result<Self, Error> {
        super::check(rank, world)?;
        Ok(Self { stream, world, rank, tail })
    }
}

impl<I: Iterator> Iterator for Shard<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        let (mut mine, mut round) = (None, 0);
        while round < self.world {
            let Some(item) = self.stream.next() else { break };
            if round == self.rank {
                mine = Some(item);
            }
            round += 1;
        }
        let whole = round == self.world;
        mine.filter(|_| whole || self.tail == Tail::Keep)
    }
}
