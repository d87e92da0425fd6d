//! `ncclConfig_t`: read by the caller's size and version, checked, completed.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;

use crate::environment;
use crate::result::Failure;
use crate::types::{API_MAGIC, Config};

/// What a communicator was configured to, once defaults and environment are in.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) blocking: bool,
    pub(crate) name: Option<String>,
    /// Bounds on the number of channels, if the caller set them.
    pub(crate) min_channels: Option<c_int>,
    pub(crate) max_channels: Option<c_int>,
}

const UNDEFINED: c_int = c_int::MIN;

/// The configuration of a caller who has set nothing.
const DEFAULTS: Config = Config {
    size: size_of::<Config>(),
    magic: API_MAGIC,
    version: crate::VERSION as c_uint,
    blocking: UNDEFINED,
    cga_cluster_size: UNDEFINED,
    min_ctas: UNDEFINED,
    max_ctas: UNDEFINED,
    net_name: ptr::null(),
    split_share: UNDEFINED,
    traffic_class: UNDEFINED,
    comm_name: ptr::null(),
    collnet_enable: UNDEFINED,
    cta_policy: UNDEFINED,
    shrink_share: UNDEFINED,
    nvls_ctas: UNDEFINED,
    n_channels_per_net_peer: UNDEFINED,
    nvlink_centric_sched: UNDEFINED,
    graph_usage_mode: UNDEFINED,
    num_rma_ctx: UNDEFINED,
    max_p2p_peers: UNDEFINED,
    graph_stream_ordering: UNDEFINED,
    launch_order_implicit: UNDEFINED,
    num_rma_sig: UNDEFINED,
    rma_eager_init: UNDEFINED,
    host_cft_mode: UNDEFINED,
    nvls_host_mode: UNDEFINED,
};

/// The first bytes, which every version has.
const HEADER: usize = 16;

impl Options {
    /// What a caller without a configuration gets.
    pub(crate) fn defaults() -> Result<Self, Failure> {
        Self::of(&DEFAULTS, None)
    }

    /// Reads the caller's configuration; what it leaves open is taken from `parent`, if there is one.
    ///
    /// # Safety
    /// `config` is not null; it leads to a `size_t`, and to as many bytes as that says; its strings are terminated.
    pub(crate) unsafe fn read(
        config: *const Config,
        parent: Option<&Self>,
    ) -> Result<Self, Failure> {
        // SAFETY: the caller vouches for it.
        let config = unsafe { copy(config)? };
        Self::of(&config, parent)
    }

    fn of(config: &Config, parent: Option<&Self>) -> Result<Self, Failure> {
        check(config)?;
        let set = |value: c_int| (value != UNDEFINED).then_some(value);
        let blocking = match (environment::blocking()?, set(config.blocking), parent) {
            (Some(blocking), ..) => blocking,
            (None, Some(blocking), _) => blocking == 1,
            (None, None, Some(parent)) => parent.blocking,
            (None, None, None) => true,
        };
        // SAFETY: whoever read the configuration vouched for its strings.
        let name = unsafe { text(config.comm_name) };
        // SAFETY: as above.
        if let Some(net) = unsafe { text(config.net_name) }
            && !net.eq_ignore_ascii_case("socket")
        {
            return Err(Failure::usage(format!(
                "config: netName is {net:?}, but the only network is \"Socket\" (TCP)"
            )));
        }
        Ok(Self {
            blocking,
            name: name.or_else(|| parent.and_then(|parent| parent.name.clone())),
            min_channels: set(config.min_ctas).or(parent.and_then(|parent| parent.min_channels)),
            max_channels: set(config.max_ctas).or(parent.and_then(|parent| parent.max_channels)),
        })
    }
}

