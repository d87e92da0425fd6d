//! Opening the sockets to listen on.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;

use rustix::io::Errno;
use socket2::{Domain, Socket, Type};

use super::AcceptError;
use crate::secret::random_bytes;

/// What an acceptor listens on.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) tcp: TcpListener,
    pub(super) unix: Option<UnixListener>,
}

/// Enough for every rank of a large job to connect at once; the kernel lowers it to its own limit.
const BACKLOG: i32 = 4096;

/// Listens at `address`, or at every address of the host.
pub(super) fn listen(address: Option<SocketAddr>) -> Result<TcpListener, AcceptError> {
    let address = address.unwrap_or_else(|| (Ipv6Addr::UNSPECIFIED, 0).into());
    let outcome = match listen_tcp(address) {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && lacks_ipv6(&error) => {
            listen_tcp((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        outcome => outcome,
    };
    outcome.map_err(|source| AcceptError::Bind { address, source })
}

/// A listener with a random name outside the file system: nothing to remove, however the process ends.
pub(super) fn listen_abstract() -> io::Result<(Vec<u8>, UnixListener)> {
    let random = random_bytes()?;
    let mut name = b"annulus-".to_vec();
    for byte in &random[..16] {
        name.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name)?;
    let listener = UnixListener::bind_addr(&address)?;
    Ok((name, listener))
}

fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    // A root that restarts at its port must not wait for its predecessor's connections to time out.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL | Errno::PROTONOSUPPORT)
    )
}
