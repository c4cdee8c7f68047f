#!/usr/bin/env python3
"""explain names faults that its author did not plant: states, blocks, windows and outputs gone wrong in a toy engine.

The traces are made by tests/support/toy_*.py in numpy, which share no code with the program.

explain_cases.py ROOT PROGRAM [--keep FOLDER] [--only TEXT]
"""

import argparse
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import needs_h5py  # noqa: E402, F401
import cases_blocks  # noqa: E402
import cases_values  # noqa: E402
from explain_case import Cases  # noqa: E402
from program import Program  # noqa: E402
from tap import Tap  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("program")
    parser.add_argument("--keep")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        cases = Cases(tap, Program(options.program), folder, options.keep)
        for group in cases_blocks.GROUPS + cases_values.GROUPS:
            for case in group():
                if options.only in case.name:
                    cases.ask_case(case)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
