//! NCCL's variables: what each does here.

use std::collections::HashMap;
use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};
use std::{env, fs};

use crate::config::Options;
use crate::log;
use crate::result::{Code, Failure, Outcome};
use crate::types::{API_MAGIC, EncryptionConfig};

/// A variable of NCCL.
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) effect: Effect,
}

/// What a variable does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// What it says.
    Honoured(&'static str),
    /// Nothing, because of this.
    None(&'static str),
}

use Effect::{Honoured, None as Nothing};

const NO_INFINIBAND: &str = "there is no InfiniBand transport yet";
const NO_DEVICE: &str = "no device code runs on host memory";
const NO_PLUGINS: &str = "plugins are not loaded";
const NO_TOPOLOGY_FILE: &str = "the topology of host memory is measured, not read";

/// Those that people lean on.
pub(crate) const VARIABLES: &[Variable] = &[
    Variable {
        name: "NCCL_ALGO",
        effect: Honoured("which algorithms may be chosen; names of Annulus and NCCL"),
    },
    Variable { name: "NCCL_BUFFSIZE", effect: Honoured("an eighth of it is the size of a chunk") },
    Variable {
        name: "NCCL_COMM_BLOCKING",
        effect: Honoured("0 or 1, over what a configuration says"),
    },
    Variable {
        name: "NCCL_COMM_ID",
        effect: Honoured("host:port at which rank 0 listens; ids need not be passed on"),
    },
    Variable {
        name: "NCCL_CONF_FILE",
        effect: Honoured("a file of NAME=value lines, in place of ~/.nccl.conf"),
    },
    Variable { name: "NCCL_DEBUG", effect: Honoured("VERSION, WARN, INFO or TRACE") },
    Variable {
        name: "NCCL_DEBUG_FILE",
        effect: Honoured("where the log goes; %h is the host, %p the process"),
    },
    Variable { name: "NCCL_DEBUG_SUBSYS", effect: Honoured("subsystems to log, ^ excludes") },
    Variable { name: "NCCL_MAX_CTAS", effect: Honoured("most channels") },
    Variable { name: "NCCL_MAX_NCHANNELS", effect: Honoured("most channels") },
    Variable { name: "NCCL_MIN_CTAS", effect: Honoured("fewest channels") },
    Variable { name: "NCCL_MIN_NCHANNELS", effect: Honoured("fewest channels") },
    Variable { name: "NCCL_PROTO", effect: Honoured("LL and Simple; LL128 is not there") },
    Variable { name: "NCCL_SHM_DISABLE", effect: Honoured("1: TCP in place of shared memory") },
    Variable {
        name: "NCCL_SOCKET_IFNAME",
        effect: Honoured("network interfaces: prefixes, =exact, ^not"),
    },
    Variable {
        name: "NCCL_CHECK_MODE",
        effect: Nothing("arguments are always checked, and so is what ranks call"),
    },
    Variable {
        name: "NCCL_CHECK_POINTERS",
        effect: Nothing("pointers are always checked where a driver is loaded"),
    },
    Variable { name: "NCCL_CROSS_NIC", effect: Nothing(NO_INFINIBAND) },
    Variable { name: "NCCL_CUMEM_ENABLE", effect: Nothing(NO_DEVICE) },
    Variable { name: "NCCL_GRAPH_DUMP_FILE", effect: Nothing(NO_TOPOLOGY_FILE) },
    Variable { name: "NCCL_GRAPH_FILE", effect: Nothing(NO_TOPOLOGY_FILE) },
    Variable { name: "NCCL_GRAPH_MIXING_SUPPORT", effect: Nothing(NO_DEVICE) },
    Variable { name: "NCCL_HOSTID", effect: Nothing("a host is told by what the kernel says") },
    Variable { name: "NCCL_IB_DISABLE", effect: Nothing(NO_INFINIBAND) },
    Variable { name: "NCCL_IB_GID_INDEX", effect: Nothing(NO_INFINIBAND) },
    Variable { name: "NCCL_IB_HCA", effect: Nothing(NO_INFINIBAND) },
    Variable { name: "NCCL_IB_QPS_PER_CONNECTION", effect: Nothing(NO_INFINIBAND) },
    Variable { name: "NCCL_IB_RETRY_CNT", effect: Nothing(NO_INFINIBAND) },
    Variable { name: "NCCL_IB_SL", effect: Nothing(NO_INFINIBAND) },
    Variable { name: "NCCL_IB_TC", effect: Nothing(NO_INFINIBAND) },
    Variable { name: "NCCL_IB_TIMEOUT", effect: Nothing(NO_INFINIBAND) },
    Variable { name: "NCCL_IGNORE_NET_MISMATCH", effect: Nothing(NO_INFINIBAND) },
    Variable { name: "NCCL_LAUNCH_MODE", effect: Nothing(NO_DEVICE) },
    Variable {
        name: "NCCL_LAUNCH_ORDER_IMPLICIT",
        effect: Nothing("communicators never wait for each other"),
    },
    Variable {
        name: "NCCL_MULTI_RANK_GPU_ENABLE",
        effect: Nothing("several ranks of a device are always allowed"),
    },
    Variable { name: "NCCL_NET", effect: Nothing("TCP is the only network") },
    Variable { name: "NCCL_NET_GDR_LEVEL", effect: Nothing(NO_INFINIBAND) },
    Variable { name: "NCCL_NET_PLUGIN", effect: Nothing(NO_PLUGINS) },
    Variable { name: "NCCL_NTHREADS", effect: Nothing(NO_DEVICE) },
    Variable { name: "NCCL_NVLS_ENABLE", effect: Nothing(NO_DEVICE) },
    Variable { name: "NCCL_P2P_DISABLE", effect: Nothing(NO_DEVICE) },
    Variable { name: "NCCL_P2P_LEVEL", effect: Nothing(NO_DEVICE) },
    Variable { name: "NCCL_PROFILER_PLUGIN", effect: Nothing(NO_PLUGINS) },
    Variable { name: "NCCL_RAS_ADDR", effect: Nothing("`annulus status` is in its place") },
    Variable { name: "NCCL_RAS_ENABLE", effect: Nothing("`annulus status` is in its place") },
    Variable { name: "NCCL_SOCKET_FAMILY", effect: Nothing("all addresses are tried") },
    Variable { name: "NCCL_TOPO_DUMP_FILE", effect: Nothing(NO_TOPOLOGY_FILE) },
    Variable { name: "NCCL_TOPO_FILE", effect: Nothing(NO_TOPOLOGY_FILE) },
    Variable { name: "NCCL_TUNER_PLUGIN", effect: Nothing(NO_PLUGINS) },
];

/// The value of a variable: from the environment, else from NCCL's configuration files.
pub(crate) fn get(name: &str) -> Option<String> {
    static FILES: OnceLock<HashMap<String, String>> = OnceLock::new();
    if let Some(value) = env::var_os(name) {
        return Some(value.to_string_lossy().into_owned());
    }
    let files = FILES.get_or_init(|| {
        let own = env::var_os("NCCL_CONF_FILE").map(PathBuf::from);
        let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".nccl.conf"));
        // The user's file counts more than the host's.
        let files = [Some("/etc/nccl.conf".into()), own.or_else(home)];
        let texts = files.into_iter().flatten().filter_map(|file| fs::read_to_string(file).ok());
        texts.flat_map(|text| settings(&text)).collect()
    });
    files.get(name).cloned()
}

