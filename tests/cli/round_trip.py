#!/usr/bin/env python3
"""run, replay, diff, verify and synth, one after the other.

What was written is read back as the same; what was damaged or cut off is named.

round_trip.py ROOT PROGRAM
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from program import Checks, Program, read_bytes, write_recipe  # noqa: E402
from tap import Tap  # noqa: E402

try:
    import h5py
except ImportError:
    h5py = None

STATES = ["full", "every:3", "digest"]
SLICES = [[], ["--steps", "2:6"], ["--steps", "5:"], ["--layers", "1"], ["--layers", "0", "--steps", ":4"]]


def check_logs(checks, recipe, folder):
    """Every contract, state policy and slice: the log is whole, replays to the bit and equals itself."""
    log = os.path.join(folder, "any.log.h5")
    cases = [
        ("golden", "every:3", SLICES),
        ("golden", "full", SLICES[:2]),
        ("golden", "digest", SLICES[3:]),
        ("triton-sm90", "full", SLICES[:1]),
        ("triton-sm90", "digest", SLICES[1:2]),
        ("triton-sm90-mixed", "every:3", SLICES[:1]),
    ]
    for contract, state, slices in cases:
        for slice_words in slices:
            name = f"{contract}, --state {state} {' '.join(slice_words)}".strip()
            checks.does(
                f"{name}: run",
                [
                    "run",
                    recipe,
                    "-o",
                    log,
                    "--contract",
                    contract,
                    "--state",
                    state,
                    "--force",
                    "--quiet",
                    *slice_words,
                ],
            )
            done = checks.ends(f"{name}: replay", ["replay", log], 0, "match, compared ")
            checks.tap.check(
                "differing 0 carried" in done.verdict and contract in done.line("contract"),
                f"{name}: under the log's contract",
                done,
            )
            checks.ends(f"{name}: verify", ["verify", log], 0, "match, whole")
            checks.ends(f"{name}: diff with itself", ["diff", log, log], 0, "match, compared ")


def check_other_states(checks, recipe, folder):
    """The same run kept in other ways is the same run; another contract is not."""
    paths = {}
    for state in STATES:
        paths[state] = os.path.join(folder, state.replace(":", "") + ".log.h5")
        checks.does(
            f"a log with --state {state}",
            ["run", recipe, "-o", paths[state], "--state", state, "--contract", "golden", "--quiet"],
        )
    other = os.path.join(folder, "other.log.h5")
    checks.does(
        "a log under another contract",
        ["run", recipe, "-o", other, "--contract", "triton-sm90", "--state", "digest", "--quiet"],
    )
    for state, path in paths.items():
        checks.ends(f"diff: full and {state} match", ["diff", paths["full"], path], 0, "match")
        done = checks.ends(f"diff: {state} and another contract diverge", ["diff", path, other], 1, "diverged")
        checks.tap.check(
            "contracts differ: A 'golden', B 'triton-sm90'" in done.out,
            "and the report says that the contracts differ",
            done,
        )
        checks.ends(
            f"replay of {state} under another contract diverges",
            ["replay", path, "--contract", "triton-sm90"],
            1,
            "diverged",
        )
    part = os.path.join(folder, "part.log.h5")
    checks.does(
        "a log of fewer steps and layers",
        ["run", recipe, "-o", part, "--steps", "0:6", "--layers", "1", "--contract", "golden", "--quiet"],
    )
    for a, b in ((paths["full"], part), (part, paths["full"])):
        done = checks.ends("diff with fewer steps and layers is no match", ["diff", a, b], 2, "inconclusive")
        checks.tap.check("do not hold the same layers" in done.line("because"), "and says why", done)
        done = checks.ends("fewer steps alone are no match", ["diff", a, b, "--layers", "1"], 2, "inconclusive")
        checks.tap.check(
            "0:8" in done.line("because") and "0:6" in done.line("because"), "and the report says which", done
        )
        checks.ends("within what both have it is one", ["diff", a, b, "--layers", "1", "--steps", "0:6"], 0, "match")
        checks.refused("beyond it, it cannot be compared", ["diff", a, b, "--layers", "1", "--steps", "0:8"], "0:6")
        checks.refused("nor another layer", ["diff", a, b, "--layers", "0"], "layer 0")


def check_bytes(tap, program, recipe, folder):
    """Equal runs write equal bytes, whatever the number of threads, once provenance is left out."""
    logs = []
    for name, words in [("a", ["--threads", "1"]), ("b", ["--threads", "1"]), ("c", ["--threads", "4"])]:
        logs.append(os.path.join(folder, f"bytes_{name}.h5"))
        done = program("run", recipe, "-o", logs[-1], "--contract", "triton-sm90", "--no-provenance", "--quiet", *words)
        tap.check(done.code == 0, f"run {name}", done)
    contents = [read_bytes(log) for log in logs]
    tap.check(contents[0] == contents[1], "--no-provenance: two runs, the same bytes")
    tap.check(contents[0] == contents[2], "--no-provenance: 1 and 4 threads, the same bytes")


def check_synth(checks, recipe, folder):
    paths = {name: os.path.join(folder, f"synth_{name}.h5") for name in "abcde"}
    for name, words in [
        ("a", []),
        ("b", []),
        ("c", ["--seed", "6"]),
        ("d", ["--seed", "5"]),
        ("e", ["--record", "--contract", "triton-sm90"]),
    ]:
        checks.does(f"synth {' '.join(words)}", ["synth", recipe, "-o", paths[name], *words])
    content = {name: read_bytes(path) for name, path in paths.items()}
    checks.tap.check(content["a"] == content["b"], "synth: the same bytes twice")
    checks.tap.check(content["a"] == content["d"], "synth: the recipe's own seed changes nothing")
    checks.tap.check(
        content["a"] != content["c"] and len(content["a"]) == len(content["c"]), "synth: another seed, other bytes"
    )
    checks.ends(
        "synth --record replays to the bit under its contract",
        ["replay", paths["e"], "--contract", "triton-sm90"],
        0,
        "match",
    )
    done = checks.ends("auto finds the contract", ["replay", paths["e"]], 0, "match")
    checks.tap.check(done.line("contract") == "triton-sm90", "and names it", done)
    checks.ends("and it diverges under another", ["replay", paths["e"], "--contract", "golden"], 1, "diverged")
    checks.refused("a trace without recordings cannot be replayed", ["replay", paths["a"]], paths["a"], "recorded")
    checks.ends("verify reads a trace whole", ["verify", paths["e"]], 0, "match")
    log = os.path.join(folder, "of_trace.log.h5")
    checks.does("run of a trace", ["run", paths["e"], "-o", log, "--quiet"])
    checks.ends("the log of a trace finds its trace", ["replay", log], 0, "match")
    checks.ends(
        "trace and log agree", ["diff", paths["e"], log, "--steps", "0:7"], 2, "inconclusive"
    )  # a trace keeps fewer states
    os.rename(paths["e"], paths["e"] + ".moved")
    checks.refused("a trace that is gone is named", ["replay", log], paths["e"])
    checks.ends("--trace says where it is", ["replay", log, "--trace", paths["e"] + ".moved"], 0, "match")
    checks.refused(
        "another trace is not taken for it", ["replay", log, "--trace", paths["c"]], paths["c"], "is not the trace"
    )


def flip(path, name, index):
    """Flips one bit of a dataset's element where it lies in the file."""
    with h5py.File(path, "r") as log:
        data = log[name]
        size = data.id.get_storage_size() // data.size
        place = 0
        for i, n in zip(index, data.shape):
            place = place * n + i
        at = data.id.get_offset() + place * size
    with open(path, "r+b") as raw:
        raw.seek(at)
        byte = raw.read(1)[0]
        raw.seek(at)
        raw.write(bytes([byte ^ 1]))


