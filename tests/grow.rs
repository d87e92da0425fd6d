//! Communicators that new ranks join.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use annulus::{Communicator, Config, Error, GrowError, ReduceOp, Transport};

fn config(transport: Transport) -> Config {
    let mut config = Config::default();
    config.transport = transport;
    config.timeout = Duration::from_secs(60);
    config
}

fn sum(comm: &Communicator) -> usize {
    let mut sum = [comm.rank() as i64 + 1];
    comm.all_reduce(&mut sum, ReduceOp::Sum).expect("all are there");
    sum[0] as usize
}

/// Two ranks become five: all old ranks keep their numbers, and their old communicator.
#[test]
fn new_ranks_come_in() {
    for transport in [Transport::Auto, Transport::Shm, Transport::Tcp] {
        let config = config(transport);
        let ranks = Communicator::local_with(2, &config).expect("ranks meet");
        let (tell, hear) = channel();
        thread::scope(|threads| {
            for comm in &ranks {
                let tell = tell.clone();
                threads.spawn(move || {
                    let invitation = (comm.rank() == 0).then(|| comm.invite().expect("invites"));
                    if let Some(id) = &invitation {
                        tell.send(id.clone()).expect("somebody listens");
                    }
                    let large = comm.grow(5, invitation.as_ref()).expect("grown");
                    assert_eq!((large.rank(), large.world_size()), (comm.rank(), 5));
                    assert_eq!((sum(&large), sum(comm)), (15, 3), "{transport:?}");
                    // The larger one is one like any other.
                    if comm.rank() == 0 {
                        let large = large.shrink(&[3, 4]).expect("shrunk");
                        assert_eq!(sum(&large), 6);
                    } else {
                        assert_eq!(sum(&large.shrink(&[]).expect("shrunk")), 6);
                    }
                });
            }
            let id = hear.recv().expect("an invitation");
            for rank in 2..5 {
                let (id, config) = (id.clone(), &config);
                threads.spawn(move || {
                    let large = Communicator::init(&id, rank, 5, config).expect("joined");
                    assert_eq!(sum(&large), 15);
                    if rank == 2 {
                        assert_eq!(sum(&large.shrink(&[]).expect("shrunk")), 6);
                    }
                });
            }
        });
    }
}

#[test]
fn what_makes_no_sense_is_refused_on_all_ranks() {
    let ranks = Communicator::local_with(2, &config(Transport::Tcp)).expect("ranks meet");
    thread::scope(|threads| {
        for comm in &ranks {
            threads.spawn(move || {
                let reason = |error: Error| match error {
                    Error::Grow { source, .. } => (*source).clone(),
                    other => panic!("{other}"),
                };
                let none = comm.grow(3, None).expect_err("no invitation");
                assert_eq!(reason(none), GrowError::NoInvitation);
                let invitation = comm.invite();
                if comm.rank() > 0 {
                    let error = reason(invitation.as_ref().expect_err("not rank 0").clone());
                    assert_eq!(error, GrowError::NotRankZero);
                }
                let small = comm.grow(2, invitation.as_ref().ok()).expect_err("no larger");
                assert_eq!(reason(small), GrowError::World { old: 2, new: 2 });
                assert_eq!(sum(comm), 3, "and nothing has happened");
            });
        }
    });
}
