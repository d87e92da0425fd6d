//! Ranks that run out of input before others.

use annulus_ddp::hooks::{PowerSgd, PowerSgdSettings, ReduceScatter, average_values};
use annulus_ddp::{
    Averaging, Checkpoint, Error, Metrics, Model, Options, Reducer, Sgd, ShardedOptimizer, Trace,
    broadcast_values, first_present,
};

use crate::fixture::{averaged, backward, gradient, model, parameter, small, value};
use crate::ranks::on_ranks;

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

/// Guards against pytorch#44425: a rank that joins while others accumulate without communication.
#[test]
fn ranks_join_while_others_accumulate() {
    let results = on_ranks(3, |comm| {
        let rank = comm.rank();
        let reducer = Reducer::new(&comm, model(), small()).expect("equal models");
        let mut sums = Vec::new();
        // Rank 0 ends after one step, rank 1 in the midst of its second: what it accumulated is lost.
        for step in 0..=rank {
            for pass in 0..2 {
                let last = pass == 1;
                if last { reducer.begin(None) } else { reducer.begin_accumulating(None) }
                    .expect("begun");
                backward(&reducer, rank, 2 * step + pass, &[]).expect("gradients");
                let report = reducer.finish().expect("finished");
                let others = report.ranks.iter().map(|times| times.joined).collect::<Vec<_>>();
                assert!(!last || others == [step > 0, step > 0, false], "{others:?}");
                if rank == 1 && step == 1 {
                    break;
                }
            }
            if rank == 1 && step == 1 {
                break;
            }
            sums.push(averaged(&reducer, 0).expect("used")[0]);
        }
        assert_eq!(reducer.join().expect("all join"), 2);
        sums
    });
    for (step, got) in results[2].iter().enumerate() {
        let ranks = if step == 0 { 0..3 } else { 2..3 };
        let passes = ranks.flat_map(|rank| [(rank, 2 * step), (rank, 2 * step + 1)]);
        let sum: f32 = passes.map(|(rank, pass)| value(rank, 0, 0, pass)).sum();
        assert!((got - sum / 3.0).abs() < 1e-5, "step {step}: {got} {sum}");
    }
}

/// Guards against PL#3325, PL#20404 and pytorch#65436: metrics, averages and buffers that do not know of joined ranks.
#[test]
fn what_else_ranks_call_leaves_out_those_that_have_joined() {
    let path = std::env::temp_dir().join(format!("annulus-ddp-joined-{}", std::process::id()));
    on_ranks(3, |comm| {
        let rank = comm.rank();
        let reducer = Reducer::new(&comm, model(), small()).expect("equal models");
        let comm = reducer.communicator();
        if rank > 0 {
            let mut metrics = Metrics::new();
            metrics.add_mean("loss", rank as f64, 1.0);
            let reduced = metrics.all_reduce(comm).expect("equal names");
            assert_eq!((reduced.mean("loss"), reduced.weight("loss")), (Some(1.5), Some(2.0)));
            assert_eq!((reduced.min("loss"), reduced.max("loss")), (Some(1.0), Some(2.0)));
            assert_eq!(reduced.mean_of_rank("loss", 0), None);
            let mut other = Metrics::new();
            other.add_sum(["a", "b"][rank - 1], 1.0);
            assert!(matches!(other.all_reduce(comm), Err(Error::Metrics { rank: 2, .. })));

            let mut parameters = [rank as f32; 3];
            average_values(comm, &mut [&mut parameters]).expect("averaged");
            assert_eq!(parameters, [1.5; 3]);

            let root = first_present(comm).expect("two are left");
            assert_eq!(root, 1);
            let mut buffer = [rank as u8; 4];
            broadcast_values(comm, &mut [&mut buffer], root).expect("sent");
            assert_eq!(buffer, [1; 4]);

            let mut checkpoint = Checkpoint::new();
            checkpoint.note("rank", rank);
            checkpoint.save(comm, &path).expect("written");

            let trace = path.with_extension("trace");
            Trace::new(rank)
                .write_together(comm, &trace)
                .expect("written by the first that is left");
            let text = std::fs::read_to_string(&trace);
            comm.barrier().expect("both have read");
            let text = text.expect("it is there");
            assert!(text.contains("traceEvents"), "{text}");
            if rank == root {
                std::fs::remove_file(&trace).expect("it was there");
            }
        }
        assert!(reducer.join().is_ok());
        let checkpoint = Checkpoint::load(comm, &path).expect("written by the first that was left");
        assert_eq!(checkpoint.noted("rank"), Some("1"));
    });
    std::fs::remove_file(&path).expect("it was there");
}

/// Zeros in place of a joined rank's part of the parameters would be silent damage.
#[test]
fn a_sharded_optimizer_refuses_to_step_without_a_rank() {
    on_ranks(2, |comm| {
        let model = Model::new(vec![parameter("weight", &[4])]);
        let reducer = Reducer::with_hook(&comm, model, Options::default(), Box::new(ReduceScatter))
            .expect("equal models");
        let mut weight = [1.0_f32; 4];
        let sgd = Sgd { rate: 1.0, momentum: 0.0, weight_decay: 0.0 };
        let mut sharded =
            ShardedOptimizer::new(&reducer, sgd, |_, place| place.fill(1.0)).expect("memory");
        for step in 0..=comm.rank() {
            reducer.begin(None).expect("begun");
            reducer.ready(0, &gradient(comm.rank(), 0, 4, step)).expect("a gradient");
            reducer.finish().expect("reduced");
            let before = weight;
            let outcome = sharded.step(&reducer, |_, new| weight.copy_from_slice(new));
            if step == 1 {
                assert!(matches!(outcome, Err(Error::Joined { rank: 0 })), "{outcome:?}");
                assert_eq!(weight, before);
                let saved = sharded.save_into(&reducer, &mut Checkpoint::new());
                assert!(matches!(saved, Err(Error::Joined { rank: 0 })), "{saved:?}");
            } else {
                outcome.expect("all are there");
            }
        }
        reducer.join().expect("all join");
        reducer.begin(None).expect("begun");
        reducer.ready(0, &[0.0_f32; 4]).expect("a gradient");
        reducer.finish().expect("reduced");
        sharded.step(&reducer, |_, _| ()).expect("all are there again");
    });
}
