//! What training consists of beside gradients: scaling, clipping, unequal steps, optimizers in parts.

use annulus::Communicator;
use annulus_ddp::candle::{Ddp, Settings};
use annulus_ddp::hooks::{LocalSgd, ReduceScatter};
use annulus_ddp::{AdamW, Averaging, Checkpoint, LossScaler, Options};
use candle_core::Tensor;
use candle_nn::{Optimizer, SGD};

use crate::fixture::{Net, rows, small, values, varmap};
use crate::ranks::on_ranks;

fn loss(ddp: &Ddp, from: usize, to: usize) -> Tensor {
    Net::new(ddp.var_builder()).and_then(|net| net.loss(&rows(from, to))).expect("a loss")
}

fn all_values(ddp: &Ddp) -> Vec<f32> {
    ddp.vars().iter().flat_map(values).collect()
}

fn assert_close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
}

#[test]
fn a_scaled_loss_gives_the_gradients_of_the_loss_or_no_rank_steps() {
    let results = on_ranks(2, |comm| {
        let varmap = varmap(0.2);
        let options = Options { check_finite: true, ..small() };
        let ddp = Ddp::with(&varmap, &comm, Settings { options, ..Settings::default() })
            .expect("equal models");
        let mut scaler = LossScaler::new(1024.0, 100);
        let from = comm.rank() * 4;
        let (plain, _) = ddp.backward(&loss(&ddp, from, from + 4), None).expect("reduced");
        let (scaled, _) =
            ddp.backward_scaled(&loss(&ddp, from, from + 4), None, &mut scaler).expect("reduced");
        let scaled = scaled.expect("finite");
        for var in ddp.vars() {
            let of = |store: &candle_core::backprop::GradStore| {
                let gradient = store.get(var.as_tensor()).expect("used").flatten_all();
                gradient.and_then(|g| g.to_vec1::<f32>()).expect("values")
            };
            assert_close(&of(&plain), &of(&scaled));
        }
        let overflowing = if comm.rank() == 1 { f64::INFINITY } else { 1.0 };
        let broken = (loss(&ddp, 0, 4) * overflowing).expect("a loss");
        let (none, report) = ddp.backward_scaled(&broken, None, &mut scaler).expect("reduced");
        assert!(none.is_none() && report.non_finite.is_some());
        scaler
    });
    assert_eq!(results[0], results[1]);
    assert_eq!((results[0].scale(), results[0].skipped()), (512.0, 1));
}

#[test]
fn clipping_is_by_the_norm_over_all_variables_of_the_average() {
    on_ranks(2, |comm| {
        let varmap = varmap(0.2);
        let ddp = Ddp::new(&varmap, &comm).expect("equal models");
        let norm_of = |store: &candle_core::backprop::GradStore| -> f64 {
            let squares = ddp
                .vars()
                .iter()
                .map(|var| {
                    let gradient = store.get(var.as_tensor()).expect("used");
                    let sum = gradient.sqr().and_then(|g| g.sum_all()?.to_scalar::<f32>());
                    f64::from(sum.expect("a sum"))
                })
                .sum::<f64>();
            squares.sqrt()
        };
        let from = comm.rank() * 4;
        let (mut gradients, _) = ddp.backward(&loss(&ddp, from, from + 4), None).expect("reduced");
        let before = norm_of(&gradients);
        let told = ddp.clip_gradients(&mut gradients, 10.0 * before).expect("gradients");
        assert!((told - before).abs() < 1e-5 * before && norm_of(&gradients) == before);
        ddp.clip_gradients(&mut gradients, before / 4.0).expect("gradients");
        assert!((norm_of(&gradients) - before / 4.0).abs() < 1e-5 * before);
    });
}

/// Rank 1 has twice as many batches; the weights are those of one rank that sees each step's batches.
#[test]
fn ranks_with_unequal_numbers_of_batches_join() {
    let train = |comm: &Communicator, batches: &[Vec<(usize, usize)>]| {
        let varmap = varmap(0.2);
        let options = Options { averaging: Averaging::Samples, ..small() };
        let ddp = Ddp::with(&varmap, comm, Settings { options, ..Settings::default() })
            .expect("equal models");
        let mut sgd = SGD::new(ddp.vars(), 0.1).expect("an optimizer");
        for &(from, to) in &batches[comm.rank()] {
            let samples = Some((to - from) as u64);
            let (gradients, _) = ddp.backward(&loss(&ddp, from, to), samples).expect("reduced");
            sgd.step(&gradients).expect("stepped");
            ddp.broadcast_buffers().expect("from whoever is left");
            ddp.compare_weights().expect("of those who are left");
        }
        ddp.join().expect("all join");
        ddp.compare_weights().expect("the last one's");
        all_values(&ddp)
    };
    let together = on_ranks(2, |comm| {
        train(&comm, &[vec![(0, 3), (6, 7)], vec![(3, 6), (7, 9), (9, 12), (0, 2)]])
    });
    let alone =
        on_ranks(1, |comm| train(&comm, &[vec![(0, 6), (6, 9), (9, 12), (0, 2)]])).remove(0);
    assert_close(&together[0], &alone);
    assert_eq!(together[0], together[1]);
}

#[test]
fn local_steps_are_averaged_now_and_then() {
    on_ranks(2, |comm| {
        let varmap = varmap(0.2);
        let hook = Box::new(LocalSgd::new(0));
        let ddp = Ddp::with(&varmap, &comm, Settings { hook, ..Settings::default() })
            .expect("equal models");
        let mut sgd = SGD::new(ddp.vars(), 0.1).expect("an optimizer");
        let from = comm.rank() * 4;
        let (gradients, _) = ddp.backward(&loss(&ddp, from, from + 4), None).expect("local");
        sgd.step(&gradients).expect("stepped");
        assert!(ddp.compare_weights().is_err(), "each rank has stepped by itself");
        ddp.average_variables().expect("averaged");
        ddp.compare_weights().expect("the mean");
    });
}

/// Two ranks train, three go on, and come where one rank comes.
#[test]
fn a_sharded_optimizer_resumes_with_another_number_of_ranks() {
    let train = |comm: &Communicator, steps: std::ops::Range<usize>, from: Option<&Checkpoint>| {
        let varmap = varmap(0.2);
        let hook = Box::new(ReduceScatter);
        let ddp =
            Ddp::with(&varmap, comm, Settings { options: small(), hook, ..Settings::default() })
                .expect("equal models");
        let mut adam = ddp.sharded(AdamW { rate: 0.01, ..AdamW::default() }).expect("memory");
        if let Some(checkpoint) = from {
            ddp.resume(&mut adam, checkpoint).expect("whole");
        }
        let share = 12 / comm.world_size();
        for _ in steps {
            let from = comm.rank() * share;
            ddp.average(&loss(&ddp, from, from + share), None).expect("reduced");
            ddp.step(&mut adam).expect("stepped");
        }
        ddp.compare_weights().expect("the same bits on every rank");
        let mut checkpoint = Checkpoint::new();
        ddp.suspend(&mut adam, &mut checkpoint).expect("gathered");
        (checkpoint, all_values(&ddp))
    };
    let through = on_ranks(1, |comm| train(&comm, 0..6, None)).remove(0).1;
    let half = on_ranks(2, |comm| train(&comm, 0..3, None)).remove(0).0;
    for (_, resumed) in on_ranks(3, |comm| train(&comm, 3..6, Some(&half))) {
        assert_close(&resumed, &through);
    }
}
