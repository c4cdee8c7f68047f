#!/usr/bin/env python3
"""Counts test cases in Meson's log: doctest cases and TAP checks, not executables. Used by tools/test.

    count_tests.py BUILD LOG --setup normal|everything [--suite NAME]...

Honest about what did not happen: an executable that crashed, timed out or left no summary adds a failure, one that was expected
and is not in the log adds a failure, and a run without a single case fails.
"""

import argparse
import json
import os
import re
import subprocess
import sys

DOCTEST = re.compile(r"^\[doctest\] test cases:\s*(\d+) \|\s*(\d+) passed \|\s*(\d+) failed", re.M)
DOCTEST_SKIP = re.compile(r"^\[skip\] ", re.M)
TAP_PLAN = re.compile(r"^1\.\.(\d+)\b", re.M)
TAP_LINE = re.compile(r"^(not ok|ok)\b([^#\n]*)(#\s*skip\b.*)?", re.M | re.I)
# Every test of these suites prints its cases; the long suite's programs count as one case each.
CASES_EXPECTED = re.compile(r"(^|[:+])(unit|golden|kernel|cli|matrix|fuzz)([+ ]|$)")
BAD = ("FAIL", "ERROR", "TIMEOUT", "INTERRUPT", "UNEXPECTEDPASS")


class Count:
    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def __iadd__(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        return self

    def __str__(self):
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def count_doctest(text):
    """The last summary line; a skipped case is one of doctest's passed ones."""
    summaries = DOCTEST.findall(text)
    if not summaries:
        return None
    _, passed, failed = map(int, summaries[-1])
    skipped = len(DOCTEST_SKIP.findall(text))
    return Count(passed - skipped, failed, skipped)


def count_tap(text):
    """Its lines; one failure more when they are not as many as the plan at the end says, or there is no plan: it left early."""
    count, lines = Count(), TAP_LINE.findall(text)
    for verdict, _, skip in lines:
        count += Count(failed=1) if verdict.lower() == "not ok" else Count(skipped=1) if skip else Count(passed=1)
    if lines and TAP_PLAN.findall(text) != [str(len(lines))]:
        count += Count(failed=1)
    return count if lines else None


def count_test(record):
    """Cases of one executable, in agreement with Meson's verdict on it."""
    text = record.get("stdout") or ""
    count = count_doctest(text) or count_tap(text)
    result = record["result"]
    if count is None and result == "OK" and CASES_EXPECTED.search(record["name"]):
        count = Count(failed=1)  # it left early, with a good exit code
    elif count is None:
        count = Count(skipped=1) if result == "SKIP" else Count(passed=1) if result == "OK" else Count(failed=1)
    if result in BAD and count.failed == 0:
        count.failed = 1
    return count


def read_log(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as stream:
        return [json.loads(line) for line in stream if line.strip()]


def plain_name(name):
    """Meson's log says "suite / name", its introspection "name"."""
    return name.split(" / ")[-1]


def expected(build, setup, suites):
    """Names of the tests that this run should have executed."""
    listed = subprocess.run(["meson", "introspect", "--tests", build], capture_output=True, text=True, check=True)
    names = []
    for test in json.loads(listed.stdout):
        own = {suite.split(":")[-1] for suite in test["suite"]}
        if (setup == "everything" or "long" not in own) and (not suites or own & set(suites)):
            names.append(test["name"])
    return names


def report(records, names):
    """One line a test; returns the sum."""
    total = Count()
    for record in records:
        count = count_test(record)
        total += count
        print(f"{'FAIL' if count.failed else 'ok  '} {record['name']}: {count}")
    missing = list(names)
    for record in records:
        if plain_name(record["name"]) in missing:
            missing.remove(plain_name(record["name"]))
    for name in missing:
        print(f"FAIL {name}: did not run")
        total.failed += 1
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("log")
    parser.add_argument("--setup", required=True)
    parser.add_argument("--suite", action="append", default=[])
    arguments = parser.parse_args()
    print()
    total = report(read_log(arguments.log), expected(arguments.build, arguments.setup, arguments.suite))
    if total.passed + total.failed == 0:
        print("FAIL: no test case ran")
        total.failed += 1
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
