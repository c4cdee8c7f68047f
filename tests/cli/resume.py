#!/usr/bin/env python3
"""An interrupted log: run offers --resume, and --resume ends in the bytes of an uninterrupted run.

resume.py ROOT PROGRAM
"""

import os
import shutil
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
RECIPE = os.path.join(ROOT, "traces", "recipes", "tiny.json")


def run(log, *options):
    command = [PROGRAM, "run", RECIPE, "-o", log, "--contract", "golden", "--backend", "golden", "--no-provenance", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def content(path):
    with open(path, "rb") as stream:
        return stream.read()


def interrupt(log, step):
    """As a kill before that step's record leaves it: nothing from its commit record on."""
    with h5py.File(log, "r") as file:
        commit = file["commit"]
        start, end = commit.id.get_offset() + step * 32, commit.id.get_offset() + commit.shape[0] * 32
    with open(log, "r+b") as stream:
        stream.seek(start)
        stream.write(bytes(end - start))


def main():
    tap = Tap()
    if h5py is None:
        tap.skip("resume", "python3-h5py is not installed")
        return tap.finish()
    with tempfile.TemporaryDirectory() as folder:
        whole, log = os.path.join(folder, "whole.h5"), os.path.join(folder, "cut.h5")
        tap.check(run(whole).returncode == 0, "an uninterrupted run")
        for step in (0, 3, 7):
            shutil.copy(whole, log)
            interrupt(log, step)
            cut = content(log)
            done = run(log)
            offered = f"is incomplete ({step} of 8 steps); --resume goes on with it" in done.stderr
            tap.check(done.returncode == 2 and offered, f"cut at step {step}: run offers --resume", done.stderr)
            tap.check(content(log) == cut, f"cut at step {step}: and touches nothing")
            done = run(log, "--resume")
            tap.check(done.returncode == 0 and content(log) == content(whole), f"cut at step {step}: --resume, the same bytes", done.stderr)
        done = run(os.path.join(folder, "new.h5"), "--resume")
        tap.check(done.returncode == 0 and content(os.path.join(folder, "new.h5")) == content(whole), "--resume with nothing to go on with starts anew", done.stderr)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
