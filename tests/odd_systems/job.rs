//! A few processes in a situation.

use std::fmt::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What each rank's process reads: what it must do without.
pub(crate) const FORBIDDEN: &str = "ANNULUS_TEST_FORBIDDEN";
/// Set in ranks' processes only.
pub(crate) const MARK: &str = "ANNULUS_TEST_ODD_SYSTEM";

/// Printed by a setup that this machine does not allow.
const NOT_HERE: &str = "not-possible-here";

/// Ranks that are to be started together.
#[derive(Clone)]
pub(crate) struct Job {
    world: usize,
    namespaces: Vec<String>,
    setup: String,
    variables: Vec<(String, String)>,
    limit: Option<String>,
    forbidden: String,
    affected: Option<usize>,
    far: Option<usize>,
}

impl Job {
    pub(crate) fn of(world: usize) -> Self {
        Self {
            world,
            namespaces: Vec::new(),
            setup: String::new(),
            variables: vec![("ANNULUS_TIMEOUT".into(), "60s".into())],
            limit: None,
            forbidden: String::new(),
            affected: None,
            far: None,
        }
    }

    /// In new namespaces, after the shell commands `setup`.
    pub(crate) fn inside(mut self, namespaces: &[&str], setup: &str) -> Self {
        self.namespaces = namespaces.iter().map(|&name| name.to_owned()).collect();
        self.setup = setup.to_owned();
        self
    }

    pub(crate) fn set(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// With a limit, as `ulimit` takes it.
    pub(crate) fn limit(mut self, limit: &str) -> Self {
        self.limit = Some(limit.into());
        self
    }

    /// Without a system call: see [`sandbox`](crate::sandbox).
    pub(crate) fn forbid(mut self, what: &str) -> Self {
        self.forbidden = what.into();
        self
    }

    /// The limit and what is forbidden are so for one rank only.
    pub(crate) fn only_on(mut self, rank: usize) -> Self {
        self.affected = Some(rank);
        self
    }

    /// `rank` runs on the host that the setup calls far.
    pub(crate) fn far(mut self, rank: usize) -> Self {
        self.far = Some(rank);
        self
    }

    /// Runs all ranks to their ends.
    pub(crate) fn run(&self) -> Outcome {
        let output = self.command().output().expect("unshare and sh");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if !self.namespaces.is_empty() && !text.contains("situation made") {
            // A machine may forbid namespaces, or lack a kind of interface.
            println!(
                "skipped: {}: {}",
                self.namespaces.join(" "),
                errors.trim().replace('\n', "; ")
            );
            return Outcome { ranks: None };
        }
        assert!(!text.contains(NOT_HERE), "{text}{errors}");
        let result = |rank: usize| {
            let beginning = format!("result {rank} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&beginning));
            line.unwrap_or_else(|| panic!("rank {rank} says nothing:\n{text}\n{errors}")).to_owned()
        };
        Outcome { ranks: Some((0..self.world).map(result).collect()) }
    }

    fn command(&self) -> Command {
        static JOBS: AtomicUsize = AtomicUsize::new(0);
        let number = JOBS.fetch_add(1, Ordering::Relaxed);
        let mut script = format!("set -e\n{}\necho situation made\nset +e\n", self.setup);
        for rank in 0..self.world {
            let affected = self.affected.is_none_or(|only| only == rank);
            let limit = self.limit.as_ref().filter(|_| affected);
            let limit = limit.map_or_else(String::new, |limit| format!("ulimit {limit};"));
            let forbidden = if affected { self.forbidden.as_str() } else { "" };
            let place = if self.far == Some(rank) { "far" } else { "" };
            let local = self.world - usize::from(self.far.is_some());
            writeln!(
                script,
                "({limit} {place} env RANK={rank} WORLD_SIZE={} LOCAL_WORLD_SIZE={local} {FORBIDDEN}={forbidden} \
                 \"$0\" --exact rank::rank_process --nocapture --test-threads=1) &",
                self.world
            )
            .expect("a string");
        }
        script.push_str("wait\n");
        let mut command = if self.namespaces.is_empty() {
            Command::new("sh")
        } else {
            let mut command = Command::new("unshare");
            // With the process that waits dies all that it has started.
            command
                .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
                .args(&self.namespaces);
            if !rustix::process::geteuid().is_root() {
                command.arg("--map-root-user");
            }
            command.arg("sh");
            command
        };
        command.arg("-c").arg(script).arg(std::env::current_exe().expect("this test"));
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("ANNULUS_") || text.starts_with("NCCL_") {
                command.env_remove(&name);
            }
        }
        command
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env(MARK, "1")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", "1")
            .env("TORCHELASTIC_RUN_ID", format!("odd-{number}-{}", std::process::id()))
            .stdin(Stdio::null());
        command
    }
}

/// What became of the ranks; `None`: the situation cannot be made here.
pub(crate) struct Outcome {
    ranks: Option<Vec<String>>,
}

impl Outcome {
    pub(crate) fn all_work_over(&self, transport: &str) {
        for result in self.ranks.iter().flatten() {
            assert_eq!(result, &format!("works over {transport}"));
        }
    }

    /// What each rank says; none works.
    pub(crate) fn errors(self) -> Vec<String> {
        let ranks = self.ranks.unwrap_or_default();
        assert!(ranks.iter().all(|result| result.starts_with("error ")), "{ranks:?}");
        ranks
    }
}
