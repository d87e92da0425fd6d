//! Why a call is run the way it is: the tuner's table, for ranks that need not exist.

use annulus_plan::topology::{Host, LocalTransport, Network, Topology};
use annulus_plan::tuner::{Explanation, OverrideError, Overrides, Tuner};
use annulus_plan::{CallError, Collective, DataType, ReduceOp};
use annulus_transports::{ring::Geometry, tcp};
use clap::{Args, ValueEnum};

use crate::launch::MOST_RANKS;
use crate::size::parse_bytes;

/// A call, and the ranks that would make it.
#[derive(Args, Clone, Debug)]
pub struct Question {
    /// The collective
    #[arg(value_enum)]
    pub collective: Kind,
    /// Size of the call in bytes, such as 8, 64K or 1M: one rank's part where ranks contribute parts
    #[arg(short, long, value_parser = parse_bytes)]
    pub bytes: usize,
    /// Number of ranks
    #[arg(short = 'n', long, default_value_t = 2)]
    pub ranks: usize,
    /// Number of hosts that they are on, evenly
    #[arg(long, default_value_t = 1)]
    pub hosts: usize,
    /// Cores of each host [default: this one's]
    #[arg(long)]
    pub cores: Option<usize>,
    /// How ranks of a host reach each other
    #[arg(long, value_enum, default_value_t = Transport::Shm)]
    pub transport: Transport,
    /// Element type, such as f32, bf16 or i8
    #[arg(short, long, default_value = "f32", value_parser = parse_dtype)]
    pub dtype: DataType,
}

/// A collective that can be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
#[allow(missing_docs)] // the names say it
pub enum Kind {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    #[value(alias = "alltoall")]
    AllToAll,
    Gather,
    Scatter,
    Barrier,
}

/// How ranks of a host reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// As threads of one process
    Proc,
    /// Through shared memory
    Shm,
    /// By TCP
    Tcp,
}

/// Why there is nothing to explain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// No call has these arguments.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A variable of the environment makes no sense.
    #[error(transparent)]
    Override(#[from] OverrideError),
    /// A number is out of its range.
    #[error("{option} is {value}: use {least} to {most}")]
    Range {
        /// The option.
        option: &'static str,
        /// Its value.
        value: usize,
        /// The least that it can be.
        least: usize,
        /// The most that it can be.
        most: usize,
    },
}

/// Asks the tuner, under the environment's overrides (`ANNULUS_ALGO` and its kin).
///
/// # Errors
/// When a number is out of range, and when an override makes no sense.
pub fn explain(question: &Question) -> Result<Explanation, ExplainError> {
    let &Question { ranks, hosts, bytes, dtype, .. } = question;
    let within = |option, value, most| match value {
        value if (1..=most).contains(&value) => Ok(()),
        value => Err(ExplainError::Range { option, value, least: 1, most }),
    };
    within("--ranks", ranks, MOST_RANKS)?;
    within("--hosts", hosts, ranks)?;
    let (count, sum) = (bytes / dtype.size(), ReduceOp::Sum);
    let call = match question.collective {
        Kind::AllReduce => Collective::all_reduce(ranks, dtype, sum, count)?,
        Kind::AllGather => Collective::all_gather(ranks, dtype, count)?,
        Kind::ReduceScatter => Collective::reduce_scatter(ranks, dtype, sum, count)?,
        Kind::Broadcast => Collective::broadcast(ranks, dtype, 0, count)?,
        Kind::Reduce => Collective::reduce(ranks, dtype, sum, 0, count)?,
        Kind::AllToAll => Collective::all_to_all(ranks, dtype, count)?,
        Kind::Gather => Collective::gather(ranks, dtype, 0, count)?,
        Kind::Scatter => Collective::scatter(ranks, dtype, 0, count)?,
        Kind::Barrier => Collective::barrier(ranks),
    };
    let overrides = Overrides::from_vars(|name| std::env::var(name).ok())?;
    Ok(Tuner::new(topology(question), overrides).explain(&call))
}

/// As a communicator of such ranks would see it.
fn topology(question: &Question) -> Topology {
    let &Question { ranks, hosts, .. } = question;
    let here = std::thread::available_parallelism().map_or(1, usize::from);
    let (transport, largest_chunk) = match question.transport {
        Transport::Proc => (LocalTransport::Process, None),
        Transport::Shm => (LocalTransport::SharedMemory, None),
        Transport::Tcp => {
            (LocalTransport::TcpLoopback, Some(tcp::Options::default().max_chunk_bytes))
        }
    };
    let host = Host::new(question.cores.unwrap_or(here), transport);
    let places: Vec<usize> = (0..ranks).map(|rank| rank * hosts / ranks).collect();
    let largest_chunk =
        largest_chunk.unwrap_or_else(|| Geometry::for_local_ranks(ranks).max_chunk_bytes());
    Topology::multi_host(&places, &host, Network::ethernet(10e9 / 8.0))
        .with_max_chunk_bytes(largest_chunk)
}

fn parse_dtype(name: &str) -> Result<DataType, String> {
    DataType::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
        let names: Vec<_> = DataType::ALL.iter().map(|dtype| dtype.name()).collect();
        format!("use one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(ranks: usize, hosts: usize) -> Question {
        Question {
            collective: Kind::AllReduce,
            bytes: 1 << 20,
            ranks,
            hosts,
            cores: Some(2),
            transport: Transport::Shm,
            dtype: DataType::F32,
        }
    }

    #[test]
    fn a_choice_is_explained() {
        let text = explain(&question(4, 2)).expect("a sound question").to_string();
        assert!(text.contains("1048576 bytes, 4 ranks") && text.contains("chosen"), "{text}");
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let refused =
            |ranks, hosts| explain(&question(ranks, hosts)).expect_err("refused").to_string();
        assert!(refused(0, 1).contains("--ranks is 0"));
        assert!(refused(2, 3).contains("--hosts is 3: use 1 to 2"));
        assert!(refused(1 << 40, 1).contains("--ranks"));
    }
}
