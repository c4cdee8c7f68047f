"""python -m gdnsim_trace recover FILE: finishes a trace that a kill or a full disk left unfinished."""

import argparse
import sys

from .model import TraceError
from .recover import recover


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="gdnsim_trace", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("recover", help="make FILE of FILE.partial: every step that was committed")
    command.add_argument("file")
    command.add_argument("-o", "--output", help="write it there instead (another disk)")
    command.add_argument("--force", action="store_true", help="replace an existing file")
    given = parser.parse_args(arguments)
    try:
        steps = recover(given.file, given.force, given.output)
    except TraceError as problem:
        print(f"gdnsim_trace: {problem}", file=sys.stderr)
        return 2
    print(f"{steps} steps recovered")
    return 0


if __name__ == "__main__":
    sys.exit(main())
