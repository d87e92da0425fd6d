//! The open links of a communicator, by number.

use std::collections::HashMap;
use std::time::Instant;

use annulus_plan::{Fingerprint, LinkId, Rank};
use annulus_transports::link::{Fabric, LinkError, RecvLink, SendLink};

use super::program::End;

/// Links stay open, and keep their numbers, for the life of the communicator.
#[derive(Default)]
pub(crate) struct Links {
    pub(super) sends: Vec<Box<dyn SendLink>>,
    pub(super) recvs: Vec<Box<dyn RecvLink>>,
    /// For each receiving link its peer, and the call of the last whole message.
    last_seen: Vec<(Rank, Option<Fingerprint>)>,
    send_numbers: HashMap<LinkId, usize>,
    recv_numbers: HashMap<LinkId, usize>,
}

impl Links {
    /// The number of the sending end of `link`, opened if need be.
    pub(super) fn send(
        &mut self,
        link: LinkId,
        fabric: &dyn Fabric,
        deadline: Instant,
    ) -> Result<usize, LinkError> {
        if let Some(&number) = self.send_numbers.get(&link) {
            return Ok(number);
        }
        self.sends.push(fabric.open_send(link.peer, link.index, deadline)?);
        self.send_numbers.insert(link, self.sends.len() - 1);
        Ok(self.sends.len() - 1)
    }

    /// The number of the receiving end of `link`, opened if need be.
    pub(super) fn recv(
        &mut self,
        link: LinkId,
        fabric: &dyn Fabric,
        deadline: Instant,
    ) -> Result<usize, LinkError> {
        if let Some(&number) = self.recv_numbers.get(&link) {
            return Ok(number);
        }
        self.recvs.push(fabric.open_recv(link.peer, link.index, deadline)?);
        self.last_seen.push((link.peer, None));
        self.recv_numbers.insert(link, self.recvs.len() - 1);
        Ok(self.recvs.len() - 1)
    }

    /// The peer of the first of `links` that still needs this process, or the caller's memory, for what was sent on it.
    #[inline]
    pub(super) fn first_busy(&mut self, links: &[End]) -> Result<Option<Rank>, LinkError> {
        for end in links {
            if !self.sends[end.link].is_idle()? {
                return Ok(Some(end.peer));
            }
        }
        Ok(None)
    }

    /// Notes that a message of the call `fingerprint` has come in on receiving link `link`.
    #[inline]
    pub(super) fn saw(&mut self, link: usize, fingerprint: Fingerprint) {
        self.last_seen[link].1 = Some(fingerprint);
    }

    /// The latest call in which a message came from `peer`.
    pub(crate) fn last_seen(&self, peer: Rank) -> Option<Fingerprint> {
        self.last_seen
            .iter()
            .filter(|(from, _)| *from == peer)
            .filter_map(|(_, seen)| *seen)
            .max_by_key(|seen| seen.order >> 32)
    }
}
