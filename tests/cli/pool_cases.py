#!/usr/bin/env python3
"""Bug reports about the state pool, each a recipe of traces/recipes/bugs: what is refused before a step runs, and what explain
says of a recording that `synth --record` made with the fault acted out. Every recipe without its fault must match.

pool_cases.py ROOT PROGRAM [--keep FOLDER] [--only TEXT]
"""

import glob
import json
import os
import sys

import h5py
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import schema  # noqa: E402
from explain_case import ABSENT, Want, everywhere, first_is, main, says  # noqa: E402

FOLDER = os.path.join(HERE, "..", "..", "traces", "recipes", "bugs")

# Refused by every command that would run it: exit 2, one line with all of this.
REFUSED = {
    "02-live-row-on-null": ["step 0", "row 0 names the null block 0", "sequence 7"],
    "06-two-requests-one-block": ["rows 0 and 1 both name block 2", "two writers", "sequences 4 and 9"],
    "06-ownership": ["step 2", "row 1", "sequence 9", "block 2 is allocated to sequence 4 since step 0"],
    "06-modulo": ["allocate of block 2", "to sequence 6", "allocated to sequence 1"],
    "07-column-out-of-range": ["column", "0..1 for row 0", "found 5"],
    "14-null-checkpoint": ["copy of block 3", "block 0 is the null block"],
    "16-racy-accepted": ["step 4", "row 1", "sequence 8", "accepted 7: expected 1..4"],
}


def last_writer(**want):
    """Of what the operation of the first divergence read."""

    def check(report):
        found = report["first"].get("last_writer", {})
        return [f"last writer {found}, wanted {want}"] if {k: v for k, v in found.items() if k != "says"} != want else []

    return check


def both(*checks):
    return lambda report: [complaint for check in checks for complaint in check(report)]


def also_first(check, **first):
    return lambda report: check(report) + first_is(**first)(report)


# Recorded with the fault: what explain must say, and what the sentences must hold.
EXPLAINED = {
    "01-padded-graph": ([Want("padded-row-wrote", step=1, layer=0, row=3, block=0)], says("wrote block 0")),
    "02-remapped-padding": ([Want("padded-row-wrote", step=2, layer=1, row=1, block=5)], says("wrote block 5")),
    "03-stale-tail": (
        [Want("stale-tail", step=1, layer=0, row=2, block=3)],
        also_first(says("beyond the 2 rows present", "left that index"), step=1, layer=0, tap="conv_state", block=3),
    ),
    "05-unwritten-output": ([Want("poison-read", step=2, layer=0, row=1)], says("conv_out was never written")),
    "07-neighbours-block": (
        [Want("wrong-block", step=2, layer=0, row=0, block=4)],
        both(says("read the state of block 4 (row 1's, sequence 9)"), last_writer(block=1, step=1, row=0, sequence=7)),
    ),
    "09-poison": ([Want("poison-read", step=2, layer=0, row=1, block=4)], says("that nothing had written")),
    "10-aborted-copy": (
        [Want("reset-missing", step=1, layer=ABSENT, block=3)],
        both(
            says(
                "the copy of block 3 did not reach its state: the last writer was row 1 of step 0, sequence 5 "
                "(which no longer has it)"
            ),
            last_writer(block=3, step=1, event=8, sequence=9),
        ),
    ),
    "11-lost-prefill": ([Want("reset-missing", step=2, layer=ABSENT, block=3)], says("nothing had written it before")),
    "11-previous-batch": (
        [Want("wrong-block", step=2, layer=0, row=row, block=row + 3) for row in (0, 1)],
        says("to block 3 instead of its own", "to block 4 instead of its own"),
    ),
    "13-wrong-checkpoint": (
        [Want("wrong-position", step=4, layer=ABSENT, block=4)],
        says("the copy of block 4 took the state that block 2 held at position p-2"),
    ),
    "13-restored-rounded": (
        [Want("state-store-bf16", step=4, layer=ABSENT, block=4)],
        says("the copy of block 4 came rounded to bf16"),
    ),
    "15-accepted-column": (
        [Want(name, step=4, layer=ABSENT, row=0, block=1) for name in ("wrong-position", "conv-window-shift")],
        both(
            says(
                "recurrent state of position p-1, block 1, the one after step 1, not block 2",
                "conv window read 1 column too early",
                "recurrent at p-1, conv at p-1",
            ),
            last_writer(block=2, step=2, row=0, sequence=7),
        ),
    ),
    "15-accepted-column-state": (
        [Want("wrong-position", step=4, layer=ABSENT, row=0, block=1)],
        says("went on from recurrent at p-1, conv at p"),
    ),
    "15-accepted-column-window": (
        [Want("conv-window-shift", step=4, layer=ABSENT, row=0, block=1)],
        says("went on from recurrent at p, conv at p-1"),
    ),
    "15-two-columns": (
        [
            Want("wrong-position", step=4, layer=ABSENT, row=0, block=1),
            Want("conv-window-shift", step=4, layer=ABSENT, row=0, block=3),
        ],
        says("conv window read 1 column too late", "went on from recurrent at p-1, conv at p+1"),
    ),
    "31-interleaved-as-flat": ([everywhere("qkv-packing")], None),
    "32-head-map": ([everywhere("head-map")], says("tiled")),
    "34-transposed": ([Want("kv-transposed", step=2, layer=1, block=3)], says("the load of block 3")),
    "36-wrapped": (
        [Want("index-wrap", step=ABSENT, layer=ABSENT, block=1)],
        says("block 5 times 1073741824 elements", "wrapped to block 1"),
    ),
}
CLEAN = ("02-block-zero-live", "09-never-zeroed")  # nothing to explain