/// The settings of a configuration file: `NAME=value` lines, `#` begins a comment.
fn settings(text: &str) -> Vec<(String, String)> {
    text.lines()
        .filter_map(|line| {
            let line = line.split('#').next().unwrap_or_default().trim();
            let (name, value) = line.split_once('=')?;
            Some((name.trim().to_owned(), value.trim().to_owned()))
        })
        .filter(|(name, _)| !name.is_empty())
        .collect()
}

/// What `NCCL_COMM_BLOCKING` says.
pub(crate) fn blocking() -> Result<Option<bool>, Failure> {
    match get("NCCL_COMM_BLOCKING").as_deref().map(str::trim) {
        None | Some("") => Ok(None),
        Some("0") => Ok(Some(false)),
        Some("1") => Ok(Some(true)),
        Some(other) => Err(Failure::usage(format!("NCCL_COMM_BLOCKING={other}: use 0 or 1"))),
    }
}

/// The library's settings for a communicator with these options: the environment counts more.
pub(crate) fn settings_for(options: &Options) -> Result<annulus::Config, Failure> {
    say_once();
    let channels = |bound: Option<c_int>| bound.map(|bound| bound.min(64).to_string());
    let shared_memory_off = get("NCCL_SHM_DISABLE").is_some_and(|value| value.trim() == "1");
    let config = annulus::Config::from_vars(|name| {
        get(name).or_else(|| match name {
            "ANNULUS_ENCRYPT" => encryption_wanted().then(|| "1".to_owned()),
            "ANNULUS_TRANSPORT" => shared_memory_off.then(|| "tcp".to_owned()),
            // Not when another spelling is set.
            "NCCL_MIN_CTAS" if get("NCCL_MIN_NCHANNELS").is_none() => {
                channels(options.min_channels)
            }
            "NCCL_MAX_CTAS" if get("NCCL_MAX_NCHANNELS").is_none() => {
                channels(options.max_channels)
            }
            _ => None,
        })
    });
    let config = config.map_err(|error| Failure::from(annulus::Error::from(error)))?;
    for warning in config.tuning.warnings() {
        log::warn(warning);
    }
    Ok(config)
}

