//! One connected socket, shared by the two links that it carries.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};

use rustix::net::{SendAncillaryBuffer, SendFlags};
use socket2::SockRef;

/// Parts that are together no longer than this are sent from one buffer: copying them costs
/// less than having the kernel look at two.
const COALESCE: usize = 256;

/// A connected socket that never blocks and never raises SIGPIPE.
#[derive(Debug)]
pub(super) struct Connection(TcpStream);

impl Connection {
    /// Makes `stream` fit for links, with `buffer_bytes` of kernel memory in each direction.
    pub(super) fn new(stream: TcpStream, buffer_bytes: usize) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        // A fixed size ends the kernel's own tuning, which goes further than a low limit would let us.
        // Where the limit is not known, or a size is refused, the kernel's choice serves as well.
        if system_limit("wmem_max").is_some_and(|limit| buffer_bytes <= limit) {
            let _ = socket.set_send_buffer_size(buffer_bytes);
        }
        if system_limit("rmem_max").is_some_and(|limit| buffer_bytes <= limit) {
            let _ = socket.set_recv_buffer_size(buffer_bytes);
        }
        Ok(Self(stream))
    }

    /// The socket.
    pub(super) fn stream(&self) -> &TcpStream {
        &self.0
    }

    /// Tells the peer that no more will come.
    pub(super) fn finish(&self) {
        // The connection may be gone already, and then the peer knows.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

impl Read for &Connection {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(bytes)
    }

    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&self.0).read_vectored(parts)
    }
}

impl Write for &Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let total = parts.iter().map(|part| part.len()).sum();
        if total <= COALESCE {
            let mut bytes = [0; COALESCE];
            let mut end = 0;
            for part in parts {
                bytes[end..end + part.len()].copy_from_slice(part);
                end += part.len();
            }
            return self.write(&bytes[..total]);
        }
        let mut control = SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(&self.0, parts, &mut control, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The largest socket buffer that an unprivileged process gets, in bytes.
fn system_limit(name: &str) -> Option<usize> {
    std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?.trim().parse().ok()
}
