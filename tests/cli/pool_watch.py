#!/usr/bin/env python3
"""`run --poison` and `run --audit` as a user meets them: an engine's faults, acted out from recipes, are found and named where
they can be; and the same streams without their faults are clean.

pool_watch.py ROOT PROGRAM
"""

import glob
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import schema  # noqa: E402
from program import Checks, Program  # noqa: E402
from tap import Tap  # noqa: E402

MODEL = {"num_k_heads": 1, "num_v_heads": 2, "head_k_dim": 8, "head_v_dim": 8, "num_blocks": 7, "layer_ids": [0, 4]}
ROW_TWO = [{"index": [1, 2, 3]}, {"index": [1, 2, 3], "rows": 2}, {"index": [1, 2, 3], "rows": 2}]


def same(index, **keys):
    return [{"index": index, **keys}] * 3


def inactive_row(step, row, block, **keys):
    return {"kind": "inactive-row", "step": step, "row": row, "block": block, **keys}


# name: (steps, fault, changes of the model, what the audit says: block, layer, step, writer's kind, row; words of its line)
STRAYS = {
    "a padded row": (
        same([1, 2, 0]), inactive_row(1, 2, 0, layer=1), {},
        (0, 1, 1, "padded-row", 2), "row 2 of step 1, which is inactive, has its index (padded row)",
    ),
    "a stale tail": (
        ROW_TWO, inactive_row(2, 2, 3), {},
        (3, 0, 2, "stale-tail", 2), "row 2 of step 2, beyond the 2 rows that are there, has its index, left from step 0 (stale tail)",
    ),
    "an index from the end": (
        same([1, 2, -1]), inactive_row(1, 2, 6, layer=0), {},
        (6, 0, 1, "from-the-end", 2), "has index -1, which counted from the end is its block",
    ),
    "another index from the end": (
        same([1, 2, -3]), inactive_row(1, 2, 4, layer=0), {},
        (4, 0, 1, "from-the-end", 2), "has index -3, which counted from the end is its block",
    ),
    "an offset of 32 bits": (
        same([2, 5]), {"kind": "wrapped", "by": 32, "step": 1, "layer": 0}, {"block_stride": 1 << 30, "index_bits": 32},
        (1, 0, 1, "cut-offset", 1), "the recurrent state of block 5, row 1 of step 1, begins there when its offset is cut to 32 bits",
    ),
    "an index of the step before": (
        [{"index": [1, 2]}, {"index": [3, 2]}, {"index": [3, 2]}], {"kind": "write-block", "step": 1, "row": 0, "layer": 1, "block": 1}, {},
        (1, 1, 1, "stale-index", 0), "row 0 of step 1 had its index in step 0 (stale index)",
    ),
    "somebody": (
        same([1, 2]), {"kind": "write-block", "step": 1, "row": 0, "layer": 1, "block": 5}, {},
        (5, 1, 1, None, None), "block 5 of layer 1 was written in step 1, though no row and no event names it",
    ),
}

# name: (steps, fault, where the padding is: step, row; where it shows: step, layer, row, tap; lines)
PADDING = {
    "a sentinel's": (
        same([1, 2, 0]), {"kind": "read-inputs", "step": 1, "row": 1, "by": 1, "layer": 1},
        (1, 2), (1, 1, 1, "conv_out"),
        ["padding of row 2 read: step 1, row 1, sequence 2, layer 1, conv_out head 0 element 0", "row 2 of step 1 is inactive: its index is 0"],
    ),
    "a tail's": (
        same([1, 2, 3, 5], rows=2), {"kind": "read-inputs", "step": 2, "row": 0, "by": 3, "layer": 0},
        (2, 3), (2, 0, 0, "conv_out"),
        ["padding of row 3 read: step 2, row 0, sequence 1, layer 0, conv_out head 0 element 0", "row 3 of step 2 is beyond the 2 rows present"],
    ),
    "of an earlier step": (  # what the padded row wrote is read two steps later
        [{"index": [1, 2, 3]}, {"index": [1, 2, 0]}, {"index": [1, 2, 0]}, {"index": [1, 2, 3]}], inactive_row(1, 2, 3, layer=0),
        (1, 2), (3, 0, 2, "conv_out"),
        ["padding of row 2 of step 1 read: step 3, row 2, sequence 3, layer 0, conv_out head 0 element 0",
         "row 2 of step 1 is inactive: its index is 0"],
    ),
}

