//! The open links of a communicator, by number.

use std::collections::HashMap;
use std::time::Instant;

use annulus_plan::LinkId;
use annulus_transports::link::{Fabric, LinkError, RecvLink, SendLink};

/// Links stay open, and keep their numbers, for the life of the communicator.
#[derive(Default)]
pub(crate) struct Links {
    pub(super) sends: Vec<Box<dyn SendLink>>,
    pub(super) recvs: Vec<Box<dyn RecvLink>>,
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
        self.recv_numbers.insert(link, self.recvs.len() - 1);
        Ok(self.recvs.len() - 1)
    }
}
