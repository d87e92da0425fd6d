//! Which job this is, so that the ranks of one job find each other and no other job's.

use std::fmt;

/// What tells one job from another: the launcher's variables, and, for ranks of one host, the user and, where
/// the variables say too little, the process that started them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobIdentity {
    variables: Vec<(&'static str, String)>,
    /// The launching process is the nearest ancestor without this variable.
    ancestor_without: Option<&'static str>,
}

impl JobIdentity {
    pub(super) fn new(variables: Vec<(&'static str, String)>) -> Self {
        Self { variables, ancestor_without: None }
    }

    /// Adds the process that started the ranks: the nearest ancestor of this process that lacks `variable`.
    pub(super) fn with_ancestor(mut self, variable: &'static str) -> Self {
        self.ancestor_without = Some(variable);
        self
    }

    /// A digest that all ranks of the job share, on all hosts. `purpose` separates the digest's uses.
    pub(crate) fn digest(&self, purpose: &str) -> [u8; 32] {
        let mut hash = blake3::Hasher::new_derive_key("annulus 2026 job identity");
        let mut add = |text: &str| {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        add(purpose);
        for (name, value) in &self.variables {
            add(name);
            add(value);
        }
        *hash.finalize().as_bytes()
    }

    /// A digest that the ranks of the job on this host share, and no other user's.
    pub(crate) fn digest_on_host(&self, purpose: &str) -> [u8; 32] {
        let mut hash = blake3::Hasher::new_derive_key("annulus 2026 job identity on a host");
        hash.update(&self.digest(purpose));
        hash.update(&rustix::process::getuid().as_raw().to_le_bytes());
        if let Some(variable) = self.ancestor_without {
            let pid = std::process::id();
            hash.update(&ancestor_without(pid, variable).unwrap_or(0).to_le_bytes());
        }
        *hash.finalize().as_bytes()
    }
}

impl fmt::Display for JobIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.variables.iter().enumerate() {
            write!(f, "{}{name}={value}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// The nearest ancestor of `pid` that was not started with `variable` in its environment: the launcher, even when
/// shells and wrappers stand between it and its ranks. One whose environment is hidden from us is no rank of ours.
fn ancestor_without(mut pid: u32, variable: &str) -> Option<u32> {
    let prefix = format!("{variable}=");
    loop {
        pid = parent(pid)?;
        let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else {
            return Some(pid);
        };
        if !environment.split(|&byte| byte == 0).any(|entry| entry.starts_with(prefix.as_bytes())) {
            return Some(pid);
        }
    }
}

/// The parent of a process; `None` for the first process of the system or container.
fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name, in parentheses, may hold anything: the fields go on after the last one.
    let (_, fields) = stat.rsplit_once(')')?;
    let parent = fields.split_ascii_whitespace().nth(1)?.parse().ok()?;
    (parent != 0).then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_do_not_run_into_each_other() {
        let split = |a: &str, b: &str| {
            JobIdentity::new(vec![("A", a.into()), ("B", b.into())]).digest("secret")
        };
        assert_ne!(split("12", "3"), split("1", "23"));
        assert_eq!(split("12", "3"), split("12", "3"));
    }

    #[test]
    fn purposes_and_hosts_differ() {
        let job = JobIdentity::new(vec![("A", "1".into())]);
        assert_ne!(job.digest("secret"), job.digest("port"));
        assert_ne!(job.digest("secret"), job.digest_on_host("secret"));
    }

    #[test]
    fn finds_the_launcher_past_wrappers() {
        let me = std::process::id();
        let child = std::process::Command::new("sh")
            .args(["-c", "sh -c 'cat /proc/self/stat >/dev/null; sleep 60' & echo $!; wait"])
            .env("ANNULUS_TEST_RANK", "3")
            .stdout(std::process::Stdio::piped())
            .spawn();
        let mut child = child.expect("a shell");
        let mut line = String::new();
        std::io::BufRead::read_line(
            &mut std::io::BufReader::new(child.stdout.take().expect("piped")),
            &mut line,
        )
        .expect("a process id");
        let grandchild: u32 = line.trim().parse().expect("a process id");
        let found = ancestor_without(grandchild, "ANNULUS_TEST_RANK");
        for pid in [grandchild, child.id()] {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("not zero");
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        child.wait().expect("the shell ends");
        assert_eq!(found, Some(me));
    }
}
