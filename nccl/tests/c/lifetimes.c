/* How communicators begin and end, in peace and otherwise. Usage: lifetimes SCENARIO. */
#include "ranks.h"
#include <dlfcn.h>

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Joining, calls and a split that the caller polls for. */
static void nonblocking(void) {
  ncclUniqueId id;
  int rank = as_process(2, &id), sum[1000], value;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = "polled";
  ncclComm_t comm, child = NULL;
  EXPECT(ncclInProgress, ncclCommInitRankConfig(&comm, 2, id, rank, &config));
  CHECK(comm != NULL);
  CHECK(settled(comm) == ncclSuccess);
  for (int turn = 0; turn < 50; turn++) {
    for (int at = 0; at < 1000; at++) sum[at] = rank + turn;
    EXPECT(ncclInProgress, ncclAllReduce(sum, sum, 1000, ncclInt32, ncclSum, comm, NULL));
    CHECK(settled(comm) == ncclSuccess);
    for (int at = 0; at < 1000; at++) CHECK(sum[at] == 1 + 2 * turn);
  }
  /* A call that waits for its peer keeps others away. */
  if (rank == 0) {
    EXPECT(ncclInProgress, ncclRecv(&value, 1, ncclInt32, 1, comm, NULL));
    REFUSED(ncclInvalidArgument, ncclBcast(sum, 1, ncclInt32, 0, comm, NULL), "previous operation");
    REFUSED(ncclInvalidArgument, ncclCommCount(comm, &value), "previous operation");
    CHECK(settled(comm) == ncclSuccess);
    CHECK(value == 77);
  } else {
    sleep_ms(100);
    value = 77;
    EXPECT(ncclInProgress, ncclSend(&value, 1, ncclInt32, 0, comm, NULL));
    CHECK(settled(comm) == ncclSuccess);
  }
  OK(ncclGroupStart());
  OK(ncclBcast(sum, 1000, ncclInt32, 0, comm, NULL));
  OK(ncclAllReduce(sum, sum, 10, ncclInt32, ncclSum, comm, NULL));
  EXPECT(ncclInProgress, ncclGroupEnd());
  CHECK(settled(comm) == ncclSuccess);
  EXPECT(ncclInProgress, ncclCommSplit(comm, 0, -rank, &child, NULL));
  CHECK(settled(comm) == ncclSuccess);
  CHECK(child != NULL);
  OK(ncclCommUserRank(child, &value));
  CHECK(value == 1 - rank);
  /* A wrong call in a group fails what the group names, and nothing else. */
  OK(ncclGroupStart());
  OK(ncclBcast(sum, 1, ncclInt32, 0, child, NULL));
  EXPECT(ncclInvalidArgument, ncclBcast(sum, 1, ncclInt32, 2, child, NULL));
  EXPECT(ncclInvalidArgument, ncclGroupEnd());
  CHECK(settled(child) == ncclInvalidArgument);
  CHECK(settled(comm) == ncclSuccess);
  OK(ncclCommAbort(child));
  ncclResult_t finalized = ncclCommFinalize(comm);
  CHECK(finalized == ncclSuccess || finalized == ncclInProgress);
  CHECK(settled(comm) == ncclSuccess);
  OK(ncclCommDestroy(comm));
}

/* A communicator whose peer never comes can be given up at once. */
static void abort_while_joining(void) {
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm;
  ncclResult_t state;
  EXPECT(ncclInProgress, ncclCommInitRankConfig(&comm, 2, id, 0, &config));
  OK(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclInProgress);
  double start = now();
  OK(ncclCommAbort(comm));
  OK(ncclCommAbort(comm));
  CHECK(now() - start < 20);
  REFUSED(ncclInvalidArgument, ncclCommGetAsyncError(comm, &state), "destroyed or aborted");
}

static ncclComm_t shared;

static void *abort_soon(void *nothing) {
  sleep_ms(100);
  OK(ncclCommAbort(shared));
  return nothing;
}

/* One rank waits for a call that never comes, and is freed by an abort from another of its threads; so is its peer,
 * which waits for another. */