/// As many bytes as the caller says there are, over the defaults. Fields that the caller's version did not
/// have keep the defaults: where they are now, padding may have been then.
///
/// # Safety
/// As for [`Options::read`].
unsafe fn copy(config: *const Config) -> Result<Config, Failure> {
    // SAFETY: the caller vouches for the size; it needs no alignment.
    let size = unsafe { config.cast::<usize>().read_unaligned() };
    if size < HEADER + size_of::<c_int>() {
        return Err(Failure::argument(format!(
            "config: its size is {size}, but even the first version had 24 bytes: use NCCL_CONFIG_INITIALIZER"
        )));
    }
    let mut copied = DEFAULTS;
    // SAFETY: the caller has `size` bytes, and no more are copied than there is room for. Any bits are a
    // `Config`.
    unsafe {
        ptr::copy_nonoverlapping(
            config.cast::<u8>(),
            (&raw mut copied).cast::<u8>(),
            size.min(size_of::<Config>()),
        );
    }
    if copied.magic != API_MAGIC {
        return Err(Failure::argument(format!(
            "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER: its magic is {:#x}",
            copied.magic
        )));
    }
    macro_rules! since {
        ($($version:literal: $($field:ident)*;)*) => {$(
            if copied.version < $version {
                $(copied.$field = DEFAULTS.$field;)*
            }
        )*};
    }
    since! {
        21700: cga_cluster_size min_ctas max_ctas net_name;
        21800: split_share;
        22500: traffic_class;
        22700: comm_name collnet_enable cta_policy shrink_share nvls_ctas;
        22800: n_channels_per_net_peer nvlink_centric_sched;
        22900: graph_usage_mode num_rma_ctx;
        23000: max_p2p_peers;
        23005: graph_stream_ordering;
        23100: launch_order_implicit num_rma_sig rma_eager_init host_cft_mode nvls_host_mode;
    }
    Ok(copied)
}

/// Refuses values that NCCL refuses.
fn check(config: &Config) -> Result<(), Failure> {
    let check = |field: &str, value: c_int, allowed: &str, fits: bool| {
        if value == UNDEFINED || fits {
            return Ok(());
        }
        Err(Failure::argument(format!("config: {field} is {value}, but must be {allowed}")))
    };
    macro_rules! fields {
        ($($name:literal $field:ident $allowed:literal $fits:expr;)*) => {$(
            let fits: fn(c_int) -> bool = $fits;
            check($name, config.$field, $allowed, fits(config.$field))?;
        )*};
    }
    fields! {
        "blocking" blocking "0 or 1" |v| v == 0 || v == 1;
        "cgaClusterSize" cga_cluster_size "0 or more" |v| v >= 0;
        "minCTAs" min_ctas "at least 1" |v| v > 0;
        "maxCTAs" max_ctas "at least 1" |v| v > 0;
        "splitShare" split_share "0 or 1" |v| v == 0 || v == 1;
        "collnetEnable" collnet_enable "0 or 1" |v| v == 0 || v == 1;
        "shrinkShare" shrink_share "0 or 1" |v| v == 0 || v == 1;
        "nvlsCTAs" nvls_ctas "at least 1" |v| v > 0;
        "nChannelsPerNetPeer" n_channels_per_net_peer "1 to 64" |v| (1..=64).contains(&v);
        "nvlinkCentricSched" nvlink_centric_sched "0 or 1" |v| v == 0 || v == 1;
        "graphUsageMode" graph_usage_mode "0, 1 or 2" |v| (0..=2).contains(&v);
        "numRmaCtx" num_rma_ctx "0 or more" |v| v >= 0;
        "maxP2pPeers" max_p2p_peers "at least 1" |v| v > 0;
        "graphStreamOrdering" graph_stream_ordering "0 or 1" |v| v == 0 || v == 1;
    }
    let (least, most) = (config.min_ctas, config.max_ctas);
    if least != UNDEFINED && most != UNDEFINED && least > most {
        return Err(Failure::argument(format!(
            "config: minCTAs is {least}, and maxCTAs is {most}"
        )));
    }
    Ok(())
}

