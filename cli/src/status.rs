//! What the ranks of running or hung processes do, and where they parted.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use annulus::flight::{FlightRecord, FormatError, Merged, ProcessError, of_process, read_records};
use clap::Args;

/// Whose records to show.
#[derive(Args, Clone, Debug)]
pub struct Query {
    /// Processes (with all that they have started, such as a launcher's ranks), jobs by a variable that their processes have (such as
    /// SLURM_JOB_ID=4711), and dumps of ANNULUS_DUMP [default: all processes of this host that can be read]
    pub targets: Vec<String>,
    /// Show each rank's last operations too
    #[arg(short, long)]
    pub operations: bool,
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// Neither a process, nor a variable, nor a file.
    #[error(
        "{target} is neither the number of a process, nor a variable of processes such as SLURM_JOB_ID=4711, nor a file"
    )]
    Target {
        /// What was given.
        target: String,
    },
    /// No process has the variable.
    #[error(
        "no process of this host that can be read has {variable} in its environment and a communicator of two ranks or more"
    )]
    Job {
        /// It and its value.
        variable: String,
    },
    /// A process cannot be read.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file cannot be read.
    #[error("{path}: {source}")]
    File {
        /// Its path.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file is no dump.
    #[error("{path}: {source}")]
    Format {
        /// Its path.
        path: String,
        /// Why.
        source: FormatError,
    },
    /// Nothing is recorded.
    #[error(
        "no flight records: no communicator of two ranks or more is open there, or the system gave its process no memfd"
    )]
    Nothing,
}

/// The status of what `query` names, as text.
///
/// # Errors
/// When something that was named cannot be read, and when nothing is recorded.
pub fn status(query: &Query) -> Result<String, StatusError> {
    let mut records = Vec::new();
    if query.targets.is_empty() {
        // Those of other users cannot be read, and some end meanwhile.
        records.extend(processes().into_keys().filter_map(|pid| of_process(pid).ok()).flatten());
    }
    for target in &query.targets {
        if let Ok(pid) = target.parse::<u32>() {
            records.extend(with_descendants(pid)?);
        } else if PathBuf::from(target).exists() {
            records.extend(of_file(target)?);
        } else if target.contains('=') {
            records.extend(of_job(target)?);
        } else {
            return Err(StatusError::Target { target: target.clone() });
        }
    }
    if records.is_empty() {
        return Err(StatusError::Nothing);
    }
    let communicators = Merged::all(records);
    let mut text = communicators.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    if query.operations {
        for record in communicators.iter().flat_map(|merged| &merged.ranks) {
            text += &format!("\n{record}");
        }
    }
    Ok(text)
}

fn of_file(target: &str) -> Result<Vec<FlightRecord>, StatusError> {
    let bytes =
        fs::read(target).map_err(|source| StatusError::File { path: target.to_owned(), source })?;
    read_records(&bytes).map_err(|source| StatusError::Format { path: target.to_owned(), source })
}

/// The records of the processes that were started with `variable`, `NAME=VALUE`.
fn of_job(variable: &str) -> Result<Vec<FlightRecord>, StatusError> {
    let has = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|entry| entry == variable.as_bytes())
    };
    let job = processes().into_keys().filter(has);
    let records: Vec<_> = job.filter_map(|pid| of_process(pid).ok()).flatten().collect();
    if records.is_empty() {
        return Err(StatusError::Job { variable: variable.to_owned() });
    }
    Ok(records)
}

/// The records of a process, and of those that descend from it.
fn with_descendants(pid: u32) -> Result<Vec<FlightRecord>, ProcessError> {
    let mut records = of_process(pid)?;
    let parents = processes();
    let descends = |mut process: u32| {
        // Bounded: the table was read while it changed, and might go round.
        for _ in 0..parents.len() {
            match parents.get(&process) {
                Some(&parent) if parent == pid => return true,
                Some(&parent) => process = parent,
                None => return false,
            }
        }
        false
    };
    let others = parents.keys().copied().filter(|&process| process != pid && descends(process));
    // They may have ended meanwhile.
    records.extend(others.filter_map(|process| of_process(process).ok()).flatten());
    Ok(records)
}

/// Each process of this host and its parent.
fn processes() -> HashMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| Some((pid, parent(pid)?))).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name, in parentheses, may hold anything: the fields go on after the last one.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(1)?.parse().ok()
}
