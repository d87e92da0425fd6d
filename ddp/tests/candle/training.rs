//! Gradients by hooks, overlap, and equality with one rank.

use std::sync::PoisonError;

use annulus::Communicator;
use annulus_ddp::candle::{Ddp, Settings};
use annulus_ddp::{Averaging, Error, Options};
use candle_core::{DType, Tensor};
use candle_nn::{Module, Optimizer, SGD, VarBuilder, VarMap};

use crate::fixture::{CPU, Net, loss_gradients, rows, small, values, varmap};
use crate::ranks::on_ranks;

fn train(comm: &Communicator, hooked: bool) -> Vec<Vec<f32>> {
    let (rank, world) = (comm.rank(), comm.world_size());
    // Every rank begins with other weights: rank 0's count.
    let varmap = varmap(0.2 + 0.1 * rank as f32);
    let ddp = Ddp::with(&varmap, comm, Settings { options: small(), ..Settings::default() })
        .expect("equal models");
    let mut sgd = SGD::new(ddp.vars(), 0.1).expect("an optimizer");
    let plain = Net::new(VarBuilder::from_varmap(&varmap, DType::F32, &CPU)).expect("a net");
    for _ in 0..5 {
        let share = 12 / world;
        let batch = rows(rank * share, (rank + 1) * share);
        let loss = if hooked {
            Net::new(ddp.var_builder()).and_then(|net| net.loss(&batch))
        } else {
            plain.loss(&batch)
        };
        let (gradients, report) =
            ddp.backward(&loss.expect("a loss"), Some(share as u64)).expect("reduced");
        assert_eq!(report.samples, 12);
        sgd.step(&gradients).expect("stepped");
    }
    ddp.compare_weights().expect("the same bits on every rank");
    ddp.vars().iter().map(values).collect()
}

#[test]
fn ranks_train_as_one_does_with_and_without_hooks() {
    let alone = on_ranks(1, |comm| train(&comm, true)).remove(0);
    for (world, hooked) in [(2, true), (3, true), (2, false)] {
        for rank in on_ranks(world, |comm| train(&comm, hooked)) {
            for (a, b) in rank.concat().iter().zip(alone.concat()) {
                assert!((a - b).abs() < 1e-5, "{world} ranks, hooked {hooked}: {a} {b}");
            }
        }
    }
}

/// The hooks fire while candle is still computing: a bucket is reduced before the backward pass ends. No time is
/// compared: the first layer waits in its own hook until the last layer's bucket has been reduced.
#[test]
fn buckets_are_reduced_while_the_backward_pass_goes_on() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use annulus_ddp::GradientBucket;
    use annulus_ddp::hooks::{AllReduce, Hook};
    use candle_core::{CpuStorage, CustomOp1, Layout, Shape};

    struct Counting(Arc<AtomicUsize>);
    impl Hook for Counting {
        fn name(&self) -> String {
            "counting".to_owned()
        }
        fn reduce(
            &mut self,
            bucket: GradientBucket<'_>,
            comm: &Communicator,
        ) -> Result<u64, Error> {
            let sent = AllReduce.reduce(bucket, comm)?;
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(sent)
        }
    }

    /// On the way back, waits for the first reduction.
    struct Waiting(Arc<AtomicUsize>);
    impl CustomOp1 for Waiting {
        fn name(&self) -> &'static str {
            "waiting"
        }
        fn cpu_fwd(
            &self,
            storage: &CpuStorage,
            layout: &Layout,
        ) -> candle_core::Result<(CpuStorage, Shape)> {
            Ok((CpuStorage::F32(storage.as_slice::<f32>()?.to_vec()), layout.shape().clone()))
        }
        fn bwd(
            &self,
            _: &Tensor,
            _: &Tensor,
            gradient: &Tensor,
        ) -> candle_core::Result<Option<Tensor>> {
            let begun = Instant::now();
            while self.0.load(Ordering::SeqCst) == 0 {
                if begun.elapsed() > Duration::from_secs(60) {
                    candle_core::bail!("nothing was reduced during the backward pass");
                }
                std::thread::yield_now();
            }
            Ok(Some(gradient.clone()))
        }
    }

    on_ranks(2, |comm| {
        let varmap = varmap(0.2);
        let reduced = Arc::new(AtomicUsize::new(0));
        let settings = Settings {
            options: small(),
            hook: Box::new(Counting(reduced.clone())),
            ..Settings::default()
        };
        let ddp = Ddp::with(&varmap, &comm, settings).expect("equal models");
        let net = Net::new(ddp.var_builder()).expect("a net");
        let between = net.layers[0].forward(&rows(0, 4)).expect("forward");
        let mut output = between.apply_op1(Waiting(reduced)).expect("forward");
        for layer in &net.layers[1..] {
            output = layer.forward(&output).expect("forward");
        }
        let (_, report) = ddp
            .backward(&output.sqr().and_then(|o| o.mean_all()).expect("a loss"), None)
            .expect("reduced");
        assert!(!report.hidden.is_zero(), "{report}");
    });
}

