//! Sockets, interfaces and addresses.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};

use annulus::Config;
use annulus_transports::interface::{Filter, interfaces, own_addresses};

use super::Finding;

pub(super) fn examine() -> Vec<Finding> {
    let mut findings = vec![unix(), loopback(), six()];
    findings.extend(interface_list());
    findings.extend(Config::from_env().map(|config| offered(config.interfaces.as_ref())));
    findings
}

fn unix() -> Finding {
    let subject = "Unix sockets";
    let attempt = || -> io::Result<()> {
        let name = format!("annulus-doctor-{}", std::process::id());
        let address = UnixAddress::from_abstract_name(name)?;
        let listener = UnixListener::bind_addr(&address)?;
        let mut sender = UnixStream::connect_addr(&address)?;
        let (mut receiver, _) = listener.accept()?;
        exchange(&mut sender, &mut receiver)
    };
    match attempt() {
        Ok(()) => Finding::ok(subject, "abstract names work"),
        Err(error) => Finding::problem(
            subject,
            format!("abstract names do not work: {error}"),
            "ranks of a host hand each other memory through them: allow them, or use ANNULUS_TRANSPORT=tcp",
        ),
    }
}

fn loopback() -> Finding {
    let attempt = || -> io::Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let mut sender = TcpStream::connect(listener.local_addr()?)?;
        let (mut receiver, _) = listener.accept()?;
        exchange(&mut sender, &mut receiver)
    };
    match attempt() {
        Ok(()) => Finding::ok("loopback", "TCP to 127.0.0.1 works"),
        Err(error) => Finding::problem(
            "loopback",
            format!("TCP to 127.0.0.1 does not work: {error}"),
            "the ranks of a host meet there: bring the interface up (ip link set lo up)",
        ),
    }
}

fn exchange(sender: &mut impl Write, receiver: &mut impl Read) -> io::Result<()> {
    let mut got = [0; 7];
    sender.write_all(b"annulus")?;
    receiver.read_exact(&mut got)?;
    if &got == b"annulus" { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

fn six() -> Finding {
    match TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
        Ok(_) => Finding::ok("IPv6", "works"),
        Err(error) => Finding::ok("IPv6", format!("is off ({error}); IPv4 is enough")),
    }
}

fn interface_list() -> Vec<Finding> {
    let list = match interfaces() {
        Ok(list) => list,
        Err(error) => {
            return vec![Finding::note("interfaces", format!("cannot be listed: {error}"))];
        }
    };
    let mut names: Vec<&str> = list.iter().map(|interface| interface.name.as_str()).collect();
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(*name));
    let found = names.iter().map(|name| {
        let own = list.iter().filter(|interface| interface.name == *name);
        let addresses: Vec<_> = own.map(|interface| interface.ip.to_string()).collect();
        format!("{name} {}", addresses.join(" "))
    });
    let found = found.collect::<Vec<_>>().join(", ");
    if list.iter().all(|interface| interface.ip.is_loopback()) {
        let finding = Finding::note("interfaces", format!("{found}: loopback only"));
        return vec![
            finding.with_remedy("ranks of other hosts cannot be reached; ranks of this host can"),
        ];
    }
    vec![Finding::ok("interfaces", found)]
}

/// What a rank on this host would offer its peers.
fn offered(filter: Option<&Filter>) -> Finding {
    let subject = "addresses";
    let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 1));
    match own_addresses(filter, None, everywhere) {
        Ok(addresses) => {
            let list: Vec<_> = addresses.iter().map(|address| address.ip().to_string()).collect();
            let by = match filter {
                Some(filter) => format!("by the filter \"{filter}\""),
                None => "without a filter; ANNULUS_SOCKET_IFNAME chooses others".to_owned(),
            };
            Finding::ok(subject, format!("peers of other hosts get {} ({by})", list.join(", ")))
        }
        Err(error) if filter.is_some() => Finding::problem(
            subject,
            error.to_string(),
            "name interfaces that there are in ANNULUS_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, or unset it",
        ),
        Err(error) => Finding::note(subject, error.to_string()),
    }
}
