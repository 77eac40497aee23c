#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# The C++ in the README is examples/ten_lines.cpp, which is compiled and run; its documents name files that exist.
set -eu
source=$1
in_readme=$(awk '/^```cpp$/ {inside = 1; next} /^```$/ {inside = 0} inside' "$source/README.md")
in_example=$(sed -n '/^int main/,$p' "$source/examples/ten_lines.cpp")
[ -n "$in_readme" ] || { echo "README.md has no C++ example" >&2; exit 1; }
[ "$(sed -n '/^int main/,$p' <<<"$in_readme")" = "$in_example" ] || {
    diff <(sed -n '/^int main/,$p' <<<"$in_readme") <(echo "$in_example") >&2
    echo "the example in README.md is not examples/ten_lines.cpp" >&2
    exit 1
}
status=0
for document in README.md HACKING.md docs/*.md; do
    for link in $(grep -oE '\]\([a-zA-Z0-9_./-]+\)' "$source/$document" 2>/dev/null | tr -d ']()'); do
        [ -e "$source/$(dirname "$document")/$link" ] || { echo "$document links to $link, which does not exist" >&2; status=1; }
    done
done
exit $status
