//! What ranks tell each other outside of collectives.

use annulus_plan::{Fingerprint, Rank};

use super::stall::{Hop, call, chain, put_call, put_chain};
use super::survey::Status;
use super::wire::{Reader, WireError, Writer};

/// Most bytes of a reason; longer ones are cut.
pub(super) const MAX_REASON: u16 = 3072;
/// Most bytes of an encoded notice.
pub(super) const MAX_NOTICE: usize = 16 + FINGERPRINT + 1 + MAX_REASON as usize;
/// Bytes of an encoded fingerprint.
const FINGERPRINT: usize = 20;

/// Something happened to a rank of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A rank has failed in this communicator, and waits for nobody any more.
    Broken {
        /// The rank.
        rank: Rank,
        /// Its error.
        reason: String,
    },
    /// A rank's user has aborted this communicator.
    Aborted {
        /// The rank.
        rank: Rank,
        /// Why, if it said so.
        reason: String,
    },
    /// A rank has dropped this communicator, or its membership in the job: it is not lost, but will not answer either.
    Left {
        /// The rank.
        rank: Rank,
    },
    /// The process of a rank has ended or fallen silent, its thread has panicked, or its host cannot be reached any more.
    ///
    /// The rank may be the one that gets this notice: the others have given it up, and do not listen to it any more.
    Lost {
        /// The rank.
        rank: Rank,
        /// How it was noticed.
        noticed: String,
        /// The call that it was last known to be in.
        last_operation: Option<Fingerprint>,
    },
    /// The answer to [`Membership::inquire`](super::Membership::inquire): as far as the root knows, the rank is there.
    Present {
        /// The rank.
        rank: Rank,
    },
    /// A rank that makes no progress needs this one, or another that is stuck does for it.
    Stalled {
        /// The ranks that are stuck, each because of the next, and the last because of this one.
        chain: Vec<Hop>,
    },
    /// A rank's deadline has passed, and it wants to know what this one does.
    Survey,
    /// What a rank does.
    State {
        /// The rank.
        rank: Rank,
        /// What it does.
        status: Status,
    },
    /// Two ranks have made different calls.
    Mismatch {
        /// The rank that noticed.
        rank: Rank,
        /// The other.
        peer: Rank,
        /// What the one called.
        ours: Fingerprint,
        /// What the other called.
        theirs: Fingerprint,
    },
    /// Ranks wait for each other in a circle.
    Deadlock {
        /// The rank that noticed.
        rank: Rank,
        /// The ranks, each of which waits for the next, and the last for the first.
        cycle: Vec<Hop>,
    },
    /// A rank has joined this communicator's others in answering: see [`Report::Joined`].
    Joined {
        /// The rank.
        rank: Rank,
        /// How many times it had joined before.
        epoch: u64,
        /// How many collectives it had made.
        sequence: u64,
        /// Greater than that of all earlier ones.
        order: u64,
    },
    /// There is a collective that ranks which have joined are to answer.
    Announced {
        /// Its number.
        sequence: u64,
        /// The call.
        call: Fingerprint,
    },
    /// The process that relays the notices has ended, or its host cannot be reached any more. The lowest rank that is left takes over,
    /// and relays what is reported until then. A join under way is lost: this rank may have told nobody of it.
    RootLost,
    /// No rank has taken over, or this one cannot come to it: it neither tells nor hears anything any more.
    NoRoot,
}

/// What a rank tells all others.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Report {
    /// This rank has failed in the communicator.
    Broken {
        /// The error.
        reason: String,
    },
    /// This rank's user has aborted the communicator.
    Aborted {
        /// Why.
        reason: String,
    },
    /// Another rank has made another call.
    Mismatch {
        /// That rank, of this communicator.
        peer: Rank,
        /// What this rank called.
        ours: Fingerprint,
        /// What the other called.
        theirs: Fingerprint,
    },
    /// Ranks wait for each other in a circle.
    Deadlock {
        /// The ranks.
        cycle: Vec<Hop>,
    },
    /// This rank has joined: it makes no more collectives of its own, and answers the others'. The root sends it to this
    /// rank too.
    Joined {
        /// How many times it had joined before.
        epoch: u64,
        /// How many collectives it had made.
        sequence: u64,
        /// Which number the root gave the report, in the order in which reports came; of no account before.
        order: u64,
    },
    /// This rank makes a collective, or has made it, that ranks which have joined are to answer.
    Announced {
        /// Its number.
        sequence: u64,
        /// The call.
        call: Fingerprint,
    },
    /// Another rank is lost to this communicator, as this one has noticed first.
    Lost {
        /// That rank, of this communicator.
        rank: Rank,
        /// How it was noticed.
        noticed: String,
    },
    /// This rank has dropped the communicator, and perhaps goes on with others.
    Departed {
        /// Whether that happened because its thread panicked: to the others it is lost.
        panicked: bool,
    },
}

