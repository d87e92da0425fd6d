//! Ranks as processes: training over shared memory and over TCP gives the same weights on every rank, and those of a
//! single rank that sees all samples. A rank that is killed is named by the others.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

use annulus::{Communicator, Config, DataType, Launch, Transport};
use annulus_ddp::{DistributedSampler, Model, Options, Parameter, Reducer};

/// Set in the ranks' processes only: the transport.
const MARK: &str = "ANNULUS_DDP_TEST_PROCESS";
/// Set there to how many steps to train; without it, until the end of the world.
const STEPS: &str = "ANNULUS_DDP_TEST_STEPS";

const SAMPLES: usize = 48;
const FEATURES: usize = 40;

/// Not a test by itself: what each rank's process runs, with a launcher's variables.
#[test]
fn rank_process() {
    let Some(transport) = std::env::var_os(MARK) else { return };
    let mut config = Config::default();
    config.timeout = std::time::Duration::from_secs(60);
    config.transport = transport.to_str().and_then(Transport::from_name).expect("a transport");
    let launch = Launch::from_env().expect("a launch");
    let comm = Communicator::launched(&launch, &config).expect("ranks meet");
    let steps = std::env::var(STEPS).ok().map(|steps| steps.parse().expect("a number"));
    match train(&comm, steps.unwrap_or(usize::MAX)) {
        Ok(weights) => {
            let bits: Vec<String> =
                weights.iter().map(|weight| weight.to_bits().to_string()).collect();
            println!("\nweights {}", bits.join(" "));
        }
        Err(error) => println!("\nfailed {error}"),
    }
}

/// Linear regression by gradient descent over all samples; two parameters in a bucket each.
fn train(comm: &Communicator, steps: usize) -> Result<Vec<f32>, annulus_ddp::Error> {
    let model = Model::new(vec![
        Parameter::new("bias", &[1], DataType::F32),
        Parameter::new("weight", &[FEATURES], DataType::F32),
    ]);
    let options = Options { first_bucket_bytes: 1, bucket_bytes: 1, ..Options::default() };
    let reducer = Reducer::new(comm, model, options)?;
    let mut sampler =
        DistributedSampler::new(SAMPLES, comm.world_size(), comm.rank())?.shuffle(true);
    let (mut weight, mut bias) = (vec![0.0_f32; FEATURES], 0.0_f32);
    for step in 0..steps {
        sampler.set_epoch(step as u64);
        let batch = sampler.indices();
        let mut gradients = (vec![0.0_f32; FEATURES], 0.0_f32);
        for &sample in &batch {
            let (input, target) = sample_of(sample);
            let output: f32 = input.iter().zip(&weight).map(|(x, w)| x * w).sum::<f32>() + bias;
            let slope = 2.0 * (output - target) / batch.len() as f32;
            gradients.1 += slope;
            for (gradient, x) in gradients.0.iter_mut().zip(&input) {
                *gradient += slope * x;
            }
        }
        reducer.begin(Some(batch.len() as u64))?;
        reducer.ready(1, &gradients.0)?;
        reducer.ready(0, &[gradients.1])?;
        reducer.finish()?;
        let averaged = reducer.gradient::<f32>(1)?.expect("used");
        for (weight, gradient) in weight.iter_mut().zip(averaged) {
            *weight -= 0.02 * gradient;
        }
        bias -= 0.02 * reducer.gradient::<f32>(0)?.expect("used")[0];
        if step == 3 {
            println!("\ntrains");
        }
    }
    weight.push(bias);
    Ok(weight)
}

fn sample_of(sample: usize) -> (Vec<f32>, f32) {
    let input: Vec<f32> =
        (0..FEATURES).map(|i| ((sample * 17 + i * 29) % 13) as f32 / 13.0 - 0.5).collect();
    let target = input.iter().enumerate().map(|(i, x)| x * (i % 3) as f32).sum::<f32>() + 0.7;
    (input, target)
}

struct Rank {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Rank {
    fn start(rank: usize, world: usize, transport: &str, steps: Option<usize>, name: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command
            .args(["--exact", "rank_process", "--nocapture", "--test-threads=1"])
            .env(MARK, transport)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", world.to_string())
            .env("LOCAL_WORLD_SIZE", world.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", "1")
            .env("TORCHELASTIC_RUN_ID", format!("ddp-{name}-{transport}-{}", std::process::id()))
            .stdout(Stdio::piped());
        if let Some(steps) = steps {
            command.env(STEPS, steps.to_string());
        }
        let mut process = command.spawn().expect("a process");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        Self { process, lines }
    }

    /// The rest of the next line that begins with `words`.
    fn says(&mut self, words: &str) -> Option<String> {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        lines.find_map(|line| line.strip_prefix(words).map(str::to_owned))
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn trained(world: usize, transport: &str, steps: usize) -> Vec<Vec<f32>> {
    let start = |rank| Rank::start(rank, world, transport, Some(steps), &format!("train-{world}"));
    let mut ranks: Vec<Rank> = (0..world).map(start).collect();
    let weights = |rank: &mut Rank| -> Vec<f32> {
        let line = rank.says("weights ").expect("trained");
        line.split(' ').map(|bits| f32::from_bits(bits.parse().expect("bits"))).collect()
    };
    ranks.iter_mut().map(weights).collect()
}

fn training_equality(transport: &str) {
    let alone = Communicator::local(1).expect("one rank").remove(0);
    let alone = train(&alone, 30).expect("trained");
    for world in [2, 4] {
        let ranks = trained(world, transport, 30);
        for weights in &ranks {
            assert_eq!(weights, &ranks[0], "the same bits on every rank");
            for (weight, expected) in weights.iter().zip(&alone) {
                assert!(
                    (weight - expected).abs() < 1e-5,
                    "{world} ranks: {weight}, one: {expected}"
                );
            }
        }
    }
}

#[test]
fn training_over_shared_memory_equals_training_alone() {
    training_equality("shm");
}

#[test]
fn training_over_tcp_equals_training_alone() {
    training_equality("tcp");
}

#[test]
fn a_rank_killed_in_training_is_named_by_the_others() {
    let mut ranks: Vec<_> = (0..3).map(|rank| Rank::start(rank, 3, "shm", None, "kill")).collect();
    assert!(ranks.iter_mut().all(|rank| rank.says("trains").is_some()));
    ranks[1].process.kill().expect("killed");
    for rank in [0, 2] {
        let error = ranks[rank].says("failed ").expect("it ends");
        assert!(error.contains("rank 1"), "{error}");
    }
}
