//! Counts and sizes.

use super::{OverrideError, Setting};

/// A number from 1 to `most`.
pub(super) fn count(setting: &Setting, most: usize) -> Result<usize, OverrideError> {
    let number = digits(&setting.value).filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| refused(setting, format!("1 to {most}")))
}

/// A number of bytes from 1 to `most`, with `K`, `M` or `G` behind it, `KB` or `KiB`.
pub(super) fn size(setting: &Setting, most: usize) -> Result<usize, OverrideError> {
    let bytes = bytes(&setting.value).filter(|bytes| (1..=most).contains(bytes));
    bytes.ok_or_else(|| refused(setting, format!("1 to {most} bytes, such as 131072, 128K or 1M")))
}

fn bytes(text: &str) -> Option<usize> {
    let text = text.to_ascii_lowercase();
    let (number, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(end) => text.split_at(end),
        None => (text.as_str(), ""),
    };
    let factor: usize = match unit.trim_start() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        _ => return None,
    };
    digits(number)?.checked_mul(factor)
}

/// Digits and nothing else; `usize::from_str` would take a sign too.
fn digits(text: &str) -> Option<usize> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn refused(setting: &Setting, accepted: String) -> OverrideError {
    OverrideError::Number { variable: setting.name, value: setting.value.clone(), accepted }
}
