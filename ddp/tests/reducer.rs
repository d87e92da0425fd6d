//! The reducer on ranks that are threads: results, and what it refuses.

mod ranks;

use annulus::{Communicator, DataType};
use annulus_ddp::hooks::{AllReduce, Hook};
use annulus_ddp::{
    Averaging, Error, GradientBucket, LossScaler, Metrics, Model, Options, Parameter, Reducer,
    Unused,
};
use half::{bf16, f16};
use ranks::on_ranks;

fn parameter(name: &str, shape: &[usize]) -> Parameter {
    Parameter::new(name, shape, DataType::F32)
}

fn model() -> Model {
    Model::new(vec![
        parameter("first", &[4, 3]),
        parameter("nothing", &[0]),
        Parameter::new("half", &[5], DataType::F16),
        parameter("scalar", &[]),
        parameter("last", &[1000]),
    ])
}

/// Small buckets, so that there are several.
fn small() -> Options {
    Options { first_bucket_bytes: 64, bucket_bytes: 256, ..Options::default() }
}

fn value(rank: usize, parameter: usize, element: usize, step: usize) -> f32 {
    ((rank * 7 + parameter * 3 + element + step * 5) % 23) as f32 * 0.125 - 1.0
}

fn gradient(rank: usize, parameter: usize, count: usize, step: usize) -> Vec<f32> {
    (0..count).map(|element| value(rank, parameter, element, step)).collect()
}

/// Hands in all gradients of `model()`, in an order that differs between ranks.
fn backward(reducer: &Reducer, rank: usize, step: usize, except: &[usize]) -> Result<(), Error> {
    let count = reducer.model().parameters.len();
    for position in 0..count {
        let index = (position + rank) % count;
        if !except.contains(&index) {
            hand_in(reducer, rank, index, step)?;
        }
    }
    Ok(())
}

fn hand_in(reducer: &Reducer, rank: usize, index: usize, step: usize) -> Result<(), Error> {
    let parameter = &reducer.model().parameters[index];
    let values = gradient(rank, index, parameter.count(), step);
    match parameter.dtype {
        DataType::F16 => {
            reducer.ready(index, &values.into_iter().map(f16::from_f32).collect::<Vec<_>>())
        }
        _ if index.is_multiple_of(2) => reducer.ready(index, &values),
        _ => reducer.ready_with(index, |place: &mut [f32]| place.copy_from_slice(&values)),
    }
}

fn averaged(reducer: &Reducer, index: usize) -> Option<Vec<f32>> {
    match reducer.model().parameters[index].dtype {
        DataType::F16 => {
            let values = reducer.gradient::<f16>(index).expect("a float");
            values.map(|values| values.into_iter().map(f16::to_f32).collect())
        }
        _ => reducer.gradient::<f32>(index).expect("a float"),
    }
}

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

