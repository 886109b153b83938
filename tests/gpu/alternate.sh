#!/usr/bin/env bash
# What a recording with GPU times costs, on a machine with a GPU, root, PyTorch and a built stallscope.
#   tests/gpu/alternate.sh FOLDER [TURNS] [RANKS]     leaves FOLDER/alternate-RANKS.json
# A job trains; no recorder, a recorder without the agent and one with it take turns, so that a drift of the machine
# shows in all three. Before the first turn there is a time in which nothing was ever loaded.
set -u
out=${1:?folder for the results}
turns=${2:-12}
ranks=${3:-1}
seconds=3
mkdir -p "$out"
here=$(cd "$(dirname "$0")" && pwd)
stallscope=${STALLSCOPE_BIN:-$here/../../target/release/stallscope}
work=$(mktemp -d)
chmod +x "$stallscope"
export NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29547 WORLD_SIZE=$ranks

for rank in $(seq 0 $((ranks - 1))); do
    # Processors of its own for each rank, others for the recorder.
    RANK=$rank AGENT_WORK=$work taskset -c $((2 * rank)),$((2 * rank + 1)) \
        timeout 500 python3 "$here/agent_job.py" 460 >"$work/job$rank.log" 2>&1 &
    pids[rank]=$!
done
for _ in $(seq 90); do [[ -e $work/ready0 && -e $work/ready$((ranks - 1)) ]] && break; sleep 1; done
pid=$(cat "$work/ready0")
sleep 2

now() { python3 -c 'import time; print(time.monotonic())'; }
phase() { # NAME COMMAND…
    local name=$1 begin
    shift
    begin=$(now)
    taskset -c $((2 * ranks + 2))-$((2 * ranks + 5)) "$@" >>"$work/recorder.log" 2>&1
    echo "$name $? $begin $(now)" >>"$work/phases"
}
for _ in $(seq "$turns"); do phase before sleep $seconds; done
# The first attach maps CUPTI: it is not part of any turn.
phase first "$stallscope" record --pid "$pid" -d ${seconds}s -o "$work/first.stall"
for turn in $(seq "$turns"); do
    # Each turn in another order.
    case $((turn % 3)) in
    0) order='idle plain gpu' ;;
    1) order='plain gpu idle' ;;
    2) order='gpu idle plain' ;;
    esac
    for name in $order; do
        case $name in
        idle) phase idle sleep $seconds ;;
        plain) phase plain "$stallscope" record --pid "$pid" -d ${seconds}s -o "$work/plain.stall" --no-inject ;;
        gpu) phase gpu "$stallscope" record --pid "$pid" -d ${seconds}s -o "$work/gpu.stall" ;;
        esac
    done
done
touch "$work/stop"
for rank in $(seq 0 $((ranks - 1))); do
    wait "${pids[rank]}"
    echo "rank $rank exit $?" >>"$work/exits"
done
"$stallscope" report "$work/gpu.stall" --format json -o "$work/report.json" >>"$work/recorder.log" 2>&1
python3 "$here/alternate_stats.py" "$work" >"$out/alternate-$ranks.json"
cat "$work/exits" "$out/alternate-$ranks.json"
tail -n 5 "$work/job0.log" "$work/recorder.log"
