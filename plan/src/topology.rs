//! Where the ranks are, and what it costs to move and combine bytes there: what the
//! [`simulator`](crate::simulator) times plans against.
//!
//! Times are in seconds, sizes in bytes, rates in seconds per byte or bytes per second. The default
//! numbers are measurements of one machine, a 2-core Zen 4 virtual machine with a 32 MiB L3 whose
//! cores share it; each constant says what it was fitted to. They need not be exact: the tuner
//! compares predictions, and the crossover points are what has to be right.
//!
//! ```
//! use annulus_plan::topology::{LocalTransport, Topology};
//!
//! let topology = Topology::single_host(4, 2, LocalTransport::SharedMemory);
//! assert_eq!(topology.world(), 4);
//! assert!(topology.host_of(0).is_oversubscribed(4));
//! ```

use crate::algorithms::Protocol;
use crate::{DataType, Rank};

/// Hosts, the ranks on them, and the network between them.
///
/// Ranks that are to agree about a choice must use equal topologies: what a rank measures itself has
/// to be agreed upon first.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    hosts: Vec<Host>,
    places: Vec<Place>,
    network: Network,
    max_chunk_bytes: usize,
}

/// Where one rank runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Place {
    /// Index into [`Topology::hosts`].
    pub host: usize,
    /// The rank's number among the ranks of its host, from 0.
    pub local: usize,
}

/// One machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Cores that the ranks may use. With more ranks than cores, ranks take turns.
    pub cores: usize,
    /// How two ranks of this host exchange bytes.
    pub link: Link,
    /// Bytes per second, read or written, that all cores together move to and from memory.
    pub memory_bandwidth: f64,
    /// Size of the last-level cache. A call whose buffers on this host fill it runs at
    /// [`memory_bandwidth`](Self::memory_bandwidth), a smaller one from the cache.
    pub cache_bytes: usize,
    /// Seconds until another rank runs on a core.
    pub switch_seconds: f64,
    /// Seconds that a rank spends on an instruction beside its pieces.
    pub instruction_seconds: f64,
    /// Seconds per byte of a copy within a rank, from cache.
    pub copy_per_byte: f64,
    /// Seconds per byte of one operand of a reduction, from cache.
    pub reduce_per_byte: ReduceRates,
}

/// Seconds per byte of one operand of a reduction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReduceRates {
    /// Types that the processor adds as they are: f32, f64 and the integers.
    pub native: f64,
    /// f16 and bf16, which are widened to f32.
    pub half: f64,
    /// The 8-bit floats, which are widened to f32.
    pub quarter: f64,
}

/// One direction between two ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Seconds from the end of the sender's work on a piece until the receiver can see it.
    pub latency: f64,
    /// Costs of a piece under [`Protocol::Simple`].
    pub simple: PieceCost,
    /// Costs of a piece under [`Protocol::LowLatency`].
    pub low_latency: PieceCost,
    /// Factor of a piece's fixed cost where ranks take turns on cores: the receiver does not poll what the sender
    /// still writes.
    pub fixed_in_turn: f64,
    /// Bytes that the link holds before the sender waits, if that is more than the
    /// [`MIN_LINK_CHUNKS`](crate::MIN_LINK_CHUNKS) chunks that any link holds.
    pub buffer_bytes: usize,
    /// The largest chunk that pays for calls below [`LARGE_CALL_BYTES`].
    pub chunk_bytes: usize,
    /// The largest chunk that pays for larger calls.
    pub large_chunk_bytes: usize,
}

/// Calls of at least this size, in bytes, use [`Link::large_chunk_bytes`].
pub const LARGE_CALL_BYTES: usize = 2 << 20;

/// What a piece costs the two ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PieceCost {
    /// Time of the sender's core.
    pub send: Cost,
    /// Time of the receiver's core.
    pub recv: Cost,
}

/// A fixed share and one that grows with the bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Seconds.
    pub fixed: f64,
    /// Seconds per byte.
    pub per_byte: f64,
}

/// What lies between hosts: every host has one interface, all interfaces meet in a switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// How two ranks of different hosts exchange bytes.
    pub link: Link,
    /// Bytes per second of a host's interface, in each direction, shared by its ranks.
    pub bandwidth: f64,
    /// Bytes per second that one link reaches alone. Channels add up to more.
    pub stream_bandwidth: f64,
}