/// Whether `ncclSetEncryption` has asked for it.
static ENCRYPT: AtomicBool = AtomicBool::new(false);

fn encryption_wanted() -> bool {
    ENCRYPT.load(Ordering::Relaxed)
}

/// `ncclSetEncryption`: communicators made from now on encrypt their TCP links, or do not. The key follows from the unique id's secret.
///
/// # Safety
/// `config` is null, or leads to a `size_t` and as many bytes as that says.
pub(crate) unsafe fn set_encryption(config: *const EncryptionConfig) -> Outcome {
    if config.is_null() {
        return Err(Failure::argument("config is NULL"));
    }
    // SAFETY: the caller vouches for the size; it needs no alignment.
    let size = unsafe { config.cast::<usize>().read_unaligned() };
    if size < size_of::<EncryptionConfig>() {
        let text = format!("config: its size is {size}: use NCCL_ENCRYPTION_CONFIG_INITIALIZER");
        return Err(Failure::argument(text));
    }
    // SAFETY: it has as many bytes; any bits are a configuration.
    let config = unsafe { config.read_unaligned() };
    if config.magic != API_MAGIC {
        return Err(Failure::argument(
            "ncclEncryptionConfig_t argument not initialized via NCCL_ENCRYPTION_CONFIG_INITIALIZER",
        ));
    }
    match (config.mode, config.psk.is_null()) {
        (0, _) => ENCRYPT.store(false, Ordering::Relaxed),
        (1, false) => ENCRYPT.store(true, Ordering::Relaxed),
        (1, true) => return Err(Failure::argument("config: mode is PSK (1), but psk is NULL")),
        (mode, _) => {
            let text = format!("config: mode is {mode}, but must be NONE (0) or PSK (1)");
            return Err(Failure::argument(text));
        }
    }
    Ok(Code::Success)
}

/// Logs once per process which of NCCL's variables are set, and which of them do nothing.
fn say_once() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let mut set: Vec<_> = env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
            .filter(|(name, _)| name.starts_with("NCCL_"))
            .collect();
        set.sort_unstable();
        for (name, value) in set {
            let value = value.to_string_lossy();
            match VARIABLES.iter().find(|variable| variable.name == name) {
                Some(Variable { effect: Honoured(_), .. }) => {
                    log::info(
                        log::Subsystem::Env,
                        &format!("{name} set by environment to {value}."),
                    );
                }
                Some(Variable { effect: Nothing(why), .. }) => {
                    log::warn(&format!("{name} is set to {value}, but does nothing: {why}"))
                }
                None => log::warn(&format!(
                    "{name} is set to {value}, but does nothing: Annulus does not know it"
                )),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_files_are_lines_of_settings() {
        let text =
            "# all\nNCCL_DEBUG=WARN\n NCCL_ALGO = ring # why\n\nnonsense\n=empty\nNCCL_PROTO=a=b";
        let expected = [("NCCL_DEBUG", "WARN"), ("NCCL_ALGO", "ring"), ("NCCL_PROTO", "a=b")];
        assert_eq!(settings(text), expected.map(|(name, value)| (name.into(), value.into())));
    }

    #[test]
    fn variables_are_listed_once() {
        for (index, variable) in VARIABLES.iter().enumerate() {
            assert!(VARIABLES[..index].iter().all(|other| other.name != variable.name));
        }
    }
}
