#!/usr/bin/env python3
"""An interrupted log: run offers --resume, and --resume ends in the bytes of an uninterrupted run, from a checkpoint too. A
signal ends a run with one line; what the disk cannot hold is said before anything is made.

resume.py ROOT PROGRAM
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402

try:
    import h5py
except ImportError:
    h5py = None

ROOT, PROGRAM = map(os.path.abspath, sys.argv[1:3])
RECIPE = os.path.join(ROOT, "traces", "recipes", "tiny.json")


def command(log, *options, recipe=RECIPE):
    return [PROGRAM, "run", recipe, "-o", log, "--contract", "golden", "--backend", "golden", "--no-provenance", *options]


def run(log, *options, recipe=RECIPE):
    return subprocess.run(command(log, *options, recipe=recipe), capture_output=True, text=True, check=False)


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


def check_checkpoints(tap, folder):
    """Cut anywhere, the run goes on from the last complete checkpoint and ends in the same bytes."""
    whole, log, options = os.path.join(folder, "points.h5"), os.path.join(folder, "cut-points.h5"), ["--checkpoint", "every:3"]
    tap.check(run(whole, *options).returncode == 0, "a run with checkpoints")
    with h5py.File(whole, "r") as file:
        steps, blocks = list(file["checkpoint/step"]), list(file["checkpoint/block"])
        tap.check(steps == [2, 5] and blocks == sorted(set(blocks)) and len(blocks) > 0, "checkpoints after steps 2 and 5", (steps, blocks))
    for step, first in ((0, 0), (2, 0), (3, 3), (5, 3), (6, 6), (7, 6)):
        shutil.copy(whole, log)
        interrupt(log, step)
        done = run(log, "--resume", *options)
        tap.check(f"{step} of 8 steps are complete; computing from step {first}" in done.stderr, f"cut at step {step}: starts from step {first}", done.stderr)
        tap.check(done.returncode == 0 and content(log) == content(whole), f"cut at step {step}: the same bytes", done.stderr)
    shutil.copy(whole, log)
    interrupt(log, 6)
    done = run(log, "--resume")
    tap.check(done.returncode == 2 and "of another run" in done.stderr, "resumed without its --checkpoint it is another run", done.stderr)
    done = run(os.path.join(folder, "bad.h5"), "--checkpoint", "every:0")
    tap.check(done.returncode == 2 and "expected none or every:M" in done.stderr, "--checkpoint every:0 is refused", done.stderr)


def check_signal(tap, folder, number):
    """A signal in the middle: one line, exit 2, a whole interrupted log that --resume finishes."""
    recipe, log, name = os.path.join(folder, "long.json"), os.path.join(folder, f"{number.name}.h5"), number.name
    with open(RECIPE, encoding="utf-8") as stream:
        long = json.load(stream)
    long["steps"] = 4000
    with open(recipe, "w", encoding="utf-8") as stream:
        json.dump(long, stream)
    options = ["--state", "digest", "--checkpoint", "every:50", "--quiet"]
    with subprocess.Popen(command(log, *options, recipe=recipe), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(6000):  # until there is a log with a step
            if process.poll() is not None or (os.path.exists(log) and commits(log) > 20):
                break
            time.sleep(0.002)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=300)
        code = process.returncode
    said = f"interrupted by {name}: " in stderr and "of 4000 steps are complete; --resume goes on with it" in stderr
    tap.check(code == 2 and said and stderr.count("\n") == 1 and stdout == "", f"{name}: one line, exit 2", (code, stdout, stderr))
    verified = subprocess.run([PROGRAM, "verify", log], capture_output=True, text=True, check=False)
    tap.check(verified.returncode == 2 and "incomplete" in verified.stdout, f"{name}: what is there is whole", verified.stdout)
    whole = os.path.join(folder, "long.h5")
    done = [run(log, "--resume", *options, recipe=recipe)]
    if not os.path.exists(whole):
        done.append(run(whole, *options, recipe=recipe))
    same = all(d.returncode == 0 for d in done) and content(log) == content(whole)
    tap.check(same, f"{name}: --resume, the same bytes", [d.stderr for d in done])


def commits(log):
    """Complete steps as another reader counts them while the log is written."""
    try:
        with h5py.File(log, "r") as file:
            return int((file["commit"][:64, 0] != 0).sum())
    except OSError:
        return 0


def check_no_room(tap, folder):
    """More than any disk holds: exit 2 before the first step, nothing left behind."""
    recipe, target = os.path.join(folder, "huge.json"), os.path.join(folder, "empty")
    os.mkdir(target)
    with open(RECIPE, encoding="utf-8") as stream:
        huge = json.load(stream)
    huge["steps"] = 1 << 20
    huge["model"].update(num_v_heads=256, head_k_dim=256, head_v_dim=256, layer_ids=list(range(8)))
    with open(recipe, "w", encoding="utf-8") as stream:
        json.dump(huge, stream)
    done = run(os.path.join(target, "huge.h5"), recipe=recipe)
    tap.check(done.returncode == 2 and "the disk cannot hold its" in done.stderr, "no room: exit 2", done.stderr)
    tap.check(" will take " in done.stderr, "no room: the size is shown before", done.stderr)
    tap.check(os.listdir(target) == [], "no room: nothing is left behind", os.listdir(target))


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
        check_checkpoints(tap, folder)
        for number in (signal.SIGINT, signal.SIGTERM):
            check_signal(tap, folder, number)
        check_no_room(tap, folder)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