/// How ranks of one host exchange bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocalTransport {
    /// Threads of one process.
    Process,
    /// Processes that share memory.
    SharedMemory,
    /// Sockets over the loopback interface.
    TcpLoopback,
}

/// The largest chunk that links take unless [`Topology::with_max_chunk_bytes`] says otherwise.
pub const DEFAULT_MAX_CHUNK_BYTES: usize = 256 << 10;

impl Topology {
    /// `ranks` ranks on one host of `cores` cores. No rank or no core counts as one.
    pub fn single_host(ranks: usize, cores: usize, transport: LocalTransport) -> Self {
        let host_of_rank = vec![0; ranks.max(1)];
        Self::multi_host(&host_of_rank, &Host::new(cores, transport), Network::ethernet(10e9 / 8.0))
    }

    /// Equal hosts: rank r runs on the host with id `host_of_rank[r]`. The ids may be any numbers; equal
    /// numbers are the same host. An empty list counts as one rank.
    pub fn multi_host(host_of_rank: &[usize], host: &Host, network: Network) -> Self {
        let mut index_of_id = std::collections::HashMap::new();
        let mut ranks_of_host: Vec<usize> = Vec::new();
        let ids = if host_of_rank.is_empty() { &[0] } else { host_of_rank };
        let places = ids
            .iter()
            .map(|&id| {
                let index = *index_of_id.entry(id).or_insert(ranks_of_host.len());
                if index == ranks_of_host.len() {
                    ranks_of_host.push(0);
                }
                let local = ranks_of_host[index];
                ranks_of_host[index] += 1;
                Place { host: index, local }
            })
            .collect();
        let hosts = vec![host.clone(); ranks_of_host.len()];
        Self { hosts, places, network, max_chunk_bytes: DEFAULT_MAX_CHUNK_BYTES }
    }

    /// The same with links that take chunks of up to `bytes` bytes (at least 64; rounded down to
    /// a multiple of 64).
    pub fn with_max_chunk_bytes(self, bytes: usize) -> Self {
        Self { max_chunk_bytes: (bytes / 64).max(1) * 64, ..self }
    }

    /// The hosts.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The hosts, to adjust what was measured on them.
    pub fn hosts_mut(&mut self) -> &mut [Host] {
        &mut self.hosts
    }

    /// The network between the hosts.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.places.len()
    }

    /// Where each rank runs.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The host of `rank`.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn host_of(&self, rank: Rank) -> &Host {
        &self.hosts[self.places[rank].host]
    }

    /// The largest chunk that the links take, in bytes; a multiple of 64.
    pub fn max_chunk_bytes(&self) -> usize {
        self.max_chunk_bytes
    }

    /// Whether on some host ranks take turns on the cores.
    pub fn is_crowded(&self) -> bool {
        let mut ranks = vec![0; self.hosts.len()];
        for place in &self.places {
            ranks[place.host] += 1;
        }
        self.hosts.iter().zip(ranks).any(|(host, ranks)| host.is_oversubscribed(ranks))
    }

    /// The kind of link that most limits a call: the network where there is more than one host.
    pub fn slowest_link(&self) -> &Link {
        if self.hosts.len() > 1 { &self.network.link } else { &self.hosts[0].link }
    }
}

impl Host {
    /// A host of `cores` cores (none counts as one) with the default numbers.
    pub fn new(cores: usize, transport: LocalTransport) -> Self {
        Self {
            cores: cores.max(1),
            link: transport.link(),
            // Two processes with non-temporal stores: 19 to 21 GB/s each.
            memory_bandwidth: 40e9,
            cache_bytes: 32 << 20,
            // Four ranks on two cores: 8 B in 3.0 to 4.7 µs; eight: in 6.7 to 7.8.
            switch_seconds: 0.9e-6,
            // Instruction and call overhead; with the latency of a link, an 8 B all-reduce of two ranks
            // takes 80 ns.
            instruction_seconds: 15e-9,
            copy_per_byte: 1.0 / 33e9,
            // f32 from the first-level caches; bf16 with AVX2, 17 GB/s. The 8-bit floats were not measured.
            reduce_per_byte: ReduceRates {
                native: 1.0 / 120e9,
                half: 1.0 / 17e9,
                quarter: 1.0 / 4e9,
            },
        }
    }

    /// Whether `ranks` ranks have to take turns on this host's cores.
    pub fn is_oversubscribed(&self, ranks: usize) -> bool {
        ranks > self.cores
    }
}

