#!/usr/bin/env python3
"""Public bug reports of inference engines as toy traces: what explain says of each. docs/bug-reports.md lists them all.

bug_reports.py ROOT PROGRAM [--keep FOLDER] [--only TEXT]
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import needs_h5py  # noqa: E402, F401
import bug_arithmetic  # noqa: E402
import bug_blocks  # noqa: E402
import bug_layouts  # noqa: E402
import bug_life  # noqa: E402
from explain_case import main  # noqa: E402
from program import Checks  # noqa: E402


def questions(cases):
    checks = Checks(cases.tap, cases.program)
    for group in (bug_blocks, bug_life, bug_arithmetic, bug_layouts):
        for name, report in group.REPORTS:
            yield name, lambda report=report: report(cases, checks)


if __name__ == "__main__":
    main(questions)
