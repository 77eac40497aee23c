#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Runs a command with a folder of its own for the labs that it makes, and removes that folder.
root=$(mktemp -d /dev/shm/gaudi-test-XXXXXX) || exit 1
trap 'rm -rf "$root"' EXIT
GAUDI_LAB_ROOT=$root "$@"