static void abort_from_a_thread(void) {
  ncclUniqueId id;
  int rank = as_process(3, &id), value = 1;
  OK(ncclCommInitRank(&shared, 3, id, rank));
  ncclComm_t comm = shared;
  OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
  pthread_t thread;
  if (rank == 0) CHECK(!pthread_create(&thread, NULL, abort_soon, NULL));
  if (rank < 2) REFUSED(ncclRemoteError, ncclRecv(&value, 1, ncclInt32, 2, comm, NULL), "rank 0 aborted");
  else sleep_ms(300);
  if (rank == 0) CHECK(!pthread_join(thread, NULL));
  OK(ncclCommAbort(comm));
}

/* Ranks that call different things both learn which. */
static void mismatch(void) {
  ncclUniqueId id;
  int rank = as_process(2, &id), data[10] = {0};
  ncclComm_t comm;
  OK(ncclCommInitRank(&comm, 2, id, rank));
  ncclResult_t got = ncclAllReduce(data, data, rank ? 10 : 9, ncclInt32, ncclSum, comm, NULL);
  CHECK(got == ncclInvalidUsage || got == ncclRemoteError);
  CHECK(strstr(ncclGetLastError(comm), "count 9") && strstr(ncclGetLastError(comm), "count 10"));
  ncclResult_t state;
  OK(ncclCommGetAsyncError(comm, &state));
  CHECK(state == got);
  EXPECT(got, ncclAllReduce(data, data, 1, ncclInt32, ncclSum, comm, NULL));
  OK(ncclCommDestroy(comm));
}

/* A rank that exits without a word has left in peace, when the others need nothing more from it. */
static void exit_alive(void) {
  ncclUniqueId id;
  int rank = as_process(2, &id);
  static float data[1 << 20];
  ncclComm_t comm;
  OK(ncclCommInitRank(&comm, 2, id, rank));
  for (int turn = 0; turn < 20; turn++) OK(ncclAllReduce(data, data, 1 << 20, ncclFloat, ncclSum, comm, NULL));
  if (rank == 1) {
    sleep_ms(300);
    ncclResult_t state;
    OK(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclSuccess);
  }
  exit(0);
}

static void exit_alive_threads_program(Ranks *ranks) {
  int value = 1;
  OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, ranks->comm[0], NULL));
}

/* As cubecl does: a thread for each rank, and nobody destroys anything. */
static void exit_alive_threads(void) { in_threads(3, exit_alive_threads_program); }

/* A rank that is killed is an error for the others, which names it. */
static void killed(void) {
  ncclUniqueId id;
  int rank = as_process(2, &id), value = 1;
  ncclComm_t comm;
  OK(ncclCommInitRank(&comm, 2, id, rank));
  OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
  if (rank == 1) _exit(0);
  REFUSED(ncclRemoteError, ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL), "rank 1");
  OK(ncclCommDestroy(comm));
}

