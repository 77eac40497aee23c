#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# make demo: two virtual Gaudi2, first in one process, then on two hosts joined by RDMA. $1: folder of the programs.
set -eu

bin=$1
tool=$bin/gaudi-direct
near=gaudi-demo-$$-near far=gaudi-demo-$$-far
server=
description=$(mktemp)

tidy() {
    [ -z "$server" ] || { kill -INT "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; }
    for lab in demo demo-near demo-far; do "$tool" lab clean "$lab" >/dev/null 2>&1 || true; done
    for host in "$near" "$far"; do ip netns del "$host" 2>/dev/null || true; done
    rm -f "$description"
}
trap tidy EXIT

# Two hosts with a cable between them; fails without the right to make network namespaces.
make_hosts() {
    ip netns add "$near" && ip netns exec "$near" true && ip netns add "$far" &&
        ip link add gdemo0 netns "$near" type veth peer name gdemo1 netns "$far" &&
        ip -n "$near" addr add 10.78.0.1/24 dev gdemo0 && ip -n "$far" addr add 10.78.0.2/24 dev gdemo1 &&
        for host in "$near" "$far"; do ip -n "$host" link set lo up || return 1; done &&
        ip -n "$near" link set gdemo0 up && ip -n "$far" link set gdemo1 up
} 2>/dev/null

# The client once its server listens.
run_client() {
    for _ in $(seq 100); do
        grep -q "^listening" "$log" && break
        sleep 0.1
    done
    "$@"
}

echo "== one process, two Gaudis: host -> Gaudi 0 -> Gaudi 1 -> host"
"$tool" lab run --lab demo --gaudis 2 --generation gaudi2 -- "$bin/example_two_devices"

log=$(mktemp)
if make_hosts; then
    echo
    echo "== two hosts (network namespaces), a Gaudi and a RoCE NIC each: rdma_server and rdma_client"
    printf 'gaudis = 1\nhcas = 1\nlink_layer = ethernet\n' >"$description"
    ip netns exec "$far" "$tool" lab run --lab demo-far --config "$description" -- \
        "$bin/rdma_server" --once --require zero-copy >"$log" 2>&1 &
    server=$!
    run_client ip netns exec "$near" "$tool" lab run --lab demo-near --config "$description" -- \
        "$bin/rdma_client" 10.78.0.2 --require zero-copy
else
    echo
    echo "== two processes (no right to make network namespaces), a Gaudi each: rdma_server and rdma_client"
    "$tool" lab run --lab demo -- "$bin/rdma_server" --once --require zero-copy --port 20007 >"$log" 2>&1 &
    server=$!
    run_client "$tool" lab run --lab demo -- "$bin/rdma_client" localhost:20007 --require zero-copy
fi
wait "$server"
server=
echo "-- the server said:"
cat "$log"
rm -f "$log"
