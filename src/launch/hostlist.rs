//! SLURM's way of writing many host names: `node[01-03,7],gpu5`.

use std::fmt;

/// Most hosts that a list may name.
const MAX_HOSTS: usize = 1 << 16;
/// Longest host name, as in DNS.
const MAX_NAME: usize = 253;

/// Why a text is no host list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at byte {position}")]
pub struct HostlistError {
    /// Where it stopped making sense.
    pub position: usize,
    problem: Problem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Problem {
    EmptyName,
    LongName,
    Character(char),
    Unclosed,
    Unopened,
    Number,
    Backwards,
    TooMany,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyName => write!(f, "an empty host name"),
            Self::LongName => write!(f, "a host name longer than {MAX_NAME} bytes"),
            Self::Character(c) => write!(f, "{c:?}, which no host name holds,"),
            Self::Unclosed => write!(f, "a '[' that is never closed"),
            Self::Unopened => write!(f, "a ']' without its '['"),
            Self::Number => write!(f, "no number of at most 18 digits where a range needs one"),
            Self::Backwards => write!(f, "a range whose end is below its beginning"),
            Self::TooMany => write!(f, "more than {MAX_HOSTS} hosts"),
        }
    }
}

/// The host names that `list` stands for, in order. Names are separated by commas; each may hold several
/// bracketed lists of numbers and ranges, whose last varies fastest. A range keeps the width of its first number: `[08-10]` is 08, 09, 10.
///
/// # Errors
/// With the byte position, when the text is no host list or names more than 65,536 hosts.
pub fn expand_hostlist(list: &str) -> Result<Vec<String>, HostlistError> {
    let mut hosts = Vec::new();
    let mut parser = Parser { text: list.as_bytes(), list, position: 0 };
    loop {
        let room = MAX_HOSTS - hosts.len();
        hosts.append(&mut parser.item(room)?);
        if parser.position == list.len() {
            return Ok(hosts);
        }
        parser.position += 1; // the comma
    }
}

struct Parser<'a> {
    text: &'a [u8],
    list: &'a str,
    position: usize,
}

