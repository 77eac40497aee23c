#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
""".ci/test with a make that fails one step and a ctest that fails one test: it goes on, and lists both at the end."""
import os
import re
import stat
import subprocess
import sys
import tempfile

LONG = "program.suite/case.of_a_name_that_is_much_too_long/" + "x" * 120
CTEST = f"""#!/bin/sh
echo "$PWD $*" >>"$CALLS"
mkdir -p Testing/Temporary && echo '[  SKIPPED ] 2 tests.' >Testing/Temporary/LastTest.log
cat <<'END'
      Start  1: program.first
1/3 Test  #1: program.first ...............   Passed    0.01 sec
2/3 Test  #2: {LONG} ...***Failed    0.02 sec
the program's own words
[  FAILED  ] case.of/0, where GetParam() = 40-byte object <70-D7 AA-55> (3 ms)
[  FAILED  ] case.of/0, where GetParam() = 0x5571e0 pointing to "rc_v"
3/3 Test  #3: program.third ...............***Skipped   0.00 sec

The following tests FAILED:
\t  2 - {LONG} (Failed)
END
exit 8
"""
MAKE = """#!/bin/sh
echo "make $*" >>"$CALLS"
case "$*" in *format-check*) exit 1 ;; esac
"""


def main():
    failures = []

    def expect(what, true):
        if not true:
            failures.append(what)

    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("ctest", CTEST), ("make", MAKE)):
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        for preset in ("release", "asan"):
            os.makedirs(os.path.join(folder, "build", preset))
        calls = os.path.join(folder, "calls")
        environment = os.environ | {"PATH": folder + ":" + os.environ["PATH"], "CALLS": calls}
        done = subprocess.run([sys.argv[1]], cwd=folder, env=environment, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        with open(calls, encoding="utf-8") as file:
            called = file.read()
    shown = done.stdout
    lines = shown.splitlines()
    expect("exit status 1", done.returncode == 1)
    expect("goes on after a failed step and a failed test",
           called.count("/build/release ") == 2 and "/build/asan " in called and "build-headers" in called)
    rows = [line for line in lines if re.match(r" *\d+/3 ", line)]
    expect("a line a test, of at most 120 columns", len(rows) == 9 and max(map(len, rows)) <= 120)
    expect("the output of a failed test", "the program's own words" in shown)
    expect("no parameters and no pointers", "GetParam" not in shown and "0x5571e0" not in shown and "(3 ms)" in shown)
    expect("three runs with one passed, one skipped and two in a group",
           "== 3 tests passed, 9 skipped, 4 failures" in shown)
    end = shown.partition("== 3 tests")[2]
    expect("the step, with its command", "FAILED format\n       make --no-print-directory format-check\n" in end)
    expect("each test, with its command",
           f"FAILED release: {LONG}\n       ctest --test-dir build/release --output-on-failure -R '^program\\.suite/"
           in end and f"FAILED asan: {LONG}\n" in end)
    for what in failures:
        print(f"wrong: {what}")
    if failures:
        print(f"called:\n{called}\nshown:\n{shown}")
    return 1 if failures else 0


sys.exit(main())
