#!/usr/bin/env python3
"""Public bug reports of inference engines as toy traces: what explain says of each. docs/bug-reports.md lists them all.

bug_reports.py ROOT PROGRAM [--keep FOLDER] [--only TEXT]
"""

import argparse
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import needs_h5py  # noqa: E402, F401
import bug_arithmetic  # noqa: E402
import bug_blocks  # noqa: E402
import bug_layouts  # noqa: E402
import bug_life  # noqa: E402
from explain_case import Cases  # noqa: E402
from program import Checks, Program  # noqa: E402
from tap import Tap  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("program")
    parser.add_argument("--keep")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    tap = Tap()
    program = Program(options.program)
    with tempfile.TemporaryDirectory() as folder:
        cases = Cases(tap, program, folder, options.keep)
        checks = Checks(tap, program)
        for group in (bug_blocks, bug_life, bug_arithmetic, bug_layouts):
            for name, report in group.REPORTS:
                if options.only in name:
                    report(cases, checks)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
