//! What a rank that makes no progress says, and to whom.
//!
//! It tells each rank that it waits for what it is in and what it needs. Whoever hears this, and cannot give it because
//! it is stuck itself, adds itself and passes the chain on: see [`Witness`](crate::communicator) for what is concluded.

use annulus_plan::{Fingerprint, Rank};

use super::wire::{Reader, WireError, Writer};

/// Most ranks in a chain.
pub const MAX_HOPS: usize = 16;

/// More elements than a message can have: the need is not for a message.
pub const ANY_COUNT: u64 = u64::MAX;

/// One rank that is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The rank, in the communicator.
    pub rank: Rank,
    /// Which of its operations it is in.
    pub operation: u64,
    /// Collectives that it has begun.
    pub collectives: u64,
    /// The call.
    pub call: Fingerprint,
    /// Whom it waits for.
    pub peer: Rank,
    /// What for.
    pub need: Need,
}

/// What a rank must do so that another can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// Come to the collective that the other is in; of all-to-all-v, send a message of so many elements.
    Collective {
        /// Elements; [`ANY_COUNT`] where nothing of that size is expected.
        count: u64,
    },
    /// Send its message of this number to the other.
    Send {
        /// Counted from 1, for each pair of ranks.
        number: u32,
    },
    /// Receive the other's message of this number.
    Receive {
        /// Counted from 1, for each pair of ranks.
        number: u32,
    },
}

pub(super) fn put_chain(w: &mut Writer, chain: &[Hop]) {
    let chain = &chain[..chain.len().min(MAX_HOPS)];
    w.u8(chain.len() as u8);
    for hop in chain {
        w.u32(hop.rank as u32);
        w.u64(hop.operation);
        w.u64(hop.collectives);
        put_call(w, hop.call);
        w.u32(hop.peer as u32);
        let (code, value) = match hop.need {
            Need::Collective { count } => (0, count),
            Need::Send { number } => (1, number.into()),
            Need::Receive { number } => (2, number.into()),
        };
        w.u8(code);
        w.u64(value);
    }
}

pub(super) fn chain(r: &mut Reader<'_>) -> Result<Vec<Hop>, WireError> {
    let length = r.u8("ranks of a chain")?;
    if length == 0 || usize::from(length) > MAX_HOPS {
        return Err(WireError::Value { field: "ranks of a chain", value: length.into() });
    }
    (0..length).map(|_| hop(r)).collect()
}

fn hop(r: &mut Reader<'_>) -> Result<Hop, WireError> {
    let rank = r.u32("rank")? as Rank;
    let (operation, collectives) = (r.u64("operation")?, r.u64("collectives")?);
    let call = call(r)?;
    let peer = r.u32("rank")? as Rank;
    let (code, value) = (r.u8("need")?, r.u64("number")?);
    let number = || {
        u32::try_from(value).map_err(|_| WireError::Value { field: "number of a message", value })
    };
    let need = match code {
        0 => Need::Collective { count: value },
        1 => Need::Send { number: number()? },
        2 => Need::Receive { number: number()? },
        code => return Err(WireError::Value { field: "need", value: code.into() }),
    };
    Ok(Hop { rank, operation, collectives, call, peer, need })
}

pub(super) fn put_call(w: &mut Writer, call: Fingerprint) {
    w.u64(call.call);
    w.u64(call.order);
    w.u32(call.tag);
}

pub(super) fn call(r: &mut Reader<'_>) -> Result<Fingerprint, WireError> {
    let (call, order) = (r.u64("call")?, r.u64("order")?);
    Ok(Fingerprint { call, order, tag: r.u32("communicator")? })
}
