//! Sizes as people write and read them.

/// A number of bytes such as `8`, `64K`, `1M` or `2G`, also `64KB` and `64KiB`: powers of 1024.
pub(crate) fn parse_bytes(text: &str) -> Result<usize, String> {
    let text = text.trim().to_ascii_lowercase();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit.trim_start() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err(EXPECTED.to_owned()),
    };
    if digits.is_empty() {
        return Err(EXPECTED.to_owned());
    }
    // Only digits are left, so that a failure means too many of them.
    let number = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(1 << shift));
    // No object is larger.
    number
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| "more bytes than a process can address".to_owned())
}

const EXPECTED: &str = "expected a number of bytes, such as 8, 64K, 1M or 2G";

/// A number of bytes for people, such as `1.5 KiB`.
pub(crate) fn display(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(value < 10.0 && unit > 0);
    format!("{value:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in
            [("8", 8), ("64K", 64 << 10), (" 1MiB ", 1 << 20), ("2gb", 2 << 30), ("0", 0)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "1.5M", "1T", "8 8", "+8"] {
            assert_eq!(parse_bytes(text), Err(EXPECTED.to_owned()), "{text}");
        }
        for text in ["99999999999G", "8589934592G", "99999999999999999999"] {
            assert!(parse_bytes(text).expect_err("too many").contains("address"), "{text}");
        }
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(
            [0, 1023, 1536, 64 << 20, 5 << 40].map(display),
            ["0 B", "1023 B", "1.5 KiB", "64 MiB", "5.0 TiB"]
        );
    }
}