def active_row(path, step):
    with h5py.File(path, "r") as log:
        return [int(block) > 0 for block in log["steps/index"][step]].index(True)


def check_damage(checks, recipe, folder):
    good, bad = os.path.join(folder, "good.log.h5"), os.path.join(folder, "bad.log.h5")
    checks.does("a log to damage", ["run", recipe, "-o", good, "--quiet", "--contract", "golden"])
    row = active_row(good, 5)
    for dataset, index, says in [
        ("out/core_out", (5, 1, row, 1, 9), "core_out"),
        ("out/conv_out", (5, 0, row, 9), "conv_out"),
        ("out/norm_out", (5, 1, row, 0, 3), "norm_out"),
        ("state/recurrent", (5, 1, row, 1, 3, 4), "recurrent"),
        ("state/conv", (5, 0, row, 1, 3), "conv"),
        ("digest/recurrent", (5, 1, row, 1), "recurrent"),
        ("digest/conv", (5, 1, row), "conv"),
        ("digest/pool", (5, 1), ""),
        ("digest/out", (5, 1, 0), ""),
    ]:
        shutil.copy(good, bad)
        flip(bad, dataset, index)
        done = checks.ends(f"verify finds a flipped bit in {dataset}", ["verify", bad], 1, "diverged, corrupted")
        found = done.out.splitlines()[-2] if done.out.count("\n") > 1 else ""
        checks.tap.check(
            found.startswith("first fault: ") and says in found and "step 5" in found,
            "and names the dataset and the step",
            done,
        )
        fault = checks.program("verify", bad, "--json", "-")
        checks.tap.check(
            fault.code == 1 and fault.json["fault"]["step"] == 5 and says in fault.json["fault"]["dataset"],
            "and so does its JSON",
            fault,
        )
    for dataset, index in [("out/core_out", (5, 1, row, 1, 9)), ("state/recurrent", (5, 1, row, 1, 3, 4))]:
        shutil.copy(good, bad)
        flip(bad, dataset, index)
        done = checks.ends(f"replay finds a flipped bit in {dataset}", ["replay", bad], 1, "diverged")
        checks.tap.check(
            "step 5, layer 1 (model layer 7)" in done.line("at") and f"row {row}" in done.line("at"),
            "at its place",
            done,
        )
    shutil.copy(good, bad)
    flip(bad, "steps/index", (5, row))
    checks.refused("a flipped bit in the header", ["verify", bad], bad, "index")