/// A notice on its way: of the job's rank `rank`, about the communicator `tag`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dispatch {
    /// Rank in the communicator of all. The root overwrites it with the rank that it knows the sender by.
    pub(super) rank: u32,
    pub(super) event: Event,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Report {
        tag: u64,
        report: Report,
    },
    /// To the job's rank `to` only.
    Stalled {
        tag: u64,
        to: u32,
        chain: Vec<Hop>,
    },
    /// Rank to root, and root to all others: what do you do?
    Survey {
        tag: u64,
    },
    /// The answer, and on to those that have asked.
    State {
        tag: u64,
        status: Status,
    },
    Left,
    Lost(Loss),
    /// Rank to root: is that rank there?
    Inquiry {
        about: u32,
    },
    /// Root to rank: the rank is there.
    Present,
    /// Rank to root: I have heard nothing of you for so long that I give you up.
    Disowned {
        silence_ms: u32,
    },
}

/// What is known of a rank's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    /// How it was noticed.
    pub(super) noticed: String,
    /// The call that it was last known to be in.
    pub(super) last_operation: Option<Fingerprint>,
}

impl Dispatch {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.rank);
        match &self.event {
            Event::Report { tag, report: Report::Departed { panicked } } => {
                w.u8(10);
                w.u64(*tag);
                w.u8((*panicked).into());
            }
            Event::Report { tag, report: Report::Joined { epoch, sequence, order } } => {
                w.u8(8);
                for word in [tag, epoch, sequence, order] {
                    w.u64(*word);
                }
            }
            Event::Report { tag, report: Report::Announced { sequence, call } } => {
                w.u8(9);
                w.u64(*tag);
                w.u64(*sequence);
                put_operation(&mut w, Some(*call));
            }
            Event::Report { tag, report: Report::Broken { reason } } => {
                w.u8(1);
                w.u64(*tag);
                w.text(reason, MAX_REASON);
            }
            Event::Report { tag, report: Report::Aborted { reason } } => {
                w.u8(2);
                w.u64(*tag);
                w.text(reason, MAX_REASON);
            }
            Event::Report { tag, report: Report::Lost { rank, noticed } } => {
                w.u8(14);
                w.u64(*tag);
                w.u32(*rank as u32);
                w.text(noticed, MAX_REASON);
            }
            Event::Stalled { tag, to, chain } => {
                w.u8(5);
                w.u64(*tag);
                w.u32(*to);
                put_chain(&mut w, chain);
            }
            Event::Survey { tag } => {
                w.u8(6);
                w.u64(*tag);
            }
            Event::State { tag, status } => {
                w.u8(7);
                w.u64(*tag);
                status.put(&mut w);
            }
            Event::Report { tag, report: Report::Mismatch { peer, ours, theirs } } => {
                w.u8(20);
                w.u64(*tag);
                w.u32(*peer as u32);
                put_call(&mut w, *ours);
                put_call(&mut w, *theirs);
            }
            Event::Report { tag, report: Report::Deadlock { cycle } } => {
                w.u8(21);
                w.u64(*tag);
                put_chain(&mut w, cycle);
            }
            Event::Left => w.u8(3),
            Event::Lost(loss) => {
                w.u8(4);
                put_operation(&mut w, loss.last_operation);
                w.text(&loss.noticed, MAX_REASON);
            }
            Event::Inquiry { about } => {
                w.u8(11);
                w.u32(*about);
            }
            Event::Present => w.u8(12),
            Event::Disowned { silence_ms } => {
                w.u8(13);
                w.u32(*silence_ms);
            }
        }
        w.bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let rank = r.u32("rank")?;
        let event = match r.u8("event")? {
            code @ (1 | 2) => {
                let tag = r.u64("communicator")?;
                let reason = r.text(MAX_REASON, "reason")?;
                let report =
                    if code == 1 { Report::Broken { reason } } else { Report::Aborted { reason } };
                Event::Report { tag, report }
            }
            3 => Event::Left,
            4 => Event::Lost(Loss {
                last_operation: operation(&mut r)?,
                noticed: r.text(MAX_REASON, "reason")?,
            }),
            5 => Event::Stalled {
                tag: r.u64("communicator")?,
                to: r.u32("rank")?,
                chain: chain(&mut r)?,
            },
            6 => Event::Survey { tag: r.u64("communicator")? },
            7 => Event::State { tag: r.u64("communicator")?, status: Status::read(&mut r)? },
            20 => Event::Report {
                tag: r.u64("communicator")?,
                report: Report::Mismatch {
                    peer: r.u32("rank")? as Rank,
                    ours: call(&mut r)?,
                    theirs: call(&mut r)?,
                },
            },
            21 => Event::Report {
                tag: r.u64("communicator")?,
                report: Report::Deadlock { cycle: chain(&mut r)? },
            },
            8 => Event::Report {
                tag: r.u64("communicator")?,
                report: Report::Joined {
                    epoch: r.u64("epoch")?,
                    sequence: r.u64("sequence")?,
                    order: r.u64("order")?,
                },
            },
            9 => {
                let (tag, sequence) = (r.u64("communicator")?, r.u64("sequence")?);
                let call =
                    operation(&mut r)?.ok_or(WireError::Value { field: "operation", value: 0 })?;
                Event::Report { tag, report: Report::Announced { sequence, call } }
            }
            10 => Event::Report {
                tag: r.u64("communicator")?,
                report: Report::Departed { panicked: flag(&mut r, "panicked")? },
            },
            11 => Event::Inquiry { about: r.u32("rank")? },
            12 => Event::Present,
            13 => Event::Disowned { silence_ms: r.u32("silence")? },
            14 => Event::Report {
                tag: r.u64("communicator")?,
                report: Report::Lost {
                    rank: r.u32("rank")? as Rank,
                    noticed: r.text(MAX_REASON, "reason")?,
                },
            },
            code => return Err(WireError::Value { field: "event", value: code.into() }),
        };
        r.finish("a notice")?;
        Ok(Self { rank, event })
    }
}

