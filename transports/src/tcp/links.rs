//! The two ends: a format's half and the socket under it.

use std::sync::Arc;

use annulus_plan::{Fingerprint, Rank};

use super::connection::Connection;
use super::inbox::Inbox;
use super::outbox::Outbox;
use crate::link::{LinkError, Piece, RecvLink, SendLink};
use crate::memory::Store;

/// Sends over one direction of a socket.
#[derive(Debug)]
pub struct TcpSendLink {
    connection: Arc<Connection>,
    outbox: Outbox,
}

/// Receives from the other direction.
#[derive(Debug)]
pub struct TcpRecvLink {
    connection: Arc<Connection>,
    inbox: Inbox,
    /// Somebody waits for this link, and has found the socket empty since the last pump.
    watched: bool,
}

/// Both ends of `connection` on this side.
pub(super) fn split(
    connection: Connection,
    peer: Rank,
    max_chunk: usize,
) -> (TcpSendLink, TcpRecvLink) {
    let connection = Arc::new(connection);
    let send =
        TcpSendLink { connection: Arc::clone(&connection), outbox: Outbox::new(peer, max_chunk) };
    let recv = TcpRecvLink { connection, inbox: Inbox::new(peer, max_chunk), watched: false };
    (send, recv)
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
        self.outbox.try_send(&mut &*self.connection, fingerprint, bytes, max_piece)
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
        self.outbox.try_reserve(&mut &*self.connection, max)
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
        self.outbox.commit(&mut &*self.connection, fingerprint, bytes)
    }

    fn is_idle(&mut self) -> Result<bool, LinkError> {
        self.outbox.is_idle(&mut &*self.connection)
    }
}

impl Drop for TcpSendLink {
    fn drop(&mut self) {
        self.connection.finish();
    }
}

impl Drop for TcpRecvLink {
    fn drop(&mut self) {
        self.connection.finish();
    }
}

impl RecvLink for TcpRecvLink {
    fn try_peek(&mut self) -> Result<Option<Piece<'_>>, LinkError> {
        let piece = self.inbox.try_peek(&mut &*self.connection)?;
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
        let received = self.inbox.try_recv(&mut &*self.connection, expected, dst)?;
        self.watched = received.is_none();
        Ok(received)
    }

    /// A link that somebody waits for is left alone once: he will look again, and then the bytes
    /// go where he wants them, not through the staging buffer.
    fn pump(&mut self) -> Result<(), LinkError> {
        if std::mem::take(&mut self.watched) {
            return Ok(());
        }
        self.inbox.pump(&mut &*self.connection)
    }
}
