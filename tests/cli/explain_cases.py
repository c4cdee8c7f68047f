#!/usr/bin/env python3
"""explain names faults that its author did not plant: states, blocks, windows and outputs gone wrong in a toy engine.

The traces are made by tests/support/toy_*.py in numpy, which share no code with the program.

explain_cases.py ROOT PROGRAM [--keep FOLDER] [--only TEXT]
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import needs_h5py  # noqa: E402, F401
import cases_astray  # noqa: E402
import cases_blocks  # noqa: E402
import cases_values  # noqa: E402
from explain_case import main  # noqa: E402


def questions(cases):
    for group in cases_blocks.GROUPS + cases_astray.GROUPS + cases_values.GROUPS:
        for case in group():
            yield case.name, lambda case=case: cases.ask_case(case)


if __name__ == "__main__":
    main(questions)
