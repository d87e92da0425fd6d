//! What ranks say of themselves when one whose deadline has passed asks all.

use std::time::Duration;

use annulus_plan::{Description, Fingerprint};

use super::stall::{call, put_call};
use super::wire::{Reader, WireError, Writer};

/// Most bytes of a text.
const MAX_TEXT: u16 = 300;
/// Stands for a time that is not known.
const UNKNOWN: u64 = u64::MAX;

/// What a rank does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Collectives started. One that repeats the last counts once it waits for some microseconds, or has ended.
    pub collectives: u64,
    /// Operations ended: collectives, and groups of sends and receives.
    pub completed: u64,
    /// The call that it is in, and for how long, if that is known. A call is looked at once it waits.
    pub current: Option<(Description, Option<Duration>)>,
    /// The last call that has ended, and how long ago at most, if that is known.
    pub last_completed: Option<(Description, Option<Duration>)>,
    /// Why its last call was refused, if it made no other since.
    pub refused: Option<String>,
    /// What broke the communicator there.
    pub error: Option<String>,
}

impl Status {
    /// Of a rank that has done nothing yet, with these numbers.
    pub(crate) fn new(collectives: u64, completed: u64) -> Self {
        let (current, last_completed, refused, error) = (None, None, None, None);
        Self { collectives, completed, current, last_completed, refused, error }
    }

    pub(super) fn put(&self, w: &mut Writer) {
        w.u64(self.collectives);
        w.u64(self.completed);
        for timed in [&self.current, &self.last_completed] {
            w.u8(timed.is_some().into());
            if let Some((description, time)) = timed {
                put_call(w, description.fingerprint());
                let time = time.map_or(UNKNOWN, |time| time.as_micros() as u64);
                w.u64(time);
            }
        }
        for text in [&self.refused, &self.error] {
            w.text(text.as_deref().unwrap_or_default(), MAX_TEXT);
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut status = Self::new(r.u64("collectives")?, r.u64("operations")?);
        for timed in [&mut status.current, &mut status.last_completed] {
            *timed = match r.u8("whether there is a call")? {
                0 => None,
                1 => {
                    let description = Fingerprint::describe(call(r)?);
                    let time = r.u64("time")?;
                    Some((description, (time != UNKNOWN).then(|| Duration::from_micros(time))))
                }
                value => {
                    let field = "whether there is a call";
                    return Err(WireError::Value { field, value: value.into() });
                }
            };
        }
        for text in [&mut status.refused, &mut status.error] {
            *text = Some(r.text(MAX_TEXT, "text")?).filter(|text| !text.is_empty());
        }
        Ok(status)
    }
}
