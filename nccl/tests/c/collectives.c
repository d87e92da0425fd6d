/* Every collective, type, operator and place, on host memory. Usage: collectives WAY RANKS [small]; WAY is threads,
 * processes, one_thread or init_all. */
#include "ranks.h"

static int small;

static const size_t COUNTS[] = {0, 1, 7, 1000, 40000};

/* Element `at` of what `rank` brings. */
static double given(int rank, size_t at) { return (double)((rank + at) % 3); }

static double reduced(ncclRedOp_t op, int world, size_t at, ncclDataType_t type) {
  double result = given(0, at);
  for (int rank = 1; rank < world; rank++) {
    double value = given(rank, at);
    if (op == ncclSum || op == ncclAvg) result += value;
    if (op == ncclProd) result *= value;
    if (op == ncclMax && value > result) result = value;
    if (op == ncclMin && value < result) result = value;
  }
  if (op == ncclAvg) result = tolerance(type) == 0 ? (double)((int)result / world) : result / world;
  return result;
}

static void same(double got, double expected, ncclDataType_t type, size_t at) {
  double off = got > expected ? got - expected : expected - got;
  double allowed = tolerance(type) * (expected > 1 ? expected : 1);
  if (off > allowed) FAIL("element %zu is %g, not %g", at, got, expected);
}

typedef enum { ALL_REDUCE, REDUCE, BROADCAST, BCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, KINDS } Kind;
static const char *const NAMES[] = {"all_reduce", "reduce", "broadcast", "bcast", "all_gather", "reduce_scatter",
                                    "all_to_all", "gather", "scatter"};

static ncclResult_t call(Kind kind, const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                         int root, ncclComm_t comm) {
  switch (kind) {
    case ALL_REDUCE: return ncclAllReduce(send, receive, count, type, op, comm, NULL);
    case REDUCE: return ncclReduce(send, receive, count, type, op, root, comm, NULL);
    case BROADCAST: return ncclBroadcast(send, receive, count, type, root, comm, NULL);
    case BCAST: return ncclBcast(receive, count, type, root, comm, NULL);
    case ALL_GATHER: return ncclAllGather(send, receive, count, type, comm, NULL);
    case REDUCE_SCATTER: return ncclReduceScatter(send, receive, count, type, op, comm, NULL);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    case ALL_TO_ALL: return ncclAlltoAll(send, receive, count, type, comm, NULL);
    case GATHER: return ncclGather(send, receive, count, type, root, comm, NULL);
    case SCATTER: return ncclScatter(send, receive, count, type, root, comm, NULL);
#endif
    default: FAIL("no such collective");
  }
}

/* Older headers lack the last three. */
static const int CALLABLE = NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0) ? KINDS : ALL_TO_ALL;

