//! What users ask of the tuner by variables: `ANNULUS_*`, and NCCL's names for the same.
//!
//! | variable | else | value |
//! |---|---|---|
//! | `ANNULUS_ALGO` | `NCCL_ALGO` | algorithms, see below |
//! | `ANNULUS_PROTO` | `NCCL_PROTO` | `simple`, `low-latency` (or `LL`), in the same grammar |
//! | `ANNULUS_CHANNELS` | `NCCL_MIN_CTAS` or `NCCL_MIN_NCHANNELS`, `NCCL_MAX_CTAS` or `NCCL_MAX_NCHANNELS` | a number |
//! | `ANNULUS_CHUNK` | `NCCL_BUFFSIZE` (of which a chunk is an eighth) | bytes; `K`, `M` and `G` multiply by powers of 1024 |
//!
//! Algorithms and protocols are given as in NCCL: `ring,tree` allows two, `^ring` all but one, and
//! `ring;allreduce:tree;broadcast:^tree` makes exceptions for single collectives. Upper and lower case, `-` and `_` do not
//! matter. Names of NCCL's that have no counterpart here, such as `NVLS` or `LL128`, are
//! left out and reported by [`Overrides::warnings`].

mod number;
mod selection;

#[cfg(test)]
mod tests;

use crate::CollectiveKind;
use crate::algorithms::{Algorithm, Protocol};

use number::{count, size};
pub(super) use selection::Restriction;
use selection::Selection;
use selection::selection;

/// The most channels that can be asked for.
pub const MAX_CHANNELS: usize = 64;

/// The largest chunk that can be asked for, in bytes.
pub const MAX_CHUNK_BYTES: usize = 1 << 30;

/// What the tuner has to keep to. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    pub(super) algorithms: Selection<Algorithm>,
    pub(super) protocols: Selection<Protocol>,
    pub(super) channels: Option<Channels>,
    pub(super) chunk: Option<Chunk>,
    warnings: Vec<String>,
}

/// How many channels are allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Channels {
    pub(super) least: usize,
    pub(super) most: usize,
    /// The variables and their values.
    pub(super) origin: String,
}

/// The chunk that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// A positive multiple of 64.
    pub(super) bytes: usize,
    /// The variable and its value.
    pub(super) origin: String,
}

/// A value that means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// A name that stands for nothing.
    #[error("{variable}={value}: unknown name `{name}`; accepted: {accepted}")]
    UnknownName {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The part of it that is unknown.
        name: String,
        /// What could stand there.
        accepted: String,
    },
    /// A list without a collective that is not the first.
    #[error(
        "{variable}={value}: only the first list may stand without a collective; put one of {accepted} and `:` before `{list}`"
    )]
    NoCollective {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The list.
        list: String,
        /// What could stand before it.
        accepted: String,
    },
    /// Not a number in the range that is accepted.
    #[error("{variable}={value}: not a number; accepted: {accepted}")]
    Number {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The range.
        accepted: String,
    },
}

impl Overrides {
    /// Reads the variables through `variable`, which returns a variable's value if it is set. A value of
    /// blanks counts as not set.
    ///
    /// All ranks must read the same values, or they choose differently.
    pub fn from_vars(
        mut variable: impl FnMut(&str) -> Option<String>,
    ) -> Result<Self, OverrideError> {
        let mut read = |name: &'static str| {
            variable(name)
                .map(|value| Setting { name, value: value.trim().to_owned() })
                .filter(|setting| !setting.value.is_empty())
        };
        let mut warnings = Vec::new();
        let mut first = |names: &[&'static str], warnings: &mut Vec<String>| {
            let mut set = names.iter().filter_map(|name| read(name));
            let first = set.next()?;
            warnings.extend(set.map(|other| format!("{other} is ignored: {} is set", first.name)));
            Some(first)
        };

