//! What averages are.

use annulus::{Communicator, Config, DataType};
use annulus_ddp::hooks::InRankOrder;
use annulus_ddp::{Averaging, Error, Model, Options, Parameter, Reducer};
use half::bf16;

use crate::fixture::{averaged, backward, hand_in, model, parameter, small, value};
use crate::ranks::{on_ranks, on_ranks_with};

#[test]
fn averages_over_ranks_in_every_step() {
    for world in [1, 2, 3] {
        let results = on_ranks(world, |comm| {
            let rank = comm.rank();
            let reducer = Reducer::new(&comm, model(), small()).expect("equal models");
            assert!(reducer.buckets().len() > 2, "{:?}", reducer.buckets());
            let mut steps = Vec::new();
            for step in 0..4 {
                reducer.begin(Some(3)).expect("begun");
                backward(&reducer, rank, step, &[]).expect("all gradients");
                let report = reducer.finish().expect("reduced");
                assert_eq!((report.step, report.samples), (step as u64, 3 * world as u64));
                steps.push((0..5).map(|index| averaged(&reducer, index)).collect::<Vec<_>>());
            }
            steps
        });
        for rank in &results {
            assert_eq!(rank, &results[0], "all ranks have the same bits");
        }
        for (step, gradients) in results[0].iter().enumerate() {
            for (index, gradient) in gradients.iter().enumerate() {
                for (element, got) in gradient.as_ref().expect("used").iter().enumerate() {
                    let sum: f32 = (0..world).map(|rank| value(rank, index, element, step)).sum();
                    let expected = sum / world as f32;
                    assert!(
                        (got - expected).abs() < 2e-3,
                        "{world} ranks, {index}: {got} {expected}"
                    );
                }
            }
        }
    }
}

/// Guards against the two ways of rounding in PyTorch, where the division depends on the path.
#[test]
fn one_order_of_averaging_on_every_path() {
    let paths = on_ranks(3, |comm| {
        let odd = |rank: usize| vec![0.1 * (rank as f32 + 1.0), 1.0 / 3.0, 1e-7];
        let model = || Model::new(vec![parameter("weight", &[3])]);
        let samples = Options { averaging: Averaging::Samples, ..Options::default() };
        let mut results = Vec::new();
        for (options, begin) in [(Options::default(), None), (samples, Some(7))] {
            let reducer = Reducer::new(&comm, model(), options).expect("equal models");
            for direct in [false, true] {
                reducer.begin(begin).expect("begun");
                let gradient = odd(comm.rank());
                if direct {
                    reducer.ready_with(0, |place: &mut [f32]| place.copy_from_slice(&gradient))
                } else {
                    reducer.ready(0, &gradient)
                }
                .expect("a gradient");
                reducer.finish().expect("reduced");
                results.push(reducer.gradient::<f32>(0).expect("f32"));
            }
        }
        results
    });
    for rank in &paths {
        for path in rank {
            assert_eq!(path, &paths[0][0]);
        }
    }
}

#[test]
fn buckets_follow_the_order_of_rank_zeros_gradients() {
    on_ranks(2, |comm| {
        let parameters = (0..4).map(|index| parameter(&format!("layer {index}"), &[16])).collect();
        let reducer = Reducer::new(&comm, Model::new(parameters), small()).expect("equal models");
        let order = |reducer: &Reducer| -> Vec<usize> {
            let buckets = reducer.buckets();
            buckets
                .iter()
                .flat_map(|bucket| &bucket.members)
                .map(|member| member.parameter)
                .collect()
        };
        assert_eq!(order(&reducer), [3, 2, 1, 0]);
        let orders = [[1, 3, 0, 2], [0, 1, 2, 3]];
        for step in 0..3 {
            reducer.begin(None).expect("begun");
            for index in orders[comm.rank()] {
                hand_in(&reducer, comm.rank(), index, step).expect("a gradient");
            }
            reducer.finish().expect("reduced");
        }
        assert_eq!(order(&reducer), orders[0]);
    });
}