#[test]
fn accumulated_gradients_are_those_of_the_whole_batch() {
    let results = on_ranks(2, |comm| {
        let varmap = varmap(0.2);
        let options = Options { averaging: Averaging::Samples, ..small() };
        let ddp = Ddp::with(&varmap, &comm, Settings { options, ..Settings::default() })
            .expect("equal models");
        let loss = |from, to| {
            Net::new(ddp.var_builder()).and_then(|net| net.loss(&rows(from, to))).expect("a loss")
        };
        if comm.rank() == 0 {
            ddp.accumulate(&loss(0, 2), Some(2)).expect("added");
            ddp.accumulate(&loss(2, 3), Some(1)).expect("added");
        }
        let (from, to) = if comm.rank() == 0 { (3, 7) } else { (7, 12) };
        let (gradients, _) =
            ddp.backward(&loss(from, to), Some((to - from) as u64)).expect("reduced");
        let whole = loss_gradients(&varmap, 0, 12);
        ddp.vars()
            .iter()
            .zip(whole)
            .map(|(var, whole)| {
                let got = gradients
                    .get(var.as_tensor())
                    .expect("used")
                    .flatten_all()
                    .and_then(|g| g.to_vec1::<f32>());
                (got.expect("values"), whole)
            })
            .collect::<Vec<_>>()
    });
    for (got, whole) in results.concat() {
        for (got, whole) in got.iter().zip(whole) {
            assert!((got - whole).abs() < 1e-6, "{got} {whole}");
        }
    }
}

/// A gradient that candle gives transposed is packed: where stock Gloo computes wrong numbers (pytorch#192920).
#[test]
fn gradients_that_are_not_contiguous_are_right() {
    let results = on_ranks(2, |comm| {
        let varmap = VarMap::new();
        let init = candle_nn::Init::Const(1.0);
        varmap.get((2, 3), "matrix", init, DType::F32, &CPU).expect("a variable");
        let ddp = Ddp::new(&varmap, &comm).expect("equal models");
        let matrix = ddp.var_builder().get((2, 3), "matrix").expect("the variable");
        let factors = Tensor::new(&[[1.0_f32, 2.0], [3.0, 4.0], [5.0, 6.0]], &CPU).expect("values");
        let factors = (factors * (comm.rank() as f64 + 1.0)).expect("values");
        let loss =
            matrix.t().and_then(|t| t.mul(&factors)).and_then(|p| p.sum_all()).expect("a loss");
        let (gradients, _) = ddp.backward(&loss, None).expect("reduced");
        gradients.get(ddp.vars()[0].as_tensor()).expect("used").to_vec2::<f32>().expect("values")
    });
    assert_eq!(results[0], [[1.5, 4.5, 7.5], [3.0, 6.0, 9.0]]);
    assert_eq!(results[0], results[1]);
}

#[test]
fn weights_that_differ_are_found_and_files_bring_them_back() {
    let path =
        std::env::temp_dir().join(format!("annulus-ddp-candle-{}.safetensors", std::process::id()));
    on_ranks(2, |comm| {
        let varmap = varmap(0.2);
        let ddp = Ddp::new(&varmap, &comm).expect("equal models");
        let hash = ddp.compare_weights().expect("rank 0's");
        ddp.save(&path).expect("written");
        if comm.rank() == 1 {
            let var = &ddp.vars()[0];
            var.set(&var.ones_like().expect("ones")).expect("set");
        }
        assert!(matches!(ddp.compare_weights(), Err(Error::WeightsDiffer { rank: 1 })));
        ddp.load(&path).expect("read");
        assert_eq!(ddp.compare_weights().expect("the same again"), hash);
    });
    std::fs::remove_file(&path).expect("it was there");
}

