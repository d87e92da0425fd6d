//! What users set by variables: the same on every rank, up to the largest values.

use std::thread;

use annulus::bootstrap::{BootstrapError, Refusal};
use annulus::{Communicator, Config, Error, ReduceOp, UniqueId};

type Variables = [(&'static str, &'static str)];

fn config(variables: &Variables) -> Config {
    let value =
        |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| *value);
    Config::from_vars(|name| value(name).map(str::to_owned)).expect("valid")
}

/// Joins one rank with each of `variables` and runs `work` on it.
fn with_variables<R: Send>(
    variables: &[&Variables],
    work: impl Fn(&Communicator) -> R + Sync,
) -> Vec<Result<R, Error>> {
    let (id, world) = (UniqueId::new().expect("a root"), variables.len());
    thread::scope(|threads| {
        let ranks = variables.iter().enumerate().map(|(rank, variables)| {
            let (id, work) = (&id, &work);
            threads.spawn(move || {
                Communicator::init(id, rank, world, &config(variables)).map(|comm| work(&comm))
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

#[test]
fn ranks_of_different_settings_are_refused() {
    for odd in [
        ("ANNULUS_ALGO", "ring"),
        ("NCCL_PROTO", "LL"),
        ("ANNULUS_CHANNELS", "2"),
        ("ANNULUS_CHUNK", "4K"),
        ("ANNULUS_TRANSPORT", "tcp"),
        ("ANNULUS_CHECKSUM", "1"),
        ("ANNULUS_ENCRYPT", "1"),
    ] {
        for joined in with_variables(&[&[], &[odd]], |_| ()) {
            let error = joined.expect_err("refused");
            let Error::Bootstrap(cause) = &error else { panic!("{odd:?}: {error}") };
            let BootstrapError::Refused(Refusal::Settings {
                first_rank, second_rank, first, ..
            }) = &**cause
            else {
                panic!("{odd:?}: {error}");
            };
            assert_eq!(first_rank + second_rank, 1, "{odd:?}: ranks 0 and 1");
            assert_eq!(first.pid, std::process::id());
            assert!(error.to_string().contains("the same ANNULUS_ and NCCL_ variables"), "{error}");
        }
    }
}

#[test]
fn the_same_settings_by_other_names_are_accepted() {
    let ours: &Variables = &[("ANNULUS_ALGO", "ring"), ("ANNULUS_TIMEOUT", "90s")];
    let theirs: &Variables = &[("NCCL_ALGO", "Ring"), ("ANNULUS_TIMEOUT", "2m")];
    for sum in with_variables(&[ours, theirs], |comm| {
        let mut buffer = [comm.rank() as i32 + 1; 3];
        comm.all_reduce(&mut buffer, ReduceOp::Sum).map(|()| buffer)
    }) {
        assert_eq!(sum.expect("joined").expect("all-reduce"), [3; 3]);
    }
}

#[test]
fn the_most_channels_work_over_shared_memory() {
    let most = annulus_plan::tuner::MAX_CHANNELS.to_string();
    for algorithm in ["two-shot", "ring"] {
        let variables = |name: &str| {
            let value = match name {
                "ANNULUS_TRANSPORT" => "shm",
                "ANNULUS_ALGO" => algorithm,
                "ANNULUS_CHANNELS" => &most,
                _ => return None,
            };
            Some(value.to_owned())
        };
        let config = Config::from_vars(variables).expect("valid");
        let ranks = Communicator::local_with(2, &config).expect("ranks meet");
        let sums: Vec<_> = thread::scope(|threads| {
            let running: Vec<_> = ranks
                .iter()
                .map(|comm| {
                    threads.spawn(|| {
                        let of = |index: usize| (index % 1000 + comm.rank()) as i32;
                        let mut buffer: Vec<i32> = (0..1 << 20).map(of).collect();
                        comm.all_reduce(&mut buffer, ReduceOp::Sum).map(|()| buffer)
                    })
                })
                .collect();
            running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        });
        for sum in sums {
            let sum = sum.expect("all-reduce");
            let right = |(index, &got): (usize, &i32)| got == (2 * (index % 1000) + 1) as i32;
            assert!(sum.iter().enumerate().all(right), "{algorithm}");
        }
    }
}
