//! What a user may set, by code or by environment.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use annulus_plan::tuner::{OverrideError, Overrides};
use annulus_transports::checksum::ChecksumFabric;
use annulus_transports::interface::{Filter, FilterError};
use annulus_transports::link::Fabric;

use crate::bootstrap::DEFAULT_HEARTBEAT;
use crate::flight::{Dump, DumpError};
use crate::launch::{DEFAULT_TIMEOUT, ParseTimeoutError, parse_timeout};
use crate::reduce::{Isa, IsaError};

/// Settings of a communicator. [`Config::default`] are the defaults, [`Config::from_env`] those with
/// the environment's changes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// How long a call waits before it fails, and all else that has no timeout of its own: `ANNULUS_TIMEOUT`, 10 minutes by
    /// default. [`Communicator::with_timeout`](crate::Communicator::with_timeout) has another for single calls.
    pub timeout: Duration,
    /// How long the start-up waits for all ranks: `ANNULUS_BOOTSTRAP_TIMEOUT`, [`timeout`](Self::timeout) by default.
    pub bootstrap_timeout: Option<Duration>,
    /// How long a call waits for a peer's connection: `ANNULUS_CONNECT_TIMEOUT`, all the time that the call has by default. At
    /// most [`timeout`](Self::timeout): connections are made in calls.
    pub connect_timeout: Option<Duration>,
    /// How long a rank may be silent before the others count it as lost, `None` for ever: `ANNULUS_HEARTBEAT`, 5 seconds by
    /// default. It is for stopped processes and unplugged networks; that a process has ended is noticed at once, in any case.
    pub heartbeat: Option<Duration>,
    /// Which links may be used: `ANNULUS_TRANSPORT`.
    pub transport: Transport,
    /// What the tuner must or must not choose: `ANNULUS_ALGO` and its kin.
    pub tuning: Overrides,
    /// Which network interfaces are offered to peers: `ANNULUS_SOCKET_IFNAME`.
    pub interfaces: Option<Filter>,
    /// Whether each message carries a checksum, which its receiver compares before it uses a byte: `ANNULUS_CHECKSUM`, off by
    /// default.
    pub checksum: bool,
    /// Whether TCP links, which lead to other hosts, are encrypted: `ANNULUS_ENCRYPT`, off by default.
    pub encrypt: bool,
    /// Where the flight records go when a communicator breaks and on SIGUSR1: `ANNULUS_DUMP`, nowhere by default.
    pub dump: Option<Dump>,
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
    /// `ANNULUS_TIMEOUT`, `ANNULUS_BOOTSTRAP_TIMEOUT` or `ANNULUS_CONNECT_TIMEOUT`.
    #[error("{variable}={value}: expected {expected}")]
    Timeout {
        /// Which of them.
        variable: &'static str,
        /// What it was set to.
        value: String,
        /// What it may be set to.
        expected: ParseTimeoutError,
    },
    /// `ANNULUS_HEARTBEAT`.
    #[error("ANNULUS_HEARTBEAT={value}: expected off, or a time from 100ms to an hour")]
    Heartbeat {
        /// What it was set to.
        value: String,
    },
    /// A call would be over before its connection.
    #[error(
        "a connection may take {connect:?} (ANNULUS_CONNECT_TIMEOUT), but the call that makes it only {timeout:?} (ANNULUS_TIMEOUT): set the former to at most {timeout:?}, or the latter to {connect:?} or more"
    )]
    ConnectTimeout {
        /// The one.
        connect: Duration,
        /// The other.
        timeout: Duration,
    },
    /// `ANNULUS_TRANSPORT`.
    #[error("ANNULUS_TRANSPORT={value}: use auto, proc, shm or tcp")]
    Transport {
        /// What it was set to.
        value: String,
    },
    /// A variable that is on or off.
    #[error("{variable}={value}: use 0 or 1")]
    Switch {
        /// Its name.
        variable: &'static str,
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
    /// `ANNULUS_SOCKET_IFNAME` or `NCCL_SOCKET_IFNAME`.
    #[error("{variable}: {source}")]
    Interfaces {
        /// Which of the two.
        variable: &'static str,
        /// What is wrong with its value.
        source: FilterError,
    },
    /// `ANNULUS_DUMP`.
    #[error(transparent)]
    Dump(#[from] DumpError),
    /// `ANNULUS_ISA`.
    #[error(transparent)]
    Isa(#[from] IsaError),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            timeout: DEFAULT_TIMEOUT,
            bootstrap_timeout: None,
            connect_timeout: None,
            heartbeat: Some(DEFAULT_HEARTBEAT),
            transport: Transport::Auto,
            tuning: Overrides::default(),
            interfaces: None,
            checksum: false,
            encrypt: false,
            dump: None,
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
        let duration = |variable: &'static str| {
            let value = var(variable).filter(|value| !value.is_empty());
            let parsed = value.map(|value| {
                parse_timeout(&value).map_err(|expected| ConfigError::Timeout {
                    variable,
                    value,
                    expected,
                })
            });
            parsed.transpose()
        };
        let timeout = duration("ANNULUS_TIMEOUT")?.unwrap_or(defaults.timeout);
        let bootstrap_timeout = duration("ANNULUS_BOOTSTRAP_TIMEOUT")?;
        let connect_timeout = duration("ANNULUS_CONNECT_TIMEOUT")?;
        let heartbeat = match var("ANNULUS_HEARTBEAT") {
            Some(value) => parse_heartbeat(&value).ok_or(ConfigError::Heartbeat { value })?,
            None => defaults.heartbeat,
        };
        let transport = match var("ANNULUS_TRANSPORT") {
            Some(value) => Transport::from_name(&value).ok_or(ConfigError::Transport { value })?,
            None => defaults.transport,
        };
        let switch = |variable, default| match var(variable).as_deref() {
            None | Some("") => Ok(default),
            Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(value) => Err(ConfigError::Switch { variable, value: value.to_owned() }),
        };
        let checksum = switch("ANNULUS_CHECKSUM", defaults.checksum)?;
        let encrypt = switch("ANNULUS_ENCRYPT", defaults.encrypt)?;
        let interfaces = ["ANNULUS_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]
            .into_iter()
            .find_map(|variable| Some((variable, var(variable)?)))
            .map(|(variable, value)| {
                Filter::parse(&value).map_err(|source| ConfigError::Interfaces { variable, source })
            })
            .transpose()?;
        // Kernels read it themselves, once per process, and cannot refuse it.
        if let Some(value) = var("ANNULUS_ISA").filter(|value| !value.is_empty()) {
            Isa::parse(&value)?;
        }
        let dump = var("ANNULUS_DUMP").filter(|value| !value.is_empty());
        let dump = dump.map(|value| Dump::parse(&value)).transpose()?;
        let config = Self {
            timeout,
            bootstrap_timeout,
            connect_timeout,
            heartbeat,
            transport,
            tuning: Overrides::from_vars(var)?,
            interfaces,
            checksum,
            encrypt,
            dump,
        };
        config.check()?;
        Ok(config)
    }

    /// Whether the timeouts fit together: connect, which is a part of a call, and the call.
    ///
    /// # Errors
    /// What does not, and what would.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        match self.connect_timeout {
            Some(connect) if connect > self.timeout => {
                Err(ConfigError::ConnectTimeout { connect, timeout: self.timeout })
            }
            _ => Ok(()),
        }
    }

    /// The fabric with checksums, where they are wanted.
    pub(crate) fn checked(&self, fabric: Arc<dyn Fabric>) -> Arc<dyn Fabric> {
        if self.checksum { Arc::new(ChecksumFabric::new(fabric)) } else { fabric }
    }

    /// The largest chunk of such a fabric, in bytes, over links that take `bytes` bytes.
    pub(crate) fn checked_chunk_bytes(&self, bytes: usize) -> usize {
        if self.checksum { ChecksumFabric::max_chunk_bytes_of(bytes) } else { bytes }
    }

    /// A digest of what must be the same on every rank.
    pub(crate) fn digest(&self) -> u64 {
        let Self { transport, checksum, encrypt, .. } = self;
        let text = format!("{transport:?} {checksum} {encrypt} {}", self.tuning.signature());
        let hash = blake3::hash(text.as_bytes());
        hash.as_bytes()[..8].iter().fold(0, |digest, byte| digest << 8 | u64::from(*byte))
    }
}

