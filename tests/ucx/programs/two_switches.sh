#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Shows a command a machine whose PCI tree has Gaudi 0 and vhca1 behind one switch, Gaudi 1 and vhca0 behind another, on another NUMA
# node: in a mount namespace of its own, because UCX looks into /sys. Exit status 77: that is not possible here.
if [ "$1" != inside ]; then
    unshare --mount true 2>/dev/null || exit 77
    exec unshare --mount "$0" inside "$@"
fi
shift
kept=$(mktemp -d) || exit 77
trap 'umount -l "$kept" 2>/dev/null; rmdir "$kept" 2>/dev/null' EXIT
mount --rbind /sys/devices "$kept" && mount -t tmpfs none /sys/devices && mkdir /sys/devices/system &&
    mount --rbind "$kept/system" /sys/devices/system && mount -t tmpfs none /sys/bus/pci/devices || exit 77
add() { # path below /sys/devices, NUMA node
    mkdir -p "/sys/devices/$1" && echo "$2" >"/sys/devices/$1/numa_node" && echo "${3:-0x6764}" >"/sys/devices/$1/vendor"
    ln -s "/sys/devices/$1" "/sys/bus/pci/devices/${1##*/}"
}
add pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:01.0/0000:19:00.0 0 0x1da3 # Gaudi 0
add pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:02.0/0000:1b:00.0 0 # vhca1
add pci0000:96/0000:96:01.0/0000:97:00.0/0000:98:01.0/0000:1a:00.0 1 0x1da3 # Gaudi 1
add pci0000:96/0000:96:01.0/0000:97:00.0/0000:98:02.0/0000:1c:00.0 1 # vhca0
"$@"