/// What a [`FrameKind::Heartbeat`](super::wire::FrameKind::Heartbeat) says: the sender's latest operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heartbeat {
    pub(super) operation: Option<Fingerprint>,
}

impl Heartbeat {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        put_operation(&mut w, self.operation);
        w.bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let operation = operation(&mut r)?;
        r.finish("a heartbeat")?;
        Ok(Self { operation })
    }
}

fn put_operation(w: &mut Writer, operation: Option<Fingerprint>) {
    w.u8(operation.is_some().into());
    if let Some(Fingerprint { call, order, tag }) = operation {
        w.u64(call);
        w.u64(order);
        w.u32(tag);
    }
}

fn operation(r: &mut Reader<'_>) -> Result<Option<Fingerprint>, WireError> {
    if !flag(r, "operation")? {
        return Ok(None);
    }
    let (call, order) = (r.u64("call")?, r.u64("order")?);
    Ok(Some(Fingerprint { call, order, tag: r.u32("communicator")? }))
}

fn flag(r: &mut Reader<'_>, field: &'static str) -> Result<bool, WireError> {
    match r.u8(field)? {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(WireError::Value { field, value: value.into() }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::stall::{MAX_HOPS, Need};
    use super::*;

    #[test]
    fn dispatches_survive() {
        let reason = "é".repeat(2000);
        let one = Fingerprint { call: 5, order: 1 << 40, tag: 2 };
        let mut busy = Status::new(7, 6);
        busy.current = Some((one.describe(), Some(std::time::Duration::from_micros(5))));
        busy.last_completed = Some((one.describe(), None));
        busy.refused = Some("root 9 is out of range".into());
        let hop = |need| Hop { rank: 1, operation: 7, collectives: 6, call: one, peer: 3, need };
        let needs = [
            Need::Collective { count: u64::MAX },
            Need::Send { number: 1 },
            Need::Receive { number: u32::MAX },
        ];
        let hops: Vec<Hop> = needs.into_iter().cycle().take(MAX_HOPS).map(hop).collect();
        let call = Fingerprint { call: 1, order: 2, tag: 3 };
        for event in [
            Event::Report { tag: 9, report: Report::Joined { epoch: 1, sequence: 70, order: 3 } },
            Event::Report { tag: 9, report: Report::Announced { sequence: 1 << 40, call } },
            Event::Left,
            Event::Lost(Loss { noticed: "it fell silent".into(), last_operation: None }),
            Event::Lost(Loss {
                noticed: String::new(),
                last_operation: Some(Fingerprint { call: 1 << 60, order: 7, tag: 3 }),
            }),
            Event::Inquiry { about: 70_000 },
            Event::Present,
            Event::Stalled { tag: 9, to: 2, chain: hops.clone() },
            Event::Survey { tag: 9 },
            Event::State { tag: 9, status: Status::new(7, 6) },
            Event::State { tag: 9, status: busy.clone() },
            Event::Report { tag: 9, report: Report::Deadlock { cycle: hops.clone() } },
            Event::Report { tag: 9, report: Report::Mismatch { peer: 4, ours: one, theirs: one } },
            Event::Disowned { silence_ms: 5000 },
            Event::Report { tag: 9, report: Report::Departed { panicked: true } },
            Event::Report { tag: 9, report: Report::Lost { rank: 1, noticed: "it left".into() } },
            Event::Report { tag: 9, report: Report::Aborted { reason: "enough".into() } },
            Event::Report { tag: 9, report: Report::Broken { reason: reason.clone() } },
        ] {
            let bytes = Dispatch { rank: 3, event: event.clone() }.encode();
            assert!(bytes.len() <= MAX_NOTICE);
            assert!(Dispatch::decode(&bytes[..bytes.len() - 1]).is_err());
            let back = Dispatch::decode(&bytes).expect("sound");
            match back.event {
                Event::Report { report: Report::Broken { reason: cut }, .. } => {
                    assert!(reason.starts_with(&cut) && cut.len() == usize::from(MAX_REASON));
                }
                other => assert_eq!(other, event),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn garbage_decodes_to_itself_or_not_at_all(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(dispatch) = Dispatch::decode(&bytes) {
                prop_assert_eq!(Dispatch::decode(&dispatch.encode()), Ok(dispatch));
            }
        }
    }
}
