//! The tuner's reasons.

use std::fmt;

use crate::Collective;
use crate::algorithms::{Algorithm, Choice, Protocol};

use super::Overrides;
use super::class::Class;
use super::survey::Survey;

/// Why a [`Tuner`](super::Tuner) picks what it picks. `Display` prints it as a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The call.
    pub call: Collective,
    /// What is used for it.
    pub choice: Choice,
    /// The size for which candidates were compared, in bytes as [`Collective::bytes`] counts: the
    /// largest that is treated like this call.
    pub compared_bytes: usize,
    /// All candidates, the chosen one first, then by predicted time, then those ruled out.
    pub candidates: Vec<Candidate>,
    /// Overrides that do not apply to this call, and what else had no effect.
    pub notes: Vec<String>,
    smallest_bytes: usize,
    bounded: bool,
}

/// One line of an [`Explanation`].
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol; `None` if the algorithm is ruled out with any.
    pub protocol: Option<Protocol>,
    /// The choice in full, if it got as far as that.
    pub choice: Option<Choice>,
    /// What became of it.
    pub verdict: Verdict,
}

/// What became of a candidate.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It is used.
    Chosen {
        /// Predicted time; `None` if nothing could be predicted.
        seconds: Option<f64>,
    },
    /// It takes as long, as far as can be predicted; the chosen one has fewer steps or larger chunks.
    Equal {
        /// Predicted time.
        seconds: f64,
    },
    /// It takes longer.
    Slower {
        /// Predicted time.
        seconds: f64,
        /// How much longer than the chosen one.
        by: f64,
    },
    /// There is no plan.
    Unsupported {
        /// Why.
        reason: String,
    },
    /// An override forbids it.
    Excluded {
        /// The variable and its value.
        by: String,
    },
    /// It was not simulated.
    Skipped {
        /// Why.
        reason: String,
    },
}

impl Candidate {
    pub(super) fn of_choice(choice: Choice, verdict: Verdict) -> Self {
        let Choice { algorithm, protocol, .. } = choice;
        Self { algorithm, protocol: Some(protocol), choice: Some(choice), verdict }
    }
}

impl Explanation {
    pub(super) fn new(
        call: &Collective,
        class: Class,
        choice: Choice,
        survey: Survey,
        overrides: &Overrides,
    ) -> Self {
        let (smallest_bytes, largest) = class.range();
        let mut notes = survey.notes;
        notes.extend(overrides.warnings().iter().cloned());
        Self {
            call: *call,
            choice,
            compared_bytes: class.bytes(),
            candidates: survey.candidates,
            notes,
            smallest_bytes,
            bounded: largest.is_some(),
        }
    }

    /// The predicted seconds of the choice, for calls of [`compared_bytes`](Self::compared_bytes); `None` if nothing
    /// could be predicted.
    pub fn predicted_seconds(&self) -> Option<f64> {
        self.candidates.iter().find_map(|candidate| match candidate.verdict {
            Verdict::Chosen { seconds } => seconds,
            _ => None,
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { algorithm, protocol, channels, chunk_bytes } = self.choice;
        let (call, world) = (&self.call, self.call.world());
        writeln!(f, "{call}, {} bytes, {world} ranks", call.bytes())?;
        writeln!(
            f,
            "uses {algorithm}, {}, channels {channels}, chunks of {chunk_bytes} bytes",
            protocol.name()
        )?;
        let to = if self.bounded { "to" } else { "or more, as" };
        let (smallest, compared) = (self.smallest_bytes, self.compared_bytes);
        writeln!(f, "compared for calls of {smallest} {to} {compared} bytes:")?;
        writeln!(
            f,
            "{:<17} {:<12} {:>8} {:>8} {:>12}  verdict",
            "algorithm", "protocol", "channels", "chunk", "predicted µs"
        )?;
        for candidate in &self.candidates {
            writeln!(f, "{candidate}")?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol.map_or("any", Protocol::name);
        let number = |of: fn(&Choice) -> usize| {
            self.choice.as_ref().map_or_else(|| "-".to_owned(), |choice| of(choice).to_string())
        };
        let (channels, chunk) =
            (number(|choice| choice.channels), number(|choice| choice.chunk_bytes));
        let time = match self.verdict {
            Verdict::Chosen { seconds: Some(seconds) }
            | Verdict::Equal { seconds }
            | Verdict::Slower { seconds, .. } => format!("{:.2}", seconds * 1e6),
            _ => "-".to_owned(),
        };
        write!(
            f,
            "{:<17} {protocol:<12} {channels:>8} {chunk:>8} {time:>12}  {}",
            self.algorithm.name(),
            self.verdict
        )
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chosen { .. } => f.write_str("chosen"),
            Self::Equal { .. } => f.write_str("as fast, within 5 %"),
            Self::Slower { by, .. } => write!(f, "slower by {:.2} µs", by * 1e6),
            Self::Unsupported { reason } => write!(f, "unsupported: {reason}"),
            Self::Excluded { by } => write!(f, "excluded by {by}"),
            Self::Skipped { reason } => write!(f, "not simulated: {reason}"),
        }
    }
}