def recipe_of(name):
    with open(os.path.join(FOLDER, name + ".json"), encoding="utf-8") as stream:
        return json.load(stream)


def steps_of(name):
    return recipe_of(name)["steps"]


def synth(cases, recipe, trace):
    return cases.program("synth", recipe, "-o", trace, "--record", "--contract", "golden", "--snapshots", "1", "--force")


def refused(cases, name, parts):
    recipe = os.path.join(FOLDER, name + ".json")
    for command in (["run", recipe, "-o", cases.path(name)], ["synth", recipe, "-o", cases.path(name)]):
        done = cases.program(*command)
        line = done.err.strip().splitlines()[-1] if done.err.strip() else ""
        wrong = [part for part in parts if part not in line]
        cases.tap.check(done.code == 2 and not wrong, f"{name}: {command[0]} refuses", f"exit {done.code}: {line}, lacks {wrong}")


def explained(cases, name, wants, check):
    trace = cases.path(name)
    done = synth(cases, os.path.join(FOLDER, name + ".json"), trace)
    if cases.tap.check(done.code == 0, f"{name}: recorded with its fault", done.err):
        cases.ask(name, trace, wants, steps_of(name), check=check, options=("--contract", "golden"))


def without_fault(cases, name):
    """The same stream, recorded by an engine that does it right."""
    whole = recipe_of(name)
    whole.pop("faults", None)
    recipe, trace = cases.path(name) + ".json", cases.path(name + " right")
    with open(recipe, "w", encoding="utf-8") as stream:
        json.dump(whole, stream)
    done = synth(cases, recipe, trace)
    if cases.tap.check(done.code == 0, f"{name}: recorded without a fault", done.err):
        cases.ask(f"{name} without its fault", trace, [], whole["steps"], code=0, options=("--contract", "golden"))
    os.remove(recipe)


def wrap_warning(cases):
    """36: which block is out of reach of 32 bits, and which one it hits, before anything runs."""
    recipe = os.path.join(FOLDER, "36-wrapped.json")
    done = cases.program("run", recipe, "-o", cases.path("wrap"), "--contract", "golden")
    parts = ("warning", "block 2 has elements beyond 2^31", "wraps from block 4 on, which hits block 0")
    wrong = [part for part in parts if part not in done.err.splitlines()[0]]
    cases.tap.check(done.code == 0 and not wrong, "36-wrapped: a warning before the run", f"lacks {wrong}: {done.err}")


def poison(cases):
    """9: a stream in which nothing fills a new sequence's block, run in a pool of poison."""
    recipe = os.path.join(FOLDER, "09-never-zeroed.json")
    done = cases.program("run", recipe, "-o", cases.path("poison"), "--contract", "golden", "--poison")
    said = done.out + done.err
    wrong = [part for part in ("poison of block 4", "step 1", "row 1", "sequence 9") if part not in said]
    cases.tap.check(done.code == 1 and not wrong, "09-never-zeroed: --poison names the block", f"exit {done.code}: {said}")
    options = ("--contract", "golden", "--poison", "--json", "-")
    done = cases.program("run", recipe, "-o", cases.path("poison"), *options)
    report = schema.parse(done.out) if done.code == 1 else {}
    wanted = {"class": "poison-read", "step": 1, "layer": 0, "row": 1, "sequence": 9, "block": 4, "poison": 4, "tap": "state"}
    good = {key: report.get(key) for key in wanted} == wanted and len(report["lines"]) == 2
    cases.tap.check(good, "09-never-zeroed: --poison, as JSON", done)
    if schema.jsonschema is None:
        return cases.tap.skip("the published schema of --poison", schema.MISSING)
    faults = schema.wrong(report) or ([] if schema.wrong({**report, "poison": "four"}) else ["refuses nothing"])
    return cases.tap.check(not faults, "09-never-zeroed: --poison, as its schema says", faults)


