//! Lists of algorithms and protocols, for all collectives or for single ones.

use crate::CollectiveKind;
use crate::algorithms::{Algorithm, Protocol};

use super::{OverrideError, Setting};

/// What is allowed for each collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tuner) struct Selection<T> {
    of_kind: [Option<Restriction<T>>; CollectiveKind::ALL.len()],
}

/// What is allowed, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tuner) struct Restriction<T> {
    pub(in crate::tuner) allowed: Vec<T>,
    /// The variable and its value.
    pub(in crate::tuner) origin: String,
}

impl<T> Default for Selection<T> {
    fn default() -> Self {
        Self { of_kind: [const { None }; CollectiveKind::ALL.len()] }
    }
}

impl<T> Selection<T> {
    /// `None`: everything is allowed.
    pub(in crate::tuner) fn of(&self, kind: CollectiveKind) -> Option<&Restriction<T>> {
        self.of_kind[kind as usize].as_ref()
    }
}

/// What a list can name.
pub(super) trait Named: Copy + PartialEq + 'static {
    /// Everything there is.
    const ALL: &'static [Self];
    /// Names, without case and separators, of what NCCL has and we do not.
    const FOREIGN: &'static [&'static str];

    fn name(self) -> &'static str;

    /// Another name, without case and separators, if it has one.
    fn alias(self) -> Option<&'static str> {
        None
    }
}

impl Named for Algorithm {
    const ALL: &'static [Self] = &Self::ALL;
    const FOREIGN: &'static [&'static str] =
        &["collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"];

    fn name(self) -> &'static str {
        self.name()
    }
}

impl Named for Protocol {
    const ALL: &'static [Self] = &[Self::Simple, Self::LowLatency];
    const FOREIGN: &'static [&'static str] = &["ll128"];

    fn name(self) -> &'static str {
        self.name()
    }

    fn alias(self) -> Option<&'static str> {
        (self == Self::LowLatency).then_some("ll")
    }
}

/// Reads `[collective:]list` entries that `;` separates.
pub(super) fn selection<T: Named>(
    setting: &Setting,
    warnings: &mut Vec<String>,
) -> Result<Selection<T>, OverrideError> {
    let mut selection = Selection::default();
    let entries = setting.value.split(';').map(str::trim).enumerate();
    for (index, entry) in entries.filter(|(_, entry)| !entry.is_empty()) {
        match entry.split_once(':') {
            Some((collective, list)) => {
                let kind = collective_named(setting, collective.trim())?;
                selection.of_kind[kind as usize] = restriction(setting, list.trim(), warnings)?;
            }
            None if index == 0 => {
                let all = restriction(setting, entry, warnings)?;
                selection.of_kind.fill_with(|| all.clone());
            }
            None => {
                return Err(OverrideError::NoCollective {
                    variable: setting.name,
                    value: setting.value.clone(),
                    list: entry.to_owned(),
                    accepted: collective_names(),
                });
            }
        }
    }
    Ok(selection)
}

/// What one list allows; `None` if nothing is left of a list after what we do not have.
fn restriction<T: Named>(
    setting: &Setting,
    list: &str,
    warnings: &mut Vec<String>,
) -> Result<Option<Restriction<T>>, OverrideError> {
    let (inverted, names) = match list.strip_prefix('^') {
        Some(names) => (true, names),
        None => (false, list),
    };
    let mut named = Vec::new();
    for name in names.split(',').map(str::trim) {
        let plain = plain(name);
        match T::ALL.iter().find(|item| item.is_called(&plain)) {
            Some(&item) => named.push(item),
            None if T::FOREIGN.contains(&plain.as_str()) => {
                warnings.push(format!("{setting}: {name} is ignored: it does not exist here"));
            }
            None => {
                return Err(OverrideError::UnknownName {
                    variable: setting.name,
                    value: setting.value.clone(),
                    name: name.to_owned(),
                    accepted: accepted::<T>(),
                });
            }
        }
    }
    if named.is_empty() {
        return Ok(None);
    }
    let allowed = T::ALL.iter().copied().filter(|item| named.contains(item) != inverted).collect();
    Ok(Some(Restriction { allowed, origin: setting.to_string() }))
}

trait Called: Named {
    fn is_called(self, plain_name: &str) -> bool {
        plain(self.name()) == plain_name || self.alias() == Some(plain_name)
    }
}

impl<T: Named> Called for T {}

fn accepted<T: Named>() -> String {
    let names: Vec<_> = T::ALL.iter().map(|item| item.name()).collect();
    format!("{}, separated by commas, ^ before the list to exclude them", names.join(", "))
}

fn collective_named(setting: &Setting, name: &str) -> Result<CollectiveKind, OverrideError> {
    let kind = match plain(name).as_str() {
        "sendrecv" => Some(CollectiveKind::PointToPoint),
        name => CollectiveKind::ALL.into_iter().find(|kind| plain(kind.name()) == name),
    };
    kind.ok_or_else(|| OverrideError::UnknownName {
        variable: setting.name,
        value: setting.value.clone(),
        name: name.to_owned(),
        accepted: collective_names(),
    })
}

fn collective_names() -> String {
    CollectiveKind::ALL.map(CollectiveKind::name).join(", ")
}

/// Without case and separators: `all_reduce`, `AllReduce` and `allreduce` are one.
fn plain(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '-' | '_')).map(|c| c.to_ascii_lowercase()).collect()
}
