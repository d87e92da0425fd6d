//! What the launcher's environment says: who this rank is, and where the ranks meet.
//!
//! [`Launch::from_env`] recognises, in this order: `annulus run`, torchrun (and anything else that sets
//! `RANK`, `WORLD_SIZE`, `MASTER_ADDR`), Open MPI, MPICH and Intel MPI, and SLURM. Reading the
//! environment opens nothing; [`Membership::launched`](crate::bootstrap::Membership::launched) then brings the ranks together.
//!
//! # Where the ranks meet
//!
//! | the launcher says | meeting point |
//! |---|---|
//! | all ranks are on this host | an abstract Unix socket named after the job |
//! | `ANNULUS_ROOT=host:port` | there; rank 0 listens |
//! | `MASTER_ADDR`, `MASTER_PORT` | `MASTER_ADDR`, port `ANNULUS_PORT`, else `MASTER_PORT + 1`: torchrun's own store holds `MASTER_PORT` |
//! | SLURM on several hosts | the step's first node, port `ANNULUS_PORT`, else one in 20000..=31999 derived from job and step |
//!
//! `ANNULUS_SECRET` (64 hexadecimal digits, the same on each rank) keeps strangers out of a meeting
//! by address. Without it the key is derived from the job's variables: that keeps two jobs apart, and is no protection
//! against somebody who knows them. A meeting on one host needs no secret: rank 0 draws one, and
//! hands it to processes of its own user only.

mod error;
mod hostlist;
mod identity;
mod launchers;
mod meeting;
mod timeout;
mod variables;

use std::time::Duration;

use annulus_plan::Rank;

pub use error::LaunchError;
pub use hostlist::{HostlistError, expand_hostlist};
pub use identity::JobIdentity;
pub use meeting::{GivenSecret, Meeting, RootAddress, RootAddressError};
pub use timeout::{DEFAULT_TIMEOUT, ParseTimeoutError, parse_timeout};

use self::variables::Variables;

/// What started this process, as far as its environment shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// `annulus run`: `ANNULUS_RANK`, `ANNULUS_WORLD_SIZE`.
    Annulus,
    /// torchrun, or a script that sets what it sets: `RANK`, `WORLD_SIZE`.
    Torchrun,
    /// Open MPI's `mpirun`: `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE`.
    OpenMpi,
    /// The `mpiexec` of MPICH and Intel MPI: `PMI_RANK`, `PMI_SIZE`.
    Pmi,
    /// SLURM's `srun`: `SLURM_PROCID`, `SLURM_NTASKS`.
    Slurm,
}

impl std::fmt::Display for Launcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Annulus => "annulus run",
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "Open MPI",
            Self::Pmi => "MPICH or Intel MPI",
            Self::Slurm => "SLURM",
        })
    }
}

/// This process's part in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launch {
    /// Who started it.
    pub launcher: Launcher,
    /// This rank.
    pub rank: Rank,
    /// Number of ranks, at least 1.
    pub world: usize,
    /// Position among the ranks of this host, if the launcher says so.
    pub local_rank: Option<usize>,
    /// Number of ranks on this host, if the launcher says so.
    pub local_world: Option<usize>,
    /// Where the ranks meet.
    pub meeting: Meeting,
    /// Deadline of every wait: `ANNULUS_TIMEOUT`, else [`DEFAULT_TIMEOUT`].
    pub timeout: Duration,
}

impl Launch {
    /// Reads this process's environment.
    ///
    /// # Errors
    /// Like [`from_vars`](Self::from_vars).
    pub fn from_env() -> Result<Self, LaunchError> {
        Self::from_vars(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    /// Reads the variables that `get` returns. An empty variable counts as absent.
    ///
    /// # Errors
    /// When no launcher is recognised, when one has set only a part of its variables, when a value is no
    /// number or out of range, when two contradict each other, and when nothing says where rank 0
    /// is. Each error names the variable and its value.
    pub fn from_vars(get: impl Fn(&str) -> Option<String>) -> Result<Self, LaunchError> {
        let variables = Variables::new(&get);
        let timeout = match variables.text("ANNULUS_TIMEOUT") {
            Some(text) => parse_timeout(&text).map_err(|source| LaunchError::Invalid {
                variable: "ANNULUS_TIMEOUT",
                value: text,
                expected: source.to_string(),
            })?,
            None => DEFAULT_TIMEOUT,
        };
        let place = launchers::recognise(&variables)?;
        let meeting = meeting::choose(&variables, &place)?;
        let launchers::Place { launcher, rank, world, local_rank, local_world, .. } = place;
        Ok(Self { launcher, rank, world, local_rank, local_world, meeting, timeout })
    }
}

#[cfg(test)]
mod tests;