# The recipes of bug reports whose faults show in the pool: what of them the watch finds.
BUGS = {
    "01-padded-graph": ("block 0 of layer 0 was written in step 1", "padding of row 3 of step 1 read"),
    "02-remapped-padding": ("block 5 of layer 1 was written in step 2", "padding of row 1 of step 2 read"),
    "03-stale-tail": ("block 3 of layer 0 was written in step 1", "padding of row 2 of step 1 read: step 2, row 2"),
    "05-unwritten-output": (None, "output never written: step 2, row 1"),
    "09-poison": (None, "poison of block 4 read: step 2, row 1, sequence 9"),
    "10-aborted-copy": (None, "block 3 was last written by event 8 (copy of block 1) at step 1, which did not reach it"),
    "11-lost-prefill": (None, "poison of block 3 read: step 2, row 1, sequence 9"),
    "11-previous-batch": ("block 3 of layer 0 was written in step 2", None),
    "36-wrapped": ("block 1 of layer 0 was written in step 0", None),
}


class Watch:
    def __init__(self, program, tap, folder, bugs):
        self.program, self.tap, self.folder, self.bugs = program, tap, folder, bugs

    def recipe(self, steps, faults, model=None):
        path = os.path.join(self.folder, "recipe.json")
        whole = {"schema": "gdnsim.recipe/1", "seed": 3, "steps": len(steps), "rows": len(steps[0]["index"]),
                 "model": {**MODEL, **(model or {})}, "script": {"fill": True, "steps": steps}, "faults": faults}
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(whole, stream)
        return path

    def run(self, recipe, *options):
        log = os.path.join(self.folder, "run.h5")
        return self.program("run", recipe, "-o", log, "--force", "--quiet", "--contract", "golden", *options)

    def is_clean(self, name, recipe, *options):
        done = self.run(recipe, *options)
        self.tap.check(done.code == 0 and "verdict" not in done.out, f"{name}: nothing without the fault", done)

    def found(self, name, recipe, option, wanted, lines):
        """wanted: keys of the report and their values; lines: the first of each of its lines."""
        text = self.run(recipe, *option, "--act-faults")
        done = self.run(recipe, *option, "--act-faults", "--json", "-")
        report = schema.parse(done.out) if done.code == 1 else {}
        wrong = [key for key, value in wanted.items() if report.get(key) != value]
        unsaid = [line for line in lines if not any(line in said for said in report.get("lines", []))]
        unsaid += [line for line in report.get("lines", ["?"]) if line not in text.out]
        faults = schema.wrong(report)
        verdict = text.verdict == f"verdict: diverged, {report.get('class')}"
        self.tap.check(text.code == 1 and verdict and not wrong and not unsaid and not faults, name, f"{wrong} {unsaid} {faults}\n{done}\n{text}")


def strays(watch):
    for name, (steps, fault, model, (block, layer, step, kind, row), line) in STRAYS.items():
        recipe = watch.recipe(steps, [fault], model)
        wanted = {"class": "stray-write", "block": block, "layer": layer, "first_step": step, "last_step": step,
                  "writer": {"kind": kind, "step": step, "row": row} if kind else None}
        watch.found(f"--audit: {name}", recipe, ("--audit", "1"), wanted, [line])
        watch.is_clean(f"--audit: {name}", recipe, "--audit", "1")


def padding(watch):
    for name, (steps, fault, (at, row), (step, layer, shows, tap), lines) in PADDING.items():
        recipe = watch.recipe(steps, [fault])
        wanted = {"class": "poison-read", "padding": {"step": at, "row": row}, "step": step, "layer": layer, "row": shows,
                  "tap": tap, "poison": -1}
        watch.found(f"--poison: padding, {name}", recipe, ("--poison",), wanted, lines)
        watch.is_clean(f"--poison: padding, {name}", recipe, "--poison")


