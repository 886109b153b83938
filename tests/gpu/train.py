"""A small data-parallel training loop over NCCL, two ranks on one GPU.

NCCL takes ranks with different NCCL_HOSTID for different hosts, so it talks over its socket transport.
Usage: train.py SECONDS [MILLISECONDS that rank 1 is late in each step]
"""

import os
import sys
import time

import torch
import torch.distributed as dist


def main():
    seconds = float(sys.argv[1])
    late = float(sys.argv[2]) / 1e3 if len(sys.argv) > 2 else 0.0
    rank = int(os.environ["RANK"])
    os.environ["NCCL_HOSTID"] = f"host{rank}"
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    layers = [torch.nn.Linear(1024, 1024) for _ in range(8)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).cuda())
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    batch = torch.randn(256, 1024, device="cuda")
    started, steps, proceed = time.time(), 0, True
    while proceed:
        if rank == 1 and late:
            time.sleep(late)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        steps += 1
        flag = torch.tensor([float(time.time() - started < seconds)], device="cuda")
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        proceed = flag.item() > 0
    print(f"rank {rank} steps {steps} steps_per_second {steps / (time.time() - started):.2f}", flush=True)
    dist.destroy_process_group()


main()
