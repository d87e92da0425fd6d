use super::{HostlistError, Launcher, RootAddressError};

/// Why the environment does not say how to join a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No launcher's variables are set.
    #[error(
        "this process was not started as a rank of a job: none of ANNULUS_RANK (annulus run), RANK (torchrun), \
         OMPI_COMM_WORLD_RANK (Open MPI), PMI_RANK (MPICH, Intel MPI), SLURM_PROCID (srun) is set; start it \
         with `annulus run -n 2 -- program`, torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR \
         and MASTER_PORT for each rank"
    )]
    NotLaunched,
    /// A launcher's variables are set in part.
    #[error("{launcher}: {present} is set, but {missing} is not")]
    Missing {
        /// The launcher whose variable is there.
        launcher: Launcher,
        /// A variable that is set, with its value.
        present: String,
        /// The variable that is not.
        missing: &'static str,
    },
    /// A value means nothing.
    #[error("{variable}={value}: expected {expected}")]
    Invalid {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What would have been right.
        expected: String,
    },
    /// A position is not below the size that it belongs to.
    #[error(
        "{rank_variable}={rank} is out of range for {size_variable}={size}: ranks are 0 to size - 1"
    )]
    RankOutOfRange {
        /// The variable with the position.
        rank_variable: &'static str,
        /// Its value.
        rank: usize,
        /// The variable with the size.
        size_variable: &'static str,
        /// Its value.
        size: usize,
    },
    /// More ranks on one host than in the whole job.
    #[error("{local_variable}={local} exceeds {world_variable}={world}")]
    LocalExceedsWorld {
        /// The variable with the host's number of ranks.
        local_variable: &'static str,
        /// Its value.
        local: usize,
        /// The variable with the job's.
        world_variable: &'static str,
        /// Its value.
        world: usize,
    },
    /// A batch script's own process has the variables of a task, but is none.
    #[error(
        "this is the batch script of SLURM job {job} itself, not one of its {tasks} tasks: \
         start the program with `srun`"
    )]
    BatchScript {
        /// The job.
        job: String,
        /// How many tasks it asked for.
        tasks: usize,
    },
    /// The ranks are on several hosts, and nothing says where rank 0 is.
    #[error(
        "{launcher} started {world} ranks, {} on this host, and does not tell where rank 0 is: set ANNULUS_ROOT=host:port on \
         all ranks, to the host of rank 0 and a free port",
        local.map_or("an unknown number".into(), |n| n.to_string())
    )]
    RootUnknown {
        /// The launcher.
        launcher: Launcher,
        /// Number of ranks.
        world: usize,
        /// Number of ranks on this host, if known.
        local: Option<usize>,
    },
    /// Other hosts cannot reach a loopback address.
    #[error(
        "{variable}={value} is a loopback address, which other hosts cannot reach, but the {world} ranks are on several \
         hosts: set {variable} to an address or name of rank 0's host"
    )]
    LoopbackRoot {
        /// The variable with the address.
        variable: &'static str,
        /// Its value.
        value: String,
        /// Number of ranks.
        world: usize,
    },
    /// The address of the root means nothing.
    #[error("{variable}={value}: {source}")]
    RootAddress {
        /// The variable with the address.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        source: RootAddressError,
    },
    /// SLURM's list of hosts means nothing.
    #[error("{variable}={value}: {source}")]
    Hostlist {
        /// The variable with the list.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        source: HostlistError,
    },
}
