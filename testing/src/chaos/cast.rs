//! What a rank's process tells the harness, a line each.

use std::fmt;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// The job's unique id, in hexadecimal.
    Id(String),
    /// All ranks have met.
    Ready,
    /// The rank brings its fault about.
    Strikes,
    /// All calls but the last barrier have succeeded.
    Final,
    /// How the calls ended.
    Outcome(Outcome),
    /// A survivor computes in a communicator of so many ranks.
    WentOn(usize),
    /// A survivor invites another rank, by a unique id in hexadecimal, to be the last of so many.
    Invitation(String, usize),
    /// A survivor cannot go on.
    Stuck(String),
    /// The communicator is gone, and with it descriptors and threads.
    Clean,
    /// There are more descriptors and threads than before.
    Leak { before: [usize; 2], after: [usize; 2] },
}

/// How a rank's calls ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing has been heard.
    Silent,
    /// All have succeeded.
    Ended,
    /// One has failed.
    Failed { kind: String, lost: Vec<usize>, message: String },
    /// One gave a wrong result.
    Wrong(String),
    /// The rank's own panic.
    Panicked,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "chaos id {id}"),
            Self::Ready => f.write_str("chaos ready"),
            Self::Strikes => f.write_str("chaos strikes"),
            Self::Final => f.write_str("chaos final"),
            Self::Clean => f.write_str("chaos clean"),
            Self::Leak { before: [b0, b1], after: [a0, a1] } => {
                write!(f, "chaos leak {b0} {b1} {a0} {a1}")
            }
            Self::WentOn(ranks) => write!(f, "chaos went-on {ranks}"),
            Self::Invitation(id, ranks) => write!(f, "chaos invitation {ranks} {id}"),
            Self::Stuck(why) => write!(f, "chaos stuck {}", one_line(why)),
            Self::Outcome(Outcome::Silent) => f.write_str("chaos silent"),
            Self::Outcome(Outcome::Ended) => f.write_str("chaos ended"),
            Self::Outcome(Outcome::Panicked) => f.write_str("chaos panicked"),
            Self::Outcome(Outcome::Wrong(what)) => write!(f, "chaos wrong {}", one_line(what)),
            Self::Outcome(Outcome::Failed { kind, lost, message }) => {
                let lost: Vec<_> = lost.iter().map(usize::to_string).collect();
                let lost = if lost.is_empty() { "-".into() } else { lost.join(",") };
                write!(f, "chaos failed {kind} {lost} {}", one_line(message))
            }
        }
    }
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

impl Line {
    /// What `text` says; `None`: it is for humans.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (word, rest) = text.strip_prefix("chaos ")?.split_once(' ').map_or_else(
            || (text.strip_prefix("chaos ").unwrap_or_default(), ""),
            |(word, rest)| (word, rest),
        );
        Some(match word {
            "id" => Self::Id(rest.into()),
            "ready" => Self::Ready,
            "strikes" => Self::Strikes,
            "final" => Self::Final,
            "clean" => Self::Clean,
            "leak" => {
                let numbers: Vec<usize> = rest.split(' ').filter_map(|n| n.parse().ok()).collect();
                let [b0, b1, a0, a1] = numbers[..] else { return None };
                Self::Leak { before: [b0, b1], after: [a0, a1] }
            }
            "went-on" => Self::WentOn(rest.parse().ok()?),
            "invitation" => {
                let (ranks, id) = rest.split_once(' ')?;
                Self::Invitation(id.into(), ranks.parse().ok()?)
            }
            "stuck" => Self::Stuck(rest.into()),
            "ended" => Self::Outcome(Outcome::Ended),
            "panicked" => Self::Outcome(Outcome::Panicked),
            "wrong" => Self::Outcome(Outcome::Wrong(rest.into())),
            "failed" => {
                let mut parts = rest.splitn(3, ' ');
                let (kind, lost) = (parts.next()?.into(), parts.next()?);
                let lost = lost.split(',').filter_map(|rank| rank.parse().ok()).collect();
                let message = parts.next().unwrap_or_default().into();
                Self::Outcome(Outcome::Failed { kind, lost, message })
            }
            _ => return None,
        })
    }
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Exactly as many bytes as are wanted.
pub(super) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_survive_the_pipe() {
        let failed = Outcome::Failed {
            kind: "lost".into(),
            lost: vec![1, 5],
            message: "rank 1 is gone".into(),
        };
        let nobody = Outcome::Failed { kind: "timeout".into(), lost: vec![], message: "x".into() };
        for line in [
            Line::Id("ab".into()),
            Line::Ready,
            Line::Strikes,
            Line::Final,
            Line::Clean,
            Line::Leak { before: [3, 4], after: [5, 6] },
            Line::WentOn(3),
            Line::Invitation("cd".into(), 4),
            Line::Stuck("rank 2 does not call".into()),
            Line::Outcome(Outcome::Ended),
            Line::Outcome(Outcome::Panicked),
            Line::Outcome(Outcome::Wrong("sum of 3".into())),
            Line::Outcome(failed),
            Line::Outcome(nobody),
        ] {
            assert_eq!(Line::parse(&line.to_string()), Some(line));
        }
        assert_eq!(Line::parse("thread panicked"), None);
        assert_eq!(from_hex(&to_hex(&[1, 0xab])), Some([1, 0xab]));
        assert_eq!(from_hex::<2>("01"), None);
    }
}
