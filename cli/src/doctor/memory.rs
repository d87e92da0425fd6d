//! Memory, its limits, and whether ranks can share it.

use std::fs;
use std::path::Path;

use annulus::{Allocation, Communicator, Config, Error};
use rustix::process::{Resource, getrlimit};

use super::Finding;
use crate::size::display as size;

pub(super) fn examine() -> Vec<Finding> {
    let mut findings = vec![available(), shared(), huge_pages(), device_shm(), peer_reads()];
    findings.extend([locked(), descriptors()]);
    findings
}

fn available() -> Finding {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let (total, free) = (field(&info, "MemTotal:"), field(&info, "MemAvailable:"));
    let (Some(total), Some(free)) = (total, free) else {
        return Finding::note("memory", "/proc/meminfo cannot be read");
    };
    let limit = group_limit().filter(|limit| *limit < total);
    let group = match limit {
        Some(limit) => format!(", a control group's limit of {}", size(limit)),
        None => String::new(),
    };
    let found = format!("{} of {} available{group}", size(free), size(total));
    if free.min(limit.unwrap_or(u64::MAX)) < 256 << 20 {
        return Finding::note("memory", found)
            .with_remedy("large buffers may get a rank killed: free some, or raise the limit");
    }
    Finding::ok("memory", found)
}

/// A line of /proc/meminfo and its like, in bytes.
fn field(info: &str, name: &str) -> Option<u64> {
    let rest = info.lines().find_map(|line| line.strip_prefix(name))?;
    Some(rest.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// The least memory that this process's control groups allow.
fn group_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let root = Path::new("/sys/fs/cgroup");
    let limits = Path::new(own).ancestors().filter_map(|group| {
        let group = group.strip_prefix("/").unwrap_or(group);
        let text = fs::read_to_string(root.join(group).join("memory.max")).ok()?;
        text.trim().parse().ok()
    });
    limits.min()
}

fn shared() -> Finding {
    let remedy = "ranks of this host cannot share memory: use ANNULUS_TRANSPORT=tcp, or allow memfd_create and \
                  mmap (seccomp, memory limit)";
    let mut memory = match allocate() {
        Ok(memory) => memory,
        Err(error) => return Finding::problem("shared memory", error.to_string(), remedy),
    };
    let text = b"annulus";
    memory[..text.len()].copy_from_slice(text);
    if memory.starts_with(text) {
        Finding::ok("shared memory", "anonymous files (memfd) can be made and mapped")
    } else {
        Finding::problem("shared memory", "what was written to a memfd is not there", remedy)
    }
}

/// Memory as ranks share it: a few huge pages.
fn allocate() -> Result<Allocation<u8>, Error> {
    let alone = Communicator::local_with(1, &Config::default())?;
    alone[0].alloc(8 << 20)
}

fn huge_pages() -> Finding {
    let subject = "huge pages";
    let setting = |file: &str| {
        let path = Path::new("/sys/kernel/mm/transparent_hugepage").join(file);
        chosen(&fs::read_to_string(path).unwrap_or_default()).unwrap_or("absent").to_owned()
    };
    let settings =
        format!("enabled={}, shmem_enabled={}", setting("enabled"), setting("shmem_enabled"));
    let Ok(mut memory) = allocate() else {
        return Finding::note(subject, format!("not tried ({settings})"));
    };
    memory.fill(1);
    let mapped = fs::read_to_string("/proc/self/smaps")
        .map_or(0, |maps| maps.lines().filter_map(|line| field(line, "ShmemPmdMapped:")).sum());
    if mapped > 0 {
        return Finding::ok(subject, format!("shared memory is on huge pages ({settings})"));
    }
    Finding::note(subject, format!("shared memory is on small pages ({settings})")).with_remedy(
        "large calls are a little slower; Linux 6.1 or later with transparent huge pages collapses them",
    )
}

/// The word in brackets of `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

fn device_shm() -> Finding {
    let subject = "/dev/shm";
    match rustix::fs::statvfs("/dev/shm") {
        Ok(stat) => {
            let (free, total) = (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize);
            let found = format!(
                "{} of {} free; not needed: ranks share anonymous files",
                size(free),
                size(total)
            );
            Finding::ok(subject, found)
        }
        Err(error) => {
            Finding::ok(subject, format!("{error}; not needed: ranks share anonymous files"))
        }
    }
}

fn peer_reads() -> Finding {
    let subject = "process_vm_readv";
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .map_or_else(|_| "no Yama".to_owned(), |scope| format!("ptrace_scope={}", scope.trim()));
    let found = match read_of_parent() {
        Some(libc::EFAULT) => format!("allowed between processes of a user ({scope})"),
        Some(libc::EPERM) => format!("not allowed between processes ({scope})"),
        Some(libc::ENOSYS) => "not there, or forbidden by seccomp".to_owned(),
        _ => format!("not known ({scope})"),
    };
    Finding::ok(subject, format!("{found}; not needed"))
}

/// The error of reading nothing sensible from the parent process: permission is checked first.
fn read_of_parent() -> Option<i32> {
    let parent = rustix::process::getppid()?;
    let mut byte = 0_u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
    // SAFETY: writes at most the one byte; the remote address is checked by the kernel.
    let got = unsafe { libc::process_vm_readv(parent.as_raw_pid(), &here, 1, &there, 1, 0) };
    if got < 0 { std::io::Error::last_os_error().raw_os_error() } else { None }
}

fn locked() -> Finding {
    let limit = getrlimit(Resource::Memlock).current;
    let text = limit.map_or_else(|| "unlimited".to_owned(), size);
    let finding = Finding::ok("locked memory", format!("{text} (ulimit -l)"));
    match limit {
        Some(limit) if limit < 64 << 20 => finding.with_remedy(
            "shared memory and TCP lock none; InfiniBand would: ulimit -l unlimited there",
        ),
        _ => finding,
    }
}

fn descriptors() -> Finding {
    let limit = getrlimit(Resource::Nofile).current;
    let text = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let found = format!("{text} (ulimit -n)");
    match limit {
        Some(limit) if limit < 64 => {
            Finding::problem("open files", found, "raise it: ulimit -n 4096")
        }
        Some(limit) if limit < 1024 => Finding::note("open files", found).with_remedy(
            "each peer takes a few: raise it for more than some dozen ranks (ulimit -n 4096)",
        ),
        _ => Finding::ok("open files", found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_bytes() {
        let info = "MemTotal:        2048 kB\nMemAvailable:    1024 kB\n";
        assert_eq!(field(info, "MemAvailable:"), Some(1 << 20));
        assert_eq!(field(info, "Swap:"), None);
        assert_eq!(field("MemTotal: many", "MemTotal:"), None);
    }

    #[test]
    fn the_chosen_word_is_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen("madvise"), None);
    }
}
