#!/usr/bin/env python3
"""merge and split: the ranks of a rollout replay as the whole does, and the whole as its ranks.

ranks.py ROOT PROGRAM
"""

import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from program import Checks, Program, write_recipe  # noqa: E402
from tap import Tap  # noqa: E402


def compared(done):
    """How many elements the verdict counts."""
    return int(done.verdict.split("compared ")[1].split(",")[0])


def check_whole(checks, name, whole, folder, ranks):
    """Split, replayed rank by rank, merged and replayed again: no bit differs and none is lost."""
    base = os.path.join(folder, "part.h5")
    checks.does(f"{name}: split in {ranks}", ["split", whole, "--ranks", ranks, "-o", base, "--force", "--quiet"])
    parts = [os.path.join(folder, f"part.rank{rank}.h5") for rank in range(ranks)]
    done = [checks.ends(f"{name}: rank {i} of {ranks}", ["replay", p], 0, "match, compared ") for i, p in enumerate(parts)]
    merged = os.path.join(folder, "merged.h5")
    checks.does(f"{name}: merge {ranks}", ["merge", *reversed(parts), "-o", merged, "--force", "--quiet"])
    again = checks.ends(f"{name}: merged", ["replay", merged], 0, "match, compared ")
    checks.tap.check(sum(map(compared, done)) == compared(again), f"{name}: as many elements in the ranks as in the whole")
    checks.ends(f"{name}: merged against the first", ["diff", whole, merged], 0, "match, compared ")
    return parts


def main():
    root, program = sys.argv[1], Program(sys.argv[2])
    tap = Tap()
    checks = Checks(tap, program)
    with tempfile.TemporaryDirectory() as folder:
        recorded = os.path.join(root, "traces", "h200_tp4_f32.h5")
        for ranks in (2, 4):
            check_whole(checks, "recorded on a GPU", recorded, folder, ranks)
        recipe = write_recipe(os.path.join(folder, "r.json"), model={"num_k_heads": 2, "num_v_heads": 6})
        whole = os.path.join(folder, "whole.h5")
        checks.does("a synthetic one", ["synth", recipe, "-o", whole, "--record", "--snapshots", "3"])
        parts = check_whole(checks, "synthetic", whole, folder, 2)
        out = os.path.join(folder, "out.h5")
        checks.refused("a rank alone", ["merge", parts[0], "-o", out], "two or more")
        checks.refused("a file twice", ["merge", parts[0], parts[0], "-o", out], "is given twice")
        again = shutil.copy(parts[0], os.path.join(folder, "again.h5"))
        checks.refused("a rank twice", ["merge", parts[0], again, "-o", out], "rank 0 is", "too")
        checks.refused("3 of 2 key heads", ["split", whole, "--ranks", "3", "-o", out], "divides 2 key heads")
        checks.refused("onto itself", ["merge", *parts, "-o", parts[0], "--force"], "part.rank0.h5")
        checks.refused("onto an existing file", ["merge", *parts, "-o", whole], "already exists")
        checks.refused("split onto existing files", ["split", whole, "--ranks", "2", "-o", os.path.join(folder, "part.h5")], "already exists")
        tap.check(not os.path.exists(out), "nothing was written by what was refused")
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