        let algorithms = match first(&["ANNULUS_ALGO", "NCCL_ALGO"], &mut warnings) {
            Some(setting) => selection(&setting, &mut warnings)?,
            None => Selection::default(),
        };
        let protocols = match first(&["ANNULUS_PROTO", "NCCL_PROTO"], &mut warnings) {
            Some(setting) => selection(&setting, &mut warnings)?,
            None => Selection::default(),
        };
        let least = ["ANNULUS_CHANNELS", "NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS"];
        let most = ["ANNULUS_CHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS"];
        let least = first(&least, &mut warnings);
        let most = first(&most, &mut warnings);
        let channels = channels(least, most, &mut warnings)?;
        let chunk = match first(&["ANNULUS_CHUNK", "NCCL_BUFFSIZE"], &mut warnings) {
            Some(setting) => Some(chunk(&setting, &mut warnings)?),
            None => None,
        };
        Ok(Self { algorithms, protocols, channels, chunk, warnings })
    }

    /// What was understood but has no effect, and why: one sentence each, for the log.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Everything that the tuner keeps to, as a text: the same for equal rules, whichever variables and spellings gave
    /// them. Ranks compare it to see that they will choose alike; it is not meant to be read.
    pub fn signature(&self) -> String {
        let selections = CollectiveKind::ALL.map(|kind| {
            let algorithms = self.algorithms(kind).map(|restriction| &restriction.allowed);
            let protocols = self.protocols(kind).map(|restriction| &restriction.allowed);
            (algorithms, protocols)
        });
        let channels = self.channels.as_ref().map(|channels| (channels.least, channels.most));
        let chunk = self.chunk.as_ref().map(|chunk| chunk.bytes);
        format!("{selections:?} {channels:?} {chunk:?}")
    }

    /// The same, with any algorithm and any protocol.
    pub(super) fn without_selections(&self) -> Self {
        let (algorithms, protocols) = (Selection::default(), Selection::default());
        Self { algorithms, protocols, ..self.clone() }
    }

    pub(super) fn algorithms(&self, kind: CollectiveKind) -> Option<&Restriction<Algorithm>> {
        self.algorithms.of(kind)
    }

    pub(super) fn protocols(&self, kind: CollectiveKind) -> Option<&Restriction<Protocol>> {
        self.protocols.of(kind)
    }
}

/// A variable that is set.
struct Setting {
    name: &'static str,
    value: String,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

fn channels(
    least: Option<Setting>,
    most: Option<Setting>,
    warnings: &mut Vec<String>,
) -> Result<Option<Channels>, OverrideError> {
    let origin = match (&least, &most) {
        (Some(least), Some(most)) if least.name == most.name => least.to_string(),
        (Some(least), Some(most)) => format!("{least} {most}"),
        (Some(one), None) | (None, Some(one)) => one.to_string(),
        (None, None) => return Ok(None),
    };
    let lower = least.map_or(Ok(1), |setting| count(&setting, MAX_CHANNELS))?;
    let upper = most.map_or(Ok(MAX_CHANNELS), |setting| count(&setting, MAX_CHANNELS))?;
    if lower > upper {
        warnings.push(format!("{origin}: the least is more than the most, which is ignored"));
    }
    Ok(Some(Channels { least: lower, most: upper.max(lower), origin }))
}

fn chunk(setting: &Setting, warnings: &mut Vec<String>) -> Result<Chunk, OverrideError> {
    let is_buffer = setting.name == "NCCL_BUFFSIZE";
    let asked = if is_buffer {
        size(setting, 8 * MAX_CHUNK_BYTES)? / 8
    } else {
        size(setting, MAX_CHUNK_BYTES)?
    };
    let bytes = asked.max(1).next_multiple_of(64);
    if bytes != asked {
        warnings.push(format!("{setting}: chunks of {asked} bytes are rounded up to {bytes}"));
    }
    Ok(Chunk { bytes, origin: setting.to_string() })
}
