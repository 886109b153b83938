"""Durations of a job's steps under three kinds of recording that took turns: python3 alternate_stats.py WORK, as JSON."""

import bisect
import json
import math
import sys
from statistics import mean, median, stdev

work = sys.argv[1]
steps = json.load(open(f"{work}/result0.json"))["steps"]
report = json.load(open(f"{work}/report.json"))
# Two-sided 95 % quantiles of Student's distribution, by degrees of freedom.
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 11: 2.20, 12: 2.18, 14: 2.14, 15: 2.13, 19: 2.09}

turns, failed = {}, []
for line in open(f"{work}/phases"):
    name, status, begin, end = line.split()
    if status != "0":
        failed.append(name)
    # Without half a second at each side, in which a recorder attaches and leaves: what that costs is `longest`.
    begin, end = float(begin), float(end)
    inner = steps[bisect.bisect_left(steps, begin + 1.0) : bisect.bisect_left(steps, end - 0.8)]
    outer = steps[max(0, bisect.bisect_left(steps, begin) - 1) : bisect.bisect_left(steps, end) + 1]
    gaps = [b - a for a, b in zip(inner, inner[1:])]
    turns.setdefault(name, []).append(
        {"mean": mean(gaps), "median": median(gaps), "longest": max(b - a for a, b in zip(outer, outer[1:]))}
    )


def of(name, key):
    return [turn[key] for turn in turns[name]]


def compared(name, other, key):
    """Mean change of `name` against `other` in percent, turn by turn, and its 95 % interval."""
    logs = [math.log(a / b) for a, b in zip(of(name, key), of(other, key))]
    half = STUDENT[len(logs) - 1] * stdev(logs) / math.sqrt(len(logs))
    return [round(100 * (math.exp(x) - 1), 3) for x in (mean(logs), mean(logs) - half, mean(logs) + half)]


print(
    json.dumps(
        {
            "turns": len(turns["gpu"]),
            "failed": failed,
            "step_ms": {name: round(1000 * mean(of(name, "mean")), 4) for name in turns},
            "spread_between_turns_pct": {
                name: round(100 * stdev(of(name, "mean")) / mean(of(name, "mean")), 3) for name in turns if len(turns[name]) > 1
            },
            "longest_step_ms": {name: round(1000 * max(of(name, "longest")), 2) for name in turns},
            "longest_step_median_ms": {name: round(1000 * median(of(name, "longest")), 2) for name in turns},
            "change_of_mean_step_pct": {
                "gpu against idle": compared("gpu", "idle", "mean"),
                "plain against idle": compared("plain", "idle", "mean"),
                "gpu against plain": compared("gpu", "plain", "mean"),
                "loaded and idle against before, not alternating": compared("idle", "before", "mean"),
            },
            "change_of_median_step_pct": {
                "gpu against idle": compared("gpu", "idle", "median"),
                "plain against idle": compared("plain", "idle", "median"),
                "gpu against plain": compared("gpu", "plain", "median"),
                "loaded and idle against before, not alternating": compared("idle", "before", "median"),
            },
            "last_recording": {
                "gpus": report.get("gpus"),
                "window_ns": report["target"]["duration_ns"],
                "environment": [row for row in report["environment"] if row["what"].startswith(("agent", "cupti"))],
                "cuda": [row for row in report["coverage"]["probes"] if row["family"] == "cuda"],
            },
        },
        indent=1,
    )
)