def bugs(watch):
    """Every recipe with faults: found as told, and not found where nothing is told."""
    for path in sorted(glob.glob(os.path.join(watch.bugs, "*.json"))):
        with open(path, encoding="utf-8") as stream:
            if "faults" not in json.load(stream):
                continue
        told = BUGS.get(os.path.basename(path)[:-5], (None, None))
        for option, line in zip((("--audit", "1"), ("--poison",)), told):
            done = watch.run(path, *option, "--act-faults")
            good = done.code == 1 and line in done.out if line else done.code == 0 and "verdict" not in done.out
            watch.tap.check(good, f"{os.path.basename(path)}, {option[0]}: {line or 'nothing'}", done)


def faulty_log(watch):
    """What the watch does not find goes into the log: an engine's with these faults, which a replay of it finds."""
    recipe = watch.recipe(same([1, 2, 0]), [{"kind": "missing-write", "step": 1, "row": 0, "layer": 1}])
    done = watch.run(recipe, "--audit", "1", "--act-faults")
    log = os.path.join(watch.folder, "run.h5")
    again = watch.program("explain", log, "--quiet")
    said = again.code == 1 and "write-missing" in again.out and "step 1" in again.out
    watch.tap.check(done.code == 0 and said, "a fault that the watch cannot see is in the log", f"{done}\n{again}")


def unwritten_in_log(watch):
    """An output that was never written explains no state that was lost in the same row: with states in the log and with digests."""
    unwritten = {"kind": "poison-out", "step": 1, "row": 1, "layer": 1, "tap": "conv_out"}
    lost = {"kind": "missing-write", "step": 1, "row": 1, "layer": 1}
    aside = "set aside: this row's conv state, recurrent state"
    for faults, state, kind in (([unwritten, lost], "full", "wrong-position"), ([unwritten, lost], "digest", "write-missing"), ([unwritten], "digest", None)):
        done = watch.run(watch.recipe(same([1, 2]), faults), "--audit", "1", "--act-faults", "--state", state)
        again = watch.program("explain", os.path.join(watch.folder, "run.h5"), "--quiet", "--json", "-")
        found = [(one["id"], aside in one["says"]) for one in json.loads(again.out)["mechanisms"]] if again.code == 1 else []
        wanted = [("poison-read", kind is not None)] + ([(kind, False)] if kind else [])
        watch.tap.check(done.code == 0 and found == wanted, f"an output never written, {len(faults)} faults, {state}", f"{done}\n{again}")


def padded_in_a_launch(watch):
    """A padded row in a launch's second step goes on from what its block stores, whatever ran before."""
    steps = [
        {"index": [1, 0], "sequence": [1, -1], "last_draft": False},
        {"index": [3, 0], "sequence": [1, -1], "source": [1, -1], "draft": 1},
        {"index": [1, 2], "sequence": [1, 2], "source": [3, -1], "last_draft": False},
        {"index": [3, 4], "sequence": [1, 2], "source": [1, 2], "draft": 1},
    ]
    for kind, block in (("unnamed", 5), ("of the next launch", 2)):
        fault = inactive_row(1, 1, block, layer=0)
        recipe = watch.recipe([{**step, "path": 1} for step in steps], [fault], {"state_dtype": "bf16"})
        found = watch.run(recipe, "--poison", "--act-faults")
        said = found.code == 1 and "padding of row 1 of step 1 read" in found.out
        log = os.path.join(watch.folder, "launch.h5")
        made = watch.program("synth", recipe, "-o", log, "--force", "--record", "--contract", "golden", "--snapshots", "1")
        done = watch.program("explain", log, "--contract", "golden", "--quiet", "--json", "-")
        ids = [(one["id"], one["scope"].get("row"), one["scope"].get("block")) for one in json.loads(done.out)["mechanisms"]] if done.code == 1 else []
        named = len(ids) == 1 and ids[0][0] in ("padded-row-wrote", "stale-tail") and ids[0][1:] == (1, block)
        watch.tap.check(said and made.code == 0 and named, f"a padded row in a launch, block {kind}", f"{ids}\n{found}\n{made}\n{done}")


