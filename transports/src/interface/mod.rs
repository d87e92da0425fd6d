//! The addresses of this host at which peers may reach a process, best first.
//!
//! By default that is the local address of the route to the root, then the other addresses of the host;
//! a [`Filter`] (`ANNULUS_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME`) names interfaces instead. No address is
//! ever turned into a name.

mod enumerate;
mod filter;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use annulus_plan::Rank;
use rustix::io::Errno;

use crate::host::HostId;
pub use filter::{Filter, FilterError};

/// An address of an interface that is up. An interface with several addresses appears several times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface, such as `eth0`.
    pub name: String,
    /// The address.
    pub ip: IpAddr,
    /// Index of the interface if the address is link-local IPv6, else 0.
    pub scope_id: u32,
}

/// No more addresses than this are offered, and no peer may offer more.
pub const MAX_OFFERED: usize = 16;

/// The addresses of all interfaces of this host that are up, in the system's order.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    enumerate::up()
}

/// The addresses at which peers may reach the listener at `listening` (see
/// [`Acceptor::tcp_address`](crate::acceptor::Acceptor::tcp_address)), best first, at most
/// [`MAX_OFFERED`]. `root`: where the job meets, if the ranks meet at an address.
///
/// Does not block and sends nothing. Fails when the filter matches no interface, and when the host has no
/// address that the listener serves.
pub fn own_addresses(
    filter: Option<&Filter>,
    root: Option<SocketAddr>,
    listening: SocketAddr,
) -> Result<Vec<SocketAddr>, InterfaceError> {
    let interfaces = interfaces().map_err(InterfaceError::Enumerate)?;
    // Without a route to the root the other addresses may still do.
    let route = root.and_then(|root| local_address_toward(root).ok());
    choose(&interfaces, filter, route, listening)
}

/// The addresses among `offered` that rank `rank` can be reached at from this process.
///
/// A loopback address leads back to the host that uses it, so it is only good between ranks of one host;
/// a rank of another host that offers nothing else is an error.
pub fn reachable_addresses(
    rank: Rank,
    own: HostId,
    peer: HostId,
    offered: &[SocketAddr],
) -> Result<Vec<SocketAddr>, InterfaceError> {
    if offered.is_empty() {
        return Err(InterfaceError::NoneOffered { rank });
    }
    let reachable: Vec<_> = offered
        .iter()
        .copied()
        .filter(|address| own == peer || !address.ip().to_canonical().is_loopback())
        .collect();
    if reachable.is_empty() {
        return Err(InterfaceError::OnlyLoopback { rank, offered: offered.to_vec() });
    }
    Ok(reachable)
}

/// The address of this host from which packets to `destination` leave. Sends nothing.
pub fn local_address_toward(destination: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match destination {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // The port does not matter to the route, but 0 is refused.
    socket.connect(SocketAddr::new(destination.ip(), destination.port().max(1)))?;
    Ok(socket.local_addr()?.ip().to_canonical())
}

/// Why a process has no address to offer, or a peer none that leads to it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// The filter leaves nothing.
    #[error(
        "no interface that is up and has an address matches \"{filter}\" \
         (ANNULUS_SOCKET_IFNAME or NCCL_SOCKET_IFNAME); this host has {}",
        Listed(available)
    )]
    NoMatch {
        /// The filter.
        filter: Filter,
        /// What there is.
        available: Vec<Interface>,
    },
    /// The host has no address of the listener's family.
    #[error(
        "no interface has an address that the listener at {listening} serves; this host has {}",
        Listed(available)
    )]
    NoAddress {
        /// Where the process listens.
        listening: SocketAddr,
        /// What there is.
        available: Vec<Interface>,
    },
    /// A rank offers nothing.
    #[error("rank {rank} offers no address to connect to")]
    NoneOffered {
        /// The rank.
        rank: Rank,
    },
    /// A rank of another host offers loopback addresses only.
    #[error(
        "rank {rank} is on another host (or in a container with its own network) and offers only {}, \
         which leads back to this host: set ANNULUS_SOCKET_IFNAME on its host to an interface that \
         other hosts reach, and let the ranks meet at an address other than localhost",
        ListedAddresses(offered)
    )]
    OnlyLoopback {
        /// The rank.
        rank: Rank,
        /// What it offers.
        offered: Vec<SocketAddr>,
    },
    /// The system does not list its interfaces.
    #[error("cannot list the network interfaces: {0}{advice}", advice = remedy(.0))]
    Enumerate(#[source] io::Error),
}

fn remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => ": raise the limit on open files with `ulimit -n`",
        _ => "",
    }
}

