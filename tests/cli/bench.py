#!/usr/bin/env python3
"""gdnsim bench: every variant, stage and preset is there, measured or with a reason, in the table and in the JSON.

No time is looked at but for being one.

bench.py ROOT PROGRAM
"""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from program import Checks, Program  # noqa: E402
from tap import Tap, without_gpu  # noqa: E402

VARIANTS = ["plain", "sse2", "avx2", "avx512"]
STAGES = ["recurrence", "step", "window"]
PRESETS = ["golden", "triton-sm90", "triton-sm90-mixed"]
QUICK = ["--backend", "golden", "--threads", "1", "--seconds", "0.005"]
SHAPE = "H=16 HV=32 K=V=128"
KEYS = ["backend", "stage", "variant", "contract", "shape", "seconds", "best", "plain", "floor", "floor_is", "skipped"]


def key_of(measure):
    return measure["variant"], measure["stage"], measure["contract"], measure["shape"]


def is_whole(m):
    """Measured with a positive time, or not at all with a reason; a floor has its words."""
    measured = m["seconds"] is not None and 0 < m["best"] <= m["seconds"] and m["skipped"] == ""
    skipped = m["seconds"] is None and m["skipped"] != ""
    return list(m) == KEYS and measured != skipped and (m["floor"] is not None) == (m["floor_is"] != "")


def check_all(tap, program):
    done = program("bench", *QUICK, "--json", "-")
    if not tap.check(done.code == 0, "bench runs", done):
        return
    report = json.loads(done.out)
    measures = report["measures"]
    tap.check(report["schema"] == "gdnsim.bench/1", "the JSON names its schema", done)
    tap.check(
        [b["name"] for b in report["backends"]] == ["golden"] and "1 thread" in report["backends"][0]["detail"],
        "the JSON says what it ran on",
        report["backends"],
    )
    wanted = {(v, s, c, f"B=1 {SHAPE} f32") for v in VARIANTS for s in STAGES for c in PRESETS}
    found = [key_of(m) for m in measures]
    tap.check(
        len(found) == len(wanted) and set(found) == wanted, "every variant, stage and preset is there once", found
    )
    tap.check(all(is_whole(m) for m in measures), "each is measured, or says why not", measures)
    steps = [m for m in measures if m["stage"] == "step" and m["skipped"] == ""]
    tap.check(
        {m["contract"] for m in steps if m["variant"] == "plain"} == set(PRESETS)
        and all(m["plain"] is not None for m in steps),
        "each step is set beside the plain one",
        steps,
    )


def check_table(tap, program):
    """One variant that every CPU has, two batch sizes, two types."""
    arguments = [*QUICK, "--cpu-level", "plain", "--rows", "1,2", "--state", "f32,bf16"]
    done = program("bench", *arguments)
    rows = [line.split() for line in done.out.splitlines() if " us " in line]
    shapes = {(row[0], row[2], " ".join(row[3:8])) for row in rows}
    wanted = {
        (stage, preset, f"B={batch} {SHAPE} {state}")
        for stage in ("step", "window")
        for preset in PRESETS
        for batch in (1, 2)
        for state in ("f32", "bf16")
    }
    tap.check(done.code == 0 and done.err == "" and shapes == wanted, "--rows and --state in the table", done)
    tap.check({row[1] for row in rows} == {"plain"}, "--cpu-level measures that variant alone", done)
    tap.check("not measured: plain recurrence: " in done.out, "what is not measured is said", done)


def check_chosen(tap, program):
    """--stage, --variant and --contract leave out the rest."""
    done = program("bench", *QUICK, "--stage", "step,window", "--variant", "plain", "--contract", "triton-sm90", "--json", "-")
    found = [key_of(m) for m in json.loads(done.out)["measures"]] if done.code == 0 else []
    wanted = [("plain", stage, "triton-sm90", f"B=1 {SHAPE} f32") for stage in ("step", "window")]
    tap.check(found == wanted, "the stages, variants and contracts that were asked for", done)


def check_cuda(tap, program):
    """The device's stages, where there is a device: each variant has been compared with golden before it is measured."""
    listed = json.loads(program("backends", "--json", "-").out)["backends"]
    cuda = next(b for b in listed if b["name"] == "cuda")
    if not cuda["available"]:
        tap.skip("bench on the GPU", without_gpu(cuda))
        return
    chosen = ["--variant", "plain,fused,resident,fast", "--contract", "golden", "--seconds", "0.001"]
    done = program("bench", "--backend", "cuda", *chosen, "--stage", "kernels,cold,norm,window", "--json", "-")
    measures = json.loads(done.out)["measures"] if done.code == 0 else []
    step = f"B=1 {SHAPE} f32"
    wanted = {(v, s, "golden", step) for v in ("plain", "fused") for s in ("kernels", "cold")}
    wanted |= {("resident", s, "golden", step) for s in ("kernels", "window")}
    wanted |= {(v, "norm", "golden", f"{rows} rows x 128 bf16") for v in ("plain", "fast") for rows in (32, 262144)}
    found = [key_of(m) for m in measures]
    tap.check(len(found) == len(wanted) and set(found) == wanted, "the device's stages and variants", done)
    tap.check(all(is_whole(m) and m["skipped"] == "" for m in measures), "each is measured", measures)


def check_refused(checks):
    checks.refused("an unknown stage", ["bench", "--stage", "banana"], "--stage", "banana")
    checks.refused("a contract that is not measured", ["bench", "--contract", "banana"], "--contract", "banana")
    nothing = ["bench", *QUICK, "--stage", "norm", "--variant", "plain"]
    checks.refused("a stage that the backend has not", nothing, "nothing to measure")
    checks.refused("a variant that the backend has not", ["bench", *QUICK, "--variant", "banana"], "nothing to measure")
    checks.refused("an unknown backend", ["bench", "--backend", "banana"], "auto, golden or cuda", "'banana'")
    checks.refused("an unknown level", ["bench", "--backend", "golden", "--cpu-level", "banana"], "'banana'")
    checks.refused("no rows", ["bench", "--rows", "0"], "--rows")
    checks.refused("rows that are no number", ["bench", "--rows", "1,x"], "--rows")
    checks.refused("an unknown state type", ["bench", "--state", "f64"], "--state", "f64")
    checks.refused("a state type that no model has", ["bench", "--state", "f16"], "--state", "f16")
    checks.refused("no time", ["bench", "--seconds", "0"], "--seconds")
    listed = json.loads(checks.program("backends", "--json", "-").out)["backends"]
    reason = next(b["detail"] for b in listed if b["name"] == "cuda" and not b["available"]) if not listed[1]["available"] else None
    if reason is not None:
        checks.refused("no device to measure", ["bench", "--backend", "cuda"], reason)
        checks.refused("no device to compare", ["backends", "--approximate"], reason)


def main():
    tap, program = Tap(), Program(sys.argv[2])
    check_all(tap, program)
    check_table(tap, program)
    check_chosen(tap, program)
    check_cuda(tap, program)
    check_refused(Checks(tap, program))
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
