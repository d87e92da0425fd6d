//! What works on this host, and what to do about what does not.

mod devices;
mod environment;
mod memory;
mod network;
mod processor;

use std::fmt;

/// What was found out about one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The thing.
    pub subject: &'static str,
    /// How it is.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do about it, if anything.
    pub remedy: Option<String>,
}

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// As it should be.
    Ok,
    /// Good to know; ranks work all the same.
    Note,
    /// Ranks will fail.
    Problem,
}

/// Looks at everything. Opens and maps a little of what ranks would, and leaves nothing behind.
pub fn examine() -> Vec<Finding> {
    [
        processor::examine(),
        memory::examine(),
        network::examine(),
        devices::examine(),
        environment::examine(),
    ]
    .concat()
}

/// The worst state of all.
pub fn verdict(findings: &[Finding]) -> State {
    findings.iter().map(|finding| finding.state).max().unwrap_or(State::Ok)
}

impl Finding {
    fn ok(subject: &'static str, found: impl Into<String>) -> Self {
        Self { subject, state: State::Ok, found: found.into(), remedy: None }
    }

    fn note(subject: &'static str, found: impl Into<String>) -> Self {
        Self { state: State::Note, ..Self::ok(subject, found) }
    }

    fn problem(subject: &'static str, found: impl Into<String>, remedy: &str) -> Self {
        Self { state: State::Problem, ..Self::ok(subject, found) }.with_remedy(remedy)
    }

    fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Ok => "ok",
            State::Note => "note",
            State::Problem => "PROBLEM",
        };
        write!(f, "{state:<8}{:<18} {}", self.subject, self.found)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n{:27}-> {remedy}", ""),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_state_counts() {
        let mut findings = vec![Finding::ok("a", "fine"), Finding::note("b", "so so")];
        assert_eq!(verdict(&findings), State::Note);
        findings.push(Finding::problem("c", "bad", "mend it"));
        assert_eq!(verdict(&findings), State::Problem);
        assert!(findings[2].to_string().contains("-> mend it"));
    }
}
