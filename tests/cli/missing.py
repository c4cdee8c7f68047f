#!/usr/bin/env python3
"""What cannot be compared is never a match.

Missing taps, layers, steps, recordings, selections, backends; rows left unwritten.

missing.py ROOT PROGRAM
"""

import os
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "..", "tools")]
from program import Checks, Program, write_recipe  # noqa: E402
from tap import Tap  # noqa: E402

try:
    import cut_trace
    import h5py
except ImportError:
    h5py = None


def check_backends(checks, recipe, trace, folder):
    """Without a device cuda is refused with the reason, and auto says it, too. With one, both say that it ran."""
    listed = checks.does("backends", ["backends", "--json", "-"]).json["backends"]
    by_name = {backend["name"]: backend for backend in listed}
    checks.tap.check(
        by_name["golden"]["available"] and set(by_name) == {"golden", "cuda"}, "golden is always there", listed
    )
    cuda = by_name["cuda"]
    text = checks.program("backends").out
    checks.tap.check(
        all(f"{b['name']}  {'' if b['available'] else 'not '}available: {b['detail']}" in text for b in listed),
        "the text says the same",
        text,
    )
    auto = checks.program("replay", trace)
    if cuda["available"]:
        checks.ends("--backend cuda", ["replay", trace, "--backend", "cuda"], 0, "match")
        checks.tap.check(auto.line("backend").startswith("cuda"), "auto takes it", auto)
        return
    log = os.path.join(folder, "never.log.h5")
    checks.refused(
        "replay --backend cuda without a device says why", ["replay", trace, "--backend", "cuda"], cuda["detail"]
    )
    checks.refused(
        "run --backend cuda without a device says why", ["run", recipe, "-o", log, "--backend", "cuda"], cuda["detail"]
    )
    checks.refused(
        "synth --record --backend cuda says why",
        ["synth", recipe, "-o", log, "--record", "--backend", "cuda"],
        cuda["detail"],
    )
    checks.tap.check(not os.path.exists(log), "and nothing was written")
    checks.tap.check(
        auto.code == 0
        and auto.line("backend").startswith("golden, because")
        and cuda["detail"] in auto.line("backend"),
        "auto falls back to golden and says why",
        auto,
    )
    asked = checks.program("replay", trace, "--backend", "golden")
    checks.tap.check(
        asked.code == 0 and asked.line("backend").startswith("golden, as asked"), "golden, as asked", asked
    )


def changed(trace, folder, change):
    """A copy with something changed."""
    path = os.path.join(folder, "changed.h5")
    shutil.copy(trace, path)
    with h5py.File(path, "r+") as copy:
        change(copy)
    return path


def delete(*names):
    def change(copy):
        for name in names:
            del copy[name]

    return change


def check_taps(checks, trace, folder):
    path = changed(trace, folder, delete("recorded/1/core_out"))
    checks.refused("a tap that one layer lacks is named", ["replay", path], path, "recorded/1/core_out", "missing")
    checks.ends("the layer that has it can be compared", ["replay", path, "--layers", "0"], 0, "match")
    done = checks.ends("diff: a tap that B lacks is no match", ["diff", trace, path], 2, "inconclusive")
    checks.tap.check("B lacks core_out of layer 1" in done.line("because"), "and named", done)
    done = checks.ends("diff: a tap that A lacks is no match", ["diff", path, trace], 2, "inconclusive")
    checks.tap.check("A lacks core_out of layer 1" in done.line("because"), "and named", done)
    path = changed(trace, folder, delete("recorded"))
    checks.refused("nothing recorded", ["replay", path], path, "recorded", "found none")
    done = checks.ends("diff of traces with nothing recorded", ["diff", path, path], 2, "inconclusive")
    checks.tap.check("no element was compared" in done.line("because"), "and says so", done)
    path = changed(
        trace,
        folder,
        delete(*[f"recorded/{layer}/{tap}" for layer in (0, 1) for tap in ("conv_out", "core_out", "norm_out")]),
    )
    checks.ends("states alone can be compared", ["replay", path, "--contract", "golden"], 0, "match")
    done = checks.ends(
        "steps without a state cannot", ["replay", path, "--contract", "golden", "--steps", "0:2"], 2, "inconclusive"
    )
    checks.tap.check("no element was compared" in done.line("because"), "and the report says so", done)


def check_unknown(checks, trace, folder):
    """What the format does not know is said, for it may be what somebody meant to have compared."""
    for name, other in (("recorded/0/core_out", "recorded/0/coreout"), ("recorded", "record"), ("steps/0/z", "steps/0/zz")):

        def rename(copy, name=name, other=other):
            copy.move(name, other)

        path = changed(trace, folder, rename)
        told = f"/{other}: the trace format knows no such name"
        done = checks.program("info", path, "--json", "-")
        warnings = done.json.get("warnings", []) if done.code == 0 else []
        checks.tap.check([told in line for line in warnings] == [True], f"{other}: info warns", done)
        done = checks.program("replay", path, "--contract", "golden")
        checks.tap.check(done.err.count(told) == 1, f"{other}: so does replay", done)
    done = checks.does("info of the whole trace", ["info", trace])
    checks.tap.check("no such name" not in done.out + done.err, "which has none", done)
    path = changed(trace, folder, lambda copy: copy["steps/0"].create_dataset("engine_block", data=[1]))
    done = checks.does("info of a capture", ["info", path])
    checks.tap.check("no such name" not in done.out + done.err, "nor have the engine's blocks", done)


