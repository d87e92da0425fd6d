/* One rank of an MPI all-reduce, for the comparison: float32 sum, out of place, private buffers.
 *
 *     mpirun -n 2 mpi_all_reduce RIG
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "rig.h"

static void *buffer(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes) != 0) {
        fprintf(stderr, "mpi_all_reduce: no memory for %zu bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

static void fill(float *values, size_t count, float value) {
    for (size_t i = 0; i < count; i++)
        values[i] = value;
}

static float total(const float *values, size_t count) {
    float sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

static void measure(struct rig *rig, size_t bytes, int rank, int ranks) {
    size_t count = bytes / sizeof(float);
    float *input = buffer(bytes), *output = buffer(bytes);
    volatile float seen; /* what was read must not be optimised away */
    fill(input, count, (float)(rank + 1));
    fill(output, count, 0);
    uint64_t operations;
    while ((operations = rig_next_sample(rig)) != 0) {
        for (uint64_t i = 0; i < operations; i++) {
            if (rig_rewrites(rig)) {
                fill(input, count, (float)(rank + 1));
                seen = total(output, count);
                rig_begin_operation(rig);
                MPI_Allreduce(input, output, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
                rig_end_operation(rig);
            } else {
                MPI_Allreduce(input, output, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            }
        }
    }
    (void)seen;
    for (size_t i = 0; i < count; i++) {
        if (output[i] != (float)(ranks * (ranks + 1) / 2)) {
            fprintf(stderr, "mpi_all_reduce: element %zu of %zu is wrong\n", i, count);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    free(input);
    free(output);
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    struct rig *rig = argc == 2 ? rig_open(argv[1], (size_t)rank, (size_t)ranks) : NULL;
    if (rig == NULL) {
        fprintf(stderr, "usage: mpi_all_reduce RIG\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    size_t bytes;
    while ((bytes = rig_next_size(rig)) != 0)
        measure(rig, bytes, rank, ranks);
    rig_close(rig);
    MPI_Finalize();
    return 0;
}
