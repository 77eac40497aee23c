#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Runs a command on a machine that has the control node of NVIDIA's driver: in a mount namespace of its own, with a /dev that
# holds it and what programs need. ACCEL_VENDOR=0x1da3: and with an accelerator of that vendor in sysfs, the fourth.
# Exit status 77: that is not possible here.
if [ "$1" != inside ]; then
    unshare --mount true 2>/dev/null || exit 77
    exec unshare --mount "$0" inside "$@"
fi
shift
made=$(mktemp -d) || exit 77
mount -t tmpfs none "$made" || exit 77
for node in null zero random urandom; do
    touch "$made/$node" && mount --bind "/dev/$node" "$made/$node" || exit 77
done
mkdir "$made/shm" && mount --rbind /dev/shm "$made/shm" && touch "$made/nvidiactl" && mount --rbind "$made" /dev || exit 77
if [ -n "$ACCEL_VENDOR" ]; then
    mount -t tmpfs none /sys/class && mkdir -p /sys/class/accel/accel3/device || exit 77
    echo "$ACCEL_VENDOR" >/sys/class/accel/accel3/device/vendor
fi
"$@"
status=$?
umount -l /dev "$made" 2>/dev/null
rmdir "$made" 2>/dev/null
exit $status
