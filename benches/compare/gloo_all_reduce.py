"""One rank of a Gloo all-reduce through torch.distributed, for the comparison: float32 sum, in place.

    MASTER_ADDR=.. MASTER_PORT=.. RANK=.. WORLD_SIZE=.. gloo_all_reduce.py RIG LIBRIG
"""

import ctypes
import os
import sys

import torch
import torch.distributed as dist


def main(path, library):
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rigs = ctypes.CDLL(library)
    rigs.rig_open.restype = ctypes.c_void_p
    rigs.rig_open.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t]
    rigs.rig_next_size.restype = ctypes.c_size_t
    rigs.rig_next_sample.restype = ctypes.c_uint64
    rig = rigs.rig_open(path.encode(), rank, ranks)
    if rig is None:
        sys.exit(2)
    rig = ctypes.c_void_p(rig)
    while bytes_ := rigs.rig_next_size(rig):
        measure(rigs, rig, bytes_ // 4, rank, ranks)
    rigs.rig_close(rig)
    dist.destroy_process_group()


def measure(rigs, rig, count, rank, ranks):
    values = torch.full((count,), float(rank + 1))
    dist.all_reduce(values)
    if not bool((values == ranks * (ranks + 1) / 2).all()):
        sys.exit(f"gloo_all_reduce: an element of {count} is wrong")
    values.zero_()  # sums of sums would overflow
    rewrites = rigs.rig_rewrites(rig)
    while operations := rigs.rig_next_sample(rig):
        for _ in range(operations):
            if rewrites:
                values.sum()
                values.zero_()
                rigs.rig_begin_operation(rig)
                dist.all_reduce(values)
                rigs.rig_end_operation(rig)
            else:
                dist.all_reduce(values)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: gloo_all_reduce.py RIG LIBRIG")
    main(sys.argv[1], sys.argv[2])