/* The survivors go on without a rank: one that left when asked to, one that was killed, and one that sits in a call. */
static void shrink(void) {
  for (int how = 0; how < 3; how++) {
    ncclUniqueId id;
    pid_t family = fork();
    if (family) {
      int status = -1;
      CHECK(waitpid(family, &status, 0) == family && !status);
      continue;
    }
    int done[2], go[2];
    char token[2] = "";
    CHECK(!pipe(done) && !pipe(go));
    int rank = as_process(3, &id), value = 1, count, number, excluded[1] = {1}, nobody[1] = {3};
    snprintf(where, sizeof where, "shrink %d", how);
    int polled = how == 2, flags = how == 0 ? NCCL_SHRINK_DEFAULT : NCCL_SHRINK_ABORT;
    ncclResult_t going = polled ? ncclInProgress : ncclSuccess;
    ncclComm_t comm, child = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = !polled;
    EXPECT(going, ncclCommInitRankConfig(&comm, 3, id, rank, &config));
    CHECK(settled(comm) == ncclSuccess);
    EXPECT(going, ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
    CHECK(settled(comm) == ncclSuccess);
    REFUSED(ncclInvalidArgument, ncclCommShrink(comm, excluded, 0, &child, NULL, flags), "excludeRanksCount");
    REFUSED(ncclInvalidArgument, ncclCommShrink(comm, nobody, 1, &child, NULL, flags), "holds 3");
    REFUSED(ncclInvalidArgument, ncclCommShrink(comm, excluded, 1, &child, NULL, 2), "shrinkFlags is 2");
    /* NCCL_SHRINK_ABORT ends the calls of all ranks: rank 0 goes on when the others have done with theirs, and they when it
     * has looked at what a pending call keeps away. */
    if (rank) CHECK(write(done[1], token, 1) == 1 && read(go[0], token, 1) == 1);
    else CHECK(read(done[0], token, 1) == 1 && read(done[0], token, 1) == 1);
    if (rank == 0 && polled) {
      EXPECT(ncclInProgress, ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
      REFUSED(ncclInvalidArgument, ncclCommShrink(comm, excluded, 1, &child, NULL, 0), "previous operation");
    }
    if (rank == 0) CHECK(write(go[1], "go", 2) == 2);
    if (rank == 1) {
      if (how == 1) _exit(0);
      OK(ncclCommDestroy(comm));
      exit(0);
    }
    if (how == 1) EXPECT(ncclRemoteError, ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
    EXPECT(going, ncclCommShrink(comm, excluded, 1, &child, NULL, flags));
    if (polled) CHECK(settled(comm) == ncclSuccess);
    OK(ncclCommCount(child, &count));
    OK(ncclCommUserRank(child, &number));
    CHECK(count == 2 && number == rank / 2);
    value = 1;
    EXPECT(going, ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, child, NULL));
    CHECK(settled(child) == ncclSuccess);
    CHECK(value == 2);
    OK(ncclCommDestroy(comm));
    OK(ncclCommDestroy(child));
    exit(0);
  }
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0)
/* Two ranks take in a third. */
static void grow(void) {
  ncclUniqueId id, more;
  int road[2], value = 1, count, number;
  CHECK(!pipe(road));
  pid_t newcomer = fork();
  ncclComm_t comm = NULL, larger = NULL, none;
  if (!newcomer) {
    CHECK(read(road[0], &more, sizeof more) == sizeof more);
    REFUSED(ncclInvalidArgument, ncclCommGrow(NULL, 3, NULL, 2, &larger, NULL), "uniqueId is NULL");
    OK(ncclCommGrow(NULL, 3, &more, 2, &larger, NULL));
  } else {
    int rank = as_process(2, &id);
    OK(ncclCommInitRank(&comm, 2, id, rank));
    if (rank == 0) {
      OK(ncclCommGetUniqueId(comm, &more));
      REFUSED(ncclInvalidUsage, ncclCommGetUniqueId(comm, &id), "not been used");
      CHECK(write(road[1], &more, sizeof more) == sizeof more);
    } else {
      REFUSED(ncclInvalidUsage, ncclCommGetUniqueId(comm, &id), "rank 0");
    }
    REFUSED(ncclInvalidArgument, ncclCommGrow(comm, 2, NULL, -1, &larger, NULL), "nRanks is 2");
    REFUSED(ncclInvalidArgument, ncclCommGrow(comm, 3, NULL, rank, &larger, NULL), "pass -1");
    OK(ncclCommGrow(comm, 3, rank ? NULL : &more, -1, &larger, NULL));
    if (rank == 0) REFUSED(ncclInvalidUsage, ncclCommGrow(comm, 3, &more, -1, &none, NULL), "has been used");
    /* The old one goes on. */
    OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
    CHECK(value == 2);
    OK(ncclCommDestroy(comm));
    value = 1;
  }
  OK(ncclCommCount(larger, &count));
  OK(ncclCommUserRank(larger, &number));
  CHECK(count == 3 && (newcomer || number == 2));
  OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, larger, NULL));
  CHECK(value == 3);
  OK(ncclCommDestroy(larger));
}
#else
static void grow(void) {}
#endif

