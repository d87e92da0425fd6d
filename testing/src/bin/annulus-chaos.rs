//! `annulus-chaos`: jobs of processes that compute while faults strike them, one job for each seed.

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use annulus_testing::chaos::{
    Links, Network, Scenario, enter_namespaces, is_inside, run, work, work_as_newcomer,
};
use clap::Parser;

/// Runs jobs of 2 to 8 processes under random faults: kills, stops, partitions, delays, aborts, mismatches, panics. Each seed
/// is one job. Whatever happens, nobody may hang, no element may be wrong, all survivors must agree on who was lost,
/// and nothing may be left behind.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// One seed, with its ranks' logs.
    #[arg(long, conflicts_with_all = ["seeds", "seconds"])]
    seed: Option<u64>,
    /// Seeds from A, and not B.
    #[arg(long, value_name = "A..B", value_parser = parse_range, default_value = "0..100")]
    seeds: Range<u64>,
    /// Begin no new seed after so long.
    #[arg(long)]
    seconds: Option<u64>,
    /// Seeds that run at a time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// What the links run over: some of shm, tcp, net (hosts made of network namespaces).
    #[arg(long, value_delimiter = ',', default_value = "shm,tcp,net", value_parser = parse_links)]
    transport: Vec<Links>,
    /// Go on after a failure.
    #[arg(long)]
    keep_going: bool,
    /// Runs one rank of the seed.
    #[arg(long, hide = true)]
    rank: Option<usize>,
    /// The rank comes after a loss, as the last of so many.
    #[arg(long, hide = true, requires = "rank")]
    newcomer_of: Option<usize>,
}

fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let bounds = text.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
    bounds.filter(|range| !range.is_empty()).ok_or_else(|| "expected A..B with A < B".into())
}

fn parse_links(text: &str) -> Result<Links, String> {
    Links::from_name(text).ok_or_else(|| "expected shm, tcp or net".into())
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let (Some(rank), Some(seed)) = (options.rank, options.seed) {
        let scenario = Scenario::new(seed, &options.transport);
        let outcome = match options.newcomer_of {
            Some(world) => work_as_newcomer(&scenario, world),
            None => work(&scenario, rank),
        };
        return match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("rank {rank}: {error}");
                ExitCode::FAILURE
            }
        };
    }
    if options.transport.contains(&Links::Network) && !is_inside() {
        let error = enter_namespaces();
        eprintln!("skipped: namespaces: {error}");
    }
    match Campaign::new(options) {
        Ok(campaign) => campaign.run(),
        Err(problem) => {
            eprintln!("annulus-chaos: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// The seeds that are to be run.
struct Campaign {
    options: Options,
    program: PathBuf,
    networks: Vec<Option<Network>>,
    links: Vec<Links>,
    next: AtomicU64,
    over: AtomicBool,
    failures: Mutex<Vec<u64>>,
}

impl Campaign {
    fn new(options: Options) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut links: Vec<Links> = Links::ALL.into_iter().map(|(_, links)| links).collect();
        links.retain(|links| options.transport.contains(links));
        let mut networks: Vec<_> = (0..options.jobs).map(|_| None).collect();
        if links.contains(&Links::Network) && is_inside() {
            for (slot, network) in networks.iter_mut().enumerate() {
                match Network::new(slot) {
                    Ok(new) => *network = Some(new),
                    Err(error) => {
                        eprintln!("skipped: network: {error}");
                        break;
                    }
                }
            }
        }
        if networks.iter().any(Option::is_none) {
            links.retain(|links| *links != Links::Network);
        }
        if links.is_empty() {
            return Err("there is nothing to run over".into());
        }
        let first = options.seed.unwrap_or(options.seeds.start);
        let (over, failures) = (AtomicBool::new(false), Mutex::default());
        Ok(Self { options, program, networks, links, next: AtomicU64::new(first), over, failures })
    }

    fn run(&self) -> ExitCode {
        let begun = Instant::now();
        let end = self.options.seed.map_or(self.options.seeds.end, |seed| seed + 1);
        let count = AtomicU64::new(0);
        thread::scope(|threads| {
            for network in &self.networks {
                threads.spawn(|| {
                    while let Some(seed) = self.next_seed(begun, end) {
                        self.run_seed(seed, network.as_ref());
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, took) = (count.into_inner(), begun.elapsed().as_secs_f64());
        println!("{count} seeds in {took:.0} s, {} failed: {failures:?}", failures.len());
        if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn next_seed(&self, begun: Instant, end: u64) -> Option<u64> {
        let late = self.options.seconds.is_some_and(|s| begun.elapsed() >= Duration::from_secs(s));
        if late || self.over.load(Ordering::Relaxed) {
            return None;
        }
        Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|&seed| seed < end)
    }

    fn run_seed(&self, seed: u64, network: Option<&Network>) {
        let scenario = Scenario::new(seed, &self.links);
        let transport = self.links.iter().map(|links| links.name()).collect::<Vec<_>>().join(",");
        let seed_text = seed.to_string();
        let arguments = ["--seed", &seed_text, "--transport", &transport];
        let arguments: Vec<String> = arguments.map(str::to_owned).into();
        let begun = Instant::now();
        match run(&scenario, (&self.program, &arguments), network) {
            Ok(logs) => {
                println!("{:5.2} s  {scenario}", begun.elapsed().as_secs_f64());
                if self.options.seed.is_some() {
                    print!("{logs}");
                }
            }
            Err(failure) => {
                println!("{failure}  again: annulus-chaos --seed {seed} --transport {transport}");
                self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(seed);
                self.over.store(!self.options.keep_going, Ordering::Relaxed);
            }
        }
    }
}
