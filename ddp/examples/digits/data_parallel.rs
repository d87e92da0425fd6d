//! The single-process way, for comparison: one process with a replica of the model on each of several threads. In each
//! step the weights are copied to the replicas, the batch is scattered, and the gradients are gathered and averaged in
//! one place, while the replicas wait.

use std::thread;
use std::time::{Duration, Instant};

use annulus_ddp::Error;
use annulus_ddp::candle::keep_freed_memory;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Optimizer, SGD, VarBuilder, VarMap, loss::cross_entropy};

use crate::Arguments;
use crate::data::{Digits, TRAINING, batches};
use crate::net::{Net, right, variables};
use crate::outcome::{Outcome, peak_memory};

struct Replica {
    vars: Vec<Var>,
    net: Net,
}

impl Replica {
    fn new(varmap: &VarMap) -> candle_core::Result<Self> {
        let net = Net::new(VarBuilder::from_varmap(varmap, DType::F32, &Device::Cpu))?;
        Ok(Self { vars: sorted(varmap), net })
    }

    fn backward(&self, digits: &Digits, share: &[usize]) -> candle_core::Result<GradStore> {
        let (images, labels) = digits.batch(share)?;
        cross_entropy(&self.net.forward(&images)?, &labels)?.backward()
    }
}

pub(crate) fn run(replicas: usize, arguments: &Arguments) -> Result<Outcome, Error> {
    // As with ranks: the two ways are to differ in what they are called for only.
    keep_freed_memory();
    let digits = Digits::read().map_err(|problem| Error::Setting { setting: "digits", problem })?;
    let all: Vec<Replica> =
        (0..replicas).map(|_| Replica::new(&variables()?)).collect::<candle_core::Result<_>>()?;
    let master = &all[0];
    let mut sgd = SGD::new(master.vars.clone(), arguments.rate)?;
    let (mut training, mut steps) = (Duration::ZERO, 0);
    for epoch in 0..arguments.epochs {
        let begun = Instant::now();
        for batch in batches(epoch, arguments.batch)? {
            step(&all, &digits, &batch, &mut sgd)?;
            steps += 1;
        }
        training += begun.elapsed();
    }
    let indices: Vec<usize> = (TRAINING..TRAINING + digits.evaluation()).collect();
    let (images, labels) = digits.batch(&indices)?;
    let logits = master.net.forward(&images)?;
    let bytes: usize =
        master.vars.iter().map(|var| var.elem_count() * var.dtype().size_in_bytes()).sum();
    Ok(Outcome {
        mode: "data-parallel".to_owned(),
        ranks: replicas,
        loss: f64::from(cross_entropy(&logits, &labels)?.to_scalar::<f32>()?),
        accuracy: right(&logits, &labels)? / indices.len() as f64,
        step: training / steps.max(1),
        // Weights out and gradients in, for each replica but the first.
        traffic: (2 * bytes * (replicas - 1)) as f64,
        memory: peak_memory(),
        weights: "-".to_owned(),
        ..Outcome::default()
    })
}

fn step(
    all: &[Replica],
    digits: &Digits,
    batch: &[usize],
    sgd: &mut SGD,
) -> candle_core::Result<()> {
    let master = &all[0];
    for replica in &all[1..] {
        for (copy, var) in replica.vars.iter().zip(&master.vars) {
            copy.set(var.as_tensor())?;
        }
    }
    let share = batch.len().div_ceil(all.len());
    let mut stores = thread::scope(|threads| {
        let shares = all.iter().zip(batch.chunks(share));
        let running: Vec<_> = shares
            .map(|(replica, share)| {
                let backward = move || Ok((share.len(), replica.backward(digits, share)?));
                threads.spawn(backward)
            })
            .collect();
        let join =
            |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("no replica panics");
        running.into_iter().map(join).collect::<candle_core::Result<Vec<(usize, GradStore)>>>()
    })?;
    // The mean over samples, in the first replica's store.
    for (position, var) in master.vars.iter().enumerate() {
        let mut sum: Option<Tensor> = None;
        for ((samples, store), replica) in stores.iter().zip(all) {
            let Some(gradient) = store.get(replica.vars[position].as_tensor()) else { continue };
            let weighted = (gradient * (*samples as f64 / batch.len() as f64))?;
            sum = Some(match sum {
                Some(sum) => (sum + weighted)?,
                None => weighted,
            });
        }
        if let Some(sum) = sum {
            stores[0].1.insert(var.as_tensor(), sum);
        }
    }
    sgd.step(&stores[0].1)
}

fn sorted(varmap: &VarMap) -> Vec<Var> {
    let data = varmap.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut vars: Vec<_> = data.iter().collect();
    vars.sort_by_key(|(name, _)| name.as_str());
    vars.into_iter().map(|(_, var)| var.clone()).collect()
}
