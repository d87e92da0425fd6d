//! Reads another process's records, without its help.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use super::file::{FILE_NAME, offset};
use super::format::{EXTENT_BYTES, FormatError, Head, PAGE_BYTES};
use super::record::FlightRecord;

/// Why a process's records cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// There is no such process.
    #[error("there is no process {pid}")]
    Missing {
        /// Its number.
        pid: u32,
    },
    /// It belongs to somebody else, or the system hides it.
    #[error("process {pid}: {source}: ask as its own user, or as root")]
    Forbidden {
        /// Its number.
        pid: u32,
        /// Why.
        source: io::Error,
    },
    /// Reading failed otherwise.
    #[error("process {pid}: {source}")]
    Io {
        /// Its number.
        pid: u32,
        /// Why.
        source: io::Error,
    },
    /// The file is no recorder's.
    #[error("process {pid}: {source}")]
    Format {
        /// Its number.
        pid: u32,
        /// Why.
        source: FormatError,
    },
}

/// What the ranks in process `pid` of this host have recorded, also when it hangs or is stopped. None if it has no communicator of two ranks or more, or
/// the system gave it no file to record in.
///
/// # Errors
/// When there is no such process, or it belongs to another user.
pub fn of_process(pid: u32) -> Result<Vec<FlightRecord>, ProcessError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => ProcessError::Missing { pid },
        io::ErrorKind::PermissionDenied => ProcessError::Forbidden { pid, source },
        _ => ProcessError::Io { pid, source },
    };
    let inner = inner_pid(pid).map_err(failed)?;
    let mut records = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let Ok(target) = fs::read_link(&path) else { continue };
        let name = format!("/memfd:{FILE_NAME}");
        if !target.to_string_lossy().starts_with(&name) {
            continue;
        }
        // It may have been closed meanwhile.
        let Ok(file) = File::open(&path) else { continue };
        let (head, found) = read(&file, pid)?;
        // A forked child holds its parent's file too.
        if inner.is_none_or(|inner| inner == head.pid) {
            records.extend(found.into_iter().map(|record| FlightRecord { pid, ..record }));
        }
    }
    Ok(records)
}

fn read(file: &File, pid: u32) -> Result<(Head, Vec<FlightRecord>), ProcessError> {
    let io = |source| ProcessError::Io { pid, source };
    let mut page = vec![0; PAGE_BYTES];
    file.read_exact_at(&mut page, 0).map_err(io)?;
    let head = Head::read(&page).map_err(|source| ProcessError::Format { pid, source })?;
    let mut records = Vec::new();
    let mut extent = vec![0; EXTENT_BYTES];
    for number in 0..head.extents {
        match file.read_exact_at(&mut extent, offset(number)) {
            Ok(()) => records.extend(head.record(&extent)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(io(error)),
        }
    }
    Ok((head, records))
}

/// The number by which a process in a namespace of its own knows itself.
fn inner_pid(pid: u32) -> io::Result<Option<u32>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    Ok(line.and_then(|numbers| numbers.split_ascii_whitespace().next_back()?.parse().ok()))
}
