//! What the flight recorder tells of calls.

use std::thread;
use std::time::{Duration, Instant};

use annulus::flight::{Merged, Outcome, of_process};
use annulus::{Communicator, ReduceOp};

fn together(ranks: &[Communicator], work: impl Fn(&Communicator) + Sync) {
    thread::scope(|threads| {
        for comm in ranks {
            threads.spawn(|| {
                let _ending = Ending(comm);
                work(comm);
            });
        }
    });
}

/// Ends the others' calls too when one rank's assertion fails.
struct Ending<'a>(&'a Communicator);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.abort();
        }
    }
}

#[test]
fn a_world_of_one_has_no_record() {
    let alone = Communicator::local(1).expect("a rank").remove(0);
    alone.barrier().expect("alone");
    assert!(alone.flight_record().is_none());
}

#[test]
fn operations_are_counted_and_described() {
    let ranks = Communicator::local(2).expect("ranks meet");
    together(&ranks, |comm| {
        for _ in 0..200 {
            comm.all_reduce(&mut [1.0_f32, 2.0], ReduceOp::Sum).expect("both are here");
        }
        comm.broadcast(&mut vec![0_u8; 1 << 20], 1).expect("both are here");
        comm.broadcast(&mut [0_u8; 0], 1).expect("nothing to do");
        let peer = 1 - comm.rank();
        let (mine, mut theirs) = ([1_i32; 3], [0; 3]);
        comm.group(|group| {
            group.send(&mine, peer)?;
            group.recv(&mut theirs, peer)
        })
        .expect("both are here");
        comm.barrier().expect("both are here");
    });
    for comm in &ranks {
        let record = comm.flight_record().expect("two ranks");
        assert_eq!((record.started, record.completed, record.collectives), (204, 204, 203));
        assert!(record.operations.iter().all(|o| o.outcome == Outcome::Completed), "{record}");
        let repetitions: u64 = record.operations.iter().map(|o| o.repetitions).sum();
        assert_eq!(repetitions, 204, "{record}");
        let text = record.to_string();
        for part in [
            "all_reduce(count 2, f32, sum) as operation 1",
            "broadcast(count 1048576, u8, root 1) as operation 201",
            "broadcast(count 0, u8, root 1) as operation 202",
            "send/recv(count 3, i32) as operation 1 with rank",
            "barrier(count 0, u8) as operation 203",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(record.error.is_none() && record.refused.is_none());
    }
}

#[test]
fn a_call_that_waits_says_for_whom_and_how_long() {
    let ranks = Communicator::local(2).expect("ranks meet");
    together(&ranks, |comm| {
        comm.all_reduce(&mut [1_i64], ReduceOp::Sum).expect("both are here");
        if comm.rank() == 0 {
            comm.all_reduce(&mut [1_i64], ReduceOp::Sum).expect("it comes in the end");
            return;
        }
        let refused = comm.broadcast(&mut [0_u8], 9).expect_err("no such root").to_string();
        let waiting = || ranks[0].flight_record().expect("two ranks");
        let begin = Instant::now();
        while waiting().waiting_for.is_empty() && begin.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(10));
        }
        let record = waiting();
        assert_eq!(record.waiting_for, [1], "{record}");
        let current = record.current().expect("it waits");
        assert!(current.pending_for.expect("it is known") >= Duration::from_millis(15));
        let own = comm.flight_record().expect("two ranks");
        assert_eq!(own.refused.as_ref(), Some(&refused), "{own}");
        let merged = Merged::all(vec![record, own]);
        let text = merged[0].to_string();
        assert!(text.contains("rank 1 have not come to collective 2"), "{text}");
        assert!(text.contains("root 9 is out of range"), "{text}");
        assert!(text.contains("in all_reduce(count 1, i64, sum) as operation 2 for"), "{text}");
        comm.all_reduce(&mut [1_i64], ReduceOp::Sum).expect("rank 0 is here");
    });
}

#[test]
fn different_calls_are_the_first_divergence() {
    let ranks = Communicator::local(3).expect("ranks meet");
    together(&ranks, |comm| {
        comm.barrier().expect("all are here");
        let root = if comm.rank() == 2 { 1 } else { 0 };
        let _ = comm.broadcast(&mut [0_u8; 4], root);
        let _ = comm.barrier();
    });
    let records = ranks.iter().filter_map(Communicator::flight_record).collect();
    let text = Merged::all(records)[0].to_string();
    assert!(text.contains("first divergence, at collective 2:"), "{text}");
    assert!(text.contains("ranks 0, 1 called broadcast(count 4, u8, root 0)"), "{text}");
    assert!(text.contains("rank 2 called broadcast(count 4, u8, root 1)"), "{text}");
    assert!(text.contains("broken: "), "{text}");
}

#[test]
fn this_process_can_be_read_as_others_read_it() {
    let ranks = Communicator::local(2).expect("ranks meet");
    together(&ranks, |comm| comm.reduce(&mut [1_u32; 77], ReduceOp::Max, 0).expect("both"));
    let own = ranks[1].flight_record().expect("two ranks");
    let found = of_process(std::process::id()).expect("our own");
    let same = |record: &&annulus::FlightRecord| {
        (record.rank, record.communicator) == (1, own.communicator)
    };
    let record = found.iter().find(same).expect("it is there");
    assert_eq!((record.started, &record.host), (1, &own.host));
    assert!(record.to_string().contains("reduce(count 77, u32, max, root 0)"), "{record}");
    assert!(of_process(u32::MAX).is_err());
}
