#!/usr/bin/env python3
"""How much memory a run takes: replay no more than one layer's pool and 200 MB, run no more than all pools and 200 MB.

Each file alone holds more than that, in steps or in layers, so that keeping what has been done would show. What
counts is the largest resident size of the program and of what it starts, as the kernel reports it.

memory.py ROOT PROGRAM
"""

import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from program import write_recipe  # noqa: E402
from tap import Tap  # noqa: E402

H, HV, WIDTH, ROWS, BLOCKS, W = 8, 16, 128, 8, 9, 4
DIM = 2 * H * WIDTH + HV * WIDTH
BLOCK = HV * WIDTH * WIDTH * 4 + (W - 1) * DIM * 2
POOL = BLOCKS * BLOCK  # of one layer
ALLOWED = 200_000_000


def recipe(path, layers, steps):
    """Half of Qwen3-Next's heads; every row runs in every step."""
    return write_recipe(
        path,
        steps=steps,
        rows=ROWS,
        model={
            "num_k_heads": H,
            "num_v_heads": HV,
            "head_k_dim": WIDTH,
            "head_v_dim": WIDTH,
            "num_blocks": BLOCKS,
            "layer_ids": list(range(layers)),
        },
        schedule={},
        states={"start": "zero"},
    )


def peak_of(program, *arguments):
    """(exit code, largest resident size in bytes)"""
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.execv(program, [program, *arguments])
    _, status, usage = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024


def check(tap, name, limit, program, *arguments):
    code, peak = peak_of(program, *arguments)
    tap.check(code == 0 and peak < limit, name, f"exit {code}, {peak / 1e6:.0f} MB, allowed {limit / 1e6:.0f} MB")
    print(f"# {name}: {peak / 1e6:.0f} MB of {limit / 1e6:.0f} MB", flush=True)


def check_replay(tap, program, folder, name, layers, steps):
    source = recipe(os.path.join(folder, f"{name}.json"), layers, steps)
    trace = os.path.join(folder, f"{name}.h5")
    check(
        tap, f"synth --record, {name}", layers * POOL + ALLOWED, program, "synth", source, "-o", trace, "--record",
        "--contract", "golden", "--backend", "golden", "--quiet",
    )  # fmt: skip
    size = os.path.getsize(trace)
    tap.check(size > POOL + ALLOWED, f"the trace with {name} holds more than replay may take", size)
    for mode in ("local", "carried"):
        check(
            tap, f"replay, {name}, {mode}", POOL + ALLOWED, program, "replay", trace, "--mode", mode,
            "--contract", "golden", "--backend", "golden", "--quiet",
        )  # fmt: skip
    os.remove(trace)


def check_run(tap, program, folder):
    """Every state of every step goes to the log."""
    layers, steps = 2, 16
    source, log = recipe(os.path.join(folder, "run.json"), layers, steps), os.path.join(folder, "run.h5")
    check(
        tap, "run, all states", layers * POOL + ALLOWED, program, "run", source, "-o", log, "--state", "full",
        "--backend", "golden", "--quiet",
    )  # fmt: skip
    size = os.path.getsize(log)
    tap.check(size > layers * POOL + ALLOWED, "the log holds more than run may take", size)


def main():
    tap, program = Tap(), os.path.abspath(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        check_replay(tap, program, folder, "many layers", 30, 4)
        check_replay(tap, program, folder, "many steps", 1, 1024)
        check_run(tap, program, folder)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
