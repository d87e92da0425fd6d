/* The host interface of NCCL 2.32 as libnccl.so.2 of Annulus has it, for programs that are built without NCCL's
 * own header. It needs no CUDA: a stream is a pointer here too, and NULL on host memory. */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define NCCL_MAJOR 2
#define NCCL_MINOR 32
#define NCCL_PATCH 3
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE 23203
#define NCCL_VERSION(X, Y, Z) \
  (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))

#ifdef __cplusplus
extern "C" {
#endif

/* The same types as in CUDA's headers, which may be included as well. */
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct ncclParamHandle *ncclParamHandle_t;
#define NCCL_COMM_NULL NULL

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct { char internal[NCCL_UNIQUE_ID_BYTES]; } ncclUniqueId;

typedef enum {
  ncclSuccess = 0, ncclUnhandledCudaError = 1, ncclSystemError = 2, ncclInternalError = 3,
  ncclInvalidArgument = 4, ncclInvalidUsage = 5, ncclRemoteError = 6, ncclInProgress = 7, ncclTimeout = 8,
  ncclNumResults = 9
} ncclResult_t;

typedef enum {
  ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4, ncclNumOps = 5, ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

typedef enum {
  ncclInt8 = 0, ncclChar = 0, ncclUint8 = 1, ncclInt32 = 2, ncclInt = 2, ncclUint32 = 3, ncclInt64 = 4,
  ncclUint64 = 5, ncclFloat16 = 6, ncclHalf = 6, ncclFloat32 = 7, ncclFloat = 7, ncclFloat64 = 8, ncclDouble = 8,
  ncclBfloat16 = 9, ncclFloat8e4m3 = 10, ncclFloat8e5m2 = 11, ncclNumTypes = 12
} ncclDataType_t;

typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;

typedef enum {
  ncclStatGpuMemSuspend = 0, ncclStatGpuMemSuspended = 1, ncclStatGpuMemPersist = 2, ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT -1.0f
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_API_MAGIC 0xcafebeef

#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02
#define NCCL_WIN_GIN_ONLY 0x04
#define NCCL_WIN_CFT_COUNTED 0x08
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02
#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_REVOKE_DEFAULT 0x00
#define NCCL_SUSPEND_MEM 0x01

typedef struct {
  size_t size;
  unsigned int magic, version;
  int blocking, cgaClusterSize, minCTAs, maxCTAs;
  const char *netName;
  int splitShare, trafficClass;
  const char *commName;
  int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs;
  int nChannelsPerNetPeer, nvlinkCentricSched;
  int graphUsageMode, numRmaCtx;
  int maxP2pPeers, graphStreamOrdering;
  int launchOrderImplicit, numRmaSig, rmaEagerInit, hostCftMode, nvlsHostMode;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER \
  { sizeof(ncclConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, \
    INT_MIN, INT_MIN, INT_MIN, INT_MIN, NULL, INT_MIN, INT_MIN, NULL, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, \
    INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN }

typedef struct ncclConfigExt {
  struct ncclConfigExt *next;
  struct { int vendorId, optionId; } key;
  union { int i; const char *s; void *raw; } val;
} ncclConfigExt_t;

typedef struct {
  size_t size;
  unsigned int magic, version;
  ncclConfigExt_t *ext;
  int minCTAs, maxCTAs, nvlsCTAs, cgaClusterSize;
  const char *algSelection;
  int forceAlgSelection, CTAPolicy;
  uint64_t userProfilerTag;
  cudaEvent_t launchCompletionEvent;
} ncclCollConfig_t;

#define NCCL_COLLCONFIG_INITIALIZER \
  { sizeof(ncclCollConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, \
    NULL, INT_MIN, INT_MIN, INT_MIN, INT_MIN, NULL, 1, INT_MIN, 0, NULL }

typedef struct {
  size_t size;
  unsigned int magic, version;
  float estimatedTime; /* microseconds */
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER { sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT }

typedef struct { int opCnt, peer, sigIdx, ctx; } ncclWaitSignalDesc_t;

typedef enum { NCCL_ENCRYPTION_MODE_NONE = 0, NCCL_ENCRYPTION_MODE_PSK = 1 } ncclEncryptionMode_t;

typedef struct {
  size_t size;
  unsigned int magic, version;
  int mode;
  const char *psk;
} ncclEncryptionConfig_t;

#define NCCL_ENCRYPTION_CONFIG_INITIALIZER \
  { sizeof(ncclEncryptionConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NCCL_ENCRYPTION_MODE_NONE, NULL }

/* Each function and its twin for profilers. */
#define NCCL_FUNCTION(type, name, arguments) \
  type name arguments;                       \
  type p##name arguments

#define NCCL_DATA const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype
#define NCCL_PLACE ncclComm_t comm, cudaStream_t stream
#define NCCL_COLLECTIVE(name, ...)                               \
  NCCL_FUNCTION(ncclResult_t, name, (NCCL_DATA, __VA_ARGS__));   \
  NCCL_FUNCTION(ncclResult_t, name##Config, (NCCL_DATA, __VA_ARGS__, const ncclCollConfig_t *config))

NCCL_FUNCTION(ncclResult_t, ncclGetVersion, (int *version));
NCCL_FUNCTION(const char *, ncclGetErrorString, (ncclResult_t result));
NCCL_FUNCTION(const char *, ncclGetLastError, (ncclComm_t comm));
NCCL_FUNCTION(void, ncclResetDebugInit, (void));

NCCL_FUNCTION(ncclResult_t, ncclGetUniqueId, (ncclUniqueId *uniqueId));
NCCL_FUNCTION(ncclResult_t, ncclCommInitRank, (ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank));
NCCL_FUNCTION(ncclResult_t, ncclCommInitRankConfig,
              (ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config));
NCCL_FUNCTION(ncclResult_t, ncclCommInitRankScalable,
              (ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds, ncclConfig_t *config));
NCCL_FUNCTION(ncclResult_t, ncclCommInitAll, (ncclComm_t *comm, int ndev, const int *devlist));
NCCL_FUNCTION(ncclResult_t, ncclCommFinalize, (ncclComm_t comm));
NCCL_FUNCTION(ncclResult_t, ncclCommDestroy, (ncclComm_t comm));
NCCL_FUNCTION(ncclResult_t, ncclCommAbort, (ncclComm_t comm));
NCCL_FUNCTION(ncclResult_t, ncclCommRevoke, (ncclComm_t comm, int revokeFlags));
NCCL_FUNCTION(ncclResult_t, ncclCommSplit,
              (ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config));
NCCL_FUNCTION(ncclResult_t, ncclCommShrink,
              (ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
               ncclConfig_t *config, int shrinkFlags));
NCCL_FUNCTION(ncclResult_t, ncclCommGetUniqueId, (ncclComm_t comm, ncclUniqueId *uniqueId));
NCCL_FUNCTION(ncclResult_t, ncclCommGrow,
              (ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t *newcomm,
               ncclConfig_t *config));

NCCL_FUNCTION(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *asyncError));
NCCL_FUNCTION(ncclResult_t, ncclCommCount, (const ncclComm_t comm, int *count));
NCCL_FUNCTION(ncclResult_t, ncclCommCuDevice, (const ncclComm_t comm, int *device));
NCCL_FUNCTION(ncclResult_t, ncclCommUserRank, (const ncclComm_t comm, int *rank));
NCCL_FUNCTION(ncclResult_t, ncclMemAlloc, (void **ptr, size_t size));
NCCL_FUNCTION(ncclResult_t, ncclMemFree, (void *ptr));
NCCL_FUNCTION(ncclResult_t, ncclCommRegister, (const ncclComm_t comm, void *buff, size_t size, void **handle));
NCCL_FUNCTION(ncclResult_t, ncclCommDeregister, (const ncclComm_t comm, void *handle));
NCCL_FUNCTION(ncclResult_t, ncclCommSuspend, (ncclComm_t comm, int flags));
NCCL_FUNCTION(ncclResult_t, ncclCommResume, (ncclComm_t comm));
NCCL_FUNCTION(ncclResult_t, ncclCommMemStats, (ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value));

NCCL_FUNCTION(ncclResult_t, ncclRedOpCreatePreMulSum,
              (ncclRedOp_t *op, void *scalar, ncclDataType_t datatype, ncclScalarResidence_t residence,
               ncclComm_t comm));
NCCL_FUNCTION(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm));

NCCL_COLLECTIVE(ncclAllReduce, ncclRedOp_t op, NCCL_PLACE);
NCCL_COLLECTIVE(ncclReduce, ncclRedOp_t op, int root, NCCL_PLACE);
NCCL_COLLECTIVE(ncclBroadcast, int root, NCCL_PLACE);
NCCL_COLLECTIVE(ncclAllGather, NCCL_PLACE);
NCCL_COLLECTIVE(ncclReduceScatter, ncclRedOp_t op, NCCL_PLACE);
NCCL_COLLECTIVE(ncclAlltoAll, NCCL_PLACE);
NCCL_COLLECTIVE(ncclGather, int root, NCCL_PLACE);
NCCL_COLLECTIVE(ncclScatter, int root, NCCL_PLACE);
NCCL_FUNCTION(ncclResult_t, ncclBcast, (void *buff, size_t count, ncclDataType_t datatype, int root, NCCL_PLACE));

NCCL_FUNCTION(ncclResult_t, ncclSend,
              (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, NCCL_PLACE));
NCCL_FUNCTION(ncclResult_t, ncclRecv,
              (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, NCCL_PLACE));
NCCL_FUNCTION(ncclResult_t, ncclGroupStart, (void));
NCCL_FUNCTION(ncclResult_t, ncclGroupEnd, (void));
NCCL_FUNCTION(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t *simInfo));

NCCL_FUNCTION(ncclResult_t, ncclParamBind, (ncclParamHandle_t *out, const char *key));
NCCL_FUNCTION(ncclResult_t, ncclParamGetI8, (ncclParamHandle_t h, int8_t *out));
NCCL_FUNCTION(ncclResult_t, ncclParamGetI16, (ncclParamHandle_t h, int16_t *out));
NCCL_FUNCTION(ncclResult_t, ncclParamGetI32, (ncclParamHandle_t h, int32_t *out));
NCCL_FUNCTION(ncclResult_t, ncclParamGetI64, (ncclParamHandle_t h, int64_t *out));
NCCL_FUNCTION(ncclResult_t, ncclParamGetU8, (ncclParamHandle_t h, uint8_t *out));
NCCL_FUNCTION(ncclResult_t, ncclParamGetU16, (ncclParamHandle_t h, uint16_t *out));
NCCL_FUNCTION(ncclResult_t, ncclParamGetU32, (ncclParamHandle_t h, uint32_t *out));
NCCL_FUNCTION(ncclResult_t, ncclParamGetU64, (ncclParamHandle_t h, uint64_t *out));
NCCL_FUNCTION(ncclResult_t, ncclParamGetStr, (ncclParamHandle_t h, const char **out));
NCCL_FUNCTION(ncclResult_t, ncclParamGet, (ncclParamHandle_t h, void *out, int maxLen, int *len));
NCCL_FUNCTION(ncclResult_t, ncclParamGetParameter, (const char *key, const char **value, int *valueLen));
NCCL_FUNCTION(ncclResult_t, ncclParamGetAllParameterKeys, (const char ***table, int *tableLen));
NCCL_FUNCTION(void, ncclParamDumpAll, (void));

NCCL_FUNCTION(ncclResult_t, ncclSetEncryption, (const ncclEncryptionConfig_t *config));

/* Exported, and refused with ncclInvalidUsage. */
NCCL_FUNCTION(ncclResult_t, ncclCommWindowRegister,
              (ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags));
NCCL_FUNCTION(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t win));
NCCL_FUNCTION(ncclResult_t, ncclWinGetUserPtr, (ncclComm_t comm, ncclWindow_t win, void **outUserPtr));
NCCL_FUNCTION(ncclResult_t, ncclPutSignal,
              (const void *localbuff, size_t count, ncclDataType_t datatype, int peer, ncclWindow_t peerWin,
               size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, NCCL_PLACE));
NCCL_FUNCTION(ncclResult_t, ncclSignal, (int peer, int sigIdx, int ctx, unsigned int flags, NCCL_PLACE));
NCCL_FUNCTION(ncclResult_t, ncclWaitSignal, (int nDesc, ncclWaitSignalDesc_t *signalDescs, NCCL_PLACE));

#undef NCCL_FUNCTION
#undef NCCL_COLLECTIVE
#undef NCCL_DATA
#undef NCCL_PLACE

#ifdef __cplusplus
}
#endif

#endif
