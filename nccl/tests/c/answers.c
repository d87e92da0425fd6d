/* What the library answers without a device. Built against the real library's header and run with that, and with
 * ours: the lines must be the same. */
#include <nccl.h>
#include <stdio.h>
#include <string.h>

#define CALL(call) printf("%s %d\n", #call, (int)(call))

int main(void) {
  int version = 0, value;
  ncclUniqueId id, other;
  ncclResult_t state;
  ncclRedOp_t op;
  void *handle;
  float data[4] = {0};
  for (int code = -1; code <= 12; code++) {
    /* Its last two codes are younger than some versions. */
    if (code >= 8 && NCCL_VERSION_CODE < NCCL_VERSION(2, 30, 0)) continue;
    printf("error %d: %s\n", code, ncclGetErrorString((ncclResult_t)code));
  }
  printf("last error before any: '%s'\n", ncclGetLastError(NULL));
  CALL(ncclGetVersion(&version));
  printf("version %d.x\n", version / 10000);
  CALL(ncclGetVersion(NULL));
  CALL(ncclGetUniqueId(NULL));
  CALL(ncclGetUniqueId(&id));
  CALL(pncclGetUniqueId(&other));
  printf("ids differ %d\n", memcmp(&id, &other, sizeof id) != 0);
  CALL(ncclCommCount(NULL, &value));
  CALL(ncclCommCount(NULL, NULL));
  CALL(ncclCommCuDevice(NULL, &value));
  CALL(ncclCommUserRank(NULL, &value));
  CALL(ncclCommGetAsyncError(NULL, &state));
  CALL(ncclCommGetAsyncError(NULL, NULL));
  CALL(ncclCommFinalize(NULL));
  CALL(ncclCommDestroy(NULL));
  CALL(ncclCommAbort(NULL));
  CALL(ncclCommRegister(NULL, data, sizeof data, &handle));
  CALL(ncclCommDeregister(NULL, NULL));
  CALL(ncclRedOpCreatePreMulSum(&op, data, ncclFloat, ncclScalarHostImmediate, NULL));
  CALL(ncclRedOpDestroy(ncclSum, NULL));
  CALL(ncclRedOpDestroy((ncclRedOp_t)77, NULL));
  CALL(ncclAllReduce(data, data, 1, ncclFloat, ncclSum, NULL, NULL));
  CALL(ncclAllReduce(data, data, 0, ncclFloat, ncclSum, NULL, NULL));
  CALL(ncclReduce(data, data, 1, ncclFloat, ncclSum, 0, NULL, NULL));
  CALL(ncclBroadcast(data, data, 1, ncclFloat, 0, NULL, NULL));
  CALL(ncclBcast(data, 1, ncclFloat, 0, NULL, NULL));
  CALL(ncclAllGather(data, data, 1, ncclFloat, NULL, NULL));
  CALL(ncclReduceScatter(data, data, 1, ncclFloat, ncclSum, NULL, NULL));
  CALL(ncclSend(data, 1, ncclFloat, 0, NULL, NULL));
  CALL(ncclRecv(data, 1, ncclFloat, 0, NULL, NULL));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  CALL(ncclAlltoAll(data, data, 1, ncclFloat, NULL, NULL));
  CALL(ncclGather(data, data, 1, ncclFloat, 0, NULL, NULL));
  CALL(ncclScatter(data, data, 1, ncclFloat, 0, NULL, NULL));
  CALL(ncclCommRevoke(NULL, 0));
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 32, 0)
  CALL(ncclAllReduceConfig(data, data, 1, ncclFloat, ncclSum, NULL, NULL, NULL));
  ncclParamHandle_t parameter;
  int64_t number;
  CALL(ncclParamBind(&parameter, "NCCL_DEBUG_FILE"));
  CALL(ncclParamBind(&parameter, "NCCL_NO_SUCH_PARAMETER"));
  CALL(ncclParamBind(&parameter, NULL));
  CALL(ncclParamBind(NULL, "NCCL_DEBUG_FILE"));
  CALL(ncclParamGetI64(NULL, &number));
#endif
  CALL(ncclGroupEnd());
  CALL(ncclGroupSimulateEnd(NULL));
  CALL(ncclGroupStart());
  CALL(ncclGroupEnd());
  CALL(ncclGroupEnd());
  CALL(ncclGroupStart());
  CALL(ncclGroupStart());
  CALL(ncclAllReduce(data, data, 1, ncclFloat, ncclSum, NULL, NULL));
  CALL(ncclGroupEnd());
  CALL(ncclGroupEnd());
  CALL(ncclGroupStart());
  CALL(ncclGroupEnd());
  printf("last error is set %d\n", ncclGetLastError(NULL)[0] != 0);
  return 0;
}
