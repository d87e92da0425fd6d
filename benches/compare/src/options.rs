//! What the command line asks for.

use std::fmt;
use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Duration;

use annulus_rig::Settings;
use clap::{Parser, ValueEnum};

/// Compares all-reduce (float32 sum) of Annulus with Open MPI, MPICH and Gloo on this machine.
///
/// Prints a table for each number of ranks over shared memory, and one for two ranks over TCP on the loopback
/// interface: medians in microseconds of the slowest rank's time, and how many times faster Annulus is than the best
/// of the others. Rows are split by where the host has put the cores when the samples were taken.
#[derive(Debug, Parser)]
#[command(name = "benches/compare/run", version)]
pub(crate) struct Options {
    /// Numbers of ranks over shared memory.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    pub(crate) ranks: Vec<usize>,
    /// Sizes, such as 8,2K,1M [default: 8 B to 128 MiB with two ranks, to 8 MiB with more or over TCP].
    #[arg(long, value_delimiter = ',', value_parser = parse_size)]
    sizes: Option<Vec<usize>>,
    /// How often each library is launched [default: 5].
    #[arg(long)]
    rounds: Option<u32>,
    /// Fewer rounds and samples: 2 rounds unless --rounds says otherwise.
    #[arg(long)]
    quick: bool,
    /// Which of the scenarios to run.
    #[arg(long, value_enum, default_value_t = Wires::Both)]
    transport: Wires,
    /// Let Annulus work on memory of `Communicator::alloc`; the others keep private buffers.
    #[arg(long)]
    pub(crate) alloc: bool,
    /// What becomes of the buffers between operations.
    #[arg(long, value_enum, default_value_t = Cache::Untouched)]
    pub(crate) cache: Cache,
    /// Fail when Annulus is slower than the best of the others at any size, or when a size could not be compared.
    #[arg(long)]
    pub(crate) require: bool,
    /// Include Gloo, through PyTorch for /usr/bin/python3, installing it where it is missing.
    #[arg(long)]
    pub(crate) gloo: bool,
    /// Where the built programs are.
    #[arg(long, hide = true)]
    pub(crate) programs: PathBuf,
}

/// The scenarios of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Wires {
    /// Shared memory.
    Shm,
    /// TCP on the loopback interface, two ranks.
    Tcp,
    /// Shared memory, then TCP.
    Both,
}

/// What becomes of the buffers between operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cache {
    /// Nothing, as in the OSU benchmarks: operations follow each other.
    Untouched,
    /// Each rank rewrites its input and reads its output before each operation, as programs do. Operations are timed
    /// one by one, which adds about a tenth of a microsecond to each, for every library.
    Rewritten,
}

/// Ranks and what lies between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scenario {
    pub(crate) ranks: usize,
    pub(crate) tcp: bool,
}

impl Options {
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 2 } else { 5 }).max(1)
    }

    pub(crate) fn scenarios(&self) -> Vec<Scenario> {
        let shm = self.ranks.iter().map(|&ranks| Scenario { ranks, tcp: false });
        let shm = shm.filter(|_| self.transport != Wires::Tcp);
        let tcp = (self.transport != Wires::Shm).then_some(Scenario { ranks: 2, tcp: true });
        shm.chain(tcp).collect()
    }

    pub(crate) fn sizes(&self, scenario: &Scenario) -> Vec<usize> {
        let all = [8, 128, 2 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20];
        let large = [32 << 20, 128 << 20];
        let with_large = scenario.ranks == 2 && !scenario.tcp && !self.quick;
        self.sizes.clone().unwrap_or_else(|| {
            all.into_iter().chain(large.into_iter().filter(|_| with_large)).collect()
        })
    }

    pub(crate) fn settings(&self, scenario: &Scenario) -> Settings {
        Settings {
            sizes: self.sizes(scenario),
            samples: if self.quick { 5 } else { 8 },
            sample: Duration::from_millis(if self.quick { 2 } else { 4 }),
            size: Duration::from_millis(if self.quick { 200 } else { 500 }),
            rewrite: self.cache == Cache::Rewritten,
        }
    }
}

impl Scenario {
    /// Whether ranks must share cores.
    pub(crate) fn is_crowded(&self) -> bool {
        self.ranks > available_parallelism().map_or(1, usize::from)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wire = if self.tcp { "TCP on loopback" } else { "shared memory" };
        write!(f, "{} ranks over {wire}", self.ranks)
    }
}

/// Bytes of whole float32 elements, with K, M or G for powers of 1024.
fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1 << 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    match bytes {
        // MPI counts elements in an int.
        Some(bytes) if bytes > 0 && bytes % 4 == 0 && bytes <= 4 << 30 => Ok(bytes),
        _ => Err("expected bytes, a multiple of 4 up to 4G, such as 8, 2K or 1M".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_elements() {
        assert_eq!(parse_size("8"), Ok(8));
        assert_eq!(parse_size("2K"), Ok(2048));
        assert_eq!(parse_size("1m"), Ok(1 << 20));
        for bad in ["", "0", "7", "K", "-8", "8B", "5G", "99999999999999999999"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