#[test]
fn accumulates_without_communication_and_reduces_the_sum() {
    let results = on_ranks(2, |comm| {
        let reducer = Reducer::new(&comm, model(), small()).expect("equal models");
        let mut sums = Vec::new();
        for step in 0..2 {
            for pass in 0..3 {
                let last = pass == 2;
                if last { reducer.begin(None) } else { reducer.begin_accumulating(None) }
                    .expect("begun");
                backward(&reducer, comm.rank(), pass + step, &[]).expect("gradients");
                assert_eq!(reducer.finish().expect("finished").synchronised, last);
            }
            sums.push(averaged(&reducer, 0).expect("used"));
        }
        sums
    });
    assert_eq!(results[0], results[1]);
    for (step, sums) in results[0].iter().enumerate() {
        let sum = |element| -> f32 {
            let passes = (0..3).flat_map(|pass| (0..2).map(move |rank| (pass, rank)));
            passes.map(|(pass, rank)| value(rank, 0, element, pass + step)).sum()
        };
        for (element, got) in sums.iter().enumerate() {
            assert!((got - sum(element) / 2.0).abs() < 1e-5);
        }
    }
}

/// The mean over samples, not over ranks, also with a rank that has none and one that makes two passes.
#[test]
fn averages_over_samples() {
    let results = on_ranks(3, |comm| {
        let options = Options { averaging: Averaging::Samples, ..small() };
        let model = Model::new(vec![parameter("weight", &[2])]);
        let reducer = Reducer::new(&comm, model, options).expect("equal models");
        assert!(matches!(reducer.begin(None), Err(Error::SamplesUnknown)));
        match comm.rank() {
            0 => reducer.begin(Some(1)).and_then(|()| reducer.ready(0, &[10.0_f32, 1.0])),
            // The mean over no samples is undefined, and counts for nothing.
            1 => reducer.begin(Some(0)).and_then(|()| reducer.ready(0, &[f32::NAN, f32::NAN])),
            _ => {
                reducer.begin_accumulating(Some(2)).expect("begun");
                reducer.ready(0, &[4.0_f32, 1.0]).expect("a gradient");
                reducer.finish().expect("accumulated");
                reducer.begin(Some(5)).and_then(|()| reducer.ready(0, &[2.0_f32, 1.0]))
            }
        }
        .expect("a gradient");
        assert_eq!(reducer.finish().expect("reduced").samples, 8);
        reducer.gradient::<f32>(0).expect("f32").expect("used")
    });
    for gradient in &results {
        assert_eq!(gradient, &results[0]);
        assert!((gradient[0] - (10.0 + 2.0 * 4.0 + 5.0 * 2.0) / 8.0).abs() < 1e-6, "{gradient:?}");
        assert!((gradient[1] - 1.0).abs() < 1e-6, "{gradient:?}");
    }
}

#[test]
fn norms_and_scales_cover_all_gradients() {
    on_ranks(2, |comm| {
        let model =
            Model::new(vec![parameter("a", &[3]), Parameter::new("b", &[1], DataType::Bf16)]);
        let reducer = Reducer::new(&comm, model, small()).expect("equal models");
        reducer.begin(None).expect("begun");
        reducer.ready(0, &[2.0_f32, 4.0, 4.0]).expect("a gradient");
        reducer.ready(1, &[bf16::from_f32(8.0)]).expect("a gradient");
        reducer.finish().expect("reduced");
        assert_eq!(reducer.gradient_norm(), 10.0);
        reducer.scale_gradients(0.5);
        assert_eq!(reducer.gradient::<f32>(0).expect("f32"), Some(vec![1.0, 2.0, 2.0]));
    });
}

