//! Segments: anonymous files in memory that other processes map. They have no name, so nothing is
//! left behind when the last process that knows one ends, however it ends.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::Errno;

/// Why there is no segment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The system refused memory or a descriptor.
    #[error("shared memory of {bytes} bytes: {operation}: {source}{}", remedy(source))]
    System {
        /// Size of the segment.
        bytes: usize,
        /// What was tried.
        operation: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// What a peer passed is no segment that this process may rely on.
    #[error("the descriptor that the peer passed is no segment: {what}")]
    Invalid {
        /// What is wrong with it.
        what: String,
    },
}

impl SegmentError {
    pub(super) fn system(
        bytes: usize,
        operation: &'static str,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::System { bytes, operation, source: source.into() }
    }

    pub(super) fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into() }
    }
}

/// A file of `bytes` zero bytes in memory whose size nobody can change. Pages appear when they are touched.
pub(super) fn create(bytes: usize) -> Result<OwnedFd, SegmentError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Hardened systems insist on files that cannot be executed; old kernels do not know the flag.
    let file =
        memfd_create("annulus", flags | MemfdFlags::NOEXEC_SEAL).or_else(|error| match error {
            Errno::INVAL => memfd_create("annulus", flags),
            error => Err(error),
        });
    let file = file.map_err(|error| SegmentError::system(bytes, "memfd_create", error))?;
    ftruncate(&file, bytes as u64)
        .map_err(|error| SegmentError::system(bytes, "ftruncate", error))?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|error| SegmentError::system(bytes, "sealing", error))?;
    Ok(file)
}

/// The size of a segment that a peer passed, after making sure that it cannot shrink: touching a page
/// that is no longer there would kill this process.
pub(super) fn size_of_received(file: impl AsFd) -> Result<usize, SegmentError> {
    let seals = fcntl_get_seals(&file)
        .map_err(|error| SegmentError::invalid(format!("it has no seals: {error}")))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(SegmentError::invalid("it could shrink"));
    }
    let stat = fstat(&file).map_err(|error| SegmentError::system(0, "fstat", error))?;
    usize::try_from(stat.st_size).map_err(|_| SegmentError::invalid("it has no size"))
}

fn remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => "; raise the limit on open files (`ulimit -n`)",
        Some(Errno::NOMEM) => {
            "; check the memory limit of the container, `ulimit -v` and vm.max_map_count"
        }
        Some(Errno::NOSYS) => {
            "; memfd needs Linux 3.17, or a sandbox that lets it through; \
             else set ANNULUS_TRANSPORT=tcp on all ranks"
        }
        Some(Errno::PERM | Errno::ACCESS) => {
            "; a sandbox or vm.memfd_noexec forbids it: allow it, or set ANNULUS_TRANSPORT=tcp on all ranks"
        }
        Some(Errno::FBIG) => "; raise the limit on file sizes (`ulimit -f`)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_keeps_its_size() {
        let file = create(5000).expect("memory");
        assert_eq!(size_of_received(&file).expect("sealed"), 5000);
        assert_eq!(ftruncate(&file, 4096), Err(Errno::PERM));
        assert_eq!(ftruncate(&file, 8192), Err(Errno::PERM));
    }

    #[test]
    fn refuses_files_that_could_shrink() {
        let unsealed = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let error = size_of_received(unsealed.expect("memory")).expect_err("not sealed");
        assert!(error.to_string().ends_with("it could shrink"), "{error}");
        let (reader, _writer) = io::pipe().expect("a pipe");
        let error = size_of_received(reader).expect_err("no file");
        assert!(error.to_string().contains("it has no seals"), "{error}");
    }

    #[test]
    fn errors_name_the_remedy() {
        let error = SegmentError::system(4096, "memfd_create", Errno::MFILE);
        assert!(
            error.to_string().starts_with("shared memory of 4096 bytes: memfd_create: "),
            "{error}"
        );
        assert!(error.to_string().ends_with("(`ulimit -n`)"), "{error}");
    }
}