/// [`own_addresses`], given the facts. `route`: the local address of the route to the root.
fn choose(
    interfaces: &[Interface],
    filter: Option<&Filter>,
    route: Option<IpAddr>,
    listening: SocketAddr,
) -> Result<Vec<SocketAddr>, InterfaceError> {
    let mut candidates: Vec<&Interface> = interfaces
        .iter()
        .filter(|interface| filter.is_none_or(|filter| filter.matches(&interface.name)))
        .collect();
    if let Some(filter) = filter
        && candidates.is_empty()
    {
        let available = interfaces.to_vec();
        return Err(InterfaceError::NoMatch { filter: filter.clone(), available });
    }
    // A link-local address of IPv6 means nothing without the number of an interface, which differs from host to host
    // and does not travel with the address.
    let travels = |ip: IpAddr| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    candidates.retain(|interface| serves(listening, interface.ip) && travels(interface.ip));
    let named = |interface: &Interface| filter.and_then(|filter| filter.position(&interface.name));
    candidates.sort_by_key(|interface| match named(interface) {
        Some(position) => (position, Suitability::of_address(interface.ip)),
        None if route == Some(interface.ip) => (0, Suitability::Good),
        None => (1, Suitability::of(interface)),
    });
    // What the user has named, or the route to the root shows to work, is offered whatever it is.
    let wanted = |interface: &Interface| named(interface).is_some() || route == Some(interface.ip);
    if candidates.iter().any(|interface| wanted(interface) || Suitability::of(interface).offer()) {
        candidates.retain(|interface| wanted(interface) || Suitability::of(interface).offer());
    }
    if candidates.is_empty() {
        return Err(InterfaceError::NoAddress { listening, available: interfaces.to_vec() });
    }
    candidates.truncate(MAX_OFFERED);
    Ok(candidates.into_iter().map(|interface| interface.at(listening.port())).collect())
}

/// Whether a listener bound to `listening` gets connections to `ip`.
fn serves(listening: SocketAddr, ip: IpAddr) -> bool {
    match listening.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => ip.is_ipv4(),
        // Acceptors listen at [::] for both families.
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => true,
        one => one.to_canonical() == ip,
    }
}

/// How likely an address leads peers to this host, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Suitability {
    Good,
    /// Only on the same wire.
    LinkLocal,
    /// Bridges for containers and virtual machines: each host may have one with the same address.
    Bridge,
    Loopback,
}

impl Suitability {
    fn of(interface: &Interface) -> Self {
        const BRIDGES: [&str; 6] = ["docker", "virbr", "br-", "cni", "podman", "lxcbr"];
        if BRIDGES.iter().any(|prefix| interface.name.starts_with(prefix)) {
            Self::Bridge
        } else {
            Self::of_address(interface.ip)
        }
    }

    fn of_address(ip: IpAddr) -> Self {
        if ip.is_loopback() {
            return Self::Loopback;
        }
        let link_local = match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        if link_local { Self::LinkLocal } else { Self::Good }
    }

    /// Whether to offer it beside others.
    fn offer(self) -> bool {
        self == Self::Good
    }
}

impl Interface {
    fn at(&self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(ip) => (ip, port).into(),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, self.scope_id).into(),
        }
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.ip)
    }
}

struct Listed<'a>(&'a [Interface]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(f, self.0)
    }
}

struct ListedAddresses<'a>(&'a [SocketAddr]);

impl fmt::Display for ListedAddresses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(f, self.0)
    }
}

