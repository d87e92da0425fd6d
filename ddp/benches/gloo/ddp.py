"""The model of examples/layers.rs under PyTorch's DistributedDataParallel with Gloo: medians of the slowest rank."""

import contextlib
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel

LAYERS, WIDTH, BATCH, STEPS, WARM, RANKS = 8, 1024, 64, 12, 3, 2


def main(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), gradient_as_bucket_view=True)
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    rows = torch.rand(BATCH, WIDTH) - 0.5
    times = {}

    def note(step, name, seconds):
        if step >= WARM:
            times.setdefault(name, []).append(seconds * 1e3)

    for step in range(STEPS + WARM):
        for name in ("backward alone", "backward and all-reduce"):
            alone = name == "backward alone"
            sgd.zero_grad(set_to_none=False)
            with model.no_sync() if alone else contextlib.nullcontext():
                dist.barrier()
                begun = time.perf_counter()
                loss = model(rows).square().mean()
                forward = time.perf_counter() - begun
                dist.barrier()
                backward = time.perf_counter()
                loss.backward()
                ended = time.perf_counter()
            note(step, name, ended - backward)
            if not alone:
                sgd.step()
                note(step, "forward", forward)
                note(step, "step", forward + time.perf_counter() - backward)
    flat = torch.zeros(LAYERS * (WIDTH * WIDTH + WIDTH))
    for step in range(STEPS + WARM):
        dist.barrier()
        begun = time.perf_counter()
        dist.all_reduce(flat)
        note(step, "bare all-reduce", time.perf_counter() - begun)
    for name, all_times in times.items():
        median = torch.tensor([statistics.median(all_times)])
        dist.all_reduce(median, op=dist.ReduceOp.MAX)
        if rank == 0:
            print(f"gloo | {name} | {median.item():.3f}", flush=True)


if __name__ == "__main__":
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    multiprocessing.spawn(main, args=(port,), nprocs=RANKS)
