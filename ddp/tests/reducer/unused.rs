//! Parameters without a gradient.

use annulus_ddp::{Options, Reducer, Unused};

use crate::fixture::{averaged, backward, gradient, model, small};
use crate::ranks::on_ranks;

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
