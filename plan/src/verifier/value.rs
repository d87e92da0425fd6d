//! Symbolic values: what an element holds, as a tree of contributions.
//!
//! Trees are stored once each, so that equal trees have equal numbers. `a ⊕ b` and `b ⊕ a` are the same
//! tree, `(a ⊕ b) ⊕ c` and `a ⊕ (b ⊕ c)` are not: addition of floating point numbers commutes but does
//! not associate.

use std::collections::HashMap;

use crate::{Buffer, Rank};

/// What one element holds: a tree over the ranks, for one element of their inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    tree: u32,
    element: u32,
}

impl Value {
    /// Never written.
    pub(super) const UNDEFINED: Self = Self { tree: 0, element: 0 };

    pub(super) fn is_defined(self) -> bool {
        self.tree != 0
    }

    /// The same tree over another element.
    pub(super) fn at(self, element: usize) -> Self {
        Self { element: element as u32, ..self }
    }

    /// Whether two values are combined in the same order.
    pub(super) fn same_order(self, other: Self) -> bool {
        self.tree == other.tree
    }
}

/// Why two values cannot be combined.
pub(super) struct Mismatch {
    pub(super) first: String,
    pub(super) second: String,
    pub(super) reason: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Tree {
    Undefined,
    Source { rank: Rank, buffer: Buffer },
    Combined(u32, u32),
    Finished(u32),
}

/// All values of one run.
pub(super) struct Values {
    trees: Vec<Tree>,
    /// The ranks whose contribution each tree holds, as bits.
    ranks: Vec<Box<[u64]>>,
    numbers: HashMap<Tree, u32>,
    everybody: Box<[u64]>,
    /// The last combination, since neighbouring elements mostly ask the same.
    last: ([u32; 2], bool, u32),
}

impl Values {
    pub(super) fn new(world: usize) -> Self {
        let words = world.div_ceil(64);
        let mut everybody = vec![0; words].into_boxed_slice();
        (0..world).for_each(|rank| everybody[rank / 64] |= 1 << (rank % 64));
        let none = vec![0; words].into_boxed_slice();
        Self {
            trees: vec![Tree::Undefined],
            ranks: vec![none],
            numbers: HashMap::new(),
            everybody,
            last: ([0; 2], false, 0),
        }
    }

    /// The first element that `rank` brings in `buffer`.
    pub(super) fn source(&mut self, rank: Rank, buffer: Buffer) -> Value {
        let mut ranks = self.ranks[0].clone();
        ranks[rank / 64] |= 1 << (rank % 64);
        let tree = self.number(Tree::Source { rank, buffer }, ranks);
        Value { tree, element: 0 }
    }

    /// `a ⊕ b`, finished if this is the last combination. Both are defined.
    pub(super) fn combine(&mut self, a: Value, b: Value, finish: bool) -> Result<Value, Mismatch> {
        let mismatch = |values: &Self, reason| {
            Err(Mismatch { first: values.describe(a), second: values.describe(b), reason })
        };
        if a.element != b.element {
            return mismatch(self, "different elements");
        }
        let operands = [a.tree.min(b.tree), a.tree.max(b.tree)];
        if self.last.0 == operands && self.last.1 == finish {
            return Ok(Value { tree: self.last.2, element: a.element });
        }
        if operands.iter().any(|&tree| matches!(self.trees[tree as usize], Tree::Finished(_))) {
            return mismatch(self, "finished already");
        }
        let [left, right] = operands.map(|tree| &self.ranks[tree as usize]);
        if left.iter().zip(right).any(|(left, right)| left & right != 0) {
            return mismatch(self, "a contribution would count twice");
        }
        let ranks: Box<[u64]> = left.iter().zip(right).map(|(left, right)| left | right).collect();
        if finish && ranks != self.everybody {
            return mismatch(self, "finished before every contribution is in");
        }
        let mut tree = self.number(Tree::Combined(operands[0], operands[1]), ranks);
        if finish {
            let ranks = self.everybody.clone();
            tree = self.number(Tree::Finished(tree), ranks);
        }
        self.last = (operands, finish, tree);
        Ok(Value { tree, element: a.element })
    }