def check_layers(checks, trace, folder):
    """Snapshots of layer 0 alone: nothing of layer 1 was recorded."""

    def only_layer_0(copy):
        delete(*[f"recorded/{layer}/{tap}" for layer in (0, 1) for tap in ("conv_out", "core_out", "norm_out")])(copy)
        state = copy["recorded/state"]
        kept = state["layer"][()] == 0
        for name in ("layer", "step", "block", "recurrent", "conv"):
            cut_trace.write_raw(state, name + "_kept", cut_trace.read_raw(state[name])[kept], state[name], False)
            del state[name]
            state.move(name + "_kept", name)

    path = changed(trace, folder, only_layer_0)
    checks.ends(
        "the layer that was recorded matches", ["replay", path, "--contract", "golden", "--layers", "0"], 0, "match"
    )
    for mode in ("both", "local", "carried"):
        checks.refused(
            f"a layer without a recording is named, --mode {mode}",
            ["replay", path, "--contract", "golden", "--mode", mode],
            path,
            "layer 1",
            "missing",
        )
    done = checks.ends(
        "that layer alone is no match", ["replay", path, "--contract", "golden", "--layers", "1"], 2, "inconclusive"
    )
    checks.tap.check("no element was compared" in done.line("because"), "and the report says why", done)


def check_shapes(checks, trace, folder):
    other = os.path.join(folder, "other.h5")
    for name, words, changes in [
        ("other heads", ("num_v_heads", "2", "4"), {"model": {"num_v_heads": 4}}),
        ("another state type", ("state_dtype", "bf16"), {"model": {"state_dtype": "bf16"}}),
        ("another batch", ("step 0", "3 rows"), {"rows": 4}),
        ("another schedule", ("batch", "block"), {"seed": 77}),
    ]:
        recipe = write_recipe(os.path.join(folder, "other.json"), **changes)
        checks.does(f"a trace with {name}", ["synth", recipe, "-o", other, "--record", "--force"])
        checks.refused(f"diff: {name}", ["diff", trace, other], *words)
    recipe = write_recipe(os.path.join(folder, "short.json"), steps=5)
    checks.does("a shorter trace", ["synth", recipe, "-o", other, "--record", "--force"])
    for a, b in ((trace, other), (other, trace)):
        done = checks.ends("diff with a shorter trace is no match", ["diff", a, b], 2, "inconclusive")
        checks.tap.check(
            "0:8" in done.line("because") and "0:5" in done.line("because"), "and says how many each has", done
        )
    checks.ends("within its steps it is", ["diff", trace, other, "--steps", "0:4"], 0, "match")


def check_unwritten(checks, folder):
    """Rows that the trace declares unwritten hold anything: not compared, but counted. Zeros are compared."""
    for inactive in ("unwritten", "zero"):
        model = {"inactive_conv_out": inactive, "inactive_core_out": inactive}
        recipe, trace = write_recipe(os.path.join(folder, "inactive.json"), model=model), os.path.join(
            folder, "inactive.h5"
        )
        checks.does(f"a trace with inactive rows {inactive}", ["synth", recipe, "-o", trace, "--record", "--force"])
        with h5py.File(trace, "r+") as copy:
            idle = [row.tolist() for row in (copy["steps/index"][()] <= 0)]
            step = next(step for step, rows in enumerate(idle) if any(rows))
            copy["recorded/1/core_out"][step, idle[step].index(True), 1, 5] = 3.0
        rows = sum(map(sum, idle))
        done = checks.program("replay", trace, "--contract", "golden", "--json", "-", "--quiet")
        report = done.json
        count = report["taps"]["carried"]["core_out"]
        if inactive == "zero":
            at = report["first"]
            checks.tap.check(
                done.code == 1 and count["differing"] == 1 and count["not_compared"] == 0,
                "a word in an inactive row's output differs from zero",
                done,
            )
            checks.tap.check(
                (at["step"], at["layer"], at["tap"], at["head"], at["element"]) == (step, 1, "core_out", 1, 5),
                "and is found",
                at,
            )
            continue
        checks.tap.check(
            done.code == 0 and count["differing"] == 0, "what an unwritten row holds is not compared", done
        )
        wanted = {"conv_out": rows * 2 * 128, "core_out": rows * 2 * 64, "norm_out": rows * 2 * 64}
        found = {tap: report["taps"]["carried"][tap]["not_compared"] for tap in wanted}
        checks.tap.check(found == wanted and rows > 0, "but counted", f"{found} {wanted}")
        compared = (8 * 3 - rows) * 2 * 64
        checks.tap.check(count["compared"] == compared, "and the others are compared", f"{count} {compared}")
        text = checks.program("replay", trace, "--contract", "golden")
        checks.tap.check(
            f"({wanted['core_out']} of inactive rows left unwritten, not compared)" in text.out,
            "the text says so",
            text,
        )


def main():
    tap = Tap()
    checks = Checks(tap, Program(sys.argv[2]))
    with tempfile.TemporaryDirectory() as folder:
        recipe, trace = write_recipe(os.path.join(folder, "recipe.json")), os.path.join(folder, "trace.h5")
        checks.does("a trace", ["synth", recipe, "-o", trace, "--record"])
        check_backends(checks, recipe, trace, folder)
        check_shapes(checks, trace, folder)
        if h5py is None:
            tap.skip("traces that lack something", "python3-h5py is not installed")
            return tap.finish()
        check_taps(checks, trace, folder)
        check_unknown(checks, trace, folder)
        check_layers(checks, trace, folder)
        check_unwritten(checks, folder)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
