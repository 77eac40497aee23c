#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# make setup and make ucx on a machine that lacks the packages: installed once, announced once; a failure names its command.
# Argument: source folder.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() {
    echo "setup_test: $*" >&2
    cat "$scratch/output" >&2
    exit 1
}

mkdir -p "$scratch/bin" "$scratch/tree"/.deps/ucx/{1.22.0,1.23.0,nixl} \
    "$scratch/tree"/{abi,include,src,ucx,lab,tools,examples,tests,bench} # the Makefile lists their sources
touch "$scratch/tree"/.deps/ucx/{1.22.0,1.23.0,nixl}/done # nothing to fetch
cp -r "$1/.ci" "$1/Makefile" "$scratch/tree/"
printf '#!/bin/sh\n[ ! -e %s/installed ] || echo "ii "\n' "$scratch" >"$scratch/bin/dpkg-query"
printf '#!/bin/sh\necho 0\n' >"$scratch/bin/id"
printf '#!/bin/sh\necho "$1" >>%s/calls\n[ ! -e %s/offline ] || exit 1\n[ "$1" != install ] || touch %s/installed\n' \
    "$scratch" "$scratch" "$scratch" >"$scratch/bin/apt-get"
chmod +x "$scratch"/bin/*
unset MAKEFLAGS MAKELEVEL
run_make() {
    PATH=$scratch/bin:$PATH make --no-print-directory -C "$scratch/tree" "$@" >"$scratch/output" 2>&1
}

touch "$scratch/offline"
! run_make setup ucx || fail "a failure passes for success"
grep -q '^setup: the installation failed; the command was: apt-get update && apt-get install ' "$scratch/output" || fail "no reason"
! run_make ucx || fail "a failure passes for success"
grep -q "^ucx: .ci/ucx failed, see above; 'make ucx' needs stock UCX" "$scratch/output" || fail "no word on what stops"

rm "$scratch/offline" "$scratch/calls"
run_make setup ucx || fail "exit status $?"
[ "$(grep -c '^setup: installing ' "$scratch/output")" -eq 1 ] || fail "not announced once"
[ "$(tr '\n' ' ' <"$scratch/calls")" = "update install " ] || fail "not installed once: $(cat "$scratch/calls")"
run_make setup ucx && [ ! -s "$scratch/output" ] || fail "something to do on a machine that has the packages"
