/* Prints the layout of nccl.h's structs, and its constants. */
#include <nccl.h>
#include <stddef.h>
#include <stdio.h>

#define STRUCT(type) \
  printf("sizeof %s %zu\n", #type, sizeof(type)), printf("alignof %s %zu\n", #type, _Alignof(type))
#define FIELD(type, field) printf("offsetof %s.%s %zu\n", #type, #field, offsetof(type, field))
#define CONSTANT(name) printf("%s %lld\n", #name, (long long)(name))
#define SINCE(major, minor) (NCCL_VERSION_CODE >= NCCL_VERSION(major, minor, 0))

int main(void) {
  STRUCT(ncclUniqueId), FIELD(ncclUniqueId, internal);
  STRUCT(ncclConfig_t);
  FIELD(ncclConfig_t, size), FIELD(ncclConfig_t, magic), FIELD(ncclConfig_t, version);
  FIELD(ncclConfig_t, blocking), FIELD(ncclConfig_t, cgaClusterSize), FIELD(ncclConfig_t, minCTAs);
  FIELD(ncclConfig_t, maxCTAs), FIELD(ncclConfig_t, netName), FIELD(ncclConfig_t, splitShare);
  FIELD(ncclConfig_t, trafficClass), FIELD(ncclConfig_t, commName), FIELD(ncclConfig_t, collnetEnable);
  FIELD(ncclConfig_t, CTAPolicy), FIELD(ncclConfig_t, shrinkShare), FIELD(ncclConfig_t, nvlsCTAs);
  STRUCT(ncclSimInfo_t);
  FIELD(ncclSimInfo_t, size), FIELD(ncclSimInfo_t, magic), FIELD(ncclSimInfo_t, version);
  FIELD(ncclSimInfo_t, estimatedTime);
#if SINCE(2, 28)
  FIELD(ncclConfig_t, nChannelsPerNetPeer), FIELD(ncclConfig_t, nvlinkCentricSched);
#endif
#if SINCE(2, 29)
  FIELD(ncclConfig_t, graphUsageMode), FIELD(ncclConfig_t, numRmaCtx);
  STRUCT(ncclWaitSignalDesc_t);
  FIELD(ncclWaitSignalDesc_t, opCnt), FIELD(ncclWaitSignalDesc_t, peer);
  FIELD(ncclWaitSignalDesc_t, sigIdx), FIELD(ncclWaitSignalDesc_t, ctx);
  STRUCT(ncclCommMemStat_t);
  CONSTANT(ncclStatGpuMemSuspend), CONSTANT(ncclStatGpuMemSuspended), CONSTANT(ncclStatGpuMemPersist);
  CONSTANT(ncclStatGpuMemTotal), CONSTANT(NCCL_SUSPEND_MEM);
#endif
#if SINCE(2, 32)
  FIELD(ncclConfig_t, maxP2pPeers), FIELD(ncclConfig_t, graphStreamOrdering);
  FIELD(ncclConfig_t, launchOrderImplicit), FIELD(ncclConfig_t, numRmaSig), FIELD(ncclConfig_t, rmaEagerInit);
  FIELD(ncclConfig_t, hostCftMode), FIELD(ncclConfig_t, nvlsHostMode);
  STRUCT(ncclCollConfig_t);
  FIELD(ncclCollConfig_t, size), FIELD(ncclCollConfig_t, magic), FIELD(ncclCollConfig_t, version);
  FIELD(ncclCollConfig_t, ext), FIELD(ncclCollConfig_t, minCTAs), FIELD(ncclCollConfig_t, maxCTAs);
  FIELD(ncclCollConfig_t, nvlsCTAs), FIELD(ncclCollConfig_t, cgaClusterSize), FIELD(ncclCollConfig_t, algSelection);
  FIELD(ncclCollConfig_t, forceAlgSelection), FIELD(ncclCollConfig_t, CTAPolicy);
  FIELD(ncclCollConfig_t, userProfilerTag), FIELD(ncclCollConfig_t, launchCompletionEvent);
  STRUCT(ncclEncryptionConfig_t);
  FIELD(ncclEncryptionConfig_t, size), FIELD(ncclEncryptionConfig_t, magic), FIELD(ncclEncryptionConfig_t, version);
  FIELD(ncclEncryptionConfig_t, mode), FIELD(ncclEncryptionConfig_t, psk);
  STRUCT(ncclConfigExt_t);
  CONSTANT(NCCL_ENCRYPTION_MODE_NONE), CONSTANT(NCCL_ENCRYPTION_MODE_PSK);
  CONSTANT(NCCL_WIN_GIN_ONLY), CONSTANT(NCCL_WIN_CFT_COUNTED);
  CONSTANT(ncclTimeout), CONSTANT(ncclNumResults);
#endif
  STRUCT(ncclResult_t), STRUCT(ncclDataType_t), STRUCT(ncclRedOp_t), STRUCT(ncclScalarResidence_t), STRUCT(ncclComm_t);
  CONSTANT(ncclSuccess), CONSTANT(ncclUnhandledCudaError), CONSTANT(ncclSystemError), CONSTANT(ncclInternalError);
  CONSTANT(ncclInvalidArgument), CONSTANT(ncclInvalidUsage), CONSTANT(ncclRemoteError), CONSTANT(ncclInProgress);
  CONSTANT(ncclInt8), CONSTANT(ncclChar), CONSTANT(ncclUint8), CONSTANT(ncclInt32), CONSTANT(ncclInt);
  CONSTANT(ncclUint32), CONSTANT(ncclInt64), CONSTANT(ncclUint64), CONSTANT(ncclFloat16), CONSTANT(ncclHalf);
  CONSTANT(ncclFloat32), CONSTANT(ncclFloat), CONSTANT(ncclFloat64), CONSTANT(ncclDouble), CONSTANT(ncclBfloat16);
  CONSTANT(ncclFloat8e4m3), CONSTANT(ncclFloat8e5m2), CONSTANT(ncclNumTypes);
  CONSTANT(ncclSum), CONSTANT(ncclProd), CONSTANT(ncclMax), CONSTANT(ncclMin), CONSTANT(ncclAvg), CONSTANT(ncclNumOps);
  CONSTANT(ncclMaxRedOp), CONSTANT(ncclScalarDevice), CONSTANT(ncclScalarHostImmediate);
  CONSTANT(NCCL_UNIQUE_ID_BYTES), CONSTANT(NCCL_CONFIG_UNDEF_INT), CONSTANT(NCCL_SPLIT_NOCOLOR);
  CONSTANT(NCCL_VERSION(2, 8, 4)), CONSTANT(NCCL_VERSION(2, 30, 7));
#ifdef NCCL_API_MAGIC
  CONSTANT(NCCL_API_MAGIC);
#endif
  CONSTANT(NCCL_WIN_DEFAULT), CONSTANT(NCCL_WIN_COLL_SYMMETRIC);
  CONSTANT(NCCL_CTA_POLICY_DEFAULT), CONSTANT(NCCL_CTA_POLICY_EFFICIENCY);
  CONSTANT(NCCL_SHRINK_DEFAULT), CONSTANT(NCCL_SHRINK_ABORT);
  return 0;
}
