//! Measures where the time of a step goes, for `benches/gloo/run`: layers of `Linear(1024, 1024)` on two ranks.
//!
//! ```text
//! cargo run --release -p annulus-ddp --features candle --example layers
//! ```

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use annulus::bootstrap::UNIQUE_ID_BYTES;
use annulus::{Communicator, Config, ReduceOp, UniqueId};
use annulus_ddp::candle::Ddp;
use annulus_ddp::{DistributedSampler, Metrics};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, Optimizer, SGD, VarBuilder, VarMap, linear};

type Failure = Box<dyn std::error::Error>;

const LAYERS: usize = 8;
const WIDTH: usize = 1024;
const BATCH: usize = 64;
const STEPS: usize = 12;
const WARM: usize = 3;
const RANKS: usize = 2;

const ROLE: &str = "LAYERS_RANK";
const ID: &str = "LAYERS_ID";

struct Net(Vec<Linear>);

impl Net {
    fn new(vb: VarBuilder) -> candle_core::Result<Self> {
        (0..LAYERS)
            .map(|layer| linear(WIDTH, WIDTH, vb.pp(layer)))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    fn loss(&self, rows: &Tensor) -> candle_core::Result<Tensor> {
        let mut output = rows.clone();
        for layer in &self.0 {
            output = layer.forward(&output)?.relu()?;
        }
        output.sqr()?.mean_all()
    }
}

fn main() -> ExitCode {
    let outcome = match std::env::var(ROLE) {
        Ok(rank) => rank.parse().map_err(Failure::from).and_then(measure),
        Err(_) => start(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("layers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<(), Failure> {
    let id: String = UniqueId::new()?.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut processes = Vec::new();
    for rank in 0..RANKS {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(ROLE, rank.to_string()).env(ID, &id).env("RAYON_NUM_THREADS", "1");
        processes.push(command.spawn()?);
    }
    for (rank, mut process) in processes.into_iter().enumerate() {
        let status = process.wait()?;
        if !status.success() {
            return Err(format!("rank {rank} ended with {status}").into());
        }
    }
    Ok(())
}

fn join(rank: usize) -> Result<Communicator, Failure> {
    let text = std::env::var(ID)?;
    let mut bytes = [0; UNIQUE_ID_BYTES];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2).ok_or("the id is too short")?, 16)?;
    }
    Ok(Communicator::init(&UniqueId::from_bytes(&bytes)?, rank, RANKS, &Config::from_env()?)?)
}

/// Medians in milliseconds, of the slowest rank.
fn measure(rank: usize) -> Result<(), Failure> {
    let comm = join(rank)?;
    let varmap = VarMap::new();
    let plain = Net::new(VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    let ddp = Ddp::new(&varmap, &comm)?;
    // Steps that change nothing: the same work every time.
    let mut sgd = SGD::new(ddp.vars(), 0.0)?;
    let values: Vec<f32> = DistributedSampler::new(BATCH * WIDTH, 1, 0)?
        .shuffle(true)
        .seed(rank as u64)
        .indices()
        .into_iter()
        .map(|index| index as f32 / (BATCH * WIDTH) as f32 - 0.5)
        .collect();
    let rows = Tensor::from_vec(values, (BATCH, WIDTH), &Device::Cpu)?;
    let mut times: Vec<(&str, Vec<Duration>)> = Vec::new();
    let mut note = |name: &'static str, time: Duration| match times
        .iter_mut()
        .find(|(known, _)| *known == name)
    {
        Some((_, all)) => all.push(time),
        None => times.push((name, vec![time])),
    };
    for step in 0..STEPS + WARM {
        let warm = step >= WARM;
        comm.barrier()?;
        let loss = plain.loss(&rows)?;
        comm.barrier()?;
        let begun = Instant::now();
        let gradients = loss.backward()?;
        let alone = begun.elapsed();
        drop(gradients);

        comm.barrier()?;
        let begun = Instant::now();
        let loss = Net::new(ddp.var_builder())?.loss(&rows)?;
        let forward = begun.elapsed();
        comm.barrier()?;
        let backward = Instant::now();
        let (gradients, report) = ddp.backward(&loss, None)?;
        let backward = backward.elapsed();
        sgd.step(&gradients)?;
        let whole = begun.elapsed();
        if warm {
            note("backward alone", alone);
            note("forward", forward);
            note("backward and all-reduce", backward);
            note("step", whole);
            note("exposed", report.exposed);
            note("hidden", report.hidden);
            note("reducer, without copying", report.reducer.saturating_sub(report.copying));
            note("copying", report.copying);
        }
    }
    // The same buckets once more, when nothing else goes on: what their reduction takes, and a bare all-reduce.
    let buckets = ddp.reducer().buckets();
    let mut bare: Vec<_> =
        buckets.iter().map(|bucket| comm.alloc::<f32>(bucket.padded)).collect::<Result<_, _>>()?;
    for step in 0..STEPS + WARM {
        ddp.reducer().begin(None)?;
        for index in (0..ddp.vars().len()).rev() {
            ddp.reducer().ready_with(index, |_: &mut [f32]| ())?;
        }
        comm.barrier()?;
        let report = ddp.reducer().finish()?;
        comm.barrier()?;
        let begun = Instant::now();
        for bucket in &mut bare {
            comm.all_reduce(&mut bucket[..], ReduceOp::Avg)?;
        }
        let bare = begun.elapsed();
        if step >= WARM {
            note("buckets", report.hidden + report.exposed);
            note("bare all-reduce", bare);
        }
    }
    let mut metrics = Metrics::new();
    for (name, all) in &mut times {
        all.sort_unstable();
        metrics.add_sum(name, all[all.len() / 2].as_secs_f64() * 1e3);
    }
    let reduced = metrics.all_reduce(&comm)?;
    if rank == 0 {
        for (name, _) in &times {
            println!("annulus | {name} | {:.3}", reduced.max(name).unwrap_or(f64::NAN));
        }
    }
    Ok(())
}
