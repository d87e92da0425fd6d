//! The two ends: a format's half and the socket under it.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::sync::Arc;

use annulus_plan::{Fingerprint, Rank};

use super::connection::Connection;
use super::inbox::Inbox;
use super::outbox::Outbox;
use super::record::{Opener, Sealer};
use crate::link::{LinkError, Piece, RecvLink, SendLink};
use crate::memory::Store;
use crate::session::SessionKeys;

/// Sends over one direction of a socket.
#[derive(Debug)]
pub struct TcpSendLink {
    outbox: Outbox,
    stream: SendStream,
}

/// Receives from the other direction.
#[derive(Debug)]
pub struct TcpRecvLink {
    inbox: Inbox,
    stream: RecvStream,
    /// Somebody waits for this link, and has found the socket empty since the last pump.
    watched: bool,
}

/// Both ends of `connection` on this side, encrypted if there are keys.
pub(super) fn split(
    connection: Connection,
    keys: Option<SessionKeys>,
    peer: Rank,
    max_chunk: usize,
) -> (TcpSendLink, TcpRecvLink) {
    let connection = Arc::new(connection);
    let (sealer, opener) = match keys {
        Some(SessionKeys { send, recv }) => (Some(Sealer::new(send)), Some(Opener::new(recv))),
        None => (None, None),
    };
    let stream = SendStream { connection: Arc::clone(&connection), sealer };
    let send = TcpSendLink { outbox: Outbox::new(peer, max_chunk), stream };
    let stream = RecvStream { connection, opener };
    let recv = TcpRecvLink { inbox: Inbox::new(peer, max_chunk), stream, watched: false };
    (send, recv)
}

/// The socket as a writer of plaintext.
#[derive(Debug)]
struct SendStream {
    connection: Arc<Connection>,
    sealer: Option<Sealer>,
}

/// The socket as a reader of plaintext.
#[derive(Debug)]
struct RecvStream {
    connection: Arc<Connection>,
    opener: Option<Opener>,
}

impl Write for SendStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match (&mut self.sealer, parts) {
            (Some(sealer), _) => sealer.write(&mut &*self.connection, parts),
            (None, [only]) => (&*self.connection).write(only),
            (None, _) => (&*self.connection).write_vectored(parts),
        }
    }

    /// `WouldBlock`: not all that was written is with the kernel.
    fn flush(&mut self) -> io::Result<()> {
        let flushed = match &mut self.sealer {
            Some(sealer) => sealer.flush(&mut &*self.connection)?,
            None => true,
        };
        if flushed { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }
}

impl Read for RecvStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match &mut self.opener {
            Some(opener) => opener.read(&mut &*self.connection, &mut [IoSliceMut::new(bytes)]),
            None => (&*self.connection).read(bytes),
        }
    }

    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match &mut self.opener {
            Some(opener) => opener.read(&mut &*self.connection, parts),
            None => (&*self.connection).read_vectored(parts),
        }
    }
}

// A `Store` changes nothing here: it is the kernel that copies, from this core, which sees its own
// non-temporal stores in order.
impl SendLink for TcpSendLink {
    fn try_send(
        &mut self,
        fingerprint: &Fingerprint,
        bytes: &[u8],
        max_piece: usize,
        _: Store,
    ) -> Result<Option<usize>, LinkError> {
        self.outbox.try_send(&mut self.stream, fingerprint, bytes, max_piece)
    }

    fn can_reference(&self, _: *const u8, _: usize) -> bool {
        false
    }

    unsafe fn try_send_reference(
        &mut self,
        _: &Fingerprint,
        _: &[u8],
    ) -> Result<Option<()>, LinkError> {
        Ok(None)
    }

    fn try_reserve(&mut self, max: usize) -> Result<Option<&mut [u8]>, LinkError> {
        self.outbox.try_reserve(&mut self.stream, max)
    }

    fn reserved(&mut self) -> &mut [u8] {
        self.outbox.reserved()
    }

    fn commit(
        &mut self,
        fingerprint: &Fingerprint,
        bytes: usize,
        _: Store,
    ) -> Result<(), LinkError> {
        self.outbox.commit(&mut self.stream, fingerprint, bytes)
    }

    fn is_idle(&mut self) -> Result<bool, LinkError> {
        self.outbox.is_idle(&mut self.stream)
    }
}

impl Drop for TcpSendLink {
    fn drop(&mut self) {
        self.stream.connection.finish();
    }
}

impl Drop for TcpRecvLink {
    fn drop(&mut self) {
        self.stream.connection.finish();
    }
}

impl RecvLink for TcpRecvLink {
    fn try_peek(&mut self) -> Result<Option<Piece<'_>>, LinkError> {
        let piece = self.inbox.try_peek(&mut self.stream)?;
        self.watched = piece.is_none();
        Ok(piece)
    }

    fn consume(&mut self, bytes: usize) {
        self.inbox.consume(bytes);
    }

    fn try_recv(
        &mut self,
        expected: &Fingerprint,
        dst: &mut [u8],
        _: Store,
    ) -> Result<Option<usize>, LinkError> {
        let received = self.inbox.try_recv(&mut self.stream, expected, dst)?;
        self.watched = received.is_none();
        Ok(received)
    }

    /// A link that somebody waits for is left alone once: he will look again, and then the bytes
    /// go where he wants them, not through the staging buffer.
    fn pump(&mut self) -> Result<(), LinkError> {
        if std::mem::take(&mut self.watched) {
            return Ok(());
        }
        self.inbox.pump(&mut self.stream)
    }
}