/* One call on all ranks, checked. `grouped`: within a group, as several ranks of a thread need it anyway. */
static void run(Ranks *ranks, Kind kind, ncclDataType_t type, ncclRedOp_t op, int root, size_t count, int in_place,
                int grouped) {
  int world = ranks->world;
  size_t wide = count * (size_t)world, size = SIZE[type];
  int many_in = kind == REDUCE_SCATTER || kind == ALL_TO_ALL || kind == SCATTER;
  int many_out = kind == ALL_GATHER || kind == ALL_TO_ALL || kind == GATHER;
  char *send[8], *receive[8], *free_these[16];
  int freed = 0;
  snprintf(where, sizeof where, "%s type %d op %d root %d count %zu%s%s", NAMES[kind], type, op, root, count,
           in_place ? " in place" : "", grouped ? " grouped" : "");
  for (int i = 0; i < ranks->count; i++) {
    int rank = ranks->rank[i], at_root = rank == root;
    size_t in = many_in ? wide : count;
    char *input = malloc(in * size + 1), *output = malloc(wide * size + 1);
    memset(output, 0x5a, wide * size + 1);
    free_these[freed++] = input, free_these[freed++] = output;
    for (size_t at = 0; at < in; at++) put(input, at, type, given(rank, at));
    send[i] = input, receive[i] = output;
    /* What the rank neither sends nor receives need not be there. */
    if ((kind == REDUCE || kind == GATHER) && !at_root) receive[i] = NULL;
    if ((kind == BROADCAST || kind == SCATTER) && !at_root) send[i] = NULL;
    if (kind == BCAST) memcpy(output, input, count * size), send[i] = NULL;
    if (!in_place) continue;
    size_t own = (size_t)rank * count * size;
    if (kind == ALL_REDUCE || (at_root && (kind == REDUCE || kind == BROADCAST))) receive[i] = send[i];
    if (kind == REDUCE_SCATTER || (kind == SCATTER && at_root)) receive[i] = send[i] + own;
    if (kind == ALL_GATHER || (kind == GATHER && at_root)) {
      memcpy(output + own, input, count * size);
      send[i] = output + own;
    }
  }
  if (grouped) OK(ncclGroupStart());
  for (int i = 0; i < ranks->count; i++) OK(call(kind, send[i], receive[i], count, type, op, root, ranks->comm[i]));
  if (grouped) OK(ncclGroupEnd());
  for (int i = 0; i < ranks->count; i++) {
    int rank = ranks->rank[i];
    if ((kind == REDUCE || kind == GATHER) && rank != root) continue;
    for (size_t at = 0; at < (many_out ? wide : count); at++) {
      size_t from = count ? at / count : 0, part = count ? at % count : 0;
      double expected;
      switch (kind) {
        case ALL_REDUCE: case REDUCE: expected = reduced(op, world, at, type); break;
        case BROADCAST: case BCAST: expected = given(root, at); break;
        case ALL_GATHER: case GATHER: expected = given((int)from, part); break;
        case REDUCE_SCATTER: expected = reduced(op, world, (size_t)rank * count + at, type); break;
        case ALL_TO_ALL: expected = given((int)from, (size_t)rank * count + part); break;
        default: expected = given(root, (size_t)rank * count + at); break;
      }
      same(get(receive[i], at, type), expected, type, at);
    }
  }
  while (freed) free(free_these[--freed]);
}

static void premultiplied(Ranks *ranks) {
  strcpy(where, "ncclRedOpCreatePreMulSum");
  for (int type = 0; type < ncclNumTypes; type++)
    for (int residence = 0; residence < 2; residence++) {
      char scalars[8][8], data[8][8 * 5];
      ncclRedOp_t ops[8];
      for (int i = 0; i < ranks->count; i++) {
        for (size_t at = 0; at < 5; at++) put(data[i], at, type, given(ranks->rank[i], at));
        put(scalars[i], 0, type, 1);
        OK(ncclRedOpCreatePreMulSum(&ops[i], scalars[i], type, residence, ranks->comm[i]));
        CHECK(ops[i] >= ncclNumOps);
        /* A scalar of the device's is read when the call runs, one of the host's was read before. */
        put(scalars[i], 0, type, 2);
      }
      OK(ncclGroupStart());
      for (int i = 0; i < ranks->count; i++)
        OK(ncclAllReduce(data[i], data[i], 5, type, ops[i], ranks->comm[i], NULL));
      OK(ncclGroupEnd());
      for (int i = 0; i < ranks->count; i++) {
        double factor = residence == ncclScalarDevice ? 2 : 1;
        for (size_t at = 0; at < 5; at++)
          same(get(data[i], at, type), factor * reduced(ncclSum, ranks->world, at, type), type, at);
        int other = type == ncclInt8 ? ncclInt32 : ncclInt8;
        REFUSED(ncclInvalidArgument, ncclAllReduce(data[i], data[i], 1, other, ops[i], ranks->comm[i], NULL), "was made for");
        OK(ncclRedOpDestroy(ops[i], ranks->comm[i]));
        REFUSED(ncclInvalidArgument, ncclRedOpDestroy(ops[i], ranks->comm[i]), "destroyed");
      }
    }
}

