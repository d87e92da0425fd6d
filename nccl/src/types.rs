//! The structs of `nccl.h`.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;

/// `ncclUniqueId`, which travels by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueId {
    /// The bytes.
    pub(crate) internal: [c_char; 128],
}

impl UniqueId {
    pub(crate) fn of(bytes: [u8; 128]) -> Self {
        Self { internal: bytes.map(|byte| byte as c_char) }
    }

    pub(crate) fn bytes(&self) -> [u8; 128] {
        self.internal.map(|byte| byte as u8)
    }
}

/// `ncclConfig_t` of 2.32: callers of other versions have a part of it, or more.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Config {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) blocking: c_int,
    pub(crate) cga_cluster_size: c_int,
    pub(crate) min_ctas: c_int,
    pub(crate) max_ctas: c_int,
    pub(crate) net_name: *const c_char,
    pub(crate) split_share: c_int,
    pub(crate) traffic_class: c_int,
    pub(crate) comm_name: *const c_char,
    pub(crate) collnet_enable: c_int,
    pub(crate) cta_policy: c_int,
    pub(crate) shrink_share: c_int,
    pub(crate) nvls_ctas: c_int,
    pub(crate) n_channels_per_net_peer: c_int,
    pub(crate) nvlink_centric_sched: c_int,
    pub(crate) graph_usage_mode: c_int,
    pub(crate) num_rma_ctx: c_int,
    pub(crate) max_p2p_peers: c_int,
    pub(crate) graph_stream_ordering: c_int,
    pub(crate) launch_order_implicit: c_int,
    pub(crate) num_rma_sig: c_int,
    pub(crate) rma_eager_init: c_int,
    pub(crate) host_cft_mode: c_int,
    pub(crate) nvls_host_mode: c_int,
}

/// `ncclCollConfig_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CollConfig {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) ext: *const c_void,
    pub(crate) min_ctas: c_int,
    pub(crate) max_ctas: c_int,
    pub(crate) nvls_ctas: c_int,
    pub(crate) cga_cluster_size: c_int,
    pub(crate) alg_selection: *const c_char,
    pub(crate) force_alg_selection: c_int,
    pub(crate) cta_policy: c_int,
    pub(crate) user_profiler_tag: u64,
    pub(crate) launch_completion_event: *mut c_void,
}

/// `ncclSimInfo_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SimInfo {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) estimated_time: f32,
}

/// `ncclEncryptionConfig_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct EncryptionConfig {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) mode: c_int,
    pub(crate) psk: *const c_char,
}

/// `ncclWaitSignalDesc_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct WaitSignalDesc {
    pub(crate) op_cnt: c_int,
    pub(crate) peer: c_int,
    pub(crate) sig_idx: c_int,
    pub(crate) ctx: c_int,
}

/// `ncclTeam_t` of `nccl_device.h`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Team {
    pub(crate) n_ranks: c_int,
    pub(crate) rank: c_int,
    pub(crate) stride: c_int,
}

/// `NCCL_API_MAGIC`
pub(crate) const API_MAGIC: c_uint = 0xcafe_beef;

/// The magic of `NCCL_SIM_INFO_INITIALIZER`.
pub(crate) const SIM_INFO_MAGIC: c_uint = 0x7468_5283;

/// Size, offsets and name of each struct as a C program prints them: `sizeof ncclConfig_t 120`,
/// `offsetof ncclConfig_t.blocking 16`. For the test that compares them with `nccl.h`.
#[doc(hidden)]
pub fn layout() -> Vec<String> {
    let mut lines = Vec::new();
    macro_rules! describe {
        ($name:literal, $type:ty, $($c:literal = $field:ident),*) => {
            lines.push(format!("sizeof {} {}", $name, size_of::<$type>()));
            lines.push(format!("alignof {} {}", $name, align_of::<$type>()));
            $(lines.push(format!("offsetof {}.{} {}", $name, $c, offset_of!($type, $field)));)*
        };
    }
    describe!("ncclUniqueId", UniqueId, "internal" = internal);
    describe!(
        "ncclConfig_t",
        Config,
        "size" = size,
        "magic" = magic,
        "version" = version,
        "blocking" = blocking,
        "cgaClusterSize" = cga_cluster_size,
        "minCTAs" = min_ctas,
        "maxCTAs" = max_ctas,
        "netName" = net_name,
        "splitShare" = split_share,
        "trafficClass" = traffic_class,
        "commName" = comm_name,
        "collnetEnable" = collnet_enable,
        "CTAPolicy" = cta_policy,
        "shrinkShare" = shrink_share,
        "nvlsCTAs" = nvls_ctas,
        "nChannelsPerNetPeer" = n_channels_per_net_peer,
        "nvlinkCentricSched" = nvlink_centric_sched,
        "graphUsageMode" = graph_usage_mode,
        "numRmaCtx" = num_rma_ctx,
        "maxP2pPeers" = max_p2p_peers,
        "graphStreamOrdering" = graph_stream_ordering,
        "launchOrderImplicit" = launch_order_implicit,
        "numRmaSig" = num_rma_sig,
        "rmaEagerInit" = rma_eager_init,
        "hostCftMode" = host_cft_mode,
        "nvlsHostMode" = nvls_host_mode
    );
    describe!(
        "ncclCollConfig_t",
        CollConfig,
        "size" = size,
        "magic" = magic,
        "version" = version,
        "ext" = ext,
        "minCTAs" = min_ctas,
        "maxCTAs" = max_ctas,
        "nvlsCTAs" = nvls_ctas,
        "cgaClusterSize" = cga_cluster_size,
        "algSelection" = alg_selection,
        "forceAlgSelection" = force_alg_selection,
        "CTAPolicy" = cta_policy,
        "userProfilerTag" = user_profiler_tag,
        "launchCompletionEvent" = launch_completion_event
    );
    describe!(
        "ncclSimInfo_t",
        SimInfo,
        "size" = size,
        "magic" = magic,
        "version" = version,
        "estimatedTime" = estimated_time
    );
    describe!(
        "ncclEncryptionConfig_t",
        EncryptionConfig,
        "size" = size,
        "magic" = magic,
        "version" = version,
        "mode" = mode,
        "psk" = psk
    );
    describe!(
        "ncclWaitSignalDesc_t",
        WaitSignalDesc,
        "opCnt" = op_cnt,
        "peer" = peer,
        "sigIdx" = sig_idx,
        "ctx" = ctx
    );
    lines
}
