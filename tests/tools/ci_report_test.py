#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
""".ci/test with a make that fails one step and a ctest that fails one test: it goes on, and lists both at the end."""
import json
import os
import pty
import re
import shlex
import stat
import subprocess
import sys
import tempfile

CASE = "suite/case.of_a_name_that_is_much_too_long/" + "x" * 120
LONG = "program." + CASE
CTEST = f"""#!/bin/sh
echo "$PWD $*" >>"$CALLS"
mkdir -p Testing/Temporary && echo '[  SKIPPED ] 2 tests.' >Testing/Temporary/LastTest.log
cat <<'END'
      Start  1: program.first
1/3 Test  #1: program.first ...............   Passed    0.01 sec
2/3 Test  #2: {LONG} ...***Failed    0.02 sec
the program's own words
[  FAILED  ] {CASE}, where GetParam() = 40-byte object <70-D7 AA-55> (3 ms)
[  FAILED  ] {CASE}, where GetParam() = 0x5571e0 pointing to "rc_v"
3/3 Test  #3: program.third ...............***Skipped   0.00 sec

The following tests FAILED:
\t  2 - {LONG} (Failed)
END
exit 8
"""
# Under the sanitizers a test of ctest runs many cases. The second group ends before it ran all of them, and so does ctest.
GROUP = "/build/asan/bin/program"  # below the folder of the test
CTEST_OF_GROUPS = """#!/bin/sh
case "$*" in *json-v1*) cat "$GROUPS_SHOWN"; exit ;; esac
echo "$PWD $*" >>"$CALLS"
mkdir -p Testing/Temporary && : >Testing/Temporary/LastTest.log
cat <<'END'
1/3 Test  #1: program.plain ...............***Failed    0.01 sec
[  FAILED  ] case.of/0, where GetParam() = 7 (3 ms)
[  FAILED  ] case.other (1 ms)
[==========] 9 tests from 2 test suites ran. (4 ms total)
[  FAILED  ] 2 tests, listed below:
[  FAILED  ] case.of/0, where GetParam() = 7
[  FAILED  ] case.other
2/3 Test  #2: program.waits ...............***Failed    0.01 sec
[  FAILED  ] late.first (2 ms)
AddressSanitizer: heap-use-after-free

The following tests FAILED:
	  1 - program.plain (Failed)
	  2 - program.waits (Failed)
END
exit 8
"""
MAKE = """#!/bin/sh
echo "make $*" >>"$CALLS"
case "$*" in *format-check*) exit 1 ;; esac
"""


def report_on_terminal(folder, environment):
    """What .ci/test writes to a terminal; None where there are no terminals."""
    try:
        ours, theirs = pty.openpty()
    except OSError:  # a chroot without /dev/pts
        return None
    with subprocess.Popen([sys.argv[1]], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs):
        os.close(theirs)
        written = b""
        while True:
            try:
                block = os.read(ours, 65536)
            except OSError:  # EIO: the last process closed the terminal
                block = b""
            if not block:
                break
            written += block
    os.close(ours)
    return written.decode()


def main():
    failures = []

    def expect(what, true):
        if not true:
            failures.append(what)

    with tempfile.TemporaryDirectory() as folder:
        def write(name, text):
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)

        write("make", MAKE)
        for preset in ("release", "asan", "tsan", "clang", "asan-ucx"):
            os.makedirs(os.path.join(folder, "build", preset))
        calls = os.path.join(folder, "calls")
        groups = os.path.join(folder, "groups")
        environment = os.environ | {"PATH": folder + ":" + os.environ["PATH"], "CALLS": calls, "GROUPS_SHOWN": groups}

        def report(*arguments):
            """What .ci/test shows with the ctest that was written last."""
            done = subprocess.run([sys.argv[1], *arguments], cwd=folder, env=environment, text=True, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            expect("exit status 1", done.returncode == 1)
            return done.stdout

        write("ctest", CTEST)
        shown = report()
        with open(calls, encoding="utf-8") as file:
            called = file.read()
        on_terminal = report_on_terminal(folder, environment)
        with open(groups, "w", encoding="utf-8") as file:
            json.dump({"tests": [{"command": [folder + GROUP, "--gtest_filter=case.*:late.*", "--gtest_brief=1"],
                                  "properties": [{"name": "ENVIRONMENT", "value": ["UCX=a b"]}]}]}, file)
        write("ctest", CTEST_OF_GROUPS)
        of_groups = report("full")
    lines = shown.splitlines()
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
           in end and f"FAILED asan: {LONG}\n       ctest " in end)
    filtered = "--gtest_filter=case.of/0:case.other --gtest_brief=1\n"
    expect("the failed cases of a group, each once, with a command that repeats them",
           "FAILED asan: program.plain\n         case.of/0\n         case.other\n"
           f"       UCX='a b' build/asan/bin/program {filtered}" in of_groups)
    expect("the whole group, where it did not run all of its cases",
           "FAILED asan: program.waits\n         late.first\n"
           "       ctest --test-dir build/asan --output-on-failure -R '^program\\.waits$'\n" in of_groups)
    unfinished = [shlex.split(words) for words in
                  re.findall(r"FAILED tests of build/\S+: 2 of 3 ended\n +\((.*)\)\n", of_groups)]
    options = f"suppressions={os.path.realpath(folder)}/tests/tsan.supp die_after_fork=0 report_thread_leaks=0"
    expect("a ctest that ended early, with its arguments and its environment",
           ["cd", "build/release", "&&", "ctest", "-j2", "-LE", "full|waits"] in unfinished and
           ["cd", "build/tsan", "&&", "TSAN_OPTIONS=" + options, "ctest", "-LE", "full|slow|no_tsan|tools"] in unfinished)
    if on_terminal is not None:
        expect("a line of progress on a terminal", "\r\x1b[K[1/3] release: program.first\r\x1b[K" in on_terminal and
               "\r\x1b[K[3/3] asan: program.third\r\x1b[K" in on_terminal)
        expect("failures as they come on a terminal, and no other tests",
               len(re.findall(r" 2/3 program\.suite.* FAILED 0\.02 s\r\n", on_terminal)) == 3 and
               "the program's own words\r\n" in on_terminal and not re.search(r"(ok|skipped) 0\.0", on_terminal))
    for what in failures:
        print(f"wrong: {what}")
    if failures:
        print(f"called:\n{called}\nshown:\n{shown}\nof groups:\n{of_groups}\non a terminal:\n{on_terminal}")
    return 1 if failures else 0


sys.exit(main())
