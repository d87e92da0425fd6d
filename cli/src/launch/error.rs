use std::ffi::OsString;
use std::io;

/// Why a job could not be started or watched. No process of it is left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A job has at least one rank.
    #[error("0 ranks: a job needs at least 1")]
    NoRanks,
    /// More ranks than one host is likely to carry.
    #[error("{ranks} ranks are more than a host can carry: at most {most}")]
    TooManyRanks {
        /// How many were asked for.
        ranks: usize,
        /// How many are possible.
        most: usize,
    },
    /// There is no such program.
    #[error("cannot start {program:?}: no such program{hint}")]
    NotFound {
        /// The program.
        program: OsString,
        /// What may have been meant, or nothing.
        hint: String,
    },
    /// The program may not be executed.
    #[error("cannot start {program:?}: it is not executable: chmod +x it, or name its interpreter")]
    NotExecutable {
        /// The program.
        program: OsString,
    },
    /// A process could not be made.
    #[error("cannot start rank {rank} of {ranks} ({program:?}): {source}{remedy}")]
    Start {
        /// The rank.
        rank: usize,
        /// Number of ranks.
        ranks: usize,
        /// The program.
        program: OsString,
        /// Why.
        source: io::Error,
        /// What may help, or nothing.
        remedy: &'static str,
    },
    /// Something else that the launcher needs from the system.
    #[error("cannot {what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl LaunchError {
    /// The exit code that shells use for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
            _ => 1,
        }
    }
}
