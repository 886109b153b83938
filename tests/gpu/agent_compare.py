"""Sets what was recorded beside what the job says of itself: python3 agent_compare.py WORK STALLSCOPE, result as JSON."""

import json
import subprocess
import sys
from statistics import mean

work, stallscope = sys.argv[1:3]
job = json.load(open(f"{work}/result0.json"))
other = json.load(open(f"{work}/result1.json"))
phases = {}
for line in open(f"{work}/phases"):
    name, what, at = line.split()
    phases.setdefault(name, {})[what] = float(at)


def rate(name):
    """Steps a second inside a recording, without its first and last half second."""
    begin, end = phases[name]["begin"] + 1.0, phases[name]["end"] - 1.0
    return sum(begin <= at < end for at in job["steps"]) / (end - begin)


def whole(name):
    """Steps from beginning to end of `record`, its beginning and end included."""
    begin, end = phases[name]["begin"], phases[name]["end"]
    return sum(begin <= at < end for at in job["steps"]), begin, end


names = ["gpu1", "gpu2", "gpu3"]
result = {
    "steps_per_second": {name: round(rate(name), 2) for name in phases},
    "recording": round(mean(rate(name) for name in names), 2),
    "recording_without_agent": round(mean(rate(f"plain{turn}") for turn in (1, 2, 3)), 2),
    "graph_right": [job["graph_right_before"], job["graph_right_after"]],
    "profiler_after_failure": job["profiler_after_failure"],
    "longest_step_ms": round(1000 * max(b - a for a, b in zip(job["steps"], job["steps"][1:])), 2),
    "attaches": {},
    "profiler": {},
}
for name in names:
    report = json.loads(
        subprocess.run([stallscope, "report", f"{work}/{name}.stall", "--format", "json"], capture_output=True).stdout
    )
    seconds = report["target"]["duration_ns"] / 1e9
    count, begin, end = whole(name)
    result["attaches"][name] = {
        "window_s": seconds,
        "steps_of_the_whole_record": count,
        "gpus": report.get("gpus"),
        "collectives": [
            {
                key: row[key]
                for key in ("kernel_name", "op", "data_type", "algorithm", "protocol", "count", "exposed_ns")
            }
            | {"kernel_p50_ns": row["kernel"]["p50_ns"], "queue_p50_ns": row["launch_queue"]["p50_ns"], "queue_seen": row["launch_queue"]["count"]}
            for row in report["collectives"]
        ],
        "causes": [row for row in report["causes"] if row["domain"] == "gpu"],
        "cuda": [row for row in report["coverage"]["probes"] if row["family"] == "cuda"],
        "losses": report["coverage"]["losses"],
        "environment": [row for row in report["environment"] if row["what"].startswith(("agent", "cupti"))],
    }
for when, ranked in (("before", other), ("after", job)):
    result["profiler"][when] = {
        name[:100]: row for name, row in sorted(ranked[f"profiler_{when}"].items(), key=lambda item: -item[1]["per_step"])[:14]
    }
print(json.dumps(result, indent=1))