/// A heartbeat that is not much longer than a busy host lets a thread wait would declare the living lost.
const HEARTBEATS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);

/// The heartbeat that `text` means, `Some(None)` for none at all; `None`: it makes no sense.
fn parse_heartbeat(text: &str) -> Option<Option<Duration>> {
    match text.trim() {
        "off" | "0" => Some(None),
        text => parse_timeout(text).ok().filter(|time| HEARTBEATS.contains(time)).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_it_cannot_understand() {
        for (name, value, hint) in [
            ("ANNULUS_TIMEOUT", "soon", "500ms"),
            ("ANNULUS_HEARTBEAT", "10ms", "off, or a time from 100ms"),
            ("ANNULUS_HEARTBEAT", "never", "off, or a time from 100ms"),
            ("ANNULUS_CONNECT_TIMEOUT", "2h", "set the former to at most 600s"),
            ("ANNULUS_BOOTSTRAP_TIMEOUT", "0", "a time above zero"),
            ("ANNULUS_TRANSPORT", "pigeon", "auto, proc, shm or tcp"),
            ("ANNULUS_ALGO", "circle", "halving-doubling"),
            ("ANNULUS_SOCKET_IFNAME", "^", "ANNULUS_SOCKET_IFNAME"),
            ("ANNULUS_DUMP", "/no/such/folder", "stderr, or a folder"),
            ("ANNULUS_ISA", "sse9", "portable, avx2 or avx512"),
            ("ANNULUS_CHECKSUM", "yes", "ANNULUS_CHECKSUM=yes: use 0 or 1"),
        ] {
            let vars = |asked: &str| (asked == name).then(|| value.to_owned());
            let text = Config::from_vars(vars).expect_err(name).to_string();
            assert!(text.contains(hint), "{name}: {text}");
        }
        for (value, heartbeat) in
            [("off", None), ("0", None), ("500ms", Some(500)), ("9", Some(9000))]
        {
            let vars = |name: &str| (name == "ANNULUS_HEARTBEAT").then(|| value.to_owned());
            let heartbeat = heartbeat.map(Duration::from_millis);
            assert_eq!(Config::from_vars(vars).expect("valid").heartbeat, heartbeat, "{value}");
        }
        assert!(Config::from_vars(|name| (name == "ANNULUS_ISA").then(String::new)).is_ok());
    }
}
