//! What happens in the run of a seed.

use std::fmt;
use std::time::Duration;

use super::random::Random;

/// What the ranks' links run over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Shared memory.
    Shm,
    /// TCP over loopback.
    Tcp,
    /// Hosts with networks of their own, joined by a bridge: TCP between them, shared memory within each.
    Network,
}

impl Links {
    /// Every value, by name.
    pub const ALL: [(&'static str, Self); 3] =
        [("shm", Self::Shm), ("tcp", Self::Tcp), ("net", Self::Network)];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }

    /// The value of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, links)| links)
    }
}

/// What goes wrong. Ranks are those of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The processes are killed, at once or one shortly after the other.
    Kill(Vec<usize>),
    /// A process is stopped for so long, which is less than a heartbeat.
    Pause(usize, Duration),
    /// A process is stopped until the others have given it up.
    Stop(usize),
    /// A rank calls abort.
    Abort(usize),
    /// A rank makes another call than the others.
    Mismatch(usize),
    /// A rank is late, again and again.
    Slow(usize),
    /// A rank's thread panics.
    Panic(usize),
    /// A host's link carries little, and late.
    Delay(usize),
    /// A host's link is down for so long, which is less than a heartbeat.
    Flap(usize, Duration),
    /// A host's link is down until the others have given its ranks up.
    Partition(usize),
}

/// The run of a seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// From which all else follows.
    pub seed: u64,
    /// Number of ranks.
    pub world: usize,
    /// What the links run over.
    pub links: Links,
    /// What goes wrong.
    pub fault: Fault,
    /// When, after all have started to compute.
    pub strike: Duration,
    /// For how long the ranks compute, if nothing ends it.
    pub length: Duration,
}

/// Hosts of a job with networks of their own.
pub(super) const HOSTS: usize = 3;

impl Scenario {
    /// The scenario of `seed`; over one of `links`, which are not none.
    pub fn new(seed: u64, links: &[Links]) -> Self {
        let mut random = Random::new(seed, 0);
        let links = links[random.below(links.len())];
        let world = random.between(2, 8);
        let length = Duration::from_millis(random.between(150, 500) as u64);
        let strike = length.mul_f64(random.below(90) as f64 / 100.0);
        let rank = random.below(world);
        let host = random.below(HOSTS.min(world));
        let local = [
            Fault::None,
            Fault::Kill(victims(&mut random, world)),
            Fault::Kill(vec![rank]),
            Fault::Pause(rank, Duration::from_millis(random.between(1, 250) as u64)),
            Fault::Stop(rank),
            Fault::Abort(rank),
            Fault::Mismatch(rank),
            Fault::Slow(rank),
            Fault::Panic(rank),
        ];
        let network = [
            Fault::Delay(host),
            Fault::Flap(host, Duration::from_millis(random.between(1, 100) as u64)),
            Fault::Partition(host),
        ];
        let faults =
            if links == Links::Network { local.len() + network.len() } else { local.len() };
        let chosen = random.below(faults);
        let fault = local.into_iter().chain(network).nth(chosen).unwrap_or(Fault::None);
        Self { seed, world, links, fault, strike, length }
    }

    /// How long a silent rank counts as there.
    pub(super) fn heartbeat(&self) -> Duration {
        match self.fault {
            // Somebody is to be given up.
            Fault::Stop(_) | Fault::Partition(_) => Duration::from_millis(1500),
            // Nobody is, on a machine with far more processes than cores.
            _ => Duration::from_secs(20),
        }
    }

    /// Whether a rank that has ended keeps its communicator until all have; else it leaves at once.
    pub(super) fn lingers(&self) -> bool {
        self.seed.is_multiple_of(2)
    }

    /// Whether the survivors go on without the lost ranks.
    pub(super) fn shrinks(&self) -> bool {
        matches!(self.fault, Fault::Kill(_) | Fault::Stop(_) | Fault::Partition(_))
    }

    /// Whether they then take in a new process.
    pub(super) fn grows(&self) -> bool {
        self.shrinks() && !self.seed.is_multiple_of(3)
    }

    /// How many ranks the lost ones leave.
    pub(super) fn left(&self) -> usize {
        self.world - self.lost().len()
    }

    /// Whether the fault is one that `rank` brings about itself.
    pub(super) fn strikes_itself(&self, rank: usize) -> bool {
        match self.fault {
            Fault::Abort(own) | Fault::Mismatch(own) | Fault::Slow(own) | Fault::Panic(own) => {
                own == rank
            }
            _ => false,
        }
    }

    /// The host of a rank, where hosts have networks of their own.
    pub(super) fn host(&self, rank: usize) -> usize {
        rank % HOSTS.min(self.world)
    }

    /// The ranks on a host.
    pub(super) fn on_host(&self, host: usize) -> Vec<usize> {
        (0..self.world).filter(|&rank| self.host(rank) == host).collect()
    }

    /// The ranks that the others are to lose.
    pub(super) fn lost(&self) -> Vec<usize> {
        match &self.fault {
            Fault::Kill(victims) => victims.clone(),
            Fault::Stop(rank) | Fault::Panic(rank) => vec![*rank],
            // The root decides, and it lives with rank 0.
            Fault::Partition(host) if self.host(0) != *host => self.on_host(*host),
            Fault::Partition(host) => {
                (0..self.world).filter(|&rank| self.host(rank) != *host).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Some of the ranks, not all.
fn victims(random: &mut Random, world: usize) -> Vec<usize> {
    let mut ranks: Vec<usize> = (0..world).collect();
    let count = random.between(1, world - 1);
    (0..count).map(|_| ranks.swap_remove(random.below(ranks.len()))).collect()
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, world, links, fault, strike, length } = self;
        write!(
            f,
            "seed {seed}: {world} ranks over {links:?} for {length:?}, {fault:?} at {strike:?}"
        )
    }
}
