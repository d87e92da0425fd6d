//! Hooks, the sharded optimizer and checkpoints, on ranks that are threads.

mod ranks;

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use annulus::{Communicator, DataType};
use annulus_ddp::hooks::{
    AllReduce, Compressed, Hook, InRankOrder, LocalSgd, PeriodicAverage, PowerSgd,
    PowerSgdSettings, ReduceScatter, average_values,
};
use annulus_ddp::{
    AdamW, Checkpoint, Elementwise, Error, GradientBucket, Model, Options, Parameter, Reducer, Sgd,
    ShardedOptimizer, Trace,
};
use ranks::on_ranks;

const ROWS: usize = 12;
const COLUMNS: usize = 18;

fn model() -> Model {
    Model::new(vec![
        Parameter::new("matrix", &[ROWS, COLUMNS], DataType::F32),
        Parameter::new("bias", &[7], DataType::F32),
        Parameter::new("double", &[3], DataType::F64),
    ])
}

/// This rank's gradient of the matrix: of rank 2 over all ranks, so that a product of rank 2 loses nothing.
fn matrix(rank: usize, step: usize) -> Vec<f32> {
    let cell = |row: usize, column: usize| {
        let (row, column) = (row as f32, column as f32);
        (row * 0.1 - 0.4) * (column * 0.05)
            + (1.0 + (rank + step) as f32) * (0.3 - row * 0.02) * (0.5 - column * 0.03)
    };
    (0..ROWS * COLUMNS).map(|i| cell(i / COLUMNS, i % COLUMNS)).collect()
}

fn step(reducer: &Reducer, comm: &Communicator, step: usize) -> Vec<f32> {
    reducer.begin(None).expect("begun");
    reducer.ready(2, &[comm.rank() as f64; 3]).expect("a gradient");
    reducer.ready(1, &[0.25 + comm.rank() as f32; 7]).expect("a gradient");
    reducer.ready(0, &matrix(comm.rank(), step)).expect("a gradient");
    reducer.finish().expect("reduced");
    reducer.gradient::<f32>(0).expect("f32").expect("used")
}

