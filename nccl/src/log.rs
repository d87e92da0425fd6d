//! The log of `NCCL_DEBUG`, in the form that scripts look for.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use annulus::{Collective, CollectiveKind, Communicator};

use crate::communicator::Live;
use crate::environment;

/// What a line is about. `NCCL_DEBUG_SUBSYS` chooses among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subsystem {
    Init,
    Coll,
    Env,
    Tuning,
}

impl Subsystem {
    const NAMES: [(&'static str, Self); 4] =
        [("INIT", Self::Init), ("COLL", Self::Coll), ("ENV", Self::Env), ("TUNING", Self::Tuning)];

    /// What is logged at `INFO` unless `NCCL_DEBUG_SUBSYS` says otherwise: all but a line for each call.
    const DEFAULT: u8 = Self::Init.bit() | Self::Env.bit() | Self::Tuning.bit();

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

const NONE: u8 = 0;
const VERSION: u8 = 1;
const WARN: u8 = 2;
const INFO: u8 = 3;
const UNREAD: u8 = u8::MAX;

static LEVEL: AtomicU8 = AtomicU8::new(UNREAD);
static SUBSYSTEMS: AtomicU8 = AtomicU8::new(0);
static FILE: Mutex<Option<File>> = Mutex::new(None);

/// Whether lines of `subsystem` are logged.
#[inline]
pub(crate) fn wants(subsystem: Subsystem) -> bool {
    let mut level = LEVEL.load(Ordering::Relaxed);
    if level == UNREAD {
        level = read_environment();
    }
    level >= INFO && SUBSYSTEMS.load(Ordering::Relaxed) & subsystem.bit() != 0
}

/// Whether no call is logged, whatever becomes of it.
#[inline]
pub(crate) fn is_silent() -> bool {
    LEVEL.load(Ordering::Relaxed) == NONE
}

/// Logs at `INFO`.
pub(crate) fn info(subsystem: Subsystem, text: &str) {
    if wants(subsystem) {
        write("INFO", text);
    }
}

/// Logs at `WARN`.
pub(crate) fn warn(text: &str) {
    let level = LEVEL.load(Ordering::Relaxed);
    if (if level == UNREAD { read_environment() } else { level }) >= WARN {
        write("WARN", text);
    }
}

/// Takes what the library itself has to say, unless the program has a log of its own.
pub(crate) fn take_over() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if log::set_logger(&Library).is_ok() {
            log::set_max_level(log::LevelFilter::Info);
        }
    });
}

/// The library's own log.
struct Library;

impl log::Log for Library {
    fn enabled(&self, _metadata: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let text = record.args().to_string();
        if record.level() <= log::Level::Warn { warn(&text) } else { info(Subsystem::Init, &text) }
    }

    fn flush(&self) {}
}

/// `ncclResetDebugInit`: the variables are read again.
pub(crate) fn reset() {
    LEVEL.store(UNREAD, Ordering::Relaxed);
}

#[cold]
fn read_environment() -> u8 {
    let level = environment::get("NCCL_DEBUG").unwrap_or_default().trim().to_ascii_uppercase();
    let level = match level.as_str() {
        "VERSION" => VERSION,
        "WARN" => WARN,
        "INFO" | "ABORT" | "TRACE" => INFO,
        _ => NONE,
    };
    let subsystems = environment::get("NCCL_DEBUG_SUBSYS");
    SUBSYSTEMS.store(subsystems.as_deref().map_or(Subsystem::DEFAULT, mask), Ordering::Relaxed);
    let file = environment::get("NCCL_DEBUG_FILE").filter(|_| level > NONE);
    *file_lock() = file.and_then(|name| {
        let name = file_name(&name, &host(), std::process::id());
        OpenOptions::new().create(true).append(true).open(name).ok()
    });
    LEVEL.store(level, Ordering::Relaxed);
    level
}

/// The bits of a list of subsystems; `^` before the list inverts it.
fn mask(list: &str) -> u8 {
    let list = list.trim();
    let (inverted, list) = match list.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, list),
    };
    let bit = |name: &str| {
        if name.trim().eq_ignore_ascii_case("ALL") {
            return u8::MAX;
        }
        let known =
            Subsystem::NAMES.iter().find(|(known, _)| name.trim().eq_ignore_ascii_case(known));
        known.map_or(0, |(_, subsystem)| subsystem.bit())
    };
    let mask = list.split(',').fold(0, |mask, name| mask | bit(name));
    if inverted { !mask } else { mask }
}

