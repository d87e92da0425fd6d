//! What ranks learn about a step, and about all ranks' losses.

use std::thread::sleep;
use std::time::Duration;

use annulus_ddp::{Error, LossScaler, Metrics, Model, Options, Reducer, Totals};

use crate::fixture::{backward, model, parameter, small};
use crate::ranks::on_ranks;

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
                sleep(Duration::from_millis(50));
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

#[test]
fn waiting_for_input_is_no_computation() {
    on_ranks(2, |comm| {
        let reducer = Reducer::new(&comm, model(), small()).expect("equal models");
        let wait = Duration::from_millis(20);
        let mut totals = Totals::default();
        for step in 0..2 {
            reducer.time_input(|| sleep(if comm.rank() == 1 { wait } else { Duration::ZERO }));
            reducer.begin(None).expect("begun");
            backward(&reducer, comm.rank(), step, &[]).expect("gradients");
            let report = reducer.finish().expect("reduced");
            assert!(report.ranks[1].input >= wait, "{report}");
            let mine = report.ranks[comm.rank()];
            assert_eq!((mine.compute, mine.input), (report.compute, report.input));
            assert_eq!(report.total(), report.compute + report.input + report.exposed);
            let twice = report.total() * 2;
            assert!((report.scaling_efficiency(twice) - 1.0).abs() < 1e-9, "two ranks, no loss");
            totals.add(&report);
        }
        assert_eq!((totals.steps, totals.slowest.iter().sum::<u64>()), (2, 2));
    });
}

/// Guards against pytorch#73515 and #94907, in that gradients come as they are, and that copies do not go unseen.
#[test]
fn copies_are_counted_and_can_be_avoided() {
    on_ranks(2, |comm| {
        let model = Model::new(vec![parameter("a", &[100]), parameter("b", &[10])]);
        let reducer = Reducer::new(&comm, model, small()).expect("equal models");
        let step = |direct: bool| {
            reducer.begin(None).expect("begun");
            for (index, count) in [(1, 10), (0, 100)] {
                if direct {
                    reducer.ready_with(index, |place: &mut [f32]| place.fill(1.0))
                } else {
                    reducer.ready(index, &vec![1.0_f32; count])
                }
                .expect("a gradient");
            }
            let report = reducer.finish().expect("reduced");
            assert_eq!(reducer.gradient::<f32>(0).expect("f32"), Some(vec![1.0; 100]));
            report.copied_bytes
        };
        assert_eq!([step(false), step(true), step(false)], [440, 0, 440]);
        // What is added to gradients of passes before is computed elsewhere first.
        reducer.begin_accumulating(None).expect("begun");
        reducer.ready_with(0, |place: &mut [f32]| place.fill(1.0)).expect("a gradient");
        assert_eq!(reducer.finish().expect("accumulated").copied_bytes, 0);
        reducer.begin(None).expect("begun");
        reducer.ready_with(0, |place: &mut [f32]| place.fill(1.0)).expect("a gradient");
        reducer.ready_with(1, |place: &mut [f32]| place.fill(1.0)).expect("a gradient");
        assert_eq!(reducer.finish().expect("reduced").copied_bytes, 400);
        assert_eq!(reducer.gradient::<f32>(0).expect("f32"), Some(vec![2.0; 100]));
    });
}
