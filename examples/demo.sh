#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# make demo: two virtual Gaudi2, first in one process, then on two hosts joined by RDMA, then under stock UCX. $1: folder of the
# programs; $2: where a stock UCX lies, if there is one.
set -eu

bin=$1
ucx=${2:-}
tool=$bin/gaudi-direct
host_a=gaudi-demo-$$-a host_b=gaudi-demo-$$-b
server=
work=$(mktemp -d)
description=$work/description log=$work/server

tidy() {
    status=$?
    [ -z "$server" ] || { kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; }
    [ $status -eq 0 ] || tail -n 20 "$log"* 2>/dev/null || true
    for lab in demo demo-a demo-b; do "$tool" lab clean "$lab" >/dev/null 2>&1 || true; done
    for host in "$host_a" "$host_b"; do ip netns del "$host" 2>/dev/null || true; done
    rm -rf "$work"
}
trap tidy EXIT

# Two hosts with a cable between them; fails without the right to make network namespaces.
make_hosts() {
    ip netns add "$host_a" && ip netns exec "$host_a" true && ip netns add "$host_b" &&
        ip link add gdemo0 netns "$host_a" type veth peer name gdemo1 netns "$host_b" &&
        ip -n "$host_a" addr add 10.78.0.1/24 dev gdemo0 && ip -n "$host_b" addr add 10.78.0.2/24 dev gdemo1 &&
        for host in "$host_a" "$host_b"; do ip -n "$host" link set lo up || return 1; done &&
        ip -n "$host_a" link set gdemo0 up && ip -n "$host_b" link set gdemo1 up
} 2>/dev/null

fail() {
    echo "demo.sh: $*" >&2
    exit 1
}

# Waits until the server has announced its port, and prints the port.
announced_port() {
    for _ in $(seq 300); do
        port=$(sed -n 's/^listening on port \([0-9]*\);.*/\1/p' "$log")
        [ -z "$port" ] || { echo "$port" && return; }
        kill -0 "$server" 2>/dev/null || fail "rdma_server ended before it listened"
        sleep 0.1
    done
    fail "rdma_server does not listen after 30 seconds"
}

listens_on() { # in the network of the command before the port
    grep -qs "$(printf ':%04X 0*:0000 0A' "${!#}")" <("${@:1:$#-1}" cat /proc/net/tcp /proc/net/tcp6 2>/dev/null)
}

# Starts ucx_perftest as a server on a free port and waits until it listens; it does not announce its port. $@: the command
# that enters the network of both processes. Another program can take the port before the server does: then tries another.
start_perftest() {
    for _ in 1 2 3 4 5; do
        port=$((20000 + RANDOM % 10000))
        ! listens_on "$@" $port || continue
        "$@" "$tool" lab run --lab demo --gaudis 2 --generation gaudi2 --ucx "$ucx" -- "${perftest[@]}" -p $port >"$log" 2>&1 &
        server=$!
        for _ in $(seq 300); do
            kill -0 "$server" 2>/dev/null || break
            ! listens_on "$@" $port || return 0
            sleep 0.1
        done
        ! kill -0 "$server" 2>/dev/null || fail "ucx_perftest does not listen on port $port after 30 seconds"
        server=
        grep -q 'Address already in use' "$log" || fail "ucx_perftest ended before it listened"
    done
    fail "ucx_perftest found no free port"
}

echo "== one process, two Gaudis: host -> Gaudi 0 -> Gaudi 1 -> host"
"$tool" lab run --lab demo --gaudis 2 --generation gaudi2 -- "$bin/example_two_devices"

network=()
if make_hosts; then
    network=(ip netns exec "$host_a")
    echo
    echo "== two hosts (network namespaces), a Gaudi and a RoCE NIC each: rdma_server and rdma_client"
    printf 'gaudis = 1\nhcas = 1\nlink_layer = ethernet\n' >"$description"
    ip netns exec "$host_b" "$tool" lab run --lab demo-b --config "$description" -- \
        "$bin/rdma_server" --once --require zero-copy --port 0 >"$log" 2>&1 &
    server=$!
    port=$(announced_port)
    ip netns exec "$host_a" "$tool" lab run --lab demo-a --config "$description" -- \
        "$bin/rdma_client" "10.78.0.2:$port" --require zero-copy
else
    echo
    echo "== two processes (no right to make network namespaces), a Gaudi each: rdma_server and rdma_client"
    "$tool" lab run --lab demo -- "$bin/rdma_server" --once --require zero-copy --port 0 >"$log" 2>&1 &
    server=$!
    port=$(announced_port)
    "$tool" lab run --lab demo -- "$bin/rdma_client" "localhost:$port" --require zero-copy
fi
wait "$server"
server=
echo "-- the server said:"
cat "$log"

[ -e "$ucx/lib/libucs.so.0" ] || {
    echo "== no stock UCX under '$ucx': its part is left out; make ucx fetches one"
    echo
    echo "data is right: every byte that went through both Gaudis and over RDMA was compared"
    exit 0
}
echo
echo "== stock UCX with our plugin: ucx_perftest -m gaudi over a virtual InfiniBand, a Gaudi for each process"
perftest=(ucx_perftest -t tag_bw -m gaudi -s 1048576 -n 500)
export UCX_TLS=rc,gaudi_cpy GAUDI_LAB_HCA_REPORT="$log.nic" UCX_GAUDI_COPY_STATISTICS=y UCX_PROTO_INFO=y
start_perftest "${network[@]}"
"${network[@]}" "$tool" lab run --lab demo --ucx "$ucx" -- "${perftest[@]}" -p "$port" localhost >"$log.client" 2>&1
wait "$server"
server=
grep -A 7 'tagged message by ucp_tag_send.*from gaudi' "$log.client" | sed 's/^.*\] *//'
grep -E 'Final|overhead \(usec\)|iterations' "$log.client"
echo "-- what each process's component counted, and what the NIC did:"
grep -ho 'gaudi_copy: .*' "$log" "$log.client"
cat "$log.nic"
echo "-- ucx_perftest compares nothing; this does:"
"$tool" lab run --lab demo --ucx "$ucx" -- env -u UCX_GAUDI_COPY_STATISTICS "$bin/example_uct_put"
echo
echo "data is right: every byte that went through both Gaudis, over RDMA and by UCX's put was compared"
