//! Reading variables into values, with errors that name them.

use super::LaunchError;

/// The environment. An empty variable counts as absent.
pub(super) struct Variables<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Variables<'a> {
    pub(super) fn new(get: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { get }
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        (self.get)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    pub(super) fn count(&self, name: &'static str) -> Result<Option<usize>, LaunchError> {
        self.text(name)
            .map(|value| {
                value.parse().map_err(|_| LaunchError::Invalid {
                    variable: name,
                    value,
                    expected: "a whole number, 0 or more".into(),
                })
            })
            .transpose()
    }

    pub(super) fn port(&self, name: &'static str) -> Result<Option<u16>, LaunchError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        match value.parse() {
            Ok(port) if port != 0 => Ok(Some(port)),
            _ => Err(LaunchError::Invalid {
                variable: name,
                value,
                expected: "a port, 1 to 65535".into(),
            }),
        }
    }

    /// The first of `names` that is set, with its value as a count.
    pub(super) fn first_count(
        &self,
        names: &[&'static str],
    ) -> Result<Option<(&'static str, usize)>, LaunchError> {
        for &name in names {
            if let Some(value) = self.count(name)? {
                return Ok(Some((name, value)));
            }
        }
        Ok(None)
    }
}
