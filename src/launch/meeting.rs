//! Where the ranks of a job meet.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::launchers::{Hosts, Place};
use super::variables::Variables;
use super::{JobIdentity, LaunchError, Launcher, expand_hostlist};

/// Where the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Meeting {
    /// There is only one rank.
    Alone,
    /// All ranks are on this host, and meet at an abstract Unix socket named after the job.
    Host(JobIdentity),
    /// Rank 0 listens at an address that all ranks know.
    Address {
        /// The address.
        root: RootAddress,
        /// What the address came from, for messages.
        source: String,
        /// The key that `ANNULUS_SECRET` gave; `None`: derived from `identity`.
        secret: Option<GivenSecret>,
        /// The job.
        identity: JobIdentity,
        /// A listening socket that rank 0 inherited, from `ANNULUS_LISTEN_FD`.
        listener: Option<i32>,
    },
}

/// The value of `ANNULUS_SECRET`. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct GivenSecret(pub(crate) [u8; 32]);

impl fmt::Debug for GivenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GivenSecret(..)")
    }
}

/// A host, by name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RootAddress {
    /// A name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    /// The port, not 0.
    pub port: u16,
}

/// Why a text is no root address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RootAddressError {
    /// The port is missing.
    #[error("expected host:port, or a host and ANNULUS_PORT")]
    NoPort,
    /// The port is no port.
    #[error("{0:?} is no port, 1 to 65535")]
    Port(String),
    /// The host is missing or holds blanks, slashes or the like.
    #[error("{0:?} is no host name or address")]
    Host(String),
    /// An IPv6 address must stand in brackets.
    #[error("an IPv6 address needs brackets: [{0}]:port")]
    Brackets(Ipv6Addr),
}

impl RootAddress {
    /// Reads `host:port`, `[v6]:port`, or, given `default_port`, a host alone.
    ///
    /// # Errors
    /// When the text is none of these.
    pub fn parse(text: &str, default_port: Option<u16>) -> Result<Self, RootAddressError> {
        if let Ok(address) = text.parse() {
            return match default_port {
                Some(port) => Ok(Self { host: text.into(), port }),
                None => Err(RootAddressError::Brackets(address)),
            };
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) =
                    rest.split_once(']').ok_or_else(|| RootAddressError::Host(text.into()))?;
                if host.parse::<Ipv6Addr>().is_err() {
                    return Err(RootAddressError::Host(host.into()));
                }
                match rest.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None if rest.is_empty() => (host, None),
                    None => return Err(RootAddressError::Host(text.into())),
                }
            }
            None => match text.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        let name = !text.starts_with('[');
        if host.is_empty() || !host.chars().all(plain) || (name && host.contains(':')) {
            return Err(RootAddressError::Host(host.into()));
        }
        let port = match port {
            Some(port) => match port.parse() {
                Ok(number) if number != 0 => number,
                _ => return Err(RootAddressError::Port(port.into())),
            },
            None => default_port.ok_or(RootAddressError::NoPort)?,
        };
        Ok(Self { host: host.into(), port })
    }

    /// Whether only this host can reach it. A name other than `localhost` is not looked up.
    pub fn is_loopback(&self) -> bool {
        match self.host.parse::<IpAddr>() {
            Ok(address) => address.to_canonical().is_loopback(),
            Err(_) => ["localhost", "localhost.localdomain", "ip6-localhost"]
                .contains(&self.host.to_ascii_lowercase().as_str()),
        }
    }
}

