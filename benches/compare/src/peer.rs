//! The libraries, and how each is started.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;

use crate::options::{Options, Scenario};

/// A library in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Ours, on private buffers.
    Annulus,
    /// Ours, on memory of `Communicator::alloc`.
    AnnulusAlloc,
    OpenMpi,
    Mpich,
    Gloo,
    /// Not a library: the same bytes over a plain socket.
    Socket,
}

impl Peer {
    /// Those that can run in `scenario` here; says of the others why not.
    pub(crate) fn all(options: &Options, scenario: &Scenario) -> Vec<Self> {
        let programs = &options.programs;
        let built = |name: &str| programs.join(name).exists();
        let mut peers = vec![if options.alloc { Self::AnnulusAlloc } else { Self::Annulus }];
        let mut consider = |peer: Self, runs: Result<(), &str>| match runs {
            Ok(()) => peers.push(peer),
            Err(reason) => println!("skipped: {} with {scenario}: {reason}", peer.name()),
        };
        let found = |runs: bool, reason| if runs { Ok(()) } else { Err(reason) };
        consider(Self::OpenMpi, found(built("mpi_all_reduce.openmpi"), "not installed"));
        if !scenario.tcp {
            // MPICH takes shared memory within a host, whatever network it is given.
            consider(Self::Mpich, found(built("mpi_all_reduce.mpich"), "not installed"));
        }
        if scenario.tcp || options.gloo {
            let why = "ask for it with --gloo (it installs PyTorch)";
            consider(Self::Gloo, found(options.gloo, why));
        }
        if scenario.tcp {
            consider(Self::Socket, Ok(()));
        }
        peers
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Annulus | Self::AnnulusAlloc => "Annulus",
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
            Self::Gloo => "Gloo",
            Self::Socket => "socket",
        }
    }

    /// Whether it is one of the libraries that Annulus must not be slower than.
    pub(crate) fn is_rival(self) -> bool {
        matches!(self, Self::OpenMpi | Self::Mpich | Self::Gloo)
    }

    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Annulus | Self::AnnulusAlloc)
    }

    /// The processes to start: one for each rank, or a launcher of all.
    pub(crate) fn commands(
        self,
        scenario: &Scenario,
        programs: &Path,
        rig: &Path,
    ) -> Result<Vec<Command>, String> {
        let ranks = scenario.ranks;
        match self {
            Self::Annulus => annulus(scenario, programs, rig, "private"),
            Self::AnnulusAlloc => annulus(scenario, programs, rig, "alloc"),
            Self::OpenMpi => Ok(vec![open_mpi(scenario, programs, rig)]),
            Self::Mpich => {
                let mut command = Command::new("mpirun.mpich");
                command.args(["-n", &ranks.to_string()]);
                command.arg(programs.join("mpi_all_reduce.mpich")).arg(rig);
                Ok(vec![command])
            }
            Self::Gloo => gloo(ranks, programs, rig),
            Self::Socket => {
                let port = free_port()?.to_string();
                let rank = |rank: usize| {
                    let mut command = Command::new(programs.join("compare_socket"));
                    command.arg(rig).arg(rank.to_string()).arg(&port);
                    command
                };
                Ok((0..2).map(rank).collect())
            }
        }
    }
}

fn annulus(
    scenario: &Scenario,
    programs: &Path,
    rig: &Path,
    memory: &str,
) -> Result<Vec<Command>, String> {
    let root = format!("127.0.0.1:{}", free_port()?);
    // Any secret does between processes of one launch on one host.
    let secret = format!("{:064x}", u128::from(std::process::id()) << 64 | 0x0a11_0ed0_ca5e);
    let rank = |rank: usize| {
        let mut command = Command::new(programs.join("compare_annulus"));
        command.arg(rig).arg(memory);
        for (of_rank, of_world) in [
            ("ANNULUS_RANK", "ANNULUS_WORLD_SIZE"),
            ("ANNULUS_LOCAL_RANK", "ANNULUS_LOCAL_WORLD_SIZE"),
        ] {
            command.env(of_rank, rank.to_string()).env(of_world, scenario.ranks.to_string());
        }
        command.env("ANNULUS_ROOT", &root).env("ANNULUS_SECRET", &secret);
        if scenario.tcp {
            command.env("ANNULUS_TRANSPORT", "tcp").env("ANNULUS_SOCKET_IFNAME", "=lo");
        } else {
            command.env("ANNULUS_TRANSPORT", "shm");
        }
        command
    };
    Ok((0..scenario.ranks).map(rank).collect())
}

fn open_mpi(scenario: &Scenario, programs: &Path, rig: &Path) -> Command {
    let mut command = Command::new("mpirun.openmpi");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args(["-n", &scenario.ranks.to_string()]);
    command.args(["--use-hwthread-cpus", "--bind-to", "none"]); // the rig pins
    if scenario.is_crowded() {
        command.arg("--oversubscribe");
    }
    if scenario.tcp {
        command.args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]);
        command.args(["--mca", "btl_tcp_if_include", "lo"]);
    }
    command.arg(programs.join("mpi_all_reduce.openmpi")).arg(rig);
    command
}

fn gloo(ranks: usize, programs: &Path, rig: &Path) -> Result<Vec<Command>, String> {
    let port = free_port()?;
    let rank = |rank: usize| {
        let mut command = Command::new("/usr/bin/python3");
        command.arg(programs.join("gloo_all_reduce.py")).arg(rig);
        command.arg(programs.join("libannulus_rig.so"));
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
        command.env("GLOO_SOCKET_IFNAME", "lo");
        command
    };
    Ok((0..ranks).map(rank).collect())
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16, String> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| format!("no free port on 127.0.0.1: {error}"))
}
