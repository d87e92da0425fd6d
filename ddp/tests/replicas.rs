//! Replicas: by work, sticky, and whole after a panic.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use annulus_ddp::{Error, Replicas};
use proptest::prelude::*;

#[test]
fn requests_go_where_the_least_work_is() {
    // Nothing is answered before all is submitted.
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let replicas = Replicas::new(vec![(), (), ()], move |(), request: u64| {
        let _ = wait.lock().expect("no panic").recv();
        request
    })
    .expect("models");
    let work = [100, 10, 10, 10, 10, 200, 10];
    let answers: Vec<_> =
        work.iter().map(|&work| replicas.submit(work, work, None).expect("whole")).collect();
    let chosen: Vec<usize> = answers.iter().map(|answer| answer.replica()).collect();
    assert_eq!(chosen, [0, 1, 2, 1, 2, 1, 2]);
    assert_eq!(replicas.load(), [(100, 1), (220, 3), (30, 3)]);
    drop(go);
    let answered: Vec<u64> =
        answers.into_iter().map(|answer| answer.wait().expect("answered")).collect();
    assert_eq!(answered, work);
    assert!(replicas.load().iter().all(|&(work, _)| work == 0));
}

#[test]
fn a_sequence_stays_where_it_is_until_it_ends() {
    let replicas = Replicas::new(vec![0, 1, 2], |model: &mut i32, (): ()| *model).expect("models");
    let first = replicas.submit((), 1_000_000, Some(5)).expect("whole").wait().expect("answered");
    for _ in 0..5 {
        assert_eq!(
            replicas.submit((), 1, Some(5)).expect("whole").wait().expect("answered"),
            first
        );
    }
    replicas.end_sequence(5);
    let replica = replicas.submit((), 1, Some(5)).expect("whole").replica();
    assert_ne!(replica as i32, first, "the others have had fewer requests");
}

#[test]
fn a_model_that_panics_gets_no_more_requests() {
    let serve = |model: &mut i32, poison: bool| {
        assert!(!poison, "as meant by the test");
        *model
    };
    let replicas = Replicas::new(vec![0, 1], serve).expect("models");
    let poisoned = replicas.submit(true, 1, Some(9)).expect("whole");
    let broken = poisoned.replica();
    let error = poisoned.wait().expect_err("a panic").to_string();
    assert!(
        error.contains("as meant by the test") && error.contains(&format!("replica {broken}")),
        "{error}"
    );
    let answer = replicas.submit(false, 1, Some(9)).expect("one is left");
    assert_ne!(answer.replica(), broken);
    answer.wait().expect("answered");
    assert!(replicas.submit(true, 1, None).expect("one is left").wait().is_err());
    assert!(matches!(replicas.submit(false, 1, None), Err(Error::Replicas { .. })));
    let none: Vec<i32> = Vec::new();
    assert!(matches!(Replicas::new(none, |_: &mut i32, (): ()| ()), Err(Error::Replicas { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// No replica has more than the largest request more than another, while nothing is answered.
    #[test]
    fn work_is_balanced(work in prop::collection::vec(1_u64..1000, 1..60), replicas in 1_usize..6) {
        let (go, wait) = channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let all = Replicas::new(vec![(); replicas], move |(), (): ()| {
            let _ = wait.lock().expect("no panic").recv();
        })
        .unwrap();
        let answers: Vec<_> = work.iter().map(|&work| all.submit((), work, None).unwrap()).collect();
        let load: Vec<u64> = all.load().into_iter().map(|(work, _)| work).collect();
        let largest = work.iter().max().copied().unwrap_or(0);
        prop_assert!(load.iter().max().unwrap() - load.iter().min().unwrap() <= largest);
        prop_assert_eq!(load.iter().sum::<u64>(), work.iter().sum::<u64>());
        drop(go);
        for answer in answers {
            answer.wait().unwrap();
        }
    }
}
