"""One rank whose steps are recorded, and then profiled by PyTorch itself: python3 compare_job.py FOLDER

with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set. Leaves FOLDER/steps<RANK>.json: begin and end of each step
(CLOCK_MONOTONIC, ns), and every kernel and copy that PyTorch's profiler saw in the steps after them, by name.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

rank, world, folder = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1]
# NCCL takes two processes on one GPU for two hosts.
os.environ["NCCL_HOSTID"] = f"host{rank}"
torch.cuda.set_device(0)
dist.init_process_group("nccl")
model = torch.nn.Sequential(*[layer for _ in range(6) for layer in (torch.nn.Linear(2048, 2048), torch.nn.GELU())]).cuda()
if world > 1:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
batch = torch.randn(512, 2048)


def step():
    optimizer.zero_grad()
    loss = model(batch.cuda()).square().mean()
    loss.backward()
    optimizer.step()
    # Waits in cudaStreamSynchronize, then in cudaDeviceSynchronize.
    loss.item()
    torch.cuda.synchronize()


def stops():
    """Whether all ranks end here. Its kernels are outside of the steps."""
    stop = torch.tensor([float(os.path.exists(os.path.join(folder, "stop")))], device="cuda")
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    stop = stop.item() > 0
    torch.cuda.synchronize()
    return stop


for _ in range(30):
    step()
stops()
open(os.path.join(folder, f"ready{rank}"), "w").write(str(os.getpid()))
steps, is_over = [], False
while not is_over:
    begin = time.monotonic_ns()
    step()
    steps.append((begin, time.monotonic_ns()))
    is_over = stops()
profiled = 50
with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
    for _ in range(profiled):
        step()
seen = {}
for event in profiler.events():
    if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation:
        seen.setdefault(event.name, []).append(round(event.device_time * 1000))
json.dump({"steps": steps, "profiled": profiled, "seen": seen}, open(os.path.join(folder, f"steps{rank}.json"), "w"))
dist.destroy_process_group()