/* Ranks that meet at an address need no id from each other. */
static void by_address(void) {
  ncclUniqueId id;
  int rank = fork() == 0, value = rank;
  OK(ncclGetUniqueId(&id));
  ncclComm_t comm;
  OK(ncclCommInitRank(&comm, 2, id, rank));
  OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
  CHECK(value == 1);
  OK(ncclCommDestroy(comm));
  int status = 0;
  if (rank == 0) CHECK(wait(&status) > 0 && !status);
}

/* Ids, ranks and configurations that make no sense. */
static void bad_beginnings(void) {
  ncclUniqueId id, garbage, many[2];
  ncclComm_t comm = (ncclComm_t)&id;
  memset(&garbage, 7, sizeof garbage);
  OK(ncclGetUniqueId(&id));
  REFUSED(ncclInvalidArgument, ncclGetUniqueId(NULL), "uniqueId is NULL");
  REFUSED(ncclInvalidArgument, ncclCommInitRank(NULL, 1, id, 0), "comm is NULL");
  REFUSED(ncclInvalidArgument, ncclCommInitRank(&comm, 0, id, 0), "nranks is 0");
  CHECK(comm == NULL);
  REFUSED(ncclInvalidArgument, ncclCommInitRank(&comm, 2, id, 2), "rank is 2");
  REFUSED(ncclInvalidArgument, ncclCommInitRank(&comm, 2, id, -1), "rank is -1");
  REFUSED(ncclInvalidArgument, ncclCommInitRank(&comm, 2, garbage, 0), "unique id");
  REFUSED(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 0, NULL), "config is NULL");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.minCTAs = 9, config.maxCTAs = 3;
  REFUSED(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 0, &config), "minCTAs is 9");
  memset(&config, 0, sizeof config);
  REFUSED(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 0, &config), "NCCL_CONFIG_INITIALIZER");
  ncclConfig_t good = NCCL_CONFIG_INITIALIZER;
  many[0] = many[1] = id;
  REFUSED(ncclInvalidArgument, ncclCommInitRankScalable(&comm, 1, 0, 2, many, &good), "nId is 2");
  OK(ncclCommInitRankScalable(&comm, 1, 0, 1, many, &good));
  OK(ncclCommDestroy(comm));
  REFUSED(ncclInvalidArgument, ncclCommInitAll(&comm, 0, NULL), "ndev is 0");
  /* Blocking and polled communicators do not go together. */
  ncclComm_t blocking, polled;
  good.blocking = 0;
  OK(ncclCommInitAll(&blocking, 1, NULL));
  OK(ncclGetUniqueId(&id));
  EXPECT(ncclInProgress, ncclCommInitRankConfig(&polled, 1, id, 0, &good));
  CHECK(settled(polled) == ncclSuccess);
  int value = 3;
  OK(ncclGroupStart());
  OK(ncclBcast(&value, 1, ncclInt32, 0, blocking, NULL));
  OK(ncclBcast(&value, 1, ncclInt32, 0, polled, NULL));
  REFUSED(ncclInvalidArgument, ncclGroupEnd(), "mixed");
  OK(ncclCommAbort(polled));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0)
  /* Suspended and revoked communicators take no calls. */
  uint64_t statistic = 9;
  OK(ncclCommSuspend(blocking, NCCL_SUSPEND_MEM));
  OK(ncclCommMemStats(blocking, ncclStatGpuMemSuspended, &statistic));
  CHECK(statistic == 1);
  REFUSED(ncclInvalidUsage, ncclBcast(&value, 1, ncclInt32, 0, blocking, NULL), "suspended");
  OK(ncclCommResume(blocking));
  OK(ncclBcast(&value, 1, ncclInt32, 0, blocking, NULL));
  REFUSED(ncclInvalidArgument, ncclCommRevoke(blocking, 1), "revokeFlags is 1");
  OK(ncclCommRevoke(blocking, 0));
  REFUSED(ncclInvalidUsage, ncclBcast(&value, 1, ncclInt32, 0, blocking, NULL), "revoked");
  REFUSED(ncclInvalidUsage, ncclCommFinalize(blocking), "revoked");
  OK(ncclCommRevoke(NULL, 0));
#endif
  OK(ncclCommDestroy(blocking));
  OK(ncclCommDestroy(NULL));
  OK(ncclCommAbort(NULL));
  OK(ncclCommFinalize(NULL));
}