impl fmt::Display for RootAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<Ipv6Addr>() {
            Ok(address) => write!(f, "[{address}]:{}", self.port),
            Err(_) => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Where the ranks of the job that `place` belongs to meet.
pub(super) fn choose(variables: &Variables<'_>, place: &Place) -> Result<Meeting, LaunchError> {
    let secret = given_secret(variables)?;
    let port = variables.port("ANNULUS_PORT")?;
    let listener = listener(variables)?;
    let at = |root: RootAddress, source: String| Meeting::Address {
        root,
        source,
        secret: secret.clone(),
        identity: place.identity.clone(),
        listener,
    };
    if place.world == 1 {
        return Ok(Meeting::Alone);
    }
    if let Some(value) = variables.text("ANNULUS_ROOT") {
        let root = root_address("ANNULUS_ROOT", &value, port)?;
        refuse_loopback(place, "ANNULUS_ROOT", &value, &root)?;
        return Ok(at(root, format!("ANNULUS_ROOT={value}")));
    }
    if place.hosts == Hosts::One {
        return Ok(Meeting::Host(place.identity.clone()));
    }
    if let Some(value) = variables.text("MASTER_ADDR") {
        let (port, origin) = master_port(variables, place.launcher, port)?;
        let root = root_address("MASTER_ADDR", &value, Some(port))?;
        refuse_loopback(place, "MASTER_ADDR", &value, &root)?;
        if root.is_loopback() {
            // Every rank is told to find rank 0 on its own host.
            return Ok(Meeting::Host(place.identity.clone()));
        }
        return Ok(at(root, format!("MASTER_ADDR={value} and {origin}")));
    }
    if place.launcher == Launcher::Torchrun {
        return Err(LaunchError::Missing {
            launcher: place.launcher,
            present: format!("RANK={}", place.rank),
            missing: "MASTER_ADDR",
        });
    }
    if place.launcher == Launcher::Slurm {
        return slurm_meeting(variables, place, port, at);
    }
    Err(LaunchError::RootUnknown {
        launcher: place.launcher,
        world: place.world,
        local: place.local_world,
    })
}

/// The port beside torch's, and the words that say where it came from. The store of torchrun, or of `init_process_group`, holds `MASTER_PORT`.
fn master_port(
    variables: &Variables<'_>,
    launcher: Launcher,
    given: Option<u16>,
) -> Result<(u16, String), LaunchError> {
    if let Some(port) = given {
        return Ok((port, format!("ANNULUS_PORT={port}")));
    }
    let Some(master) = variables.port("MASTER_PORT")? else {
        return Err(LaunchError::Missing {
            launcher,
            present: format!("MASTER_ADDR={}", variables.text("MASTER_ADDR").unwrap_or_default()),
            missing: "MASTER_PORT",
        });
    };
    let port = master.checked_add(1).ok_or_else(|| LaunchError::Invalid {
        variable: "MASTER_PORT",
        value: master.to_string(),
        expected: "a port below 65535, because the ranks meet at the next one, or ANNULUS_PORT"
            .into(),
    })?;
    Ok((port, format!("MASTER_PORT={master} (+1: torch's store holds the port itself)")))
}

fn slurm_meeting(
    variables: &Variables<'_>,
    place: &Place,
    port: Option<u16>,
    at: impl Fn(RootAddress, String) -> Meeting,
) -> Result<Meeting, LaunchError> {
    let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let found = lists.into_iter().find_map(|name| Some((name, variables.text(name)?)));
    let Some((variable, list)) = found else {
        return Err(LaunchError::Missing {
            launcher: place.launcher,
            present: format!("SLURM_PROCID={}", place.rank),
            missing: "SLURM_STEP_NODELIST",
        });
    };
    let mut hosts = match expand_hostlist(&list) {
        Ok(hosts) => hosts,
        Err(source) => return Err(LaunchError::Hostlist { variable, value: list, source }),
    };
    if hosts.len() == 1 && place.hosts == Hosts::Unknown {
        return Ok(Meeting::Host(place.identity.clone()));
    }
    let port = port.unwrap_or_else(|| slurm_port(&place.identity));
    let root = RootAddress { host: hosts.swap_remove(0), port };
    Ok(at(root, format!("the first node of {variable}={list}")))
}

/// A port below those that Linux hands out by itself (from 32768), likely to differ between two jobs on a node.
fn slurm_port(identity: &JobIdentity) -> u16 {
    let [a, b, ..] = identity.digest("port");
    20_000 + u16::from_le_bytes([a, b]) % 12_000
}

fn given_secret(variables: &Variables<'_>) -> Result<Option<GivenSecret>, LaunchError> {
    let Some(text) = variables.text("ANNULUS_SECRET") else { return Ok(None) };
    match blake3::Hash::from_hex(&text) {
        Ok(secret) => Ok(Some(GivenSecret(*secret.as_bytes()))),
        Err(_) => Err(LaunchError::Invalid {
            variable: "ANNULUS_SECRET",
            value: format!("({} characters, not shown)", text.chars().count()),
            expected: "64 hexadecimal digits".into(),
        }),
    }
}

fn listener(variables: &Variables<'_>) -> Result<Option<i32>, LaunchError> {
    let Some(value) = variables.text("ANNULUS_LISTEN_FD") else { return Ok(None) };
    match value.parse() {
        // 0 to 2 are the standard streams.
        Ok(fd) if fd > 2 => Ok(Some(fd)),
        _ => Err(LaunchError::Invalid {
            variable: "ANNULUS_LISTEN_FD",
            value,
            expected: "the number of an inherited listening socket, 3 or more".into(),
        }),
    }
}

fn root_address(
    variable: &'static str,
    value: &str,
    port: Option<u16>,
) -> Result<RootAddress, LaunchError> {
    let error = |source| LaunchError::RootAddress { variable, value: value.into(), source };
    RootAddress::parse(value, port).map_err(error)
}

fn refuse_loopback(
    place: &Place,
    variable: &'static str,
    value: &str,
    root: &RootAddress,
) -> Result<(), LaunchError> {
    if place.hosts != Hosts::Several || !root.is_loopback() {
        return Ok(());
    }
    Err(LaunchError::LoopbackRoot { variable, value: value.into(), world: place.world })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_root_addresses() {
        for (text, default, host, port) in [
            ("node1:5000", None, "node1", 5000),
            ("10.0.0.1:5000", Some(7), "10.0.0.1", 5000),
            ("[fd00::1]:5000", None, "fd00::1", 5000),
            ("[fd00::1]", Some(7), "fd00::1", 7),
            ("fd00::1", Some(7), "fd00::1", 7),
            ("node1.example", Some(7), "node1.example", 7),
        ] {
            let expected = RootAddress { host: host.into(), port };
            assert_eq!(RootAddress::parse(text, default), Ok(expected), "{text}");
        }
    }

    #[test]
    fn says_what_is_wrong_with_an_address() {
        use RootAddressError::{Brackets, Host, NoPort, Port};
        for (text, error) in [
            ("node1", NoPort),
            ("node1:0", Port("0".into())),
            ("node1:65536", Port("65536".into())),
            ("node1:", Port("".into())),
            (":5000", Host("".into())),
            ("[fd00::1", Host("[fd00::1".into())),
            ("[node1]:5", Host("node1".into())),
            ("tcp://node1:5", Host("tcp://node1".into())),
            ("a:b:5", Host("a:b".into())),
            ("fd00::1", Brackets("fd00::1".parse().expect("an address"))),
        ] {
            assert_eq!(RootAddress::parse(text, None), Err(error), "{text}");
        }
    }

    #[test]
    fn knows_loopback() {
        for host in ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", "localhost", "LocalHost"]
        {
            assert!(RootAddress { host: host.into(), port: 1 }.is_loopback(), "{host}");
        }
        for host in ["10.0.0.1", "fd00::1", "node1", "localhost1"] {
            assert!(!RootAddress { host: host.into(), port: 1 }.is_loopback(), "{host}");
        }
    }
}
