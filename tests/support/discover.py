#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Run after a test program was linked: writes the file that tells ctest its tests and their labels.

Labels stand in the sources: in a line `// labels: a b` above TEST, TEST_F, TEST_P or INSTANTIATE_TEST_SUITE_P, and in
a line `// labels of every test here: a b` for a whole file.
"""
import argparse
import collections
import os
import re
import subprocess

MARKED = re.compile(r"^// labels: (.+)\n(TEST\w*|INSTANTIATE_TEST_SUITE_P)\(\s*(\w+),\s*(\w+)", re.M)
WHOLE_FILE = re.compile(r"^// labels of every test here: (.+)$", re.M)
TEST = re.compile(r"^TEST\w*\(\s*(\w+),\s*(\w+)", re.M)


def labels_in(sources):
    """By (suite, test), and by (instance, suite)."""
    of_test, of_instance = collections.defaultdict(set), collections.defaultdict(set)
    for source in sources:
        with open(source, encoding="utf-8") as file:
            text = file.read()
        for words in WHOLE_FILE.findall(text):
            for test in TEST.findall(text):
                of_test[test] |= set(words.split())
        for words, macro, first, second in MARKED.findall(text):
            (of_test if macro.startswith("TEST") else of_instance)[first, second] |= set(words.split())
    return of_test, of_instance


def tests_of(program):
    """(instance or None, suite, test, name as gtest's filter takes it)."""
    listed = subprocess.run([program, "--gtest_list_tests"], check=True, stdout=subprocess.PIPE, text=True).stdout
    suite = ""
    for line in listed.splitlines():
        line = re.sub(r" *#.*", "", line)  # what a parameter looks like
        if line.startswith("  "):
            if "DISABLED_" not in suite + line:
                instance, _, plain = suite.rpartition("/")
                yield instance or None, plain, line.strip().split("/")[0], f"{suite}.{line.strip()}"
        elif re.match(r"^\S+\.$", line):
            suite = line[:-1]


LONGEST_NAME = 92  # fits into a line of the report, with its number and its result


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--program", required=True)
    arguments.add_argument("--name", required=True)
    arguments.add_argument("--file", required=True)
    arguments.add_argument("--labels", default="")
    # Under the sanitizers a process costs more than most tests: those with the same labels share one.
    arguments.add_argument("--together", action="store_true")
    arguments.add_argument("--cost", default="0")
    arguments.add_argument("sources", nargs="+")
    given = arguments.parse_args()
    of_test, of_instance = labels_in(given.sources)
    base = set(given.labels.split())
    groups = collections.defaultdict(list)  # by labels
    for instance, suite, test, name in tests_of(given.program):
        own = base | of_test.get((suite, test), set()) | of_instance.get((instance, suite), set())
        groups[tuple(sorted(own))].append(name)
    lines, too_long = [], []

    def add(name, labels, gtest, properties):
        if len(name) > LONGEST_NAME:
            too_long.append(f"{name}: {len(name)} characters; use up to {LONGEST_NAME}")
        lines.append(f"add_test([==[{name}]==] [==[{given.program}]==] {gtest})")
        lines.append(f"set_tests_properties([==[{name}]==] PROPERTIES LABELS [==[{';'.join(labels)}]==] {properties})")

    for labels, names in groups.items():
        if given.together:
            apart = "_".join(label for label in labels if label not in base) or "plain"
            add(f"{given.name}.{apart}", labels, f"[==[--gtest_filter={':'.join(names)}]==] --gtest_brief=1",
                f"TIMEOUT 900 COST {given.cost}")
        else:
            for name in names:
                add(f"{given.name}.{name}", labels, f"[==[--gtest_filter={name}]==]",
                    "TIMEOUT 300 SKIP_REGULAR_EXPRESSION [==[\\[  SKIPPED \\]]==]")
    if too_long:
        raise SystemExit("\n".join(too_long))
    with open(given.file + ".new", "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    os.replace(given.file + ".new", given.file)


if __name__ == "__main__":
    main()