/* Where a driver is loaded, memory of a device is told from the host's. The driver of the test calls what lies in a marked page
 * a device's. */
static void device_memory(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  CHECK(driver);
  char **marked = dlsym(driver, "device_page");
  ncclComm_t comm;
  ncclRedOp_t op;
  static float host[1024], device[1024];
  *marked = (char *)device;
  OK(ncclCommInitAll(&comm, 1, NULL));
  OK(ncclAllReduce(host, host, 4, ncclFloat, ncclSum, comm, NULL));
  REFUSED(ncclInvalidUsage, ncclAllReduce(device, device, 4, ncclFloat, ncclSum, comm, NULL), "memory of a device");
  REFUSED(ncclInvalidUsage, ncclAllReduce(host, device, 4, ncclFloat, ncclSum, comm, NULL), "recvbuff");
  REFUSED(ncclInvalidUsage, ncclSend(device, 1, ncclFloat, 0, comm, NULL), "sendbuff");
  REFUSED(ncclInvalidUsage, ncclRedOpCreatePreMulSum(&op, device, ncclFloat, ncclScalarDevice, comm), "scalar");
  OK(ncclCommDestroy(comm));
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 4)
/* The variables, as a program sees them. */
static void parameters(void) {
  ncclParamHandle_t handle;
  const char *text, **keys;
  int length, count;
  int64_t number;
  int8_t narrow;
  char bytes[8];
  setenv("NCCL_BUFFSIZE", "4194304", 1);
  unsetenv("NCCL_ALGO");
  OK(ncclParamBind(&handle, "NCCL_BUFFSIZE"));
  OK(ncclParamGetI64(handle, &number));
  CHECK(number == 4194304);
  REFUSED(ncclInvalidArgument, ncclParamGetI8(handle, &narrow), "8 bits");
  OK(ncclParamGetStr(handle, &text));
  CHECK(!strcmp(text, "4194304"));
  OK(ncclParamGet(handle, bytes, 8, &length));
  CHECK(length == 8 && !strcmp(bytes, "4194304"));
  REFUSED(ncclInvalidArgument, ncclParamGet(handle, bytes, 7, &length), "maxLen is 7");
  OK(ncclParamGetParameter("NCCL_BUFFSIZE", &text, &length));
  CHECK(length == 7);
  OK(ncclParamBind(&handle, "NCCL_ALGO"));
  OK(ncclParamGetStr(handle, &text));
  CHECK(text == NULL);
  REFUSED(ncclInvalidArgument, ncclParamGetI64(handle, &number), "not set");
  REFUSED(ncclInvalidArgument, ncclParamBind(&handle, "NCCL_NOPE"), "no effect");
  CHECK(handle == NULL);
  REFUSED(ncclInvalidArgument, ncclParamGetU64(NULL, (uint64_t *)&number), "ncclParamBind");
  OK(ncclParamGetAllParameterKeys(&keys, &count));
  int found = 0;
  for (int i = 0; i < count; i++) found |= !strcmp(keys[i], "NCCL_DEBUG");
  CHECK(found);
}
#else
static void parameters(void) {}
#endif

#define SCENARIO(name) {#name, name}

static const struct { const char *name; void (*run)(void); } SCENARIOS[] = {
  SCENARIO(nonblocking), SCENARIO(abort_while_joining), SCENARIO(abort_from_a_thread), SCENARIO(mismatch),
  SCENARIO(exit_alive), SCENARIO(exit_alive_threads), SCENARIO(killed), SCENARIO(shrink), SCENARIO(grow), SCENARIO(by_address),
  SCENARIO(bad_beginnings), SCENARIO(device_memory), SCENARIO(parameters),
};

int main(int argc, char **argv) {
  for (size_t i = 0; i < sizeof SCENARIOS / sizeof *SCENARIOS; i++)
    if (argc > 1 && !strcmp(argv[1], SCENARIOS[i].name)) {
      snprintf(where, sizeof where, "%s", argv[1]);
      SCENARIOS[i].run();
      return 0;
    }
  FAIL("no such scenario");
}