fn list(f: &mut fmt::Formatter<'_>, items: &[impl fmt::Display]) -> fmt::Result {
    if items.is_empty() {
        return f.write_str("none");
    }
    for (index, item) in items.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        write!(f, "{separator}{item}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, ip: &str) -> Interface {
        let ip: IpAddr = ip.parse().unwrap();
        let link_local = Suitability::of_address(ip) == Suitability::LinkLocal;
        let scope_id = if ip.is_ipv6() && link_local { 2 } else { 0 };
        Interface { name: name.into(), ip, scope_id }
    }

    fn host() -> Vec<Interface> {
        vec![
            interface("lo", "127.0.0.1"),
            interface("lo", "::1"),
            interface("docker0", "172.17.0.1"),
            interface("eth0", "192.0.2.2"),
            interface("eth0", "fd00::2"),
            interface("eth0", "fe80::1"),
            interface("eth1", "198.51.100.2"),
            interface("ib0", "203.0.113.2"),
        ]
    }

    #[test]
    fn a_lack_of_descriptors_is_named_with_its_remedy() {
        let of = |errno: Errno| InterfaceError::Enumerate(errno.into()).to_string();
        assert!(of(Errno::MFILE).ends_with("with `ulimit -n`"));
        assert!(!of(Errno::NOMEM).contains("ulimit"));
    }

    const BOTH: &str = "[::]:5000";
    const V4: &str = "0.0.0.0:5000";

    fn chosen(filter: Option<&str>, route: Option<&str>, listening: &str) -> Vec<String> {
        let filter = filter.map(|text| Filter::parse(text).unwrap());
        let route = route.map(|text| text.parse().unwrap());
        choose(&host(), filter.as_ref(), route, listening.parse().unwrap())
            .unwrap()
            .iter()
            .map(SocketAddr::to_string)
            .collect()
    }

    #[test]
    fn a_host_with_bridges_and_no_network_offers_loopback() {
        let host = [interface("br0", "fe80::1"), interface("lo", "127.0.0.1")];
        let chosen = choose(&host, None, None, BOTH.parse().unwrap()).unwrap();
        assert_eq!(chosen, ["127.0.0.1:5000".parse().unwrap()]);
    }

    #[test]
    fn route_to_the_root_comes_first() {
        assert_eq!(
            chosen(None, Some("198.51.100.2"), V4),
            ["198.51.100.2:5000", "192.0.2.2:5000", "203.0.113.2:5000"]
        );
        assert_eq!(
            chosen(None, Some("127.0.0.1"), V4),
            ["127.0.0.1:5000", "192.0.2.2:5000", "198.51.100.2:5000", "203.0.113.2:5000"]
        );
        assert_eq!(chosen(None, Some("172.17.0.1"), V4)[0], "172.17.0.1:5000");
    }

    #[test]
    fn default_leaves_out_what_leads_nowhere() {
        assert_eq!(
            chosen(None, None, BOTH),
            ["192.0.2.2:5000", "[fd00::2]:5000", "198.51.100.2:5000", "203.0.113.2:5000"]
        );
        let alone = [interface("lo", "127.0.0.1"), interface("docker0", "172.17.0.1")];
        let chosen = choose(&alone, None, None, V4.parse().unwrap()).unwrap();
        assert_eq!(chosen, ["172.17.0.1:5000".parse().unwrap(), "127.0.0.1:5000".parse().unwrap()]);
    }

    #[test]
    fn filter_gives_the_interfaces_and_their_order() {
        assert_eq!(
            chosen(Some("ib,eth1"), Some("192.0.2.2"), V4),
            ["203.0.113.2:5000", "198.51.100.2:5000"]
        );
        assert_eq!(chosen(Some("=eth0"), None, BOTH), ["192.0.2.2:5000", "[fd00::2]:5000"]);
        assert_eq!(chosen(Some("lo"), None, V4), ["127.0.0.1:5000"]);
        assert_eq!(
            chosen(Some("^eth0"), Some("192.0.2.2"), V4),
            ["198.51.100.2:5000", "203.0.113.2:5000"]
        );
    }

    #[test]
    fn listener_at_one_address_offers_that_address() {
        assert_eq!(chosen(None, Some("192.0.2.2"), "198.51.100.2:7"), ["198.51.100.2:7"]);
        let elsewhere = "192.0.2.99:7".parse().unwrap();
        let error = choose(&host(), None, None, elsewhere).unwrap_err();
        assert!(matches!(error, InterfaceError::NoAddress { .. }));
    }

    #[test]
    fn filter_that_matches_nothing_lists_what_there_is() {
        let filter = Filter::parse("^=lo,docker0,eth0,eth1,ib0").unwrap();
        let error = choose(&host(), Some(&filter), None, V4.parse().unwrap()).unwrap_err();
        let text = error.to_string();
        for part in ["^=lo,docker0", "eth0 (192.0.2.2)", "ib0", "ANNULUS_SOCKET_IFNAME"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }

    #[test]
    fn loopback_is_refused_between_hosts_only() {
        let here = HostId::from_bytes([1; 16]);
        let there = HostId::from_bytes([2; 16]);
        let loopback: Vec<SocketAddr> =
            ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"].map(|a| a.parse().unwrap()).into();
        assert_eq!(reachable_addresses(3, here, here, &loopback).unwrap(), loopback);
        let error = reachable_addresses(3, here, there, &loopback).unwrap_err().to_string();
        assert!(error.contains("rank 3") && error.contains("127.0.0.1:1"), "{error}");
        let mut mixed = loopback;
        mixed.push("192.0.2.2:1".parse().unwrap());
        assert_eq!(reachable_addresses(3, here, there, &mixed).unwrap(), mixed[3..]);
        let error = reachable_addresses(3, here, here, &[]).unwrap_err();
        assert!(matches!(error, InterfaceError::NoneOffered { rank: 3 }));
    }

    #[test]
    fn this_host_offers_an_address_that_is_its_own() {
        let root = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        assert_eq!(local_address_toward(root).unwrap(), Ipv4Addr::LOCALHOST);
        let offered = own_addresses(None, Some(root), V4.parse().unwrap()).unwrap();
        assert_eq!(offered[0], "127.0.0.1:5000".parse().unwrap());
        let all = interfaces().unwrap();
        assert!(offered.iter().all(|address| all.iter().any(|own| own.ip == address.ip())));
    }
}
