"""Sets recorded kernels beside those of PyTorch's profiler: python3 compare.py STEPS.json EXPORT.json REPORT.json

Counts by name for each step, and medians of durations. Exit status 1 where a count differs.
"""

import json
import sys
from statistics import median

import torch

COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}

job, export, report = (json.load(open(path)) for path in sys.argv[1:4])
records = export["records"]
names = {record["id"]: torch._C._demangle(record["name"]) for record in records if record["kind"] == "gpu_name"}


def activities():
    """What ran: name, start and end."""
    for batch in records:
        if batch["kind"] != "gpu_activities":
            continue
        start = 0
        for what, delta, duration in zip(batch["what"], batch["start"], batch["duration"]):
            start += delta
            name = names.get(what // 2, "?") if what % 2 == 0 else f"Memcpy {COPIES.get(what // 2, '?')}"
            yield name, start, start + duration


recorded = list(activities())
first, last = min(start for _, start, _ in recorded), max(end for _, _, end in recorded)
# Whole steps inside of what the agent saw; the first and the last one are left out.
steps = [(begin, end) for begin, end in job["steps"] if begin >= first and end <= last][1:-1]
found = {}
at = 0
for name, start, end in sorted(recorded, key=lambda one: one[1]):
    while at < len(steps) and steps[at][1] <= start:
        at += 1
    if at < len(steps) and steps[at][0] <= start:
        found.setdefault(name, []).append(end - start)


def key(name):
    """The profiler calls copies `Memcpy HtoD (Pageable -> Device)`, and knows memsets, which are not recorded."""
    return " ".join(name.split()[:2]) if name.startswith("Memcpy") else name


seen = {}
for name, durations in job["seen"].items():
    if not name.startswith("Memset"):
        seen.setdefault(key(name), []).extend(durations)

differ, compute = 0, []
print(f"{len(steps)} steps recorded, {job['profiled']} profiled\n")
print(f"{'per step':>9} {'profiler':>9} {'p50 us':>9} {'profiler':>9} {'ratio':>7}  name")
for name in sorted(seen.keys() | found.keys(), key=lambda name: -sum(found.get(name, [0]))):
    ours, theirs = found.get(name, []), seen.get(name, [])
    counts = len(ours) / max(1, len(steps)), len(theirs) / job["profiled"]
    differ += counts[0] != counts[1]
    medians = [median(values) / 1000 if values else 0.0 for values in (ours, theirs)]
    ratio = medians[0] / medians[1] if medians[1] else 0.0
    if "nccl" not in name and not name.startswith("Memcpy") and ratio:
        compute.append((ratio, sum(ours)))
    mark = "" if counts[0] == counts[1] else "  COUNTS DIFFER"
    print(f"{counts[0]:9.3f} {counts[1]:9.3f} {medians[0]:9.2f} {medians[1]:9.2f} {ratio:7.3f}  {name[:90]}{mark}")
total = sum(weight for _, weight in compute)
mean = sum(ratio * weight for ratio, weight in compute) / total if total else 0.0
worst = max((abs(ratio - 1) for ratio, weight in compute if weight > 0.01 * total), default=0.0)
print(f"\ncounts that differ: {differ}; compute kernels' medians: mean ratio {mean:.4f} weighted by time, worst of those with over 1 % {worst:.2%}")
nccl = {name: sorted(values) for name, values in found.items() if "nccl" in name}
for name, values in nccl.items():
    theirs = sorted(seen.get(name, [0]))
    quantiles = [tuple(list_[int(q * (len(list_) - 1))] // 1000 for q in (0.1, 0.5, 0.9)) for list_ in (values, theirs)]
    print(f"{name[:60]}: p10 p50 p90 {quantiles[0]} us recorded, {quantiles[1]} us profiled")
print("\nwaits for the GPU, ms: thread, function, count, waited, compute, nccl, copy, queue, unknown, spinning")
for row in report.get("cuda_waits", [])[:8]:
    parts = [row[part + "_ns"] / 1e6 for part in ("waited", "compute", "nccl", "copy", "queue", "unknown", "spin")]
    print(" ", row["tid"], row["function"], row["count"], *(f"{part:.1f}" for part in parts))
# The steps wait in these two functions, once each.
window = [(begin, end) for begin, end in job["steps"] if begin >= first and end <= last]
waits = {}
for batch in records:
    if batch["kind"] == "gpu_syncs":
        for call, _ in zip(batch["call"], batch["start"]):
            waits[tuple(batch["calls"][call])] = waits.get(tuple(batch["calls"][call]), 0) + 1
print("recorded calls by thread and function:", waits, "in", len(window), "steps")
sys.exit(differ > 0)
