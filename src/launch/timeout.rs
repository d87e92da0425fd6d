//! Durations as people write them.

use std::time::Duration;

/// How long a wait may last when nobody says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// Why a text is no timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseTimeoutError {
    /// Not a whole number with a known unit.
    #[error("a whole number of seconds, or one with a unit: 500ms, 90s, 10m, 2h")]
    Syntax,
    /// Nothing could ever succeed.
    #[error("a time above zero")]
    Zero,
    /// Longer than a year.
    #[error("at most a year")]
    TooLong,
}

/// The timeout that `text` means: seconds, or a whole number with the unit `ms`, `s`, `m` or `h`.
///
/// # Errors
/// When it is none of these, zero, or longer than a year.
pub fn parse_timeout(text: &str) -> Result<Duration, ParseTimeoutError> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let scale_ms: u64 = match unit.trim_start() {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(ParseTimeoutError::Syntax),
    };
    if number.is_empty() {
        return Err(ParseTimeoutError::Syntax);
    }
    // Only digits are left, so that a failure means too many of them.
    let number: u64 = number.parse().map_err(|_| ParseTimeoutError::TooLong)?;
    let ms = number.checked_mul(scale_ms).ok_or(ParseTimeoutError::TooLong)?;
    match Duration::from_millis(ms) {
        Duration::ZERO => Err(ParseTimeoutError::Zero),
        timeout if timeout > LONGEST => Err(ParseTimeoutError::TooLong),
        timeout => Ok(timeout),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_units() {
        for (text, ms) in [
            ("90", 90_000),
            ("90s", 90_000),
            (" 90 s ", 90_000),
            ("10m", 600_000),
            ("10min", 600_000),
            ("2h", 7_200_000),
            ("500ms", 500),
        ] {
            assert_eq!(parse_timeout(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest() {
        for text in ["", "s", "-1", "1.5", "1d", "ten", "1 0", "+3"] {
            assert_eq!(parse_timeout(text), Err(ParseTimeoutError::Syntax), "{text}");
        }
        assert_eq!(parse_timeout("0"), Err(ParseTimeoutError::Zero));
        for text in ["99999999999999999999", "18446744073709551615h", "9000h"] {
            assert_eq!(parse_timeout(text), Err(ParseTimeoutError::TooLong), "{text}");
        }
    }
}
