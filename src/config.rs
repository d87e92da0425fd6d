//! What a user may set, by code or by environment.

use std::time::Duration;

use annulus_plan::tuner::{OverrideError, Overrides};
use annulus_transports::interface::{Filter, FilterError};

use crate::launch::{DEFAULT_TIMEOUT, ParseTimeoutError, parse_timeout};

/// Settings of a communicator. [`Config::default`] are the defaults, [`Config::from_env`] those with
/// the environment's changes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// How long a call, or the start-up, waits before it fails: `ANNULUS_TIMEOUT`, 10 minutes by default.
    pub timeout: Duration,
    /// Which links may be used: `ANNULUS_TRANSPORT`.
    pub transport: Transport,
    /// What the tuner must or must not choose: `ANNULUS_ALGO` and its kin.
    pub tuning: Overrides,
    /// Which network interfaces are offered to peers: `ANNULUS_SOCKET_IFNAME`.
    pub interfaces: Option<Filter>,
}

/// Which links a communicator may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Transport {
    /// The fastest that reaches each peer.
    #[default]
    Auto,
    /// Process memory only: all ranks must be threads of one process.
    Proc,
    /// Shared memory only: all ranks must be on one host.
    Shm,
    /// TCP only, also within a host.
    Tcp,
}

impl Transport {
    /// Every value, by name.
    pub const ALL: [(&'static str, Self); 4] =
        [("auto", Self::Auto), ("proc", Self::Proc), ("shm", Self::Shm), ("tcp", Self::Tcp)];

    /// The value of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, transport)| transport)
    }
}

/// A setting that makes no sense.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// `ANNULUS_TIMEOUT`.
    #[error("ANNULUS_TIMEOUT={value}: expected {expected}")]
    Timeout {
        /// What it was set to.
        value: String,
        /// What it may be set to.
        expected: ParseTimeoutError,
    },
    /// `ANNULUS_TRANSPORT`.
    #[error("ANNULUS_TRANSPORT={value}: use auto, proc, shm or tcp")]
    Transport {
        /// What it was set to.
        value: String,
    },
    /// A transport that cannot reach every rank.
    #[error("transport {transport} cannot reach every rank: {reason}")]
    Unreachable {
        /// The transport that was asked for.
        transport: &'static str,
        /// Why not.
        reason: String,
    },
    /// One of the tuner's variables.
    #[error(transparent)]
    Tuning(#[from] OverrideError),
    /// `ANNULUS_SOCKET_IFNAME`.
    #[error(transparent)]
    Interfaces(#[from] FilterError),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            timeout: DEFAULT_TIMEOUT,
            transport: Transport::Auto,
            tuning: Overrides::default(),
            interfaces: None,
        }
    }
}

impl Config {
    /// The defaults with the changes that the process's environment asks for.
    ///
    /// # Errors
    /// A variable that cannot be understood, by name, with what it accepts.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// The same with another environment.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let defaults = Self::default();
        let timeout = match var("ANNULUS_TIMEOUT") {
            Some(value) => parse_timeout(&value)
                .map_err(|expected| ConfigError::Timeout { value, expected })?,
            None => defaults.timeout,
        };
        let transport = match var("ANNULUS_TRANSPORT") {
            Some(value) => Transport::from_name(&value).ok_or(ConfigError::Transport { value })?,
            None => defaults.transport,
        };
        let interfaces = var("ANNULUS_SOCKET_IFNAME")
            .or_else(|| var("NCCL_SOCKET_IFNAME"))
            .map(|value| Filter::parse(&value))
            .transpose()?;
        Ok(Self { timeout, transport, tuning: Overrides::from_vars(var)?, interfaces })
    }
}