#[test]
fn running_means_are_buffers() {
    on_ranks(2, |comm| {
        let varmap = varmap(0.2);
        let init = candle_nn::Init::Const(comm.rank() as f64);
        varmap.get(3, "norm.running_mean", init, DType::F32, &CPU).expect("a variable");
        let ddp = Ddp::new(&varmap, &comm).expect("equal models");
        assert_eq!(ddp.vars().len(), 6);
        let data = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
        let mean = &data["norm.running_mean"];
        assert_eq!(values(mean), [0.0; 3], "rank 0's");
        mean.set(&Tensor::new(&[comm.rank() as f32 + 5.0; 3], &CPU).expect("values")).expect("set");
        ddp.broadcast_buffers().expect("broadcast");
        assert_eq!(values(mean), [5.0; 3]);
    });
}

/// Batch normalization changes its running means in place, in the variables that the map holds.
#[test]
fn batch_normalization_keeps_its_means_between_steps() {
    use candle_nn::{BatchNormConfig, ModuleT, batch_norm};
    on_ranks(2, |comm| {
        let varmap = VarMap::new();
        let config = BatchNormConfig::default();
        batch_norm(6, config, VarBuilder::from_varmap(&varmap, DType::F32, &CPU)).expect("a layer");
        let ddp = Ddp::new(&varmap, &comm).expect("equal models");
        assert_eq!(ddp.vars().len(), 2, "weight and bias");
        for _ in 0..2 {
            let layer = batch_norm(6, config, ddp.var_builder()).expect("a layer");
            let from = comm.rank() * 4;
            let output = layer.forward_t(&rows(from, from + 4), true).expect("forward");
            let loss = output.sqr().and_then(|squares| squares.mean_all()).expect("a loss");
            ddp.backward(&loss, None).expect("reduced");
        }
        let mean = || {
            let data = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
            values(&data["running_mean"])
        };
        let own = mean();
        assert!(own.iter().any(|&mean| mean != 0.0), "{own:?}");
        assert!(ddp.compare_weights().is_err(), "each rank has seen other rows");
        ddp.broadcast_buffers().expect("broadcast");
        ddp.compare_weights().expect("rank 0's");
        assert!(comm.rank() != 0 || mean() == own);
    });
}

/// Zero-size and 16-bit variables among others.
#[test]
fn variables_of_any_float_type_and_size_are_averaged() {
    on_ranks(2, |comm| {
        let varmap = VarMap::new();
        let init = candle_nn::Init::Const(1.0);
        let types = [("bf", DType::BF16), ("half", DType::F16), ("wide", DType::F64)];
        for (name, dtype) in types {
            varmap.get(3, name, init, dtype, &CPU).expect("a variable");
        }
        varmap.get((0, 3), "nothing", init, DType::F32, &CPU).expect("a variable");
        varmap.get((), "scalar", init, DType::F32, &CPU).expect("a variable");
        let ddp = Ddp::new(&varmap, &comm).expect("equal models");
        let sum = |names: &[(&str, DType)]| {
            let builder = ddp.var_builder().set_dtype(DType::F32);
            let mut loss = builder.get((0, 3), "nothing")?.sum_all()?;
            loss = (loss + builder.get((), "scalar")?)?;
            for (name, dtype) in names {
                let all = builder.get_with_hints_dtype(3, name, init, *dtype)?;
                loss = (loss + all.to_dtype(DType::F32)?.sum_all()?)?;
            }
            loss * (1.0 + 2.0 * comm.rank() as f64)
        };
        let (gradients, _) = ddp.backward(&sum(&types).expect("a loss"), None).expect("reduced");
        for var in ddp.vars() {
            let gradient = gradients.get(var.as_tensor()).expect("used");
            assert_eq!((gradient.dims(), gradient.dtype()), (var.dims(), var.dtype()));
            let all = gradient.to_dtype(DType::F32).and_then(|g| g.flatten_all()?.to_vec1::<f32>());
            assert!(all.expect("values").iter().all(|&mean| mean == 2.0));
        }
    });
}
