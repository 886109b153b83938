#!/usr/bin/env bash
# Records real NCCL jobs on a machine with one GPU, root, PyTorch and a built stallscope.
#   tests/gpu/sockets.sh FOLDER [NAME…]     leaves traces and reports in FOLDER; NAMEs: train late hang silent
# Four recordings: a job attached to in mid-training, the same with a late rank, and starts that hang because the
# resolver's address has no listener, and because the resolver never answers.
set -u
out=${1:?folder for the results}
shift
wanted=" ${*:-train late hang silent} "
here=$(cd "$(dirname "$0")" && pwd)
stallscope=${STALLSCOPE_BIN:-$here/../../target/release/stallscope}
work=$(mktemp -d)
chmod +x "$stallscope"
export NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 MASTER_ADDR=127.0.0.1 WORLD_SIZE=2 LOCAL_RANK=0

{
    uname -r
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
    python3 -c 'import torch; print("torch", torch.__version__, "nccl", torch.cuda.nccl.version())'
    "$stallscope" doctor
} >"$out/machine.txt" 2>&1

# One parent whose children are the ranks: the thing to attach to. It prints its steps a second at the end.
launch() { # PORT SECONDS LATE
    MASTER_PORT=$1 exec bash -c 'RANK=0 python3 "$0" "$1" "$2" & RANK=1 python3 "$0" "$1" "$2" & wait' "$here/train.py" "$2" "$3"
}

record() { # NAME PID TIME
    "$stallscope" record --pid "$2" -d "$3" -o "$work/$1.stall" >"$out/$1.txt" 2>&1
    {
        "$stallscope" report "$work/$1.stall"
        "$stallscope" export "$work/$1.stall" --format folded | sort -t' ' -k2 | head -400
    } >>"$out/$1.txt" 2>&1
    cp "$work/$1.stall" "$out/$1.stall"
}

train() { # NAME PORT LATE
    (launch "$2" 45 "$3") >"$work/$1.log" 2>&1 &
    sleep 25
    record "$1" $! 3s
    wait $!
}
[[ $wanted == *" train "* ]] && train train 29511 0
[[ $wanted == *" late "* ]] && train late 29512 20

# The launcher's name for the master cannot be resolved: resolv.conf names an address where nobody listens, then one
# where a server never answers.
cat >"$work/hang.sh" <<'EOF'
mount --bind "$1" /etc/resolv.conf
sed -i 's/^hosts:.*/hosts: files dns/' /etc/nsswitch.conf 2>/dev/null
MASTER_ADDR=node01.cluster.internal MASTER_PORT=29513 RANK=1 exec timeout 40 python3 "$2" 5
EOF
hang() { # NAME ADDRESS
    echo "nameserver $2" >"$work/$1.conf"
    unshare --mount --propagation private bash "$work/hang.sh" "$work/$1.conf" "$here/train.py" >"$work/$1.log" 2>&1 &
    sleep 12
    record "$1" $! 8s
    kill %% 2>/dev/null
}
[[ $wanted == *" hang "* ]] && hang hang 127.0.0.53
if [[ $wanted == *" silent "* ]]; then
    python3 -c 'import socket, time
silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
silent.bind(("127.0.0.54", 53))
time.sleep(60)' &
    server=$!
    hang silent 127.0.0.54
    kill $server
fi
tail -n 3 "$work"/*.log >"$out/jobs.txt" 2>&1
tail -n 40 "$out"/machine.txt "$out"/jobs.txt