/// # Safety
/// `text` is null or terminated.
pub(crate) unsafe fn text(text: *const c_char) -> Option<String> {
    // SAFETY: the caller vouches for it.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `sizeof(ncclConfig_t)`, first versions that had it.
    const HISTORY: [(usize, c_uint); 9] = [
        (24, 21400),
        (40, 21700),
        (48, 21800),
        (48, 22600),
        (72, 22700),
        (80, 22800),
        (88, 22900),
        (96, 23005),
        (120, 23203),
    ];

    fn bytes(config: &Config) -> Vec<u8> {
        let start = ptr::from_ref(config).cast::<u8>();
        // SAFETY: the struct has no padding.
        unsafe { std::slice::from_raw_parts(start, size_of::<Config>()) }.to_vec()
    }

    /// What [`copy`] makes of the first `size` bytes of `config`, in memory of just that size.
    fn copied(config: &Config, size: usize, version: c_uint) -> Result<Config, Failure> {
        let config = Config { size, version, ..*config };
        let bytes = bytes(&config)[..size].to_vec().into_boxed_slice();
        // SAFETY: it has as many bytes as it says.
        unsafe { copy(bytes.as_ptr().cast()) }
    }

    #[test]
    fn every_version_is_understood() {
        for (size, version) in HISTORY {
            let config = Config { blocking: 0, ..DEFAULTS };
            let copied = copied(&config, size, version).expect("a configuration");
            assert_eq!(copied.blocking, 0);
            assert_eq!(copied.nvls_host_mode, UNDEFINED);
            check(&copied).expect("defaults");
        }
    }

    #[test]
    fn fields_that_were_padding_are_not_believed() {
        let garbage = Config { traffic_class: 77, graph_stream_ordering: 99, ..DEFAULTS };
        assert_eq!(copied(&garbage, 48, 21800).expect("2.18").traffic_class, UNDEFINED);
        assert_eq!(copied(&garbage, 48, 22600).expect("2.26").traffic_class, 77);
        assert_eq!(copied(&garbage, 96, 23003).expect("2.30.3").graph_stream_ordering, UNDEFINED);
        assert_eq!(copied(&garbage, 96, 23005).expect("2.30.5").graph_stream_ordering, 99);
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        for (size, magic) in [(0, API_MAGIC), (16, API_MAGIC), (120, 0)] {
            let config = Config { size, magic, ..DEFAULTS };
            // SAFETY: the struct is whole.
            let failure = unsafe { copy(&config) }.expect_err("refused");
            assert_eq!(failure.code, crate::result::Code::InvalidArgument);
            assert!(failure.text.contains("NCCL_CONFIG_INITIALIZER"), "{}", failure.text);
        }
    }

    #[test]
    fn values_out_of_range_are_named() {
        let refused = |config: Config| check(&config).expect_err("refused").text;
        assert_eq!(
            refused(Config { blocking: 2, ..DEFAULTS }),
            "config: blocking is 2, but must be 0 or 1"
        );
        assert_eq!(
            refused(Config { min_ctas: 8, max_ctas: 4, ..DEFAULTS }),
            "config: minCTAs is 8, and maxCTAs is 4"
        );
        assert!(refused(Config { n_channels_per_net_peer: 65, ..DEFAULTS }).contains("1 to 64"));
        check(&Config { min_ctas: 4, ..DEFAULTS }).expect("one bound alone is fine");
    }

    #[test]
    fn a_child_inherits_what_its_configuration_leaves_open() {
        let parent = Options {
            blocking: false,
            name: Some("parent".into()),
            min_channels: Some(2),
            max_channels: None,
        };
        let child = Options::of(&Config { max_ctas: 8, ..DEFAULTS }, Some(&parent)).expect("valid");
        assert!(!child.blocking);
        assert_eq!((child.min_channels, child.max_channels), (Some(2), Some(8)));
        assert_eq!(child.name.as_deref(), Some("parent"));
        let net = Config { net_name: c"IB".as_ptr(), ..DEFAULTS };
        assert!(Options::of(&net, None).expect_err("refused").text.contains("Socket"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Any bytes give an answer, and nothing beyond them is read (the block ends where they do).
        #[test]
        fn any_bytes_give_an_answer(fill: Vec<u8>, size in 0..160_usize, version: c_uint, sane: bool) {
            let mut bytes = vec![0xa5_u8; size.max(size_of::<usize>())];
            for (byte, fill) in bytes.iter_mut().zip(&fill) {
                *byte = *fill;
            }
            bytes[..8].copy_from_slice(&size.to_ne_bytes());
            if sane && size >= HEADER {
                bytes[8..12].copy_from_slice(&API_MAGIC.to_ne_bytes());
                bytes[12..16].copy_from_slice(&version.to_ne_bytes());
            }
            let block = bytes.into_boxed_slice();
            // SAFETY: it has as many bytes as it says; strings are not followed.
            let _ = unsafe { copy(block.as_ptr().cast()) }.map(|config| check(&config).is_ok());
        }
    }
}