/// Guards against pytorch#44425 and its kin: a rank that accumulates while another reduces.
#[test]
fn ranks_that_accumulate_differently_are_told_in_that_step() {
    let errors = on_ranks(2, |comm| {
        let reducer = Reducer::new(&comm, model(), small()).expect("equal models");
        if comm.rank() == 1 {
            reducer.begin_accumulating(None).expect("begun");
            backward(&reducer, 1, 0, &[]).expect("gradients");
            reducer.finish().expect("nothing is reduced");
        }
        reducer.begin(None).expect("begun");
        backward(&reducer, comm.rank(), 0, &[]).expect("gradients");
        let error = reducer.finish().expect_err("not in step").to_string();
        // The next step is a new one.
        reducer.begin(None).expect("begun");
        backward(&reducer, comm.rank(), 1, &[]).expect("gradients");
        reducer.finish().expect("in step again");
        error
    });
    assert_eq!(errors[0], errors[1]);
    assert!(
        errors[0]
            .contains("rank 1: is in step 0 after 2 backward passes, rank 0 in step 0 after 1"),
        "{}",
        errors[0]
    );
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

/// Guards against pytorch#43259, #68862 and #57473, where it is told in the next iteration, without names.
#[test]
fn a_missing_gradient_is_named_in_the_same_step_on_every_rank() {
    let errors = on_ranks(2, |comm| {
        let reducer = Reducer::new(&comm, model(), small()).expect("equal models");
        let except: &[usize] = if comm.rank() == 1 { &[0, 4] } else { &[] };
        reducer.begin(None).expect("begun");
        backward(&reducer, comm.rank(), 0, except).expect("gradients");
        let error = reducer.finish().expect_err("a gradient is missing");
        reducer.begin(None).expect("begun");
        backward(&reducer, comm.rank(), 1, &[]).expect("gradients");
        reducer.finish().expect("the next step is whole");
        error.to_string()
    });
    assert_eq!(errors[0], errors[1]);
    assert!(
        errors[0].starts_with("step 0: rank 1: no gradient came for `first`, `last`"),
        "{}",
        errors[0]
    );
}

#[test]
fn unused_parameters_count_as_zero_where_others_use_them() {
    let results = on_ranks(2, |comm| {
        let options = Options { unused: Unused::Zero, ..small() };
        let reducer = Reducer::new(&comm, model(), options).expect("equal models");
        (0..2)
            .map(|step| {
                reducer.begin(None).expect("begun");
                let except: &[usize] = if comm.rank() == 1 { &[0, 4] } else { &[4] };
                backward(&reducer, comm.rank(), step, except).expect("gradients");
                let report = reducer.finish().expect("reduced");
                assert_eq!(report.unused, [4]);
                (averaged(&reducer, 0), averaged(&reducer, 4))
            })
            .collect::<Vec<_>>()
    });
    assert_eq!(results[0], results[1]);
    for (step, (partly, nowhere)) in results[0].iter().enumerate() {
        let expected: Vec<f32> = gradient(0, 0, 12, step).iter().map(|value| value / 2.0).collect();
        assert_eq!(partly.as_deref(), Some(&expected[..]));
        assert_eq!(*nowhere, None);
    }
}

#[test]
fn a_static_graph_may_leave_out_the_same_everywhere() {
    on_ranks(2, |comm| {
        let options = Options { unused: Unused::Static, ..small() };
        let reducer = Reducer::new(&comm, model(), options).expect("equal models");
        for step in 0..3 {
            reducer.begin(None).expect("begun");
            backward(&reducer, comm.rank(), step, &[3]).expect("gradients");
            assert_eq!(reducer.finish().expect("reduced").unused, [3]);
        }
        for (except, words) in
            [(&[][..], "`scalar` has a gradient"), (&[0, 3], "no gradient came for `first`")]
        {
            reducer.begin(None).expect("begun");
            backward(&reducer, comm.rank(), 3, except).expect("gradients");
            let error = reducer.finish().expect_err("changed").to_string();
            assert!(error.contains("training graph has changed in this iteration"), "{error}");
            assert!(error.contains(words), "{error}");
        }
    });
}

/// Guards against pytorch#72434: a static graph whose unused parameters differ between ranks.
#[test]
fn a_static_graph_that_differs_between_ranks_is_refused_in_the_first_step() {
    let errors = on_ranks(2, |comm| {
        let options = Options { unused: Unused::Static, ..small() };
        let reducer = Reducer::new(&comm, model(), options).expect("equal models");
        reducer.begin(None).expect("begun");
        let except: &[usize] = if comm.rank() == 1 { &[3, 4] } else { &[3] };
        backward(&reducer, comm.rank(), 0, except).expect("gradients");
        reducer.finish().expect_err("differs").to_string()
    });
    assert_eq!(errors[0], errors[1]);
    assert!(errors[0].contains("rank 1: does not use `last`, but other ranks do"), "{}", errors[0]);
}

fn differences(change: impl Fn(&mut Model) + Sync) -> Vec<String> {
    on_ranks(3, |comm| {
        let mut model = model();
        if comm.rank() == 1 {
            change(&mut model);
        }
        Reducer::new(&comm, model, small()).expect_err("models differ").to_string()
    })
}

/// Guards against pytorch#76449 and #73547: only some ranks learn of a difference, and not which.
#[test]
fn models_that_differ_are_refused_on_every_rank_with_the_difference() {
    let shape = differences(|model| model.parameters[0].shape = vec![3, 4]);
    let dtype = differences(|model| model.parameters[3].dtype = DataType::F64);
    let order = differences(|model| model.parameters.swap(3, 4));
    let count = differences(|model| drop(model.parameters.pop()));
    let frozen = differences(|model| model.parameters[0].requires_grad = false);
    let buffers = differences(|model| model.buffers.push(parameter("mean", &[2])));
    for (errors, words) in [
        (
            shape,
            r#"rank 1: has parameter 0 "first" f32 [3, 4] on device 0 where rank 0 has parameter 0 "first" f32 [4, 3]"#,
        ),
        (dtype, r#"has parameter 3 "scalar" f64 [] on device 0 where"#),
        (
            order,
            r#"has parameter 3 "last" f32 [1000] on device 0 where rank 0 has parameter 3 "scalar""#,
        ),
        (count, "has 4 parameters where rank 0 has 5 parameters"),
        (frozen, "on device 0, frozen where"),
        (buffers, r#"has buffer 0 "mean" f32 [2] on device 0 where rank 0 has nothing"#),
    ] {
        assert!(errors.iter().all(|error| error == &errors[0]));
        assert!(errors[0].contains(words), "{}", errors[0]);
    }
}

/// Guards against pytorch#68803: settings that differ hang in the first broadcast.
#[test]
fn settings_that_differ_are_refused() {
    let errors = on_ranks(2, |comm| {
        let bucket_bytes = 100 + comm.rank();
        Reducer::new(&comm, model(), Options { bucket_bytes, ..small() })
            .expect_err("differ")
            .to_string()
    });
    assert!(errors[0].contains("bucket_bytes: 101"), "{}", errors[0]);
    assert_eq!(errors[0], errors[1]);
}

#[test]
fn models_that_cannot_be_trained_are_refused() {
    on_ranks(2, |comm| {
        let new =
            |parameters| Reducer::new(&comm, Model::new(parameters), small()).expect_err("refused");
        assert!(matches!(new(vec![]), Error::NoParameters));
        assert!(matches!(new(vec![parameter("a", &[1]).frozen()]), Error::NoParameters));
        assert!(matches!(
            new(vec![parameter("a", &[1]), parameter("a", &[2])]),
            Error::DuplicateName { .. }
        ));
        let integer = vec![Parameter::new("a", &[1], DataType::I64)];
        assert!(matches!(new(integer), Error::ParameterType { .. }));
        // None of that has hurt the communicator.
        comm.barrier().expect("whole");
    });
}

#[test]
fn misuse_is_an_error_and_costs_nothing() {
    on_ranks(2, |comm| {
        let reducer = Reducer::new(&comm, model(), small()).expect("equal models");
        assert!(matches!(reducer.ready(0, &[0.0_f32; 12]), Err(Error::NotBegun)));
        assert!(matches!(reducer.finish(), Err(Error::NotBegun)));
        reducer.begin(None).expect("begun");
        assert!(matches!(
            reducer.ready(0, &[0.0_f32; 11]),
            Err(Error::Gradient { count: 12, got_count: 11, .. })
        ));
        assert!(matches!(reducer.ready(0, &[0.0_f64; 12]), Err(Error::Gradient { .. })));
        assert!(matches!(reducer.ready(9, &[0.0_f32]), Err(Error::NoSuchParameter { .. })));
        backward(&reducer, comm.rank(), 0, &[4]).expect("gradients");
        // A parameter that is used twice in the model must come once.
        let twice = hand_in(&reducer, comm.rank(), 3, 0).expect_err("twice").to_string();
        assert!(twice.contains("`scalar` (index 3) has been marked as ready twice"), "{twice}");
        let early = reducer.begin(None).expect_err("not finished").to_string();
        assert!(
            early.contains("finished reduction in the prior iteration") && early.contains("`last`"),
            "{early}"
        );
        hand_in(&reducer, comm.rank(), 4, 0).expect("the last");
        reducer.finish().expect("reduced");
    });
}

#[test]
fn a_rank_that_gives_up_tells_why() {
    let errors = on_ranks(2, |comm| {
        let reducer = Reducer::new(&comm, model(), small()).expect("equal models");
        reducer.begin(None).expect("begun");
        if comm.rank() == 1 {
            return reducer.give_up("the loss is NaN").to_string();
        }
        backward(&reducer, 0, 0, &[]).expect("gradients");
        reducer.finish().expect_err("rank 1 gave up").to_string()
    });
    assert_eq!(errors[0], "step 0: rank 1: the loss is NaN");
    assert_eq!(errors[0], errors[1]);
}

/// Guards against k2-fsa/snowfall#152: ranks wait for ever for one that has exited.
#[test]
fn a_rank_with_fewer_steps_is_named() {
    let errors = on_ranks(3, |comm| {
        let reducer = Reducer::new(&comm, model(), small()).expect("equal models");
        for step in 0..2 {
            if comm.rank() == 2 && step == 1 {
                return None;
            }
            reducer.begin(None).expect("begun");
            backward(&reducer, comm.rank(), step, &[]).expect("gradients");
            if let Err(error) = reducer.finish() {
                let again = reducer.begin(None).expect_err("for good").to_string();
                assert_eq!(again, error.to_string());
                return Some(error.to_string());
            }
        }
        panic!("rank 2 left");
    });
    for error in errors[..2].iter().flatten() {
        assert!(error.contains("rank 2"), "{error}");
    }
    assert_eq!(errors.iter().flatten().count(), 2);
}

#[test]
fn overflow_is_agreed_on_and_every_rank_skips() {
    let results = on_ranks(2, |comm| {
        let options = Options { check_finite: true, ..small() };
        let reducer = Reducer::new(&comm, model(), options).expect("equal models");
        let mut scaler = LossScaler::new(1024.0, 2);
        let mut trace = Vec::new();
        for step in 0..4 {
            reducer.begin(None).expect("begun");
            let broken = step == 1 && comm.rank() == 1;
            backward(&reducer, comm.rank(), step, if broken { &[3] } else { &[] })
                .expect("gradients");
            if broken {
                reducer.ready(3, &[f32::NAN]).expect("a gradient");
            }
            let report = reducer.finish().expect("reduced");
            let stepped = scaler.update(&report).expect("checked");
            trace.push((stepped, scaler.scale(), report.non_finite));
        }
        trace
    });
    assert_eq!(results[0], results[1]);
    let steps: Vec<(bool, f64)> = results[0].iter().map(|step| (step.0, step.1)).collect();
    assert_eq!(steps, [(true, 1024.0), (false, 512.0), (true, 512.0), (true, 1024.0)]);
    let culprit = results[0][1].2.as_ref().expect("found");
    assert_eq!((culprit.rank, culprit.parameter.as_str()), (Some(1), "scalar"));
}

#[test]
fn a_loss_scale_needs_checked_gradients() {
    on_ranks(1, |comm| {
        let reducer = Reducer::new(&comm, model(), small()).expect("a model");
        reducer.begin(None).expect("begun");
        backward(&reducer, 0, 0, &[]).expect("gradients");
        let report = reducer.finish().expect("reduced");
        assert!(matches!(LossScaler::default().update(&report), Err(Error::Setting { .. })));
    });
}

#[test]
fn a_slow_rank_is_named_by_the_report() {
    on_ranks(2, |comm| {
        let reducer = Reducer::new(&comm, model(), small()).expect("equal models");
        let report = (0..3).map(|step| {
            reducer.begin(None).expect("begun");
            if comm.rank() == 1 {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            backward(&reducer, comm.rank(), step, &[]).expect("gradients");
            reducer.finish().expect("reduced")
        });
        let report = report.last().expect("three steps");
        assert_eq!(report.slowest, 1, "{report}");
        assert!(report.waiting <= report.exposed && report.ranks.len() == 2);
        assert!(report.sent_bytes > 0);
    });
}

struct Broken;

impl Hook for Broken {
    fn name(&self) -> String {
        "broken".to_owned()
    }

    fn reduce(&mut self, bucket: GradientBucket<'_>, comm: &Communicator) -> Result<u64, Error> {
        assert!(bucket.index() != 1 || comm.rank() != 1, "as meant by the test");
        AllReduce.reduce(bucket, comm)
    }
}

#[test]
fn a_hook_that_panics_ends_all_ranks() {
    let errors = on_ranks(2, |comm| {
        let reducer =
            Reducer::with_hook(&comm, model(), small(), Box::new(Broken)).expect("equal models");
        reducer.begin(None).expect("begun");
        // Gradients may be refused already, if the hook was fast.
        let _ = backward(&reducer, comm.rank(), 0, &[]);
        reducer.finish().expect_err("a panic").to_string()
    });
    assert!(errors[0].contains("rank 1"), "{}", errors[0]);
    assert!(errors[1].contains("bucket 1 panicked"), "{}", errors[1]);
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

/// Guards against metrics of one rank only, and of padded samples (mosaicml/composer#2218).
#[test]
fn metrics_are_over_samples_and_names_are_compared() {
    on_ranks(2, |comm| {
        let mut metrics = Metrics::new();
        if comm.rank() == 0 {
            metrics.add_mean("loss", 2.0, 3.0);
            metrics.add_mean("loss", 4.0, 1.0);
        } else {
            metrics.add_mean("loss", f64::NAN, 0.0);
        }
        metrics.add_sum("right", 5.0);
        let reduced = metrics.all_reduce(&comm).expect("equal names");
        assert_eq!((reduced.mean("loss"), reduced.weight("loss")), (Some(2.5), Some(4.0)));
        assert_eq!((reduced.min("loss"), reduced.max("loss")), (Some(2.0), Some(4.0)));
        assert_eq!((reduced.sum("right"), reduced.mean("wrong")), (Some(10.0), None));
        assert_eq!(reduced.mean_of_rank("loss", 0), Some(2.5));

        let mut other = Metrics::new();
        other.add_sum(if comm.rank() == 0 { "a" } else { "b" }, 1.0);
        assert!(matches!(other.all_reduce(&comm), Err(Error::Metrics { rank: 1, .. })));
    });
}

/// Guards against pytorch#33148, pytorch#38174 and PL#3325: ranks with uneven inputs hang. Rank 0 has none at all, and
/// ranks join and go on together, twice.
#[test]
fn ranks_with_unequal_numbers_of_steps_join() {
    for averaging in [Averaging::Ranks, Averaging::Samples] {
        let steps = on_ranks(3, |comm| {
            let rank = comm.rank();
            let reducer = Reducer::new(&comm, model(), Options { averaging, ..small() })
                .expect("equal models");
            let mut firsts = Vec::new();
            for round in 0..2 {
                for step in 0..2 * rank {
                    reducer.begin(Some(1)).expect("begun");
                    backward(&reducer, rank, step, &[]).expect("gradients");
                    reducer.finish().expect("reduced");
                    firsts.push(averaged(&reducer, 0).expect("used")[0]);
                }
                assert_eq!(reducer.join().expect("all join"), 2, "round {round}");
            }
            // All in the same step and with the same buckets again.
            reducer.begin(Some(1)).expect("begun");
            backward(&reducer, rank, 9, &[]).expect("gradients");
            assert_eq!(reducer.finish().expect("reduced").step, 8);
            (firsts, reducer.buckets(), averaged(&reducer, 0))
        });
        assert!(
            steps.iter().all(|(_, buckets, last)| (buckets, last) == (&steps[0].1, &steps[0].2))
        );
        let present: [&[usize]; 4] = [&[1, 2], &[1, 2], &[2], &[2]];
        for (step, ranks) in present.iter().enumerate() {
            let sum: f32 = ranks.iter().map(|&rank| value(rank, 0, 0, step)).sum();
            let count = if averaging == Averaging::Ranks { 3 } else { ranks.len() };
            for round in 0..2 {
                assert!((steps[2].0[4 * round + step] - sum / count as f32).abs() < 1e-6);
            }
        }
    }
}

/// Guards against PL#20404: a hook of several collectives, and what ranks remember of it, after a join.
#[test]
fn hooks_go_on_after_a_join() {
    use annulus_ddp::hooks::{PowerSgd, PowerSgdSettings};
    let results = on_ranks(2, |comm| {
        let hook = PowerSgd::new(PowerSgdSettings { start: 2, ..PowerSgdSettings::default() })
            .expect("settings");
        let model = Model::new(vec![parameter("matrix", &[20, 20])]);
        let reducer =
            Reducer::with_hook(&comm, model, small(), Box::new(hook)).expect("equal models");
        let step = |number: usize| {
            reducer.begin(None).expect("begun");
            reducer.ready(0, &gradient(comm.rank(), 0, 400, number)).expect("a gradient");
            reducer.finish().expect("reduced");
        };
        (0..1 + 3 * comm.rank()).for_each(step);
        assert_eq!(reducer.join().expect("all join"), 1);
        (4..6).for_each(step);
        averaged(&reducer, 0)
    });
    assert_eq!(results[0], results[1]);
}
