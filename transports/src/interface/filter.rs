//! The text by which a user chooses interfaces.

use std::fmt;

/// A choice of interfaces by name, as NCCL writes it: prefixes separated by commas; `=` before the list:
/// whole names instead of prefixes; `^` before all: every interface but these. `eth,ib0`, `=eth0`,
/// `^docker,lo`, `^=eth1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    exclude: bool,
    exact: bool,
    names: Vec<String>,
}

impl Filter {
    /// Reads a filter. Blanks around names and empty names are ignored.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let list = text.trim();
        let (exclude, list) = strip(list, '^');
        let (exact, list) = strip(list, '=');
        let names: Vec<String> = list
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(Into::into)
            .collect();
        if names.is_empty() {
            return Err(FilterError::Empty { text: text.into() });
        }
        match names.iter().find(|name| !is_interface_name(name)) {
            Some(name) => Err(FilterError::Name { text: text.into(), name: name.clone() }),
            None => Ok(Self { exclude, exact, names }),
        }
    }

    /// Whether an interface of this name is chosen.
    pub fn matches(&self, interface: &str) -> bool {
        self.find(interface).is_some() != self.exclude
    }

    /// Which of the filter's names chose this interface: the user's order of preference. `None` if none
    /// did, and for a filter that excludes.
    pub(super) fn position(&self, interface: &str) -> Option<usize> {
        self.find(interface).filter(|_| !self.exclude)
    }

    fn find(&self, interface: &str) -> Option<usize> {
        self.names.iter().position(|name| match self.exact {
            true => interface == name,
            false => interface.starts_with(name.as_str()),
        })
    }
}

impl fmt::Display for Filter {
    /// The text that [`Filter::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exclude = if self.exclude { "^" } else { "" };
        let exact = if self.exact { "=" } else { "" };
        write!(f, "{exclude}{exact}{}", self.names.join(","))
    }
}

/// Why a text is no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// There is no name in it.
    #[error("{text:?} names no interface: expected a list such as eth,ib0 or =eth0 or ^docker,lo")]
    Empty {
        /// The whole text.
        text: String,
    },
    /// No interface can be named so.
    #[error(
        "{text:?}: {name:?} cannot name an interface: \
         names have at most {MAX_NAME} bytes, no blank, no slash, and ^ and = stand only before the list"
    )]
    Name {
        /// The whole text.
        text: String,
        /// The name in it.
        name: String,
    },
}

/// The kernel's limit, without the final zero byte.
const MAX_NAME: usize = 15;

fn is_interface_name(name: &str) -> bool {
    name.len() <= MAX_NAME
        && !name.starts_with(['^', '='])
        && !name.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control())
}

fn strip(text: &str, sign: char) -> (bool, &str) {
    match text.strip_prefix(sign) {
        Some(rest) => (true, rest.trim_start()),
        None => (false, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_exact_names_and_exclusion() {
        let matching = |text: &str| {
            let filter = Filter::parse(text).unwrap();
            ["lo", "eth0", "eth01", "ib0"].map(|name| filter.matches(name))
        };
        assert_eq!(matching("eth"), [false, true, true, false]);
        assert_eq!(matching("eth0"), [false, true, true, false]);
        assert_eq!(matching("=eth0"), [false, true, false, false]);
        assert_eq!(matching("eth,ib"), [false, true, true, true]);
        assert_eq!(matching("^eth,ib"), [true, false, false, false]);
        assert_eq!(matching("^=eth0,lo"), [false, false, true, true]);
        assert_eq!(matching(" eth0 , ,lo "), [true, true, true, false]);
    }

    #[test]
    fn nonsense_is_refused_and_named() {
        for text in ["", " ", "^", "=", "^=", ",", "^,="] {
            let error = Filter::parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
        for (text, name) in [("eth0,=lo", "=lo"), ("/dev/eth0", "/dev/eth0"), ("a b", "a b")] {
            let error = Filter::parse(text).unwrap_err();
            assert_eq!(error, FilterError::Name { text: text.into(), name: name.into() });
        }
        assert!(Filter::parse("abcdefghijklmnop").is_err());
    }
}