/* A ring of sends and receives, an empty message, and one to itself; then together with collectives. */
static void transfers(Ranks *ranks) {
  strcpy(where, "send and receive");
  int world = ranks->world;
  static __thread int out[8][3000], in[8][3000], own[8][4], sums[8][10], all[8][8];
  for (int with = 0; with < 2; with++) {
    for (int i = 0; i < ranks->count; i++)
      for (int at = 0; at < 3000; at++) out[i][at] = 7 * ranks->rank[i] + at, in[i][at] = -1;
    OK(ncclGroupStart());
    for (int i = 0; i < ranks->count; i++) {
      int rank = ranks->rank[i], next = (rank + 1) % world, before = (rank + world - 1) % world;
      ncclComm_t comm = ranks->comm[i];
      if (with) {
        for (int at = 0; at < 10; at++) sums[i][at] = rank;
        OK(ncclAllReduce(sums[i], sums[i], 10, ncclInt32, ncclSum, comm, NULL));
        OK(ncclAllGather(&ranks->rank[i], all[i], 1, ncclInt32, comm, NULL));
      }
      OK(ncclRecv(in[i], 3000, ncclInt32, before, comm, NULL));
      OK(ncclSend(out[i], 3000, ncclInt32, next, comm, NULL));
      OK(ncclSend(NULL, 0, ncclInt32, next, comm, NULL));
      OK(ncclRecv(NULL, 0, ncclInt32, before, comm, NULL));
      if (world > 1) {
        OK(ncclSend(out[i], 4, ncclInt32, rank, comm, NULL));
        OK(ncclRecv(own[i], 4, ncclInt32, rank, comm, NULL));
      }
    }
    OK(ncclGroupEnd());
    for (int i = 0; i < ranks->count; i++) {
      int before = (ranks->rank[i] + world - 1) % world;
      for (int at = 0; at < 3000; at++) CHECK(in[i][at] == 7 * before + at);
      if (world > 1) CHECK(own[i][3] == 7 * ranks->rank[i] + 3);
      if (with) CHECK(sums[i][9] == world * (world - 1) / 2 && all[i][world - 1] == world - 1);
    }
  }
}

static void splits(Ranks *ranks) {
  strcpy(where, "split");
  ncclComm_t halves[8], reversed[8];
  int number[8], sum[8], size;
  OK(ncclGroupStart());
  for (int i = 0; i < ranks->count; i++) {
    int color = ranks->rank[i] == 0 ? NCCL_SPLIT_NOCOLOR : 7;
    halves[i] = (ncclComm_t)&size;
    OK(ncclCommSplit(ranks->comm[i], color, 0, &halves[i], NULL));
  }
  OK(ncclGroupEnd());
  OK(ncclGroupStart());
  for (int i = 0; i < ranks->count; i++)
    OK(ncclCommSplit(ranks->comm[i], 1, -ranks->rank[i], &reversed[i], NULL));
  OK(ncclGroupEnd());
  for (int i = 0; i < ranks->count; i++) {
    OK(ncclCommUserRank(reversed[i], &number[i]));
    CHECK(number[i] == ranks->world - 1 - ranks->rank[i]);
    if (ranks->rank[i] == 0) {
      CHECK(halves[i] == NULL);
      continue;
    }
    OK(ncclCommCount(halves[i], &size));
    CHECK(size == ranks->world - 1);
  }
  OK(ncclGroupStart());
  for (int i = 0; i < ranks->count; i++) {
    sum[i] = 1;
    if (halves[i]) OK(ncclAllReduce(&sum[i], &sum[i], 1, ncclInt32, ncclSum, halves[i], NULL));
  }
  OK(ncclGroupEnd());
  for (int i = 0; i < ranks->count; i++) {
    if (halves[i]) CHECK(sum[i] == ranks->world - 1);
    /* In any order, and before the parent. */
    OK(ncclCommDestroy(reversed[i]));
    if (halves[i]) OK(ncclCommDestroy(halves[i]));
    REFUSED(ncclInvalidArgument, ncclCommSplit(ranks->comm[i], -2, 0, &halves[i], NULL), "color is -2");
  }
}

