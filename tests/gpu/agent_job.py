"""One rank of a training job that keeps count of its steps, and uses PyTorch's profiler before and after it was recorded.

python3 agent_job.py SECONDS   with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and AGENT_WORK (a folder) set
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

rank, world, work = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["AGENT_WORK"]
# NCCL takes two processes on one GPU for two hosts.
os.environ["NCCL_HOSTID"] = f"host{rank}"
torch.cuda.set_device(0)
dist.init_process_group("nccl")
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
batch = torch.randn(256, 1024, device="cuda")
graph_input, graph = torch.ones(1024, 1024, device="cuda"), torch.cuda.CUDAGraph()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    graph_input @ graph_input
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    graph_output = graph_input @ graph_input


def step():
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    torch.cuda.synchronize()


def replay_is_right():
    graph_input.fill_(2.0)
    graph.replay()
    torch.cuda.synchronize()
    return bool((graph_output == 4096.0).all().item())


def profiled(steps):
    """Kernels by name: how many a step, and the median of their durations, as PyTorch's profiler has them."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            step()
    durations = {}
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation:
            durations.setdefault(event.name, []).append(event.device_time * 1000)
    found = {}
    for name, values in durations.items():
        values.sort()
        found[name] = {"per_step": len(values) / steps, "p50_ns": values[len(values) // 2]}
    return found


for _ in range(20):
    step()
# PyTorch's profiler keeps CUPTI once it was used: in the rank that is entered it is used afterwards only.
if rank == 1:
    before = profiled(20)
else:
    before = {}
    for _ in range(20):
        step()
right_before = replay_is_right()
open(os.path.join(work, f"ready{rank}"), "w").write(str(os.getpid()))
steps, end = [], time.time() + float(sys.argv[1])
while True:
    step()
    steps.append(time.monotonic())
    stop = time.time() > end or os.path.exists(os.path.join(work, "stop"))
    flag = torch.tensor([1.0 if stop else 0.0], device="cuda")
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    if flag.item() > 0:
        break
right_after = replay_is_right()
after, failure = {}, None
try:
    after = profiled(20)
except Exception as error:  # noqa: BLE001  (whatever it is, it is the result)
    failure = repr(error)
open(os.path.join(work, f"result{rank}.json"), "w").write(
    json.dumps(
        {
            "steps": steps,
            "profiler_before": before,
            "profiler_after": after,
            "profiler_after_failure": failure,
            "graph_right_before": right_before,
            "graph_right_after": right_after,
        }
    )
)
dist.destroy_process_group()
print("rank", rank, "steps", len(steps), "graph", right_before, right_after, flush=True)
