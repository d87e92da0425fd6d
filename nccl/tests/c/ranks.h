/* Ranks for the tests: checks, numbers of every type, and the ways in which ranks come together. */
#pragma once
#define _GNU_SOURCE
#include <nccl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static __thread char where[256] = "start";

#define FAIL(...)                                                                    \
  do {                                                                               \
    fprintf(stderr, "%s:%d: in %s: ", __FILE__, __LINE__, where);                    \
    fprintf(stderr, __VA_ARGS__);                                                    \
    fprintf(stderr, "\n");                                                           \
    _exit(1);                                                                        \
  } while (0)

#define CHECK(condition) do { if (!(condition)) FAIL("not so: %s", #condition); } while (0)

/* A call must return this code. */
#define EXPECT(code, call)                                                                          \
  do {                                                                                              \
    ncclResult_t got_ = (call);                                                                     \
    if (got_ != (code)) FAIL("%s returned %d, not %d: %s", #call, got_, code, ncclGetLastError(NULL)); \
  } while (0)

#define OK(call) EXPECT(ncclSuccess, call)

/* The last error's text is one for the whole process: one thread at a time is refused, and looks at it. */
__attribute__((unused)) static pthread_mutex_t refusals = PTHREAD_MUTEX_INITIALIZER;

/* A call must be refused with this code and a text that holds all of the words. */
#define REFUSED(code, call, text)                                                           \
  do {                                                                                      \
    pthread_mutex_lock(&refusals);                                                          \
    EXPECT(code, call);                                                                     \
    if (!strstr(ncclGetLastError(NULL), text)) FAIL("%s says: %s", #call, ncclGetLastError(NULL)); \
    pthread_mutex_unlock(&refusals);                                                        \
  } while (0)

/* Whether several threads are ranks. */
__attribute__((unused)) static int several_threads;

static const size_t SIZE[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

/* Small floats by their number of exponent and mantissa bits. */
static unsigned pack(double value, int exponent_bits, int mantissa_bits) {
  float narrow = (float)value;
  unsigned bits;
  memcpy(&bits, &narrow, 4);
  if (!(bits & 0x7fffffff)) return 0;
  int bias = (1 << (exponent_bits - 1)) - 1;
  int exponent = (int)(bits >> 23 & 255) - 127 + bias;
  unsigned mantissa = bits >> (23 - mantissa_bits) & ((1u << mantissa_bits) - 1);
  return (bits >> 31) << (exponent_bits + mantissa_bits) | (unsigned)exponent << mantissa_bits | mantissa;
}

static double unpack(unsigned bits, int exponent_bits, int mantissa_bits) {
  int bias = (1 << (exponent_bits - 1)) - 1;
  unsigned exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
  unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
  double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
  double value = exponent ? 1 + (double)mantissa / (1 << mantissa_bits) : (double)mantissa / (1 << mantissa_bits);
  int power = (exponent ? (int)exponent : 1) - bias;
  for (; power > 0; power--) value *= 2;
  for (; power < 0; power++) value /= 2;
  return sign * value;
}

static void put(void *buffer, size_t at, ncclDataType_t type, double value) {
  switch (type) {
    case ncclInt8: ((int8_t *)buffer)[at] = (int8_t)value; break;
    case ncclUint8: ((uint8_t *)buffer)[at] = (uint8_t)value; break;
    case ncclInt32: ((int32_t *)buffer)[at] = (int32_t)value; break;
    case ncclUint32: ((uint32_t *)buffer)[at] = (uint32_t)value; break;
    case ncclInt64: ((int64_t *)buffer)[at] = (int64_t)value; break;
    case ncclUint64: ((uint64_t *)buffer)[at] = (uint64_t)value; break;
    case ncclFloat16: ((uint16_t *)buffer)[at] = (uint16_t)pack(value, 5, 10); break;
    case ncclFloat32: ((float *)buffer)[at] = (float)value; break;
    case ncclFloat64: ((double *)buffer)[at] = value; break;
    case ncclBfloat16: ((uint16_t *)buffer)[at] = (uint16_t)pack(value, 8, 7); break;
    case 10: ((uint8_t *)buffer)[at] = (uint8_t)pack(value, 4, 3); break;
    case 11: ((uint8_t *)buffer)[at] = (uint8_t)pack(value, 5, 2); break;
    default: FAIL("no such type: %d", type);
  }
}

static double get(const void *buffer, size_t at, ncclDataType_t type) {
  switch (type) {
    case ncclInt8: return ((const int8_t *)buffer)[at];
    case ncclUint8: return ((const uint8_t *)buffer)[at];
    case ncclInt32: return ((const int32_t *)buffer)[at];
    case ncclUint32: return ((const uint32_t *)buffer)[at];
    case ncclInt64: return (double)((const int64_t *)buffer)[at];
    case ncclUint64: return (double)((const uint64_t *)buffer)[at];
    case ncclFloat16: return unpack(((const uint16_t *)buffer)[at], 5, 10);
    case ncclFloat32: return ((const float *)buffer)[at];
    case ncclFloat64: return ((const double *)buffer)[at];
    case ncclBfloat16: return unpack(((const uint16_t *)buffer)[at], 8, 7);
    case 10: return unpack(((const uint8_t *)buffer)[at], 4, 3);
    case 11: return unpack(((const uint8_t *)buffer)[at], 5, 2);
    default: FAIL("no such type: %d", type);
  }
}

/* Whether the type holds all small sums and quotients exactly, or how far off it may be. */
static double tolerance(ncclDataType_t type) {
  switch (type) {
    case ncclFloat16: return 1e-2;
    case ncclBfloat16: return 5e-2;
    case 10: return 0.15;
    case 11: return 0.3;
    case ncclFloat32: return 1e-6;
    case ncclFloat64: return 1e-12;
    default: return 0;
  }
}

/* The ranks that one thread drives. */
typedef struct {
  int world, count;
  int rank[8];
  ncclComm_t comm[8];
} Ranks;

static void sleep_ms(long ms) {
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

/* Polls until nothing goes on. */
static inline ncclResult_t settled(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  for (int turn = 0; turn < 60000; turn++) {
    OK(ncclCommGetAsyncError(comm, &state));
    if (state != ncclInProgress) return state;
    sleep_ms(1);
  }
  FAIL("still in progress after a minute");
}

typedef void Program(Ranks *ranks);

typedef struct {
  Program *program;
  ncclUniqueId id;
  int rank, world;
} Thread;

static void *run_thread(void *argument) {
  Thread *thread = argument;
  Ranks ranks = {thread->world, 1, {thread->rank}, {NULL}};
  OK(ncclCommInitRank(&ranks.comm[0], thread->world, thread->id, thread->rank));
  thread->program(&ranks);
  return NULL;
}

/* One thread of this process for each rank. */
static void in_threads(int world, Program *program) {
  pthread_t threads[8];
  Thread arguments[8];
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  several_threads = world > 1;
  for (int rank = 0; rank < world; rank++) {
    arguments[rank] = (Thread){program, id, rank, world};
    CHECK(!pthread_create(&threads[rank], NULL, run_thread, &arguments[rank]));
  }
  for (int rank = 0; rank < world; rank++) CHECK(!pthread_join(threads[rank], NULL));
  several_threads = 0;
}

/* One thread drives all ranks, in groups. */
static void in_one_thread(int world, Program *program) {
  Ranks ranks = {world, world, {0}, {NULL}};
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  OK(ncclGroupStart());
  for (int rank = 0; rank < world; rank++) {
    ranks.rank[rank] = rank;
    OK(ncclCommInitRank(&ranks.comm[rank], world, id, rank));
  }
  OK(ncclGroupEnd());
  program(&ranks);
}

/* The same, and the library makes all of them at once. */
static void by_init_all(int world, Program *program) {
  Ranks ranks = {world, world, {0}, {NULL}};
  int devices[8];
  for (int rank = 0; rank < world; rank++) ranks.rank[rank] = rank, devices[rank] = 10 + rank;
  OK(ncclCommInitAll(ranks.comm, world, devices));
  int device = -1;
  OK(ncclCommCuDevice(ranks.comm[world - 1], &device));
  CHECK(device == 10 + world - 1);
  program(&ranks);
}

/* Starts a process for each rank before anything of the library runs, and hands rank 0's id to all. The caller is a rank
 * when this returns; the first process waits for all of them and exits. */
static int as_process(int world, ncclUniqueId *id) {
  int up[2], down[8][2];
  CHECK(!pipe(up));
  for (int rank = 0; rank < world; rank++) CHECK(!pipe(down[rank]));
  for (int rank = 0; rank < world; rank++) {
    if (fork()) continue;
    if (rank == 0) {
      OK(ncclGetUniqueId(id));
      CHECK(write(up[1], id, sizeof *id) == sizeof *id);
    }
    CHECK(read(down[rank][0], id, sizeof *id) == sizeof *id);
    return rank;
  }
  CHECK(read(up[0], id, sizeof *id) == sizeof *id);
  for (int rank = 0; rank < world; rank++) CHECK(write(down[rank][1], id, sizeof *id) == sizeof *id);
  int failed = 0, status;
  while (wait(&status) > 0) failed |= !WIFEXITED(status) || WEXITSTATUS(status);
  exit(failed);
}

static void in_processes(int world, Program *program) {
  Ranks ranks = {world, 1, {0}, {NULL}};
  ncclUniqueId id;
  ranks.rank[0] = as_process(world, &id);
  OK(ncclCommInitRank(&ranks.comm[0], world, id, ranks.rank[0]));
  program(&ranks);
  exit(0);
}