fn mean(world: usize, step: usize) -> Vec<f32> {
    let all: Vec<Vec<f32>> = (0..world).map(|rank| matrix(rank, step)).collect();
    (0..ROWS * COLUMNS).map(|i| all.iter().map(|one| one[i]).sum::<f32>() / world as f32).collect()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn with_hook(comm: &Communicator, hook: impl Hook + 'static) -> Reducer {
    Reducer::with_hook(comm, model(), Options::default(), Box::new(hook)).expect("equal models")
}

#[test]
fn sixteen_bits_are_close_to_the_mean() {
    for bf16 in [false, true] {
        let results = on_ranks(3, |comm| {
            let reducer = if bf16 {
                with_hook(&comm, Compressed::bf16())
            } else {
                with_hook(&comm, Compressed::fp16())
            };
            let matrix = step(&reducer, &comm, 0);
            (matrix, reducer.gradient::<f64>(2).expect("f64"))
        });
        let tolerance = if bf16 { 2e-2 } else { 2e-3 };
        for (matrix, double) in &results {
            assert_eq!(matrix, &results[0].0, "the same bits on every rank");
            assert!(largest_difference(matrix, &mean(3, 0)) < tolerance);
            assert_eq!(double.as_deref(), Some(&[1.0; 3][..]), "f64 goes as it is");
        }
    }
}

/// Sums of f16 overflow only where their mean does.
#[test]
fn fp16_has_headroom_for_the_sum() {
    on_ranks(3, |comm| {
        let model = Model::new(vec![Parameter::new("a", &[1], DataType::F32)]);
        let hook = Box::new(Compressed::fp16());
        let reducer =
            Reducer::with_hook(&comm, model, Options::default(), hook).expect("equal models");
        reducer.begin(None).expect("begun");
        reducer.ready(0, &[60000.0_f32]).expect("a gradient");
        reducer.finish().expect("reduced");
        let mean = reducer.gradient::<f32>(0).expect("f32").expect("used")[0];
        assert!((mean - 60000.0).abs() < 100.0, "{mean}");
    });
}

#[test]
fn error_feedback_makes_up_for_rounding() {
    let drift = |feedback: bool| -> f32 {
        // One rank: sums of several are rounded too, and nobody makes up for that.
        let drifts = on_ranks(1, |comm| {
            let hook = Compressed::bf16();
            let hook = if feedback { hook.with_error_feedback() } else { hook };
            let reducer = with_hook(&comm, hook);
            let mut sum = vec![0.0; ROWS * COLUMNS];
            for _ in 0..50 {
                for (sum, gradient) in sum.iter_mut().zip(step(&reducer, &comm, 0)) {
                    *sum += gradient;
                }
            }
            let exact: Vec<f32> = mean(1, 0).iter().map(|value| value * 50.0).collect();
            largest_difference(&sum, &exact)
        });
        drifts[0]
    };
    let (without, with) = (drift(false), drift(true));
    assert!(with < without / 10.0, "{with} {without}");
}

#[test]
fn power_sgd_finds_a_matrix_of_low_rank() {
    let results = on_ranks(2, |comm| {
        let settings = PowerSgdSettings { rank: 2, start: 2, ..PowerSgdSettings::default() };
        let reducer = with_hook(&comm, PowerSgd::new(settings).expect("settings"));
        let mut last = Vec::new();
        for number in 0..8 {
            last = step(&reducer, &comm, 0);
            if number < 2 {
                assert!(largest_difference(&last, &mean(2, 0)) < 1e-6, "not compressed yet");
            }
            assert_eq!(
                reducer.gradient::<f32>(1).expect("f32").expect("used")[0],
                0.75,
                "never compressed"
            );
        }
        last
    });
    assert_eq!(results[0], results[1]);
    assert!(largest_difference(&results[0], &mean(2, 0)) < 1e-3);
    for settings in [
        PowerSgdSettings { rank: 0, ..PowerSgdSettings::default() },
        PowerSgdSettings { start: 0, ..PowerSgdSettings::default() },
    ] {
        assert!(matches!(PowerSgd::new(settings), Err(Error::Setting { .. })));
    }
}

/// What a product of low rank lacks comes in later steps.
#[test]
fn power_sgd_loses_nothing_for_good() {
    on_ranks(2, |comm| {
        let settings = PowerSgdSettings { start: 1, ..PowerSgdSettings::default() };
        let reducer = with_hook(&comm, PowerSgd::new(settings).expect("settings"));
        let (mut sum, mut exact) = (vec![0.0; ROWS * COLUMNS], vec![0.0; ROWS * COLUMNS]);
        for number in 0..60 {
            let got = step(&reducer, &comm, number % 3);
            let expected = mean(2, number % 3);
            for i in 0..sum.len() {
                sum[i] += got[i];
                exact[i] += expected[i];
            }
        }
        let largest = exact.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        assert!(largest_difference(&sum, &exact) < 0.05 * largest);
    });
}

#[test]
fn local_sgd_leaves_gradients_alone_and_averages_parameters() {
    let average = PeriodicAverage { start: 1, period: 2 };
    assert_eq!(
        (0..6).map(|step| average.is_due(step)).collect::<Vec<_>>(),
        [false, false, true, false, true, false]
    );
    on_ranks(2, |comm| {
        let reducer = with_hook(&comm, LocalSgd::new(1));
        assert!(largest_difference(&step(&reducer, &comm, 0), &mean(2, 0)) < 1e-6);
        assert_eq!(step(&reducer, &comm, 1), matrix(comm.rank(), 1));
        let (mut a, mut b) = ([comm.rank() as f32; 3], [1.0, 3.0 * comm.rank() as f32]);
        average_values(reducer.communicator(), &mut [&mut a, &mut b]).expect("averaged");
        assert_eq!((a, b), ([0.5; 3], [1.0, 1.5]));
    });
}

/// A last bucket without elements is one all the same: hooks count steps by it.
#[test]
fn hooks_see_buckets_without_elements() {
    let hooks: [fn() -> Box<dyn Hook>; 6] = [
        || Box::new(LocalSgd::new(1)),
        || Box::new(AllReduce),
        || Box::new(InRankOrder::new()),
        || Box::new(ReduceScatter),
        || Box::new(Compressed::bf16().with_error_feedback()),
        || {
            let settings = PowerSgdSettings { start: 1, ..PowerSgdSettings::default() };
            Box::new(PowerSgd::new(settings).expect("settings"))
        },
    ];
    for (number, hook) in hooks.into_iter().enumerate() {
        on_ranks(2, |comm| {
            let nothing = Parameter::new("nothing", &[0], DataType::F64);
            let one = Parameter::new("one", &[1], DataType::F32);
            let model = Model::new(vec![nothing, one]);
            let reducer =
                Reducer::with_hook(&comm, model, Options::default(), hook()).expect("equal models");
            assert_eq!(reducer.buckets().len(), 2);
            for step in 0..3 {
                reducer.begin(None).expect("begun");
                reducer.ready(1, &[comm.rank() as f32]).expect("a gradient");
                reducer.ready::<f64>(0, &[]).expect("a gradient");
                reducer.finish().expect("reduced");
                let local = number == 0 && step > 0;
                let elsewhere = number == 3 && comm.rank() == 1;
                let expected = if local { comm.rank() as f32 } else { 0.5 };
                let expected = if elsewhere { 0.0 } else { expected };
                assert_eq!(reducer.gradient(1).expect("f32"), Some(vec![expected]), "{number}");
            }
        });
    }
}

/// A hook that makes two collectives of its own.
struct Doubling;

impl Hook for Doubling {
    fn name(&self) -> String {
        "doubling".to_owned()
    }

    fn reduce(
        &mut self,
        mut bucket: GradientBucket<'_>,
        comm: &Communicator,
    ) -> Result<u64, Error> {
        if bucket.dtype() == DataType::F32 {
            let mut factor = [1.0_f32];
            comm.all_reduce(&mut factor, annulus::ReduceOp::Sum)?;
            bucket.values::<f32>().iter_mut().for_each(|value| *value *= factor[0]);
        }
        AllReduce.reduce(bucket, comm)
    }
}

#[test]
fn hooks_of_ones_own_may_call_collectives() {
    on_ranks(2, |comm| {
        let reducer = with_hook(&comm, Doubling);
        let expected: Vec<f32> = mean(2, 0).iter().map(|value| value * 2.0).collect();
        assert!(largest_difference(&step(&reducer, &comm, 0), &expected) < 1e-6);
    });
}

fn parameters() -> Vec<Vec<f32>> {
    let parameters = model().parameters;
    parameters
        .iter()
        .map(|p| (0..p.count()).map(|i| (i % 7) as f32 * 0.1 - 0.2).collect())
        .collect()
}

/// Trains for some steps, from a checkpoint if there is one; the parameters, and a checkpoint of the end.
fn train<O: Elementwise>(
    comm: &Communicator,
    hook: impl Hook + 'static,
    optimizer: O,
    from: Option<&Checkpoint>,
    steps: std::ops::Range<usize>,
) -> (Vec<Vec<f32>>, Checkpoint, usize) {
    let reducer = with_hook(comm, hook);
    let mut values = parameters();
    let read = |index: usize, place: &mut [f32]| place.copy_from_slice(&values[index]);
    let mut sharded = ShardedOptimizer::new(&reducer, optimizer, read).expect("memory");
    if let Some(checkpoint) = from {
        let write = |index: usize, new: &[f32]| values[index].copy_from_slice(new);
        sharded.load_from(&reducer, checkpoint, write).expect("whole");
    }
    for number in steps {
        // The same global gradients whatever the number of ranks.
        let scale = (comm.rank() * 2 + 1) as f32 / comm.world_size() as f32;
        reducer.begin(None).expect("begun");
        let gradient = |i: usize| ((i * 5 + number * 3) % 11) as f32 * 0.1 - 0.5;
        for index in [2, 1, 0] {
            let all = (0..values[index].len()).map(|i| gradient(i) * scale);
            if index == 2 {
                reducer.ready(index, &all.map(f64::from).collect::<Vec<_>>()).expect("a gradient");
            } else {
                reducer.ready(index, &all.collect::<Vec<_>>()).expect("a gradient");
            }
        }
        reducer.finish().expect("reduced");
        sharded.step(&reducer, |index, new| values[index].copy_from_slice(new)).expect("stepped");
    }
    let mut checkpoint = Checkpoint::new();
    sharded.save_into(&reducer, &mut checkpoint).expect("gathered");
    (values, checkpoint, sharded.state_bytes())
}

fn assert_close(a: &[Vec<f32>], b: &[Vec<f32>]) {
    for (a, b) in a.iter().zip(b) {
        assert!(largest_difference(a, b) < 1e-5, "{a:?} {b:?}");
    }
}

#[test]
fn sharded_optimizers_step_as_whole_ones_do_with_a_part_of_the_state() {
    let sgd = Sgd { rate: 0.1, momentum: 0.9, weight_decay: 0.01 };
    let (adam_alone, _, whole) =
        on_ranks(1, |comm| train(&comm, AllReduce, AdamW::default(), None, 0..5)).remove(0);
    let (sgd_alone, _, _) = on_ranks(1, |comm| train(&comm, AllReduce, sgd, None, 0..5)).remove(0);
    for world in [2, 3] {
        for ranks in [
            on_ranks(world, |comm| train(&comm, AllReduce, AdamW::default(), None, 0..5)),
            on_ranks(world, |comm| train(&comm, ReduceScatter, AdamW::default(), None, 0..5)),
        ] {
            for (parameters, _, state) in &ranks {
                assert_eq!(parameters, &ranks[0].0, "the same bits on every rank");
                assert_close(parameters, &adam_alone);
                assert!(*state <= whole / world + 4 * 3 * 2 * world, "{state} of {whole} bytes");
            }
        }
        for (parameters, _, _) in
            on_ranks(world, |comm| train(&comm, ReduceScatter, sgd, None, 0..5))
        {
            assert_close(&parameters, &sgd_alone);
        }
    }
}

#[test]
fn sharded_gradients_are_clipped_by_the_norm_over_all_ranks() {
    let clip = |comm: &Communicator, hook: Box<dyn Hook>| {
        let reducer =
            Reducer::with_hook(comm, model(), Options::default(), hook).expect("equal models");
        let sgd = Sgd { rate: 1.0, momentum: 0.0, weight_decay: 0.0 };
        let mut weights: Vec<Vec<f32>> =
            model().parameters.iter().map(|p| vec![0.0; p.count()]).collect();
        let mut sharded =
            ShardedOptimizer::new(&reducer, sgd, |_, place| place.fill(0.0)).expect("memory");
        step(&reducer, comm, 0);
        let norm = sharded.clip(&reducer, 0.5).expect("all ranks");
        let clipped = sharded.clip(&reducer, 1e9).expect("all ranks");
        assert!((clipped - 0.5).abs() < 1e-5, "{clipped}");
        sharded
            .step(&reducer, |index, new| weights[index].copy_from_slice(new))
            .expect("all ranks");
        (norm, weights.concat())
    };
    let (expected, whole) = on_ranks(1, |comm| clip(&comm, Box::new(AllReduce))).remove(0);
    let length = whole.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    assert!(expected > 1.0 && (length - 0.5).abs() < 1e-5, "{expected} {length}");
    let hooks: [fn() -> Box<dyn Hook>; 2] = [|| Box::new(AllReduce), || Box::new(ReduceScatter)];
    let [with_all, with_parts] = hooks.map(|hook| on_ranks(3, |comm| clip(&comm, hook())));
    for (all, parts) in with_all.iter().zip(&with_parts) {
        assert!((all.0 - parts.0).abs() < 1e-6 * all.0 && all.0 == with_all[0].0);
        assert!(largest_difference(&all.1, &parts.1) < 1e-6);
    }
}

/// One step of AdamW by hand.
#[test]
fn adam_is_the_published_formula() {
    let adam = AdamW { rate: 0.1, betas: (0.9, 0.99), epsilon: 1e-8, weight_decay: 0.5 };
    let (mut parameter, mut slots) = ([2.0_f32], vec![vec![0.0], vec![0.0]]);
    adam.update(1, &mut parameter, &[0.5], &mut slots);
    // The first step is by the sign of the gradient, after the decay of 5 %.
    assert!((parameter[0] - (2.0 * 0.95 - 0.1)).abs() < 1e-6, "{parameter:?}");
    assert!((slots[0][0] - 0.05).abs() < 1e-7 && (slots[1][0] - 0.0025).abs() < 1e-7);
}

#[test]
fn a_job_of_another_size_resumes_from_a_checkpoint() {
    let path = scratch("resume");
    let through =
        on_ranks(1, |comm| train(&comm, AllReduce, AdamW::default(), None, 0..6)).remove(0).0;
    on_ranks(3, |comm| {
        let (_, mut checkpoint, _) = train(&comm, ReduceScatter, AdamW::default(), None, 0..3);
        checkpoint.note("epoch", 7);
        checkpoint.save(&comm, &path).expect("written");
    });
    let resumed = on_ranks(2, |comm| {
        let checkpoint = Checkpoint::load(&comm, &path).expect("read");
        assert_eq!(checkpoint.noted("epoch"), Some("7"));
        assert_eq!(checkpoint.shape("matrix.exp_avg"), Some(&[ROWS, COLUMNS][..]));
        train(&comm, AllReduce, AdamW::default(), Some(&checkpoint), 3..6).0
    });
    std::fs::remove_file(&path).expect("it was there");
    for parameters in &resumed {
        assert_eq!(parameters, &resumed[0]);
        assert_close(parameters, &through);
    }
}

#[test]
fn what_is_wrong_with_a_file_is_told_to_every_rank() {
    let path = scratch("broken");
    std::fs::write(&path, b"not a checkpoint").expect("written");
    let errors = on_ranks(2, |comm| {
        let broken = Checkpoint::load(&comm, &path).expect_err("broken").to_string();
        let nowhere = Checkpoint::new()
            .save(&comm, Path::new("/nonexistent/folder/file"))
            .expect_err("nowhere");
        assert!(matches!(nowhere, Error::File { .. }), "{nowhere}");
        // Nobody is left waiting.
        comm.barrier().expect("whole");
        broken
    });
    std::fs::remove_file(&path).expect("it was there");
    assert!(errors.iter().all(|error| error.contains("broken")), "{errors:?}");
    assert!(errors[1].contains("rank 0: "), "{}", errors[1]);
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("annulus-ddp-{name}-{}.safetensors", std::process::id()))
}

