//! One launch of one library: its processes, and the samples that its rank 0 prints.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use annulus_rig::{Rig, Sample, Settings};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::options::Scenario;
use crate::peer::Peer;

/// A folder for the rig's file, removed in the end.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Result<Self, String> {
        let name = format!("annulus-compare-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("compare: {}: {error}", self.0.display());
        }
    }
}

/// Runs `peer` once: the samples with their sizes in bytes.
pub(crate) fn launch(
    peer: &Peer,
    scenario: &Scenario,
    settings: &Settings,
    scratch: &Scratch,
    programs: &Path,
) -> Result<Vec<(usize, Sample)>, String> {
    if scenario.is_crowded() && is_real_time() {
        // The ranks of some libraries spin: without time slices the others, and the machine, would never run.
        return Err("more ranks than cores under a real-time scheduler".to_owned());
    }
    let rig = scratch.0.join("rig");
    Rig::prepare(&rig, settings).map_err(|error| format!("{}: {error}", rig.display()))?;
    let mut processes = Vec::new();
    for mut command in peer.commands(scenario, programs, &rig)? {
        processes.push(Process::start(&mut command)?);
    }
    let deadline = Instant::now() + LIMIT;
    let mut samples = Vec::new();
    for process in &mut processes {
        let output = process.finish(deadline)?;
        samples.extend(output.lines().filter_map(Sample::parse));
    }
    if samples.is_empty() {
        return Err("it printed no samples".to_owned());
    }
    Ok(samples)
}

/// Whether this process, and thus its children, run until they sleep (`chrt -f`, `chrt -r`).
fn is_real_time() -> bool {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name, in parentheses, may hold blanks; the policy is the 39th field after it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    matches!(fields.split_whitespace().nth(38), Some("1" | "2"))
}

/// How long one launch may take.
const LIMIT: Duration = Duration::from_secs(150);

/// A running process. Ended when dropped.
struct Process {
    name: String,
    child: Child,
    output: Option<thread::JoinHandle<String>>,
}

impl Process {
    fn start(command: &mut Command) -> Result<Self, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        // SAFETY: one system call, which is allowed between fork and exec: nothing outlives this process.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{name}: {error}"))?;
        let stdout = child.stdout.take();
        let output = thread::spawn(move || {
            let mut text = Vec::new();
            // What was read before an error still counts; the process's status tells the rest.
            let _ = stdout.map(|mut stdout| stdout.read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        });
        Ok(Self { name, child, output: Some(output) })
    }

    /// Waits for the end: what it printed.
    fn finish(&mut self, deadline: Instant) -> Result<String, String> {
        let status = loop {
            match self.child.try_wait().map_err(|error| format!("{}: {error}", self.name))? {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    return Err(format!("{}: not done after {LIMIT:?}", self.name));
                }
                None => thread::sleep(Duration::from_millis(20)),
            }
        };
        let output = self.output.take().and_then(|output| output.join().ok()).unwrap_or_default();
        if status.success() { Ok(output) } else { Err(format!("{}: {status}", self.name)) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // A launcher of MPI ends its ranks when it is asked to end, not when it is killed.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > Duration::from_secs(5) {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}