impl ReduceRates {
    /// The rate for one data type.
    pub const fn of(&self, dtype: DataType) -> f64 {
        match dtype {
            DataType::F16 | DataType::Bf16 => self.half,
            DataType::F8E4M3 | DataType::F8E5M2 => self.quarter,
            _ => self.native,
        }
    }
}

impl Link {
    /// The costs of a piece under `protocol`.
    pub const fn piece(&self, protocol: Protocol) -> &PieceCost {
        match protocol {
            Protocol::Simple => &self.simple,
            Protocol::LowLatency => &self.low_latency,
        }
    }

    /// Whether small pieces reach the receiver sooner: not where each is a system call.
    pub fn gains_from_small_pieces(&self) -> bool {
        self.low_latency != self.simple
    }

    /// The largest chunk that pays for a call of `bytes` bytes.
    pub const fn chunk_for(&self, bytes: usize) -> usize {
        if bytes < LARGE_CALL_BYTES { self.chunk_bytes } else { self.large_chunk_bytes }
    }
}

impl PieceCost {
    const fn symmetric(fixed: f64, per_byte: f64) -> Self {
        Self { send: Cost { fixed, per_byte }, recv: Cost { fixed, per_byte } }
    }
}

impl Network {
    /// TCP over an interface of `bandwidth` bytes per second. A hop takes about 15 µs, of which the ranks'
    /// cores spend a third; one stream reaches about 4 GB/s.
    pub fn ethernet(bandwidth: f64) -> Self {
        let link = Link { latency: 10e-6, ..LocalTransport::TcpLoopback.link() };
        Self { link, bandwidth, stream_bandwidth: 4e9 }
    }
}

impl LocalTransport {
    /// The transport that a fabric calls `name`: `proc`, `shm` or `tcp`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "proc" => Some(Self::Process),
            "shm" => Some(Self::SharedMemory),
            "tcp" => Some(Self::TcpLoopback),
            _ => None,
        }
    }

    /// Default costs of a link.
    pub const fn link(self) -> Link {
        match self {
            // The same memory layout carries both.
            Self::Process | Self::SharedMemory => Link {
                latency: 50e-9,
                // Two ranks, two-shot in a 1 MiB ring: 32 KiB in 2.6 µs, 128 KiB in 6.8, 2 MiB in 110 with
                // chunks of 128 KiB and in 131 with chunks of 32 KiB.
                simple: PieceCost::symmetric(200e-9, 0.0229e-9),
                // Two ranks, one-shot through small slots whose lines bounce between two cores:
                // about 9 ns for each line of 64 bytes.
                low_latency: PieceCost::symmetric(2e-9, 0.066e-9),
                // Eight ranks on two cores, two-shot: 32 KiB in 25 to 31 µs.
                fixed_in_turn: 0.3,
                buffer_bytes: 1 << 20,
                chunk_bytes: 128 << 10,
                large_chunk_bytes: 256 << 10,
            },
            // Two ranks at once: 8 B in 7.2 µs, 8 MiB in 1.78 ms with chunks of 256 KiB. A
            // piece is a system call whatever the protocol.
            Self::TcpLoopback => Link {
                latency: 2e-6,
                simple: PieceCost::symmetric(2.6e-6, 0.096e-9),
                low_latency: PieceCost::symmetric(2.6e-6, 0.096e-9),
                fixed_in_turn: 1.0,
                buffer_bytes: 1 << 20,
                chunk_bytes: 256 << 10,
                large_chunk_bytes: 1 << 20,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_the_host_ids() {
        let host = Host::new(2, LocalTransport::SharedMemory);
        let topology = Topology::multi_host(&[7, 7, 3, 7, 3], &host, Network::ethernet(3e9));
        assert_eq!(topology.hosts().len(), 2);
        let places: Vec<_> = topology.places().iter().map(|p| (p.host, p.local)).collect();
        assert_eq!(places, [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1)]);
        assert_eq!(topology.slowest_link(), &topology.network().link);
    }

    #[test]
    fn degenerate_sizes_count_as_one() {
        let topology = Topology::single_host(0, 0, LocalTransport::Process).with_max_chunk_bytes(3);
        assert_eq!((topology.world(), topology.host_of(0).cores), (1, 1));
        assert_eq!(topology.max_chunk_bytes(), 64);
    }
}