def poison_in_a_layer(cases):
    """The same, filled in the other layer alone: that layer's reset is no writer of this one's block."""
    whole = recipe_of("09-never-zeroed")
    whole["script"]["events"].append({"step": 1, "kind": "zero", "block": 4, "layer": 1, "sequence": 9})
    recipe, report = cases.path("a-layer") + ".json", cases.path("a-layer report")
    with open(recipe, "w", encoding="utf-8") as stream:
        json.dump(whole, stream)
    done = cases.program("run", recipe, "-o", cases.path("a-layer"), "--contract", "golden", "--poison", "--json", report)
    wanted = "block 4 was last written by nobody"
    cases.tap.check(done.code == 1 and wanted in done.out, "a reset in one layer: --poison names the other's writer", done.out)
    os.remove(recipe)


def outside_domain(cases):
    """40: gates that nothing can compute are warned of wherever the recording is opened, and it is replayed all the same."""
    trace = cases.path("gates")
    synth(cases, os.path.join(FOLDER, "09-never-zeroed.json"), trace)
    with h5py.File(trace, "r+") as file:
        for layer in ("0", "1"):
            for tap, good in (("g", -0.5), ("decay", 1.0)):
                file[f"recorded/{layer}/{tap}"] = np.full((4, 2, 4), good, np.float32)
    done = cases.program("info", trace, "--json", "-")
    cases.tap.check(done.code == 0 and "warning" not in done.err + done.out, "gates at their bounds: no warning", done)
    with h5py.File(trace, "r+") as file:
        g, decay = file["recorded/1/g"], file["recorded/0/decay"]
        g[2, 1, 3], g[3, 0, 0], g[1, 0, 0] = 0.25, np.inf, np.nan
        g[0, 1, 2] = 7  # an inactive row may hold anything
        decay[1, 0, 1] = -1.5
    wanted = [
        "recorded g of step 2, layer 1, row 1, head 3: expected a log gate, at most 0, found 0.25 (2 values)",
        "recorded decay of step 1, layer 0, row 0, head 1: expected a factor in 0..1, found -1.5 (1 value)",
    ]
    for command, code, key in (("info", 0, "warnings"), ("replay", 1, "notes")):
        done = cases.program(command, trace, "--json", "-", *(["--contract", "golden"] if code else []))
        lines = json.loads(done.out).get(key, []) if done.code == code else []
        good = [line for line in lines if "gate" in line or "factor" in line] == wanted
        warned = all(f"warning: {trace}: {line}" in done.err for line in wanted)
        cases.tap.check(good and warned, f"gates outside their domain: {command} says where", done)
    os.remove(trace)


def wrote_in_place(cases):
    """A row that goes on from another block and writes there, not to its own."""
    whole = recipe_of("15-accepted-column")
    whole["faults"] = [{"kind": "write-block", "step": 4, "row": 0, "layer": 1, "block": 2}]
    recipe, trace = cases.path("in-place") + ".json", cases.path("in-place")
    with open(recipe, "w", encoding="utf-8") as stream:
        json.dump(whole, stream)
    done = synth(cases, recipe, trace)
    if cases.tap.check(done.code == 0, "a row that wrote to its source: recorded", done.err):
        wants = [Want("wrong-block", step=4, layer=1, row=0, block=2)]
        check = says("wrote its state to block 2, which it went on from, instead of its own")
        cases.ask("a row that wrote to its source", trace, wants, whole["steps"], check=check, options=("--contract", "golden"))
    os.remove(recipe)


def all_are_asked(cases):
    names = {os.path.basename(path)[:-5] for path in glob.glob(os.path.join(FOLDER, "*.json"))}
    known = {*REFUSED, *EXPLAINED, *CLEAN}
    cases.tap.check(names == known, "every recipe is asked about", names ^ known)


def questions(cases):
    yield "all", lambda: all_are_asked(cases)
    for name, parts in REFUSED.items():
        yield name, lambda name=name, parts=parts: refused(cases, name, parts)
    for name, (wants, check) in EXPLAINED.items():
        yield name, lambda name=name, wants=wants, check=check: explained(cases, name, wants, check)
    for name in (*EXPLAINED, *CLEAN):
        yield name, lambda name=name: without_fault(cases, name)
    yield "in-place", lambda: wrote_in_place(cases)
    yield "36-wrapped", lambda: wrap_warning(cases)
    yield "09-never-zeroed", lambda: poison(cases)
    yield "40-gates", lambda: outside_domain(cases)
    yield "09-a-layer", lambda: poison_in_a_layer(cases)


if __name__ == "__main__":
    main(questions)
