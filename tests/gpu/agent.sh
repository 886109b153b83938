#!/usr/bin/env bash
# GPU times of a real NCCL job, on a machine with one GPU, root, PyTorch and a built stallscope.
#   tests/gpu/agent.sh FOLDER      leaves at most eight files in FOLDER
# Two ranks train; one is entered in mid-training, three times, while another part of the run is without a recorder:
# kernels by name beside PyTorch's own profiler, steps a second with and without, stopped time, sizes, and that the
# job ends as it should, with its own profiler used before and after.
set -u
out=${1:?folder for the results}
mkdir -p "$out"
here=$(cd "$(dirname "$0")" && pwd)
stallscope=${STALLSCOPE_BIN:-$here/../../target/release/stallscope}
work=$(mktemp -d)
chmod +x "$stallscope"
export NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29541 WORLD_SIZE=2

{
    date -u +%FT%TZ
    uname -r
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
    python3 -c 'import sys, torch; print("python", sys.version.split()[0], "torch", torch.__version__, "cuda", torch.version.cuda, "nccl", torch.cuda.nccl.version())'
    ldd --version | head -1
    "$stallscope" --version
    find / -name 'libcupti.so*' -not -path '/proc/*' 2>/dev/null
} >"$out/machine.txt" 2>&1

for rank in 0 1; do
    RANK=$rank AGENT_WORK=$work timeout 200 python3 "$here/agent_job.py" 100 >"$work/job$rank.log" 2>&1 &
    pids[rank]=$!
done
for _ in $(seq 90); do [[ -e $work/ready0 && -e $work/ready1 ]] && break; sleep 1; done
pid=$(cat "$work/ready0")
sleep 2

numbers() { # what of the process must not grow
    echo "threads=$(ls /proc/$pid/task | wc -l) maps=$(wc -l </proc/$pid/maps) fds=$(ls /proc/$pid/fd | wc -l)"
}
log=$out/attach.txt
{
    grep -h 'libcupti\|libcudart\|libcuda\.' /proc/$pid/maps | awk '{print $6}' | sort -u
    echo "before: $(numbers)"
} >"$log" 2>&1
record() { # NAME SECONDS ARGUMENTS…
    local name=$1 seconds=$2
    shift 2
    echo "== $name $(date -u +%T.%N) monotonic $(awk '{print $1}' /proc/uptime)" >>"$log"
    echo "$name begin $(python3 -c 'import time; print(time.monotonic())')" >>"$work/phases"
    "$stallscope" record --pid "$pid" -d "$seconds" -o "$work/$name.stall" "$@" >>"$log" 2>&1
    echo "exit $? $(numbers) bytes=$(stat -c %s "$work/$name.stall")" >>"$log"
    echo "$name end $(python3 -c 'import time; print(time.monotonic())')" >>"$work/phases"
}
# Alternating, so that a drift of the machine shows in both.
for turn in 1 2 3; do
    record plain$turn 4s --no-inject
    sleep 1
    record gpu$turn 4s
    sleep 1
done
record dns_only 2s --probes dns
# The other rank has used PyTorch's profiler, which keeps CUPTI: that has to be said, and nothing else to happen.
pid=$(cat "$work/ready1")
record taken 2s
"$stallscope" report "$work/taken.stall" | sed -n '/COVERAGE/,$p' >>"$log" 2>&1
{
    for turn in 1 2 3; do
        echo "== report gpu$turn"
        "$stallscope" report "$work/gpu$turn.stall" | sed -n '/NCCL KERNELS/,/^$/p;/CAUSES/,/^$/p;/COVERAGE/,$p'
    done
    echo '== by cause'
    "$stallscope" export "$work/gpu1.stall" --format folded | head -3
    "$stallscope" flame "$work/gpu1.stall" --view cause -o "$work/cause.svg"
    grep -o '<title>[^<]*' "$work/cause.svg" | head -60
} >>"$log" 2>&1
touch "$work/stop"
for rank in 0 1; do
    wait "${pids[rank]}"
    echo "rank $rank exit $?" >>"$log"
done
tail -n 25 "$work"/job*.log >>"$log" 2>&1
dmesg 2>/dev/null | tail -3 >>"$log"
cp "$work/gpu1.stall" "$work/gpu3.stall" "$out/" 2>/dev/null
"$stallscope" report "$work/gpu2.stall" --format json -o "$out/report.json" >>"$log" 2>&1
python3 "$here/agent_compare.py" "$work" "$stallscope" >"$out/summary.json" 2>>"$log"
tail -n 60 "$out/summary.json"
tail -n 30 "$log"