def padding_in_two_layers(watch):
    """Two padded rows that show in different layers, of one step or of two: what is told is the first that shows."""
    for name, steps, faults in (
        ("two steps", [{"index": [1, 2]}, {"index": [1, 5], "rows": 1}, {"index": [1, 4], "rows": 1}],
         [inactive_row(1, 1, 5, layer=1), inactive_row(2, 1, 4, layer=0)]),
        ("one step", [{"index": [1, 2, 3]}, {"index": [1, 5, 3], "rows": 1}, {"index": [1, 4, 3], "rows": 1}],
         [inactive_row(2, 1, 5, layer=1), inactive_row(2, 2, 4, layer=0)]),
    ):
        done = watch.run(watch.recipe(steps, faults), "--poison", "--act-faults")
        said = "read: step 2, layer 0, block 4, conv state" in done.out
        watch.tap.check(done.code == 1 and said and not done.err, f"padding that shows in two layers, {name}", done)


def poison_again(watch):
    """An allocated block is poison again: whoever wrote there before is no writer whose write was lost."""
    events = [{"step": 0, "kind": kind, "block": 1, "sequence": 4} for kind in ("allocate", "zero")]
    events += [{"step": 1, "kind": "free", "block": 1, "sequence": 4}, {"step": 1, "kind": "allocate", "block": 1, "sequence": 9}]
    recipe = watch.recipe([{"index": [1], "sequence": [4]}, {"index": [1], "sequence": [9]}], [])
    with open(recipe, encoding="utf-8") as stream:
        whole = json.load(stream)
    whole["script"] = {"steps": whole["script"]["steps"], "events": events}
    with open(recipe, "w", encoding="utf-8") as stream:
        json.dump(whole, stream)
    done = watch.run(recipe, "--poison")
    said = "poison of block 1 read: step 1" in done.out and "row 0 of step 0, sequence 4 (which no longer has it)\n" in done.out
    watch.tap.check(done.code == 1 and said, "a block allocated again", done)


def load_of_a_layer(watch):
    """A load that names a layer fills that layer's block alone."""
    recipe = watch.recipe([{"index": [1, 4]}], [])
    with open(recipe, encoding="utf-8") as stream:
        whole = json.load(stream)
    loads = [{"step": 0, "kind": "load", "block": 1}, {"step": 0, "kind": "load", "block": 4, "layer": 1}]
    whole["script"] = {"steps": whole["script"]["steps"], "events": loads}
    with open(recipe, "w", encoding="utf-8") as stream:
        json.dump(whole, stream)
    done = watch.run(recipe, "--poison")
    said = "poison of block 4 read: step 0, row 1, sequence 4, layer 0" in done.out
    watch.tap.check(done.code == 1 and said, "a load of one layer leaves the others", done)
    loads[1]["layer"] = 2
    with open(recipe, "w", encoding="utf-8") as stream:
        json.dump(whole, stream)
    log = os.path.join(watch.folder, "none.h5")
    Checks(watch.tap, watch.program).refused("a load of a layer that is not there", ["run", recipe, "-o", log], "layer", "found 2")


def refusals(watch):
    checks = Checks(watch.tap, watch.program)
    log = os.path.join(watch.folder, "none.h5")
    recipe = watch.recipe(same([1, 2]), [{"kind": "missing-write", "step": 1}])
    checks.refused("--act-faults alone", ["run", recipe, "-o", log, "--act-faults"], "--act-faults", "--poison or --audit")
    checks.refused("--act-faults, resumed", ["run", recipe, "-o", log, "--act-faults", "--audit", "1", "--resume"], "--resume")
    recipe = watch.recipe(same([1, 2]), [])
    checks.refused("--act-faults without faults", ["run", recipe, "-o", log, "--act-faults", "--audit", "1"], "found none")
    trace = os.path.join(watch.folder, "trace.h5")
    watch.program("synth", recipe, "-o", trace)
    checks.refused("--act-faults with a trace", ["run", trace, "-o", log, "--act-faults", "--audit", "1"], "expected a recipe")
    watch.tap.check(not os.path.exists(log), "nothing refused left a log")


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Program(sys.argv[2]), tap, folder, os.path.join(sys.argv[1], "traces", "recipes", "bugs"))
        for ask in (strays, padding, bugs, faulty_log, unwritten_in_log, padded_in_a_launch, padding_in_two_layers, poison_again, load_of_a_layer, refusals):
            ask(watch)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