/// `%h` is the host, `%p` the process.
fn file_name(pattern: &str, host: &str, pid: u32) -> String {
    pattern.replace("%h", host).replace("%p", &pid.to_string())
}

fn write(level: &str, text: &str) {
    // SAFETY: it has no preconditions.
    let thread = unsafe { libc::gettid() };
    let line = format!("{}:{}:{thread} [0] NCCL {level} {text}\n", host(), std::process::id());
    // A log that cannot be written is no reason to fail.
    let _ = match &mut *file_lock() {
        Some(file) => file.write_all(line.as_bytes()),
        None => io::stdout().lock().write_all(line.as_bytes()),
    };
}

fn file_lock() -> MutexGuard<'static, Option<File>> {
    FILE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The host's name up to the first dot.
fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().split('.').next().unwrap_or_default().to_owned()
}

/// Says that `live` has joined, and how it reaches its peers.
pub(crate) fn joined(live: &Live, comm: &Communicator, how: &str) {
    let (level, rank, world) = (LEVEL.load(Ordering::Relaxed), live.rank, live.world);
    let level = if level == UNREAD { read_environment() } else { level };
    if rank == 0 && level >= VERSION {
        write("INFO", crate::VERSION_TEXT);
    }
    if !wants(Subsystem::Init) {
        return;
    }
    let name = live.options.name.as_deref().unwrap_or("unnamed");
    info(
        Subsystem::Init,
        &format!(
            "{how} comm {:#x} rank {rank} nranks {world} cudaDev {} nvmlDev {} commName {name} - Init COMPLETE",
            live.handle.0, live.device, live.device
        ),
    );
    // Its neighbours, if there are too many to name all.
    let peers: Vec<_> = (0..world)
        .filter(|&peer| peer != rank)
        .filter(|&peer| world <= 16 || peer == (rank + 1) % world || rank == (peer + 1) % world)
        .collect();
    for peer in peers {
        let via = match comm.transport(peer) {
            "proc" => "P2P/direct pointer",
            "shm" => "SHM/direct/direct",
            "tcp" => "NET/Socket/0",
            other => other,
        };
        info(
            Subsystem::Init,
            &format!("Channel 00/0 : {rank}[{}] -> {peer} via {via}", live.device),
        );
    }
}

/// Logs `call`, and, the first time that its size comes, what was chosen for it.
#[cold]
pub(crate) fn called(
    live: &Live,
    comm: &Communicator,
    call: &Collective,
    addresses: (usize, usize),
) {
    let name = call_name(call.kind());
    if wants(Subsystem::Coll) {
        let (send, receive) = addresses;
        let text = format!(
            "{name}: sendbuff {send:#x} recvbuff {receive:#x} count {} datatype {} op {} root {} comm {:#x} [nranks={}]",
            call.count(),
            call.dtype() as u8,
            call.op().map_or(0, |op| op as u8),
            call.root().unwrap_or(0),
            live.handle.0,
            live.world,
        );
        info(Subsystem::Coll, &text);
    }
    if wants(Subsystem::Tuning) && call.count() > 0 && live.first_of_its_size(call) {
        let choice = comm.explain(call).choice;
        let text = format!(
            "{name}: {} Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{0..{}}}",
            call.bytes(),
            choice.algorithm.name().to_uppercase(),
            match choice.protocol {
                annulus_plan::algorithms::Protocol::Simple => "SIMPLE",
                annulus_plan::algorithms::Protocol::LowLatency => "LL",
            },
            choice.channels - 1,
        );
        info(Subsystem::Tuning, &text);
    }
}

fn call_name(kind: CollectiveKind) -> &'static str {
    match kind {
        CollectiveKind::AllReduce => "AllReduce",
        CollectiveKind::Reduce => "Reduce",
        CollectiveKind::Broadcast => "Broadcast",
        CollectiveKind::AllGather => "AllGather",
        CollectiveKind::ReduceScatter => "ReduceScatter",
        CollectiveKind::AllToAll => "AlltoAll",
        CollectiveKind::Gather => "Gather",
        CollectiveKind::Scatter => "Scatter",
        other => other.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsystems_are_chosen_by_name() {
        assert_eq!(mask("INIT,coll"), Subsystem::Init.bit() | Subsystem::Coll.bit());
        assert_eq!(mask("^COLL") & 15, 15 & !Subsystem::Coll.bit());
        assert_eq!(mask("ALL"), u8::MAX);
        assert_eq!(mask("NET,P2P"), 0);
    }

    #[test]
    fn file_names_have_places_for_host_and_process() {
        assert_eq!(file_name("/tmp/%h.%p.log", "node0", 7), "/tmp/node0.7.log");
    }
}
