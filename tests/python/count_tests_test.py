#!/usr/bin/env python3
"""tools/count_tests.py counts what ran, and counts as failed what crashed, timed out, left early or did not run."""

import importlib.util
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402

spec = importlib.util.spec_from_file_location("count_tests", os.path.join(sys.argv[1], "tools", "count_tests.py"))
count_tests = importlib.util.module_from_spec(spec)
sys.dont_write_bytecode = True
spec.loader.exec_module(count_tests)

SUMMARY = "[doctest] test cases:  {0} | {1} passed | {2} failed | 0 skipped\n[doctest] assertions: 9 | 9 passed | 0 failed |\n"
# what, Meson's result, stdout, expected (passed, failed, skipped), test name
CASES = [
    ("doctest cases", "OK", SUMMARY.format(5, 5, 0), (5, 0, 0), "unit / a"),
    ("failed doctest cases", "FAIL", SUMMARY.format(5, 3, 2), (3, 2, 0), "unit / a"),
    ("skipped doctest cases are not passed", "OK", "[skip] x: no GPU\n" + SUMMARY.format(5, 5, 0), (4, 0, 1), "unit / a"),
    ("an all-skipped doctest program", "SKIP", "[skip] x: no GPU\n" + SUMMARY.format(1, 1, 0), (0, 0, 1), "unit / a"),
    ("a crash without a summary", "FAIL", "[doctest] doctest version is 2.4.9\n", (0, 1, 0), "unit / a"),
    ("a crash after a good summary", "FAIL", SUMMARY.format(5, 5, 0), (5, 1, 0), "unit / a"),
    ("a timeout", "TIMEOUT", "", (0, 1, 0), "unit / a"),
    ("an early exit(0)", "OK", "half way\n", (0, 1, 0), "unit / a"),
    ("an early exit(0) in a joined suite name", "OK", "half way\n", (0, 1, 0), "gdnsim:golden / a"),
    ("TAP checks", "OK", "ok 1 - a\nok 2 - b # SKIP no GPU\n1..2\n", (1, 0, 1), "cli / a"),
    ("failed TAP checks", "FAIL", "ok 1 - a\nnot ok 2 - b\n# ok 3 - in a comment\n1..2\n", (1, 1, 0), "cli / a"),
    ("a TAP script that leaves early, with a good exit code", "OK", "ok 1 - a\nok 2 - b\n", (2, 1, 0), "cli / a"),
    ("a TAP script that lost a line", "OK", "ok 1 - a\n1..2\n", (1, 1, 0), "cli / a"),
    ("a TAP crash", "ERROR", "ok 1 - a\n", (1, 1, 0), "cli / a"),
    ("a whole script skipped", "SKIP", "", (0, 0, 1), "cli / a"),
    ("a long program counts once", "OK", "done\n", (1, 0, 0), "long / a"),
]


def main():
    tap = Tap()
    for what, result, stdout, expected, name in CASES:
        count = count_tests.count_test({"name": name, "result": result, "stdout": stdout})
        found = (count.passed, count.failed, count.skipped)
        tap.check(found == expected, what, f"expected {expected}, found {found}")
    with open(os.devnull, "w", encoding="utf-8") as null:
        shown, sys.stdout = sys.stdout, null
        total = count_tests.report([{"name": "unit / a", "result": "OK", "stdout": SUMMARY.format(2, 2, 0)}], ["a", "b"])
        sys.stdout = shown
    tap.check((total.passed, total.failed) == (2, 1), "a test that did not run is a failure", str(total))
    tap.check(str(count_tests.Count(3, 0, 0)) == "3 passed, 0 failed", "the closing line without skips")
    tap.check(str(count_tests.Count(3, 1, 2)) == "3 passed, 1 failed, 2 skipped", "the closing line with skips")
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
