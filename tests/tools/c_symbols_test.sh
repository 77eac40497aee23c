#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# The library exports the functions of the C header and no others with such names, and nothing of its dependencies.
# Arguments: the header, the library.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
grep -oE '^[a-z].*gaudi_[a-z_]+\(' "$1" | grep -oE 'gaudi_[a-z_]+\(' | tr -d '(' | sort >"$scratch/header"
test -s "$scratch/header"
nm -D --defined-only "$2" | grep -oE ' T gaudi_[a-z_]+$' | cut -c4- | sort >"$scratch/library"
diff "$scratch/header" "$scratch/library"
! nm -DC --defined-only "$2" | grep -E ' [TWV] (fmt|std|nlohmann)::'