impl Parser<'_> {
    fn error(&self, problem: Problem) -> HostlistError {
        HostlistError { position: self.position, problem }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.position).copied()
    }

    /// One comma-separated item, which becomes at most `room` names.
    fn item(&mut self, room: usize) -> Result<Vec<String>, HostlistError> {
        let start = self.position;
        let mut names = vec![String::new()];
        loop {
            match self.peek() {
                None | Some(b',') => break,
                Some(b'[') => {
                    let numbers = self.ranges(room)?;
                    if names.len().saturating_mul(numbers.len()) > room {
                        return Err(self.error(Problem::TooMany));
                    }
                    names = names
                        .iter()
                        .flat_map(|name| numbers.iter().map(move |n| format!("{name}{n}")))
                        .collect();
                }
                Some(b']') => return Err(self.error(Problem::Unopened)),
                Some(c) if c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_') => {
                    self.position += 1;
                    for name in &mut names {
                        name.push(char::from(c));
                    }
                }
                Some(_) => {
                    let c = self.list[self.position..].chars().next().unwrap_or_default();
                    return Err(self.error(Problem::Character(c)));
                }
            }
            // Checked as it grows, since each step may copy all names.
            if names.iter().any(|name| name.len() > MAX_NAME) {
                return Err(self.error(Problem::LongName));
            }
        }
        if self.position == start {
            return Err(self.error(Problem::EmptyName));
        }
        if names.len() > room {
            return Err(self.error(Problem::TooMany));
        }
        Ok(names)
    }

    /// A bracketed list, of at most `room` numbers.
    fn ranges(&mut self, room: usize) -> Result<Vec<String>, HostlistError> {
        let open = self.position;
        let mut numbers = Vec::new();
        loop {
            self.position += 1; // the bracket or comma
            let (first, width) = self.number()?;
            let mut last = first;
            if self.peek() == Some(b'-') {
                self.position += 1;
                last = self.number()?.0;
                if last < first {
                    return Err(self.error(Problem::Backwards));
                }
            }
            if last - first >= (room - numbers.len()) as u64 {
                return Err(self.error(Problem::TooMany));
            }
            numbers.extend((first..=last).map(|n| format!("{n:0width$}")));
            match self.peek() {
                Some(b',') => {}
                Some(b']') => {
                    self.position += 1;
                    return Ok(numbers);
                }
                Some(_) => return Err(self.error(Problem::Number)),
                None => {
                    self.position = open;
                    return Err(self.error(Problem::Unclosed));
                }
            }
        }
    }

    /// A number and how many digits it was written with.
    fn number(&mut self) -> Result<(u64, usize), HostlistError> {
        let digits = self.text[self.position..].iter().take_while(|c| c.is_ascii_digit()).count();
        if digits == 0 || digits > 18 {
            return Err(self.error(Problem::Number));
        }
        let end = self.position + digits;
        let number =
            self.list[self.position..end].parse().map_err(|_| self.error(Problem::Number))?;
        self.position = end;
        Ok((number, digits))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expand(list: &str) -> Vec<String> {
        expand_hostlist(list).expect(list)
    }

    #[test]
    fn expands_ranges() {
        assert_eq!(expand("node[01-03,7],gpu5"), ["node01", "node02", "node03", "node7", "gpu5"]);
        assert_eq!(expand("a"), ["a"]);
        assert_eq!(
            expand("r[1-2]-n[08-10].x"),
            ["r1-n08.x", "r1-n09.x", "r1-n10.x", "r2-n08.x", "r2-n09.x", "r2-n10.x"]
        );
        assert_eq!(expand("n[099-100]"), ["n099", "n100"]);
        assert_eq!(expand("10.0.0.[1-2]"), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(expand("n[1-65536]").len(), MAX_HOSTS);
    }

    #[test]
    fn says_what_is_wrong_and_where() {
        for (list, position, problem) in [
            ("", 0, Problem::EmptyName),
            ("a,,b", 2, Problem::EmptyName),
            ("a,", 2, Problem::EmptyName),
            ("a[1-2", 1, Problem::Unclosed),
            ("a]", 1, Problem::Unopened),
            ("a[]", 2, Problem::Number),
            ("a[1-]", 4, Problem::Number),
            ("a[1;2]", 3, Problem::Number),
            ("a[3-1]", 5, Problem::Backwards),
            ("a[1234567890123456789]", 2, Problem::Number),
            ("a[1-99999999]", 12, Problem::TooMany),
            ("n[1-300][1-300]", 15, Problem::TooMany),
            ("a,n[1-65536]", 11, Problem::TooMany),
            ("a é", 1, Problem::Character(' ')),
            ("é", 0, Problem::Character('é')),
        ] {
            assert_eq!(expand_hostlist(list), Err(HostlistError { position, problem }), "{list}");
        }
        assert!(matches!(
            expand_hostlist(&"x".repeat(254)),
            Err(HostlistError { problem: Problem::LongName, .. })
        ));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn plain_names_come_back(names in prop::collection::vec("[a-z][a-z0-9.-]{0,12}", 1..20)) {
            prop_assert_eq!(expand(&names.join(",")), names);
        }

        #[test]
        fn a_range_has_all_its_numbers(first in 0u64..2000, more in 0u64..500, width in 1usize..6) {
            let last = first + more;
            let hosts = expand(&format!("n[{first:0width$}-{last}]"));
            let wanted: Vec<_> = (first..=last).map(|n| format!("n{n:0width$}")).collect();
            prop_assert_eq!(hosts, wanted);
        }

        #[test]
        fn never_panics(list in "[a-c0-9,\\[\\]é-]{0,40}") {
            if let Ok(hosts) = expand_hostlist(&list) {
                prop_assert!(!hosts.is_empty() && hosts.len() <= MAX_HOSTS);
            }
        }
    }
}