/* What a communicator tells of itself, and that wrong arguments leave it whole. */
static void arguments(Ranks *ranks) {
  strcpy(where, "arguments");
  for (int i = 0; i < ranks->count; i++) {
    ncclComm_t comm = ranks->comm[i];
    int value = -1;
    float data[4] = {0}, more[4] = {0};
    ncclResult_t state = ncclInternalError;
    OK(ncclCommCount(comm, &value));
    CHECK(value == ranks->world);
    OK(ncclCommUserRank(comm, &value));
    CHECK(value == ranks->rank[i]);
    REFUSED(ncclInvalidArgument, ncclCommCount(comm, NULL), "count is NULL");
    REFUSED(ncclInvalidArgument, ncclCommCount(NULL, &value), "comm is NULL");
    REFUSED(ncclInvalidArgument, ncclAllReduce(data, data, 1, 12, ncclSum, comm, NULL), "datatype is 12");
    REFUSED(ncclInvalidArgument, ncclAllReduce(data, data, 1, ncclFloat, 5, comm, NULL), "op 0x5");
    REFUSED(ncclInvalidArgument, ncclAllReduce(NULL, data, 1, ncclFloat, ncclSum, comm, NULL), "sendbuff is NULL");
    REFUSED(ncclInvalidArgument, ncclAllReduce(data, data + 1, 3, ncclFloat, ncclSum, comm, NULL), "overlap");
    REFUSED(ncclInvalidArgument, ncclAllReduce((char *)data + 1, more, 1, ncclFloat, ncclSum, comm, NULL), "aligned");
    REFUSED(ncclInvalidArgument, ncclAllReduce(data, data, SIZE_MAX / 2, ncclFloat, ncclSum, comm, NULL), "exceeds");
    REFUSED(ncclInvalidArgument, ncclBroadcast(data, more, 0, ncclFloat, ranks->world, comm, NULL), "root is");
    REFUSED(ncclInvalidArgument, ncclSend(data, 1, ncclFloat, -1, comm, NULL), "peer is -1");
    REFUSED(ncclInvalidUsage, ncclAllReduce(data, data, 1, ncclFloat, ncclSum, comm, (cudaStream_t)data), "stream is");
    REFUSED(ncclInvalidArgument, ncclRedOpDestroy(ncclSum, comm), "built in");
    /* A group with a wrong call returns its code, and runs nothing. */
    data[0] = 5;
    OK(ncclGroupStart());
    OK(ncclAllReduce(data, data, 1, ncclFloat, ncclProd, comm, NULL));
    REFUSED(ncclInvalidArgument, ncclAllReduce(data, data, 1, -1, ncclSum, comm, NULL), "datatype is -1");
    OK(ncclGroupStart());
    OK(ncclGroupEnd());
    REFUSED(ncclInvalidArgument, ncclGroupEnd(), "");
    CHECK(data[0] == 5);
    REFUSED(ncclInvalidUsage, ncclGroupEnd(), "without ncclGroupStart");
    OK(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclSuccess);
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    OK(ncclGroupStart());
    OK(ncclAllReduce(data, data, 1, ncclFloat, ncclProd, comm, NULL));
    OK(ncclGroupSimulateEnd(&info));
    CHECK(data[0] == 5 && (ranks->world == 1 || info.estimatedTime > 0));
  }
}

