//! Which gradients travel together.

use std::collections::HashMap;
use std::hash::Hash;

/// What the assignment has to know of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSize<K> {
    /// The number of its bytes.
    pub bytes: usize,
    /// What tensors of one bucket have in common: their type and device.
    pub key: K,
    /// Whether its gradient is sparse: such a one has a bucket of its own.
    pub sparse: bool,
}

/// One bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// Its tensors, by index.
    pub tensors: Vec<usize>,
    /// The limit that closed it, in bytes; 0 for a sparse tensor's bucket.
    pub limit: usize,
}

/// Assigns tensors to buckets by PyTorch's rule.
///
/// Tensors are taken in order, or in the order of `order` if there is one: tensor `i` is then called `order[i]`. Each
/// key has one open bucket. A bucket is closed once its bytes have **reached** the current limit of its key, so that
/// it may be larger; the key then goes on to the next limit, and stays at the last. Without `order`, buckets are
/// sorted by their smallest index.
///
/// An empty `limits` sets none: one bucket per key.
///
/// # Panics
/// If `order` has another length than `tensors`.
pub fn assign<K: Copy + Eq + Hash>(
    tensors: &[TensorSize<K>],
    limits: &[usize],
    order: Option<&[usize]>,
) -> Vec<Assigned> {
    struct Open {
        tensors: Vec<usize>,
        bytes: usize,
        /// Position in the limits.
        position: usize,
    }

    assert!(order.is_none_or(|order| order.len() == tensors.len()), "one index for each tensor");
    let limit = |position: usize| limits.get(position).copied().unwrap_or(usize::MAX);
    let mut buckets = Vec::new();
    let mut open: HashMap<K, Open> = HashMap::new();
    // Keys in the order of their first tensor: the result must not depend on the map's order.
    let mut keys = Vec::new();
    for (position, tensor) in tensors.iter().enumerate() {
        let index = order.map_or(position, |order| order[position]);
        if tensor.sparse {
            buckets.push(Assigned { tensors: vec![index], limit: 0 });
            continue;
        }
        let bucket = open.entry(tensor.key).or_insert_with(|| {
            keys.push(tensor.key);
            Open { tensors: Vec::new(), bytes: 0, position: 0 }
        });
        bucket.tensors.push(index);
        bucket.bytes += tensor.bytes;
        if bucket.bytes >= limit(bucket.position) {
            let tensors = std::mem::take(&mut bucket.tensors);
            buckets.push(Assigned { tensors, limit: limit(bucket.position) });
            bucket.bytes = 0;
            bucket.position = (bucket.position + 1).min(limits.len().saturating_sub(1));
        }
    }
    for key in keys {
        let rest = &open[&key];
        if !rest.tensors.is_empty() {
            buckets.push(Assigned { tensors: rest.tensors.clone(), limit: limit(rest.position) });
        }
    }
    if order.is_none() {
        buckets.sort_by_key(|bucket| bucket.tensors.iter().min().copied());
    }
    buckets
}
