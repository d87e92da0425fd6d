//! One rank's training.

use std::time::{Duration, Instant};

use annulus::Communicator;
use annulus_ddp::candle::{Ddp, Settings};
use annulus_ddp::{
    Averaging, Error, EvaluationSampler, Metrics, Options, Shard, Tail, Totals, Trace,
};
use candle_core::DType;
use candle_nn::{Optimizer, SGD, VarBuilder, VarMap, loss::cross_entropy};
use indicatif::{ProgressBar, ProgressStyle};

use crate::Arguments;
use crate::data::{Digits, TRAINING, batches};
use crate::net::{Net, right, variables};
use crate::outcome::{Outcome, peak_memory};

/// Where training is.
struct Position {
    /// Steps that all variables have seen.
    step: u64,
    /// Whether ranks have been lost.
    shrunk: bool,
}

/// Trains to the end; with `--elastic`, goes on without ranks that are lost.
pub(crate) fn run(mut comm: Communicator, arguments: &Arguments) -> Result<Outcome, Error> {
    let digits = Digits::read().map_err(|problem| Error::Setting { setting: "digits", problem })?;
    let varmap = variables()?;
    let mut position = Position { step: 0, shrunk: false };
    loop {
        let error = match train(&comm, arguments, &digits, &varmap, &mut position) {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        let recoverable = matches!(error, Error::Communication(_));
        if !arguments.elastic || !recoverable || comm.world_size() == 1 {
            return Err(error);
        }
        eprintln!("rank {}: {error}: going on with the others", comm.rank());
        comm = comm.shrink(&[])?;
        position.shrunk = true;
        eprintln!("rank {} of {} from here on", comm.rank(), comm.world_size());
    }
}

fn train(
    comm: &Communicator,
    arguments: &Arguments,
    digits: &Digits,
    varmap: &VarMap,
    position: &mut Position,
) -> Result<Outcome, Error> {
    let (rank, world) = (comm.rank(), comm.world_size());
    let options = Options {
        // A small net: several buckets only if they are small too.
        first_bucket_bytes: 8 << 10,
        bucket_bytes: 64 << 10,
        // Global batches need not be divisible by the number of ranks, least of all after a loss.
        averaging: Averaging::Samples,
        ..Options::default()
    };
    let ddp = Ddp::with(varmap, comm, Settings { options, ..Settings::default() })?;
    // Whoever takes part goes on from rank 0's step, as it has rank 0's weights.
    let mut step = [position.step];
    comm.broadcast(&mut step, 0)?;
    position.step = step[0];
    let mut sgd = SGD::new(ddp.vars(), arguments.rate)?;
    let mut trace = Trace::new(rank);
    let mut totals = Totals::default();
    let per_epoch = TRAINING.div_ceil(arguments.batch) as u64;
    let bar = progress(rank, per_epoch * arguments.epochs, position.step);
    let mut training = Duration::ZERO;
    let mut last = (f64::NAN, f64::NAN);
    while position.step < per_epoch * arguments.epochs {
        let epoch = position.step / per_epoch;
        let mut metrics = Metrics::new();
        metrics.add_mean("loss", 0.0, 0.0);
        metrics.add_mean("accuracy", 0.0, 0.0);
        let begun = Instant::now();
        for batch in &batches(epoch, arguments.batch)?[(position.step % per_epoch) as usize..] {
            if !position.shrunk {
                arguments.disturb(rank, position.step);
            }
            let share: Vec<usize> =
                Shard::new(batch.iter().copied(), world, rank, Tail::Keep)?.collect();
            let (images, labels) = ddp.reducer().time_input(|| digits.batch(&share))?;
            let logits = Net::new(ddp.var_builder())?.forward(&images)?;
            let loss = cross_entropy(&logits, &labels)?;
            let samples = share.len() as u64;
            let (gradients, report) = ddp.backward(&loss, Some(samples))?;
            sgd.step(&gradients)?;
            position.step += 1;
            bar.inc(1);
            totals.add(&report);
            trace.add(&report);
            metrics.add_mean("loss", f64::from(loss.to_scalar::<f32>()?), samples as f64);
            metrics.add_mean("accuracy", right(&logits, &labels)? / samples as f64, samples as f64);
        }
        training += begun.elapsed();
        let trained = metrics.all_reduce(comm)?;
        last = evaluate(comm, digits, varmap)?;
        let hash = ddp.compare_weights()?;
        bar.suspend(|| {
            if rank == 0 && !arguments.quiet {
                println!(
                    "epoch {epoch:2}: loss {:.4}, accuracy {:5.1} %; test loss {:.4}, accuracy {:5.1} %; weights {} on all {world} ranks",
                    trained.mean("loss").unwrap_or(f64::NAN),
                    100.0 * trained.mean("accuracy").unwrap_or(f64::NAN),
                    last.0,
                    100.0 * last.1,
                    &hash.to_hex()[..8],
                );
            }
        });
    }
    bar.finish_and_clear();
    if let Some(folder) = &arguments.trace {
        trace.write_together(comm, &folder.join(format!("digits-{world}.json")))?;
    }
    for path in arguments.save.iter().chain(&arguments.weights) {
        ddp.save(path)?;
    }
    let hash = ddp.compare_weights()?;
    summarize(comm, arguments, &totals, training, last, &hash.to_hex()[..8])
}

/// Loss and accuracy over all images that are not for training, each seen by one rank.
fn evaluate(comm: &Communicator, digits: &Digits, varmap: &VarMap) -> Result<(f64, f64), Error> {
    let net = Net::new(VarBuilder::from_varmap(varmap, DType::F32, &candle_core::Device::Cpu))?;
    let sampler = EvaluationSampler::new(digits.evaluation(), comm.world_size(), comm.rank())?;
    let mut metrics = Metrics::new();
    metrics.add_mean("loss", 0.0, 0.0);
    metrics.add_mean("accuracy", 0.0, 0.0);
    for batch in sampler.batches(100) {
        let indices: Vec<usize> = batch.map(|index| TRAINING + index).collect();
        let (images, labels) = digits.batch(&indices)?;
        let logits = net.forward(&images)?;
        let samples = indices.len() as f64;
        let loss = cross_entropy(&logits, &labels)?.to_scalar::<f32>()?;
        metrics.add_mean("loss", f64::from(loss), samples);
        metrics.add_mean("accuracy", right(&logits, &labels)? / samples, samples);
    }
    let reduced = metrics.all_reduce(comm)?;
    let mean = |name| reduced.mean(name).unwrap_or(f64::NAN);
    Ok((mean("loss"), mean("accuracy")))
}

/// Where the time went, over all ranks.
fn summarize(
    comm: &Communicator,
    arguments: &Arguments,
    totals: &Totals,
    training: Duration,
    (loss, accuracy): (f64, f64),
    weights: &str,
) -> Result<Outcome, Error> {
    let steps = totals.steps.max(1) as u32;
    let mut metrics = Metrics::new();
    metrics.add_sum("sent", totals.sent_bytes as f64 / f64::from(steps));
    metrics.add_sum("memory", peak_memory());
    let times = [
        ("compute", totals.compute),
        ("exposed", totals.exposed),
        ("hidden", totals.hidden),
        ("waiting", totals.waiting),
    ];
    for (name, time) in times {
        metrics.add_mean(name, time.as_secs_f64() / f64::from(steps), 1.0);
    }
    let reduced = metrics.all_reduce(comm)?;
    let mean = |name| Duration::from_secs_f64(reduced.mean(name).unwrap_or(0.0));
    let world = comm.world_size();
    if comm.rank() == 0 && !arguments.quiet {
        let slowest = (0..world).max_by_key(|&rank| totals.slowest.get(rank)).unwrap_or(0);
        println!(
            "per step: compute {:.2?}, communication hidden {:.2?}, exposed {:.2?} ({:.2?} of it waiting; rank {slowest} was the slowest in {} of {} steps), {:.0} bytes sent by all ranks",
            mean("compute"),
            mean("hidden"),
            mean("exposed"),
            mean("waiting"),
            totals.slowest.get(slowest).copied().unwrap_or(0),
            totals.steps,
            reduced.sum("sent").unwrap_or(0.0),
        );
    }
    Ok(Outcome {
        mode: "ddp".to_owned(),
        ranks: world,
        loss,
        accuracy,
        step: training / steps,
        compute: mean("compute"),
        exposed: mean("exposed"),
        hidden: mean("hidden"),
        waiting: mean("waiting"),
        traffic: reduced.sum("sent").unwrap_or(0.0),
        memory: reduced.sum("memory").unwrap_or(0.0),
        weights: weights.to_owned(),
    })
}

fn progress(rank: usize, steps: u64, done: u64) -> ProgressBar {
    if rank != 0 {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{bar:40} step {pos} of {len}, {per_sec}, {eta} to go");
    let bar = ProgressBar::new(steps).with_position(done);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
