//! What is refused, and who is told.

use annulus::{Communicator, DataType};
use annulus_ddp::hooks::{AllReduce, Hook};
use annulus_ddp::{Error, GradientBucket, Model, Options, Parameter, Reducer};

use crate::fixture::{backward, hand_in, model, parameter, small};
use crate::ranks::on_ranks;

fn differences(change: impl Fn(&mut Model) + Sync) -> Vec<String> {
    on_ranks(3, |comm| {
        let mut model = model();
        if comm.rank() == 1 {
            change(&mut model);
        }
        Reducer::new(&comm, model, small()).expect_err("models differ").to_string()
    })
}

/// Guards against pytorch#76449 and #73547, where only some ranks learn of a difference, and not which; #68803, where another
/// set of trained parameters hangs; and training on swapped or garbled weights.
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

/// Guards against ranks that put gradients into other buckets than the others.
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
        assert!(
            twice.contains("parameter `scalar` at index 3 has been marked as ready twice"),
            "{twice}"
        );
        let early = reducer.begin(None).expect_err("not finished").to_string();
        assert!(
            early.contains("finished reduction in the prior iteration") && early.contains("`last`"),
            "{early}"
        );
        hand_in(&reducer, comm.rank(), 4, 0).expect("the last");
        reducer.finish().expect("reduced");
    });
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

/// Guards against nvidia/nccl#1394: gradients of different sizes "succeed", or abort the process.
#[test]
fn a_gradient_of_another_shape_is_told_to_every_rank() {
    let errors = on_ranks(2, |comm| {
        let reducer = Reducer::new(&comm, model(), small()).expect("equal models");
        reducer.begin(None).expect("begun");
        backward(&reducer, comm.rank(), 0, &[0]).expect("gradients");
        let count = 12 - comm.rank();
        let error = match reducer.ready(0, &vec![0.5_f32; count]) {
            Ok(()) => reducer.finish().expect_err("rank 1 cannot"),
            Err(error) => reducer.give_up(&error.to_string()),
        };
        reducer.begin(None).expect("begun");
        backward(&reducer, comm.rank(), 1, &[]).expect("gradients");
        reducer.finish().expect("the next step is whole");
        error.to_string()
    });
    assert_eq!(
        errors[0],
        "step 0: rank 1: the gradient of `first` is 11 elements of f32, but the parameter has 12 of f32"
    );
    assert_eq!(errors[0], errors[1]);
}
