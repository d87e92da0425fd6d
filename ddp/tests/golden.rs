//! Buckets and samplers against what PyTorch itself gives, and their rules for arbitrary input.

use std::collections::BTreeMap;
use std::path::Path;

use annulus_ddp::buckets::{TensorSize, assign};
use annulus_ddp::{DistributedSampler, Error, EvaluationSampler, Shard, Tail};
use proptest::prelude::*;
use serde_json::Value;

/// Cases recorded from PyTorch, or `None` where they are not at hand.
fn golden(name: &str) -> Option<Vec<Value>> {
    let roots = [
        concat!(env!("CARGO_MANIFEST_DIR"), "/../shared"),
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared"),
    ];
    let roots = roots.map(str::to_owned).into_iter().chain(std::env::var("ANNULUS_SHARED").ok());
    for root in roots {
        let path = Path::new(&root).join("golden").join(name);
        if let Ok(text) = std::fs::read_to_string(&path) {
            return Some(serde_json::from_str(&text).expect("a list of cases"));
        }
    }
    println!(
        "skipped: {name}: the recorded cases are not beside the repository (shared/golden, or $ANNULUS_SHARED/golden)"
    );
    None
}

fn number(value: &Value) -> usize {
    value.as_u64().expect("a number") as usize
}

fn numbers(value: &Value) -> Vec<usize> {
    value.as_array().expect("a list").iter().map(number).collect()
}

fn lists(value: &Value) -> Vec<Vec<usize>> {
    value.as_array().expect("a list").iter().map(numbers).collect()
}

fn size(dtype: &str) -> usize {
    match dtype {
        "float64" => 8,
        "float32" => 4,
        "float16" | "bfloat16" => 2,
        other => panic!("unknown type {other}"),
    }
}

#[test]
fn buckets_are_pytorchs() {
    for case in golden("bucket_assignment.json").unwrap_or_default() {
        let sparse = case["sparse"].as_array().expect("a list");
        let tensors: Vec<TensorSize<&str>> = case["tensors"]
            .as_array()
            .expect("a list")
            .iter()
            .enumerate()
            .map(|(index, tensor)| {
                let key = tensor[1].as_str().expect("a type");
                let sparse = sparse.get(index).is_some_and(|sparse| sparse == true);
                TensorSize { bytes: number(&tensor[0]) * size(key), key, sparse }
            })
            .collect();
        let order = numbers(&case["tensor_indices"]);
        let order = (!order.is_empty()).then_some(order);
        let assigned = assign(&tensors, &numbers(&case["limits"]), order.as_deref());
        let buckets: Vec<_> = assigned.iter().map(|bucket| bucket.tensors.clone()).collect();
        let limits: Vec<_> = assigned.iter().map(|bucket| bucket.limit).collect();
        assert_eq!(buckets, lists(&case["buckets"]), "{case}");
        assert_eq!(limits, numbers(&case["per_bucket_limits"]), "{case}");
    }
}

#[test]
fn samplers_are_pytorchs() {
    for case in golden("distributed_sampler.json").unwrap_or_default() {
        let flag = |name: &str| case[name].as_bool().expect("a flag");
        let (n, world) = (number(&case["n"]), number(&case["world"]));
        for (rank, expected) in lists(&case["ranks"]).into_iter().enumerate() {
            let mut sampler = DistributedSampler::new(n, world, rank)
                .expect("such a rank")
                .shuffle(flag("shuffle"))
                .drop_last(flag("drop_last"))
                .seed(case["seed"].as_u64().expect("a seed"));
            sampler.set_epoch(case["epoch"].as_u64().expect("an epoch"));
            assert_eq!(sampler.len(), number(&case["num_samples"]), "{case}");
            assert_eq!(sampler.indices(), expected, "rank {rank}: {case}");
        }
    }
}

