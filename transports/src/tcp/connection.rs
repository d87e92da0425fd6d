//! One connected socket, shared by the two links that it carries.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use socket2::SockRef;

use super::path::Path;

/// Parts that are together no longer than this are sent from one buffer: copying them costs
/// less than having the kernel look at two.
const COALESCE: usize = 256;

/// How many sends in a row find no room before one asks whether the peer is still there.
const ASK_AFTER: u32 = 64;

/// A connected socket that never blocks and never raises SIGPIPE.
///
/// Its two directions end together: when the peer has dropped one of its two links, the other has an end too.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// Sends in a row that found no room.
    refused: AtomicU32,
    /// Where a silent network is to be noticed.
    path: Option<Path>,
}

impl Connection {
    /// Makes `stream` fit for links, with `buffer_bytes` of kernel memory in each direction. It breaks when the network carries
    /// nothing for `patience`.
    pub(super) fn new(
        stream: TcpStream,
        buffer_bytes: usize,
        patience: Option<Duration>,
    ) -> io::Result<Self> {
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
        let path = patience.map(|patience| Path::new(&stream, patience));
        Ok(Self { stream, refused: AtomicU32::new(0), path })
    }

    /// The socket.
    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Tells the peer that no more will come from here, or be taken.
    pub(super) fn finish(&self) {
        // The connection may be gone already, and then the peer knows.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// The end of a send. One that finds no room, time after time, may be one that nobody will ever
    /// make room for, which the kernel does not say by itself.
    fn sent(&self, result: rustix::io::Result<usize>) -> io::Result<usize> {
        let error = match result {
            Ok(bytes) => {
                self.refused.store(0, Ordering::Relaxed);
                return Ok(bytes);
            }
            Err(error) => error,
        };
        if error == Errno::AGAIN {
            let refused = self.refused.load(Ordering::Relaxed) + 1;
            self.refused.store(refused % ASK_AFTER, Ordering::Relaxed);
            if refused == ASK_AFTER && self.peer_has_finished() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.idle()?;
        }
        Err(error.into())
    }

    /// The end of a read.
    fn received(&self, result: io::Result<usize>) -> io::Result<usize> {
        if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.idle()?;
        }
        result
    }

    fn idle(&self) -> io::Result<()> {
        self.path.as_ref().map_or(Ok(()), |path| path.idle(&self.stream))
    }

    fn peer_has_finished(&self) -> bool {
        let mut socket = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut socket, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

impl Read for &Connection {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.received((&self.stream).read(bytes))
    }

    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.received((&self.stream).read_vectored(parts))
    }
}

impl Write for &Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sent(rustix::net::send(&self.stream, bytes, SendFlags::NOSIGNAL))
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
        self.sent(rustix::net::sendmsg(&self.stream, parts, &mut control, SendFlags::NOSIGNAL))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The largest socket buffer that an unprivileged process gets, in bytes.
fn system_limit(name: &str) -> Option<usize> {
    std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?.trim().parse().ok()
}
