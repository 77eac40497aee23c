#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# make demo as a user sees it: its last line, its exit status, and what it leaves behind (nothing). Arguments: case, folder of
# the programs, source folder.
#   ucx      all of it
#   plain    without UCX and without the right to make network namespaces
#   broken   the client fails, so that its server waits in vain
#   deaf     the server ends before it listens
set -eu
case=$1 bin=$2 source=$3 ucx=$3/.deps/ucx/1.23.0
scratch=$(mktemp -d)
lab=$(mktemp -d -p /dev/shm gaudi-test-XXXXXX)
trap 'rm -rf "$scratch" "$lab"' EXIT
fail() {
    echo "demo_test: $*" >&2
    cat "$scratch/output" >&2
    exit 1
}

mkdir "$scratch/bin" "$scratch/path" "$scratch/tmp"
ln -s "$bin"/* "$scratch/bin/"
case $case in
ucx)
    [ -e "$ucx/lib/libucs.so.0" ] || { echo "demo_test: no UCX under .deps; make ucx fetches it" && exit 77; }
    ;;
plain)
    ucx=
    ln -s /bin/false "$scratch/path/ip"
    ;;
broken)
    ucx=
    ln -sf /bin/false "$scratch/bin/rdma_client"
    ;;
deaf)
    ucx=
    ln -sf /bin/false "$scratch/bin/rdma_server"
    ;;
esac

status=0
export TMPDIR=$scratch/tmp GAUDI_LAB_ROOT=$lab PATH=$scratch/path:$PATH
"$source/examples/demo.sh" "$scratch/bin" "$ucx" >"$scratch/output" 2>&1 &
demo=$!
wait $demo || status=$?

last=$(tail -n 1 "$scratch/output")
case $case in
ucx) [ "$last" = "data is right: every byte that went through both Gaudis, over RDMA and by UCX's put was compared" ] || fail "wrong end" ;;
plain) [ "$last" = "data is right: every byte that went through both Gaudis and over RDMA was compared" ] || fail "wrong end" ;;
broken | deaf) [ $status -eq 1 ] && ! grep -q "every byte" "$scratch/output" || fail "a failure passes for success" ;;
esac
[ "$case" != deaf ] || [ "$last" = "demo.sh: rdma_server ended before it listened" ] || fail "no reason for the failure"
[ "$case" = broken ] || [ "$case" = deaf ] || [ $status -eq 0 ] || fail "exit status $status"
if [ "$case" = ucx ]; then # the largest messages, both processes, and the NIC that moved the data
    grep -Eq '\.\.inf \| (\(\?\) )?rendezvous zero-copy .*\| rc_verbs' "$scratch/output" || fail "UCX does not say zero-copy"
    [ "$(grep -c 'gaudi_copy: .* [1-9][0-9]* DMA-BUFs exported' "$scratch/output")" -eq 2 ] || fail "no DMA-BUFs were given"
    [ "$(grep -c 'gaudi_copy: .*; staged 0 bytes by short, 0 by bcopy, 0 by zcopy operations, .* 0 by gaudi_dma' "$scratch/output")" -eq 2 ] || fail "bytes were staged"
    grep -q '"bytes_to_dmabuf":[1-9]' "$scratch/output" || fail "no byte went into a DMA-BUF"
fi
[ -z "$(ls -A "$scratch/tmp")" ] || fail "left behind: $(ls -A "$scratch/tmp")"
[ ! -e "$lab" ] || [ -z "$(ls -A "$lab")" ] || fail "labs left behind: $(ls -A "$lab")"
! ip netns list | grep "gaudi-demo-$demo-" || fail "network namespaces left behind"
