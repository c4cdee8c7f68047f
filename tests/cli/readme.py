#!/usr/bin/env python3
"""Examples in the README and in docs/divergence.md are what the program prints: each shown line, in order; `...` stands for
lines left out.

readme.py ROOT PROGRAM
"""

import os
import re
import shlex
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402

ROOT, PROGRAM = map(os.path.abspath, sys.argv[1:3])


def examples(text):
    """(command, shown lines) of each fenced block that starts with a prompt."""
    for block in re.findall(r"^```\n(\$ .*?)^```$", text, re.M | re.S):
        command, *shown = block.rstrip("\n").split("\n")
        yield command[2:], shown


def indented_examples(text):
    """The same for blocks that are indented by four columns."""
    for block in re.findall(r"^    \$ gdnsim .*\n(?:^    .*\n)+", text, re.M):
        command, *shown = [line[4:] for line in block.rstrip("\n").split("\n")]
        yield command[2:], shown


def first_missing(shown, printed):
    """The first shown line that does not come after those before it, or None."""
    rest = iter(printed)
    return next((line for line in shown if line.strip() != "..." and line not in rest), None)


def main():
    tap = Tap()
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as stream:
        found = list(examples(stream.read()))
    tap.check(len(found) >= 2, "the README has examples", found)
    with open(os.path.join(ROOT, "docs", "divergence.md"), encoding="utf-8") as stream:
        page = list(indented_examples(stream.read()))
    tap.check(len(page) == 1 and len(page[0][1]) > 20, "divergence.md has an example", page)
    found += [(command.replace("gdnsim", "build/tools/gdnsim", 1), shown) for command, shown in page]
    for command, shown in found:
        words = shlex.split(command)
        tap.check(words[0] == "build/tools/gdnsim", f"{command}: names the program", words)
        done = subprocess.run([PROGRAM, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
        missing = first_missing(shown, done.stdout.splitlines())
        tap.check(missing is None, f"{command}: prints what the README shows", f"missing: {missing}\n{done.stdout}{done.stderr}")
    tap.check(first_missing(["a", "...", "c"], ["a", "b", "c"]) is None, "left-out lines are allowed")
    tap.check(first_missing(["c", "a"], ["a", "b", "c"]) == "a", "another order is caught")
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