    /// Whether `value` is the complete reduction of `element`. A single rank has nothing to combine.
    pub(super) fn is_complete(&self, value: Value, element: usize) -> bool {
        let complete = match self.trees[value.tree as usize] {
            Tree::Finished(_) => true,
            Tree::Source { buffer, .. } => buffer == Buffer::Input && self.is_everybody(value),
            Tree::Undefined | Tree::Combined(..) => false,
        };
        complete && value.element as usize == element
    }

    /// Whether `value` is the `element`-th element that `rank` brought in `buffer`.
    pub(super) fn is_source(
        &self,
        value: Value,
        rank: Rank,
        buffer: Buffer,
        element: usize,
    ) -> bool {
        self.trees[value.tree as usize] == Tree::Source { rank, buffer }
            && value.element as usize == element
    }

    fn is_everybody(&self, value: Value) -> bool {
        self.ranks[value.tree as usize] == self.everybody
    }

    /// `finished((0 ⊕ 1) ⊕ 2) of element 5`.
    pub(super) fn describe(&self, value: Value) -> String {
        let mut text = String::new();
        self.write(value.tree, &mut text);
        if value.is_defined() {
            text += &format!(" of element {}", value.element);
        }
        text
    }

    fn write(&self, tree: u32, text: &mut String) {
        match self.trees[tree as usize] {
            Tree::Undefined => *text += "undefined bytes",
            Tree::Source { rank, buffer: Buffer::Input } => *text += &rank.to_string(),
            Tree::Source { rank, buffer } => *text += &format!("{rank}'s {buffer:?}"),
            Tree::Combined(left, right) => {
                *text += "(";
                self.write(left, text);
                *text += " ⊕ ";
                self.write(right, text);
                *text += ")";
            }
            Tree::Finished(of) => {
                *text += "finished";
                self.write(of, text);
            }
        }
    }

    fn number(&mut self, tree: Tree, ranks: Box<[u64]>) -> u32 {
        *self.numbers.entry(tree).or_insert_with(|| {
            self.trees.push(tree);
            self.ranks.push(ranks);
            self.trees.len() as u32 - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commutes_but_does_not_associate() {
        let mut values = Values::new(3);
        let [a, b, c] = [0, 1, 2].map(|rank| values.source(rank, Buffer::Input).at(7));
        let mut combine = |a, b| values.combine(a, b, false).ok().expect("fits");
        let (ab, bc) = (combine(a, b), combine(b, c));
        assert_eq!(ab, combine(b, a));
        let (left, right) = (combine(ab, c), combine(a, bc));
        assert_eq!(left, combine(c, ab));
        assert!(!left.same_order(right));
        assert_eq!(values.describe(right), "(0 ⊕ (1 ⊕ 2)) of element 7");
    }

    #[test]
    fn counts_each_contribution_once_and_finishes_once() {
        let mut values = Values::new(2);
        let [a, b] = [0, 1].map(|rank| values.source(rank, Buffer::Input));
        let other = b.at(1);
        let reason = |values: &mut Values, a, b, finish| {
            values.combine(a, b, finish).err().map(|mismatch| mismatch.reason)
        };
        assert_eq!(reason(&mut values, a, other, false), Some("different elements"));
        assert_eq!(reason(&mut values, a, a, false), Some("a contribution would count twice"));
        let done = values.combine(a, b, true).ok().expect("fits");
        assert!(values.is_complete(done, 0) && !values.is_complete(done, 1));
        let open = values.combine(a, b, false).ok().expect("fits");
        assert!(!values.is_complete(open, 0));
        assert_eq!(reason(&mut values, done, b, false), Some("finished already"));
        let mut three = Values::new(3);
        let [a, b] = [0, 1].map(|rank| three.source(rank, Buffer::Input));
        let early = "finished before every contribution is in";
        assert_eq!(reason(&mut three, a, b, true), Some(early));
    }
}