/// The table of the reference, for where the recorded cases are missing.
#[test]
fn known_buckets_and_samples() {
    let tensors = |counts: &[usize]| -> Vec<TensorSize<u8>> {
        counts.iter().map(|count| TensorSize { bytes: 4 * count, key: 0, sparse: false }).collect()
    };
    let buckets = |counts: &[usize], limits: &[usize]| -> Vec<Vec<usize>> {
        assign(&tensors(counts), limits, None).into_iter().map(|bucket| bucket.tensors).collect()
    };
    assert_eq!(buckets(&[50; 7], &[200, 400]), [vec![0], vec![1, 2], vec![3, 4], vec![5, 6]]);
    assert_eq!(buckets(&[200, 10, 10, 1000, 10], &[100, 400]), [vec![0], vec![1, 2, 3], vec![4]]);
    assert_eq!(buckets(&[0, 100, 0], &[400]), [vec![0, 1], vec![2]]);
    assert_eq!(buckets(&[5, 6], &[]), [vec![0, 1]]);
    let sampler = |rank| DistributedSampler::new(10, 3, rank).expect("a rank").shuffle(true);
    assert_eq!(sampler(0).indices(), [4, 5, 0, 2]);
    assert_eq!(sampler(2).indices(), [7, 9, 6, 1]);
    assert!(matches!(DistributedSampler::new(10, 3, 3), Err(Error::Rank { rank: 3, world: 3 })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_tensor_has_one_bucket_of_its_key(
        tensors in prop::collection::vec((0_usize..5000, 0_u8..3, any::<bool>()), 0..40),
        limits in prop::collection::vec(1_usize..8000, 1..4),
    ) {
        let tensors: Vec<_> = tensors
            .into_iter()
            .map(|(bytes, key, sparse)| TensorSize { bytes, key, sparse })
            .collect();
        let assigned = assign(&tensors, &limits, None);
        let mut all: Vec<usize> = assigned.iter().flat_map(|bucket| bucket.tensors.clone()).collect();
        all.sort_unstable();
        prop_assert_eq!(all, (0..tensors.len()).collect::<Vec<_>>());
        for bucket in &assigned {
            let first = &tensors[bucket.tensors[0]];
            for &tensor in &bucket.tensors {
                prop_assert_eq!(tensors[tensor].key, first.key);
                prop_assert!(!tensors[tensor].sparse || bucket.tensors.len() == 1);
            }
            // Without its last tensor, a bucket is below its limit: the limit was reached by that one.
            let but_last: usize = bucket.tensors.iter().rev().skip(1).map(|&t| tensors[t].bytes).sum();
            prop_assert!(bucket.tensors.len() == 1 || but_last < bucket.limit);
        }
    }

    #[test]
    fn training_samples_cover_everything_and_ranks_get_equally_many(
        n in 0_usize..200, world in 1_usize..12, shuffle: bool, drop_last: bool, seed: u64, epoch in 0_u64..9,
    ) {
        let mut counts = BTreeMap::new();
        for rank in 0..world {
            let sampler = DistributedSampler::new(n, world, rank).unwrap();
            let mut sampler = sampler.shuffle(shuffle).drop_last(drop_last).seed(seed);
            sampler.set_epoch(epoch);
            let indices = sampler.indices();
            prop_assert_eq!(indices.len(), sampler.len());
            for index in indices {
                prop_assert!(index < n);
                *counts.entry(index).or_insert(0) += 1;
            }
        }
        if drop_last {
            prop_assert!(counts.values().all(|&count| count == 1));
            prop_assert!(n - counts.len() < world.max(1) || n < world);
        } else {
            prop_assert_eq!(counts.len(), n);
        }
    }

    /// Guards against pytorch#25162 and pytorch#22584: padding repeats samples, and metrics are wrong.
    #[test]
    fn evaluation_sees_each_sample_once(n in 0_usize..200, world in 1_usize..12, batch in 1_usize..9) {
        let mut all = Vec::new();
        for rank in 0..world {
            let sampler = EvaluationSampler::new(n, world, rank).unwrap();
            let batches: Vec<usize> = sampler.batches(batch).flatten().collect();
            prop_assert_eq!(&batches, &sampler.indices().collect::<Vec<_>>());
            prop_assert!(batches.len().abs_diff(n / world) <= 1);
            all.extend(batches);
        }
        prop_assert_eq!(all, (0..n).collect::<Vec<_>>());
    }

    #[test]
    fn streams_are_shared_out(n in 0_usize..100, world in 1_usize..8) {
        let shards = |tail| -> Vec<Vec<usize>> {
            (0..world).map(|rank| Shard::new(0..n, world, rank, tail).unwrap().collect()).collect()
        };
        let mut kept: Vec<usize> = shards(Tail::Keep).concat();
        kept.sort_unstable();
        prop_assert_eq!(kept, (0..n).collect::<Vec<_>>());
        prop_assert!(shards(Tail::Drop).iter().all(|shard| shard.len() == n / world));
    }
}
