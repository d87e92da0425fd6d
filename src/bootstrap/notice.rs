//! What ranks tell each other outside of collectives.

use annulus_plan::Rank;

use super::wire::{Reader, WireError, Writer};

/// Most bytes of a reason; longer ones are cut.
pub(super) const MAX_REASON: u16 = 3072;
/// Most bytes of an encoded notice.
pub(super) const MAX_NOTICE: usize = 16 + MAX_REASON as usize;

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
    /// A rank has dropped its membership in the job: it is not lost, but will not answer either.
    Left {
        /// The rank.
        rank: Rank,
    },
    /// The process of a rank has ended, or its host cannot be reached any more.
    Lost {
        /// The rank.
        rank: Rank,
    },
    /// The process that relays the notices has ended, or its host cannot be reached any more. No notice comes after this one.
    RootLost,
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
    Report { tag: u64, report: Report },
    Left,
    Lost,
}

impl Dispatch {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.rank);
        match &self.event {
            Event::Report { tag, report } => {
                let (code, reason) = match report {
                    Report::Broken { reason } => (1, reason),
                    Report::Aborted { reason } => (2, reason),
                };
                w.u8(code);
                w.u64(*tag);
                w.text(reason, MAX_REASON);
            }
            Event::Left => w.u8(3),
            Event::Lost => w.u8(4),
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
            4 => Event::Lost,
            code => return Err(WireError::Value { field: "event", value: code.into() }),
        };
        r.finish("a notice")?;
        Ok(Self { rank, event })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dispatches_survive() {
        let reason = "é".repeat(2000);
        for event in [
            Event::Left,
            Event::Lost,
            Event::Report { tag: 9, report: Report::Aborted { reason: "enough".into() } },
            Event::Report { tag: 9, report: Report::Broken { reason: reason.clone() } },
        ] {
            let bytes = Dispatch { rank: 3, event: event.clone() }.encode();
            assert!(bytes.len() <= MAX_NOTICE);
            assert!(Dispatch::decode(&bytes[..bytes.len() - 1]).is_err());
            let back = Dispatch::decode(&bytes).expect("sound");
            match back.event {
                Event::Report { report: Report::Broken { reason: cut }, .. } => {
                    assert!(reason.starts_with(&cut) && cut.len() == MAX_REASON.into());
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
