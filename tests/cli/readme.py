#!/usr/bin/env python3
"""Examples in the README and in docs/divergence.md are what the program prints: each shown line, in order; `...` stands for
lines left out. A block may hold several commands; files that they name in /tmp go to a folder of the test's own.

readme.py ROOT PROGRAM
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402

try:
    import h5py
except ImportError:
    h5py = None

ROOT, PROGRAM = map(os.path.abspath, sys.argv[1:3])

TMP = "/" + "tmp/"  # as a page writes it


def examples(text):
    """(command, shown lines) of each prompt in the fenced blocks that start with one."""
    for block in re.findall(r"^```\n(\$ .*?)^```$", text, re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, *shown = part.rstrip("\n").split("\n")
            yield command, shown


def indented_examples(text):
    """The same for blocks that are indented by four columns."""
    for block in re.findall(r"^    \$ gdnsim .*\n(?:^    .*\n)+", text, re.M):
        command, *shown = [line[4:] for line in block.rstrip("\n").split("\n")]
        yield command[2:], shown


def first_missing(shown, printed):
    """The first shown line that does not come after those before it, or None."""
    rest = iter(printed)
    return next((line for line in shown if line.strip() != "..." and line not in rest), None)


def run(command, folder):
    """The lines that a command prints where the README is, with the program under test; and how it ended, when that is wrong."""
    words = [word.replace(TMP, folder + "/") for word in shlex.split(command)]
    if words[0] == "build/tools/gdnsim":
        words[0] = PROGRAM
    elif words[0].endswith(".py"):
        words.insert(0, sys.executable)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.replace(folder + "/", TMP).splitlines()
    expected = 1 if any(line.startswith("verdict: diverged") for line in lines) else 0
    fault = "" if done.returncode == expected else f"exit {done.returncode}, expected {expected}\n"
    return lines, fault, done.stdout + done.stderr


def main():
    tap = Tap()
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as stream:
        found = list(examples(stream.read()))
    tap.check(len(found) >= 2, "the README has examples", found)
    with open(os.path.join(ROOT, "docs", "divergence.md"), encoding="utf-8") as stream:
        page = list(indented_examples(stream.read()))
    tap.check(len(page) == 1 and len(page[0][1]) > 20, "divergence.md has an example", page)
    found += [(command.replace("gdnsim", "build/tools/gdnsim", 1), shown) for command, shown in page]
    with tempfile.TemporaryDirectory() as folder:
        for command, shown in found:
            program = command.split()[0]
            if TMP in command and h5py is None:
                tap.skip(command, "python3-h5py is not installed")
                continue
            known = program == "build/tools/gdnsim" or os.path.isfile(os.path.join(ROOT, program))
            tap.check(known, f"{command}: names a program of ours", program)
            printed, fault, everything = run(command, folder)
            missing = first_missing(shown, printed)
            name = f"{command}: prints what the page shows"
            tap.check(missing is None and not fault, name, f"{fault}missing: {missing}\n{everything}")
    tap.check(first_missing(["a", "...", "c"], ["a", "b", "c"]) is None, "left-out lines are allowed")
    tap.check(first_missing(["c", "a"], ["a", "b", "c"]) == "a", "another order is caught")
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