def check_incomplete(checks, recipe, folder):
    good, cut = os.path.join(folder, "good.log.h5"), os.path.join(folder, "cut.log.h5")
    shutil.copy(good, cut)
    with h5py.File(cut, "r") as log:
        at = log["commit"].id.get_offset()
    with open(cut, "r+b") as raw:  # as if killed after five steps
        raw.seek(at + 5 * 32)
        raw.write(bytes(3 * 32))
    done = checks.ends("replay of an incomplete log is inconclusive", ["replay", cut], 2, "inconclusive")
    checks.tap.check("5 of 8 steps" in done.line("because"), "and says how much is there", done)
    checks.ends("verify too", ["verify", cut], 2, "inconclusive, incomplete")
    checks.ends("within its steps it matches", ["replay", cut, "--steps", "0:5"], 0, "match")
    checks.refused("beyond them it cannot be compared", ["replay", cut, "--steps", "0:6"], "0:5")
    checks.ends("diff with the whole log is inconclusive", ["diff", good, cut], 2, "inconclusive")
    done = checks.ends(
        "diff of two logs that lack the same steps is inconclusive", ["diff", cut, cut], 2, "inconclusive"
    )
    checks.tap.check("5 of 8 steps" in done.line("because"), "and says why", done)
    checks.ends("diff within its steps matches", ["diff", good, cut, "--steps", "0:5"], 0, "match")
    flip(cut, "out/core_out", (2, 0, active_row(cut, 2), 0, 0))
    checks.ends("a difference in the steps that are there is one", ["replay", cut], 1, "diverged")
    with open(cut, "r+b") as raw:
        raw.truncate(os.path.getsize(cut) - 40000)
    checks.refused("a truncated log", ["verify", cut], cut)


def check_killed(checks, folder):
    """kill -9 in the middle of a run: what it had done is whole and matches."""
    recipe = write_recipe(os.path.join(folder, "endless.json"), steps=100000)
    log = os.path.join(folder, "killed.log.h5")
    with subprocess.Popen(
        [checks.program.path, "run", recipe, "-o", log, "--state", "digest", "--contract", "golden", "--quiet"]
    ) as running:
        while not os.path.exists(log) and running.poll() is None:
            time.sleep(0.01)
        time.sleep(0.3)
        alive = running.poll() is None
        running.send_signal(signal.SIGKILL)
    checks.tap.check(alive, "the run was killed before its end")
    info = checks.program("info", log, "--json", "-")
    steps = info.json["log"]["steps"] if info.code == 0 else 0
    checks.tap.check(0 < steps < 100000, "the killed run left complete steps", info)
    checks.ends("verify: incomplete, not corrupted", ["verify", log], 2, "inconclusive")
    last = min(steps, 50)
    checks.ends("its first steps replay to the bit", ["replay", log, "--steps", f"0:{last}"], 0, "match")


def main():
    tap = Tap()
    checks = Checks(tap, Program(sys.argv[2]))
    with tempfile.TemporaryDirectory() as folder:
        recipe = write_recipe(os.path.join(folder, "recipe.json"))
        check_logs(checks, recipe, folder)
        check_other_states(checks, recipe, folder)
        check_bytes(tap, checks.program, recipe, folder)
        check_synth(checks, recipe, folder)
        check_killed(checks, folder)
        if h5py is None:
            tap.skip("damaged logs", "python3-h5py is not installed")
            return tap.finish()
        check_damage(checks, recipe, folder)
        check_incomplete(checks, recipe, folder)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
