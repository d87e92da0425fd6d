//! What the ranks tell each other, and the reader, about where they run.

use std::fs;

use annulus::{Communicator, ReduceOp};
use annulus_transports::host::HostId;

use super::Failure;

/// Where one rank runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) pid: u32,
    pub(super) host: String,
    /// Tells hosts apart, even of the same name.
    host_id: [u8; 16],
    /// The processor's name.
    pub(super) cpu: String,
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryUse {
    pub(super) resident: u64,
    pub(super) peak: u64,
}

const NAME: usize = 64;
const RECORD: usize = 4 + 16 + NAME + NAME;

/// Every rank's place. All ranks call it.
pub(super) fn places(comm: &Communicator) -> Result<Vec<Place>, Failure> {
    let mut records = vec![0_u8; RECORD * comm.world_size()];
    comm.all_gather_into(&Place::own().to_record(), &mut records)?;
    Ok(records.chunks_exact(RECORD).map(Place::from_record).collect())
}

/// Whether all ranks share one host.
pub(super) fn one_host(places: &[Place]) -> bool {
    places.iter().all(|place| place.host_id == places[0].host_id)
}

/// How many ranks share `rank`'s host, itself included.
pub(super) fn neighbours(places: &[Place], rank: usize) -> usize {
    places.iter().filter(|place| place.host_id == places[rank].host_id).count()
}

/// Fails on every rank if one of their hosts has less memory than its ranks together need, in bytes: better than to be
/// killed for it. All ranks call it, and look before any of them goes on.
pub(super) fn ensure_memory(comm: &Communicator, needed: u64) -> Result<(), Failure> {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available =
        kibibytes(&info, "MemAvailable:").map_or(u64::MAX, |kibibytes| kibibytes * 1024);
    let mut lacking = [needed.saturating_sub(available)];
    comm.all_reduce(&mut lacking, ReduceOp::Max)?;
    match lacking {
        [0] => Ok(()),
        [lacking] => Err(Failure::Memory { needed, lacking }),
    }
}

/// The memory of every rank's process. All ranks call it.
pub(super) fn memory(comm: &Communicator) -> Result<Vec<MemoryUse>, Failure> {
    let mut all = vec![0_u64; 2 * comm.world_size()];
    let own = MemoryUse::own();
    comm.all_gather_into(&[own.resident, own.peak], &mut all)?;
    Ok(all.chunks_exact(2).map(|pair| MemoryUse { resident: pair[0], peak: pair[1] }).collect())
}

impl Place {
    fn own() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let host_id = HostId::current().map_or([0; 16], HostId::to_bytes);
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |line: &str| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == "model name").then(|| value.trim().to_owned())
        };
        let cpu = info.lines().find_map(field).unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        Self { pid: std::process::id(), host, host_id, cpu }
    }

    fn to_record(&self) -> [u8; RECORD] {
        let mut record = [0; RECORD];
        record[..4].copy_from_slice(&self.pid.to_le_bytes());
        record[4..20].copy_from_slice(&self.host_id);
        for (text, at) in [(&self.host, 20), (&self.cpu, 20 + NAME)] {
            let text = &text.as_bytes()[..text.len().min(NAME)];
            record[at..at + text.len()].copy_from_slice(text);
        }
        record
    }

    fn from_record(record: &[u8]) -> Self {
        let text = |at: usize| {
            let bytes = &record[at..at + NAME];
            let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(NAME);
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        Self {
            pid: u32::from_le_bytes(record[..4].try_into().expect("four bytes")),
            host_id: record[4..20].try_into().expect("sixteen bytes"),
            host: text(20),
            cpu: text(20 + NAME),
        }
    }
}

impl MemoryUse {
    fn own() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let bytes = |field| kibibytes(&status, field).unwrap_or(0) * 1024;
        Self { resident: bytes("VmRSS:"), peak: bytes("VmHWM:") }
    }
}

/// A line of /proc/meminfo and its like.
fn kibibytes(info: &str, field: &str) -> Option<u64> {
    let rest = info.lines().find_map(|line| line.strip_prefix(field))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_travel() {
        let place = Place::own();
        assert_eq!(Place::from_record(&place.to_record()), place);
        let long = Place { host: "ä".repeat(NAME), ..place };
        assert!(Place::from_record(&long.to_record()).host.starts_with("ää"));
    }

    #[test]
    fn a_process_has_memory() {
        let own = MemoryUse::own();
        assert!(own.resident > 0 && own.peak >= own.resident / 2);
    }
}