/// Guards against NVIDIA/nccl#157 and ROCm/rocm-systems#11661: sums that depend on how gradients are put into messages.
#[test]
fn averages_in_rank_order_depend_on_neither_buckets_nor_algorithm() {
    // Sums of these depend on their order.
    let element = |rank: usize, i: usize| [1e8, -1e8, 1.0][(rank + i) % 3] + i as f32 * 0.37;
    let average = |comm: Communicator| {
        [64, 1 << 20].map(|bytes| {
            let options =
                Options { first_bucket_bytes: bytes, bucket_bytes: bytes, ..Options::default() };
            let parameters = (0..6).map(|index| parameter(&format!("{index}"), &[300 * index + 1]));
            let (model, hook) = (Model::new(parameters.collect()), Box::new(InRankOrder::new()));
            let reducer = Reducer::with_hook(&comm, model, options, hook).expect("equal models");
            let hand_in = || {
                reducer.begin(None).expect("begun");
                for index in 0..6 {
                    let mine = (0..300 * index + 1).map(|i| element(comm.rank(), i));
                    reducer.ready(index, &mine.collect::<Vec<f32>>()).expect("a gradient");
                }
                reducer.finish().expect("reduced");
                averaged(&reducer, 5).expect("used")
            };
            let whole = hand_in();
            // And once more while rank 2 contributes nothing.
            let without = (comm.rank() < 2).then(hand_in);
            reducer.join().expect("all join");
            (whole, without)
        })
    };
    let expected = |count: usize| -> Vec<f32> {
        let sum = |i| (1..count).fold(element(0, i), |sum, rank| sum + element(rank, i));
        (0..1501).map(|i| sum(i) / 3.0).collect()
    };
    for algorithm in ["ring", "tree", "two-shot"] {
        let config =
            Config::from_vars(|name| (name == "ANNULUS_ALGO").then(|| algorithm.to_owned()));
        for rank in on_ranks_with(3, &config.expect("an algorithm"), average) {
            for (whole, without) in rank {
                assert_eq!(whole, expected(3));
                assert!(without.is_none_or(|without| without == expected(2)));
            }
        }
    }
}

/// Guards against pytorch#111131, pytorch/gloo#454 and torchmetrics#1809: no bf16, or sums in bf16 that lose what is small.
#[test]
fn sixteen_bit_gradients_are_summed_in_thirty_two() {
    let results = on_ranks(2, |comm| {
        let dtypes = [DataType::Bf16, DataType::F16];
        let parameters =
            dtypes.map(|dtype| Parameter::new(dtype.to_string(), &[2], dtype)).to_vec();
        let reducer = Reducer::new(&comm, Model::new(parameters), small()).expect("equal models");
        reducer.begin(None).expect("begun");
        // 256 + 3 is no bf16, but half of it rounds to one that is closer than half of any rounded sum below it.
        let mine = [[256.0, 3.0], [3.0, 256.0]][comm.rank()];
        reducer.ready(0, &mine.map(bf16::from_f32)).expect("a gradient");
        // 60000 + 60000 is no f16, but its half is.
        reducer.ready(1, &[half::f16::from_f32(60000.0); 2]).expect("a gradient");
        reducer.finish().expect("reduced");
        (
            reducer.gradient::<bf16>(0).expect("bf16").expect("used"),
            reducer.gradient::<half::f16>(1).expect("f16").expect("used"),
        )
    });
    for (bf, f) in &results {
        assert_eq!(bf, &[bf16::from_f32(129.5); 2]);
        assert_eq!(f, &[half::f16::from_f32(60000.0); 2]);
    }
}

/// Guards against pytorch#85234: nothing to send is a fault somewhere.
#[test]
fn parameters_without_elements_are_averaged_like_others() {
    for world in [1, 3] {
        on_ranks(world, |comm| {
            let options = Options { check_finite: true, ..small() };
            let nothing = || parameter("nothing", &[0, 3]);
            for parameters in [vec![nothing()], vec![nothing(), parameter("one", &[1])]] {
                let count = parameters.len();
                let reducer = Reducer::new(&comm, Model::new(parameters), options.clone())
                    .expect("equal models");
                for step in 0..3 {
                    reducer.begin(None).expect("begun");
                    for index in 0..count {
                        hand_in(&reducer, comm.rank(), index, step).expect("a gradient");
                    }
                    assert_eq!(reducer.finish().expect("reduced").non_finite, None);
                    assert_eq!(averaged(&reducer, 0), Some(vec![]));
                }
                assert!(reducer.gradient_norm().is_finite());
            }
        });
    }
}