#[test]
fn a_trace_has_an_event_for_each_backward_pass_and_bucket() {
    let traces = Mutex::new(Vec::new());
    let path = std::env::temp_dir().join(format!("annulus-ddp-trace-{}.json", std::process::id()));
    on_ranks(2, |comm| {
        let reducer = with_hook(&comm, AllReduce);
        let mut trace = Trace::new(comm.rank());
        reducer.begin(None).expect("begun");
        reducer.ready(2, &[0.0_f64; 3]).expect("a gradient");
        reducer.ready(1, &[0.0_f32; 7]).expect("a gradient");
        reducer.ready(0, &matrix(0, 0)).expect("a gradient");
        trace.add(&reducer.finish().expect("reduced"));
        traces.lock().expect("no panic").push(trace.to_json());
        trace.write_together(&comm, &path).expect("written");
        let nowhere = trace.write_together(&comm, Path::new("/nonexistent/folder/file"));
        assert!(matches!(nowhere, Err(Error::File { .. })), "{nowhere:?}");
    });
    let together = std::fs::read_to_string(&path).expect("written");
    std::fs::remove_file(&path).expect("it was there");
    let together: serde_json::Value = serde_json::from_str(&together).expect("JSON");
    let ranks = [0, 1].map(|rank| {
        let events = together["traceEvents"].as_array().expect("a list").iter();
        events.filter(|event| event["pid"] == rank && event["ph"] == "X").count()
    });
    assert_eq!(ranks, [4, 4]);
    for trace in traces.into_inner().expect("no panic") {
        let json: serde_json::Value = serde_json::from_str(&trace).expect("JSON");
        let events = json["traceEvents"].as_array().expect("a list");
        let named = |name: &str| {
            events.iter().filter(|e| e["name"] == name && e["dur"].as_f64() >= Some(0.0)).count()
        };
        for name in [
            "step 0: compute",
            "step 0: bucket 0",
            "step 0: bucket 1",
            "step 0: exposed communication",
        ] {
            assert_eq!(named(name), 1, "{name}: {trace}");
        }
    }
}
