#!/usr/bin/env bash
# Enters one training job again and again, on a machine with a GPU, root, PyTorch and a built stallscope.
#   tests/gpu/again.sh FOLDER [TIMES]      leaves FOLDER/again.txt
# The job must run on at its speed, with as many threads, mappings and descriptors as after the first time, replay a
# graph that it captured before, and use PyTorch's own profiler at the end.
set -u
out=${1:?folder for the results}
times=${2:-200}
mkdir -p "$out"
here=$(cd "$(dirname "$0")" && pwd)
stallscope=${STALLSCOPE_BIN:-$here/../../target/release/stallscope}
work=$(mktemp -d)
chmod +x "$stallscope"
export NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29571 WORLD_SIZE=1

RANK=0 AGENT_WORK=$work timeout 550 python3 "$here/agent_job.py" 540 >"$work/job.log" 2>&1 &
job=$!
for _ in $(seq 90); do [[ -e $work/ready0 ]] && break; sleep 1; done
pid=$(cat "$work/ready0")
numbers() { # what of the process must not grow
    echo "threads=$(ls /proc/$pid/task | wc -l) maps=$(wc -l </proc/$pid/maps) fds=$(ls /proc/$pid/fd | wc -l) rss_kb=$(awk '/VmRSS/ {print $2}' /proc/$pid/status)"
}
entered=0 failed=0
{
    date -u +%FT%TZ
    "$stallscope" --version
    echo "before: $(numbers)"
    for turn in $(seq "$times"); do
        kill -0 "$pid" 2>/dev/null || { echo "the job has ended before turn $turn"; break; }
        if "$stallscope" record --pid "$pid" -d 100ms -o "$work/again.stall" --probes cuda >"$work/record.log" 2>&1 &&
            "$stallscope" export "$work/again.stall" --format json | grep -q '"gpu_activities"'; then
            entered=$((entered + 1))
        else
            failed=$((failed + 1))
            if ((failed < 6)); then
                echo "turn $turn:"
                tail -n 4 "$work/record.log"
                "$stallscope" report "$work/again.stall" | sed -n '/COVERAGE/,$p' | head -12
            fi
        fi
        if ((turn == 1 || turn % 50 == 0)); then echo "after $turn: $(numbers)"; fi
    done
    echo "recorded kernels in $entered of $((entered + failed)) turns"
} >"$out/again.txt" 2>&1
touch "$work/stop"
wait $job
echo "job: exit $?" >>"$out/again.txt"
{
    tail -n 4 "$work/job.log"
    python3 -c '
import json, sys
result = json.load(open(sys.argv[1]))
steps = result["steps"]
gaps = sorted(b - a for a, b in zip(steps, steps[1:]))
print("steps", len(steps), "median", f"{gaps[len(gaps) // 2] * 1e3:.2f} ms", "longest", f"{gaps[-1] * 1e3:.1f} ms")
print("graph right", result["graph_right_before"], result["graph_right_after"], "profiler after:", len(result["profiler_after"]), "kernels,", result["profiler_after_failure"])' "$work/result0.json"
} >>"$out/again.txt" 2>&1
cat "$out/again.txt"
