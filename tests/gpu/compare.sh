#!/usr/bin/env bash
# Recorded kernels beside those of PyTorch's profiler on neighbouring steps, on a machine with one GPU, root, PyTorch
# and a built stallscope.
#   tests/gpu/compare.sh FOLDER      leaves compare-1.txt (one rank) and compare-2.txt (two on the one GPU) there
# Counts by name and step have to be equal; medians of compute kernels within 1 % where one rank has the GPU alone.
set -u
out=${1:?folder for the results}
mkdir -p "$out"
here=$(cd "$(dirname "$0")" && pwd)
stallscope=${STALLSCOPE_BIN:-$here/../../target/release/stallscope}
chmod +x "$stallscope"
export NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 MASTER_ADDR=127.0.0.1
failed=0

run() { # RANKS
    local ranks=$1 work pids=() pid arguments=()
    work=$(mktemp -d)
    export WORLD_SIZE=$ranks MASTER_PORT=$((29560 + ranks))
    for rank in $(seq 0 $((ranks - 1))); do
        RANK=$rank timeout 150 python3 "$here/compare_job.py" "$work" >"$work/job$rank.log" 2>&1 &
        pids[rank]=$!
    done
    for _ in $(seq 90); do [[ -e $work/ready0 && -e $work/ready$((ranks - 1)) ]] && break; sleep 1; done
    for rank in $(seq 0 $((ranks - 1))); do arguments+=(--pid "$(cat "$work/ready$rank")"); done
    pid=$(cat "$work/ready0")
    sleep 1
    "$stallscope" record "${arguments[@]}" -d 5s -o "$work/run.stall" >"$work/record.log" 2>&1
    echo "record: exit $?" >>"$work/record.log"
    touch "$work/stop"
    for rank in $(seq 0 $((ranks - 1))); do
        wait "${pids[rank]}"
        echo "rank $rank: exit $?" >>"$work/record.log"
    done
    "$stallscope" export "$work/run.stall" --format json |
        python3 -c '
import json, sys
document = json.load(sys.stdin)
pid = int(sys.argv[1])
kinds = {"gpu_name", "gpu_activities", "gpu_syncs"}
document["records"] = [r for r in document["records"] if r["kind"] in kinds and r.get("pid", pid) == pid]
json.dump(document, sys.stdout)' "$pid" >"$work/export.json"
    "$stallscope" report "$work/run.stall" --format json -o "$work/report.json"
    {
        date -u +%FT%TZ
        uname -r
        nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
        python3 -c 'import torch; print("torch", torch.__version__, "cuda", torch.version.cuda, "nccl", torch.cuda.nccl.version())'
        "$stallscope" --version
        echo "== $ranks rank(s)"
        python3 "$here/compare.py" "$work/steps0.json" "$work/export.json" "$work/report.json"
        echo "compare: exit $?"
        tail -n 12 "$work/record.log"
        echo "== report"
        "$stallscope" report "$work/run.stall"
        echo "== folded"
        "$stallscope" export "$work/run.stall" --format folded | grep -E '\[(nccl|gpu)\.' | head -20
        tail -n 5 "$work"/job*.log
    } >"$out/compare-$ranks.txt" 2>&1
    cp "$work/run.stall" "$out/compare-$ranks.stall"
    grep -q '^compare: exit 0' "$out/compare-$ranks.txt" || failed=1
    sed -n '/^== [12] rank/,/^== report/p' "$out/compare-$ranks.txt"
}
run 1
run 2
exit $failed