/* Transfers that contradict each other are refused before any rank of the group waits for them. */
static void contradictions(Ranks *ranks) {
  strcpy(where, "contradictions");
  int data[4] = {0};
  OK(ncclGroupStart());
  for (int i = 0; i < ranks->count; i++) OK(ncclSend(data, 4, ncclInt32, ranks->rank[i], ranks->comm[i], NULL));
  REFUSED(ncclInvalidArgument, ncclGroupEnd(), "sends itself");
}

static void memory(Ranks *ranks) {
  strcpy(where, "memory");
  float *data[8];
  void *handle = data;
  for (int i = 0; i < ranks->count; i++) {
    OK(ncclMemAlloc((void **)&data[i], 40000 * sizeof(float)));
    OK(ncclCommRegister(ranks->comm[i], data[i], 40000 * sizeof(float), &handle));
    OK(ncclCommDeregister(ranks->comm[i], handle));
    for (int at = 0; at < 40000; at++) data[i][at] = 1;
  }
  OK(ncclGroupStart());
  for (int i = 0; i < ranks->count; i++)
    OK(ncclAllReduce(data[i], data[i], 40000, ncclFloat, ncclSum, ranks->comm[i], NULL));
  OK(ncclGroupEnd());
  for (int i = 0; i < ranks->count; i++) {
    for (int at = 0; at < 40000; at++) CHECK(data[i][at] == (float)ranks->world);
    OK(ncclMemFree(data[i]));
    // Another thread may have got the same memory again by now.
    void *not_given = several_threads ? (void *)&handle : (void *)data[i];
    REFUSED(ncclInvalidArgument, ncclMemFree(not_given), "ptr is");
  }
}

static void all(Ranks *ranks) {
  int one_thread = ranks->count > 1;
  for (Kind kind = 0; kind < CALLABLE; kind++) {
    int reduces = kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER;
    int rooted = kind == REDUCE || kind == BROADCAST || kind == BCAST || kind == GATHER || kind == SCATTER;
    for (int type = 0; type < ncclNumTypes; type++)
      for (int op = 0; op < (reduces ? ncclNumOps : 1); op++)
        for (size_t c = 0; c < sizeof COUNTS / sizeof *COUNTS; c++) {
          if (COUNTS[c] > 1000 && (small || type != ncclFloat32 || op != ncclSum)) continue;
          if (small && COUNTS[c] > 7) continue;
          for (int in_place = 0; in_place < (kind == ALL_TO_ALL || kind == BCAST ? 1 : 2); in_place++) {
            int root = rooted ? (int)((c + (size_t)type) % (size_t)ranks->world) : 0;
            run(ranks, kind, type, op, root, COUNTS[c], in_place, one_thread || (c & 1));
          }
        }
  }
  premultiplied(ranks);
  transfers(ranks);
  splits(ranks);
  arguments(ranks);
  contradictions(ranks);
  memory(ranks);
  strcpy(where, "the end");
  for (int i = ranks->count - 1; i >= 0; i--) {
    OK(ncclCommFinalize(ranks->comm[i]));
    REFUSED(ncclInvalidArgument, ncclCommFinalize(ranks->comm[i]), "finalized before");
    OK(ncclCommDestroy(ranks->comm[i]));
    REFUSED(ncclInvalidArgument, ncclCommDestroy(ranks->comm[i]), "destroyed");
    OK(ncclCommAbort(ranks->comm[i]));
  }
}

int main(int argc, char **argv) {
  CHECK(argc >= 3);
  int world = atoi(argv[2]);
  small = argc > 3;
  if (!strcmp(argv[1], "threads")) in_threads(world, all);
  else if (!strcmp(argv[1], "processes")) in_processes(world, all);
  else if (!strcmp(argv[1], "one_thread")) in_one_thread(world, all);
  else if (!strcmp(argv[1], "init_all")) by_init_all(world, all);
  else FAIL("no way %s", argv[1]);
  puts("passed");
  return 0;
}
