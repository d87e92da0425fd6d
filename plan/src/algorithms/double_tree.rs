//! Two binary trees over the same nodes, in which every node has children in at most one of the
//! trees.
//!
//! The first tree is the in-order tree: number the nodes from 1; odd ones are leaves, and a
//! subtree's root is the node of its range that is divisible by the highest power of two. The
//! second is the first with the nodes renamed so that the inner nodes of one are leaves of the
//! other: mirrored if there is an even number of nodes, moved on by one if there is an odd number.
//! Since each node sends to two children in one tree only, two halves of a message, one down each
//! tree, use the full bandwidth of every node.

/// A node's place in one of the trees; nodes are numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// `None` at the top.
    pub(super) parent: Option<usize>,
    /// Up to two.
    pub(super) children: Vec<usize>,
}

/// The place of `node` in tree 0 or 1 over `nodes` (> `node`) nodes.
pub(super) fn place(nodes: usize, tree: usize, node: usize) -> Place {
    let number = number(nodes, tree, node);
    let (mut low, mut high, mut parent) = (1, nodes, None);
    loop {
        let top = most_divisible(low, high);
        if number == top {
            let below =
                [(low, top - 1), (top + 1, high)].into_iter().filter(|(low, high)| low <= high);
            return Place {
                parent: parent.map(|parent| node_of(nodes, tree, parent)),
                children: below
                    .map(|(low, high)| node_of(nodes, tree, most_divisible(low, high)))
                    .collect(),
            };
        }
        parent = Some(top);
        if number < top {
            high = top - 1;
        } else {
            low = top + 1;
        }
    }
}

/// The node at the top of tree 0 or 1 over `nodes` (> 0) nodes.
pub(super) fn top(nodes: usize, tree: usize) -> usize {
    node_of(nodes, tree, most_divisible(1, nodes))
}

/// The in-order number, from 1, of a node in a tree.
fn number(nodes: usize, tree: usize, node: usize) -> usize {
    match tree {
        0 => node + 1,
        _ if nodes.is_multiple_of(2) => nodes - node,
        _ => (node + 1) % nodes + 1,
    }
}

fn node_of(nodes: usize, tree: usize, number: usize) -> usize {
    match tree {
        0 => number - 1,
        _ if nodes.is_multiple_of(2) => nodes - number,
        _ => (number + nodes - 2) % nodes,
    }
}

/// The number in `low..=high` (`low` > 0) that the highest power of two divides.
fn most_divisible(low: usize, high: usize) -> usize {
    let differing = ((low - 1) ^ high).ilog2();
    high >> differing << differing
}

#[cfg(test)]
mod tests {
    use std::iter::successors;

    use super::*;

    #[test]
    fn the_trees_are_trees_and_share_no_inner_node() {
        for nodes in 1..=130 {
            let places = |tree| (0..nodes).map(move |node| place(nodes, tree, node));
            for tree in 0..2 {
                let all: Vec<_> = places(tree).collect();
                for (node, here) in all.iter().enumerate() {
                    assert_eq!(here.parent.is_none(), node == top(nodes, tree));
                    assert!(here.children.len() <= 2);
                    for &child in &here.children {
                        assert_eq!(all[child].parent, Some(node));
                    }
                    let above = successors(here.parent, |&parent| all[parent].parent);
                    assert!(above.take(nodes).count() <= nodes.ilog2() as usize);
                }
            }
            let leaf = |place: &Place| place.children.is_empty();
            assert!(places(0).zip(places(1)).all(|(first, second)| leaf(&first) || leaf(&second)));
        }
    }
}
