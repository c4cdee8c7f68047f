#!/usr/bin/env python3
"""gdnsim info about state pools: launches, layouts, strides, warnings of 32-bit offsets, and who held each block.

info.py ROOT PROGRAM
"""

import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "fuzz")]
from program import Program  # noqa: E402
from tap import Tap  # noqa: E402

ROOT = sys.argv[1]
BUGS = os.path.join(ROOT, "traces", "recipes", "bugs")


def info_of(program, *arguments):
    done = program("info", *arguments, "--json", "-")
    return done.json if done.code == 0 else {"failed": str(done)}


def check_wrapped(tap, program):
    """Strides, bits, and the warning: block 2 ends beyond 2^31, block 4 wraps to block 0."""
    path = os.path.join(BUGS, "36-wrapped.json")
    found = info_of(program, path)
    model = {name: found["model"].get(name) for name in ("block_stride", "conv_block_stride", "index_bits")}
    tap.check(model == {"block_stride": 1 << 30, "conv_block_stride": None, "index_bits": 32}, "strides and bits", found)
    parts = ("recurrent state: block 2 has elements beyond 2^31", "wraps from block 4 on, which hits block 0")
    tap.check(len(found["warnings"]) == 1 and all(part in found["warnings"][0] for part in parts), "the warning", found)
    text = program("info", path).out
    tap.check("\nwarnings\n  recurrent state: block 2 has" in text, "the warning, as text", text)


def check_launches(tap, program, folder):
    """A script of known launches: three tokens once, then two of them accepted, then one by one."""
    recipe = os.path.join(BUGS, "15-accepted-column.json")
    wanted = {"by_drafts": {"1": 4, "3": 1}, "by_accepted": {"1": 7, "2": 1}, "rows_from_another_block": 5}
    tap.check(info_of(program, recipe)["stream"]["launches"] == wanted, "launches of a recipe", info_of(program, recipe))
    trace, log = os.path.join(folder, "launch.h5"), os.path.join(folder, "launch.log.h5")
    with open(recipe, encoding="utf-8") as stream:
        right = json.load(stream)
    right.pop("faults")
    recipe = os.path.join(folder, "launch.json")
    with open(recipe, "w", encoding="utf-8") as stream:
        json.dump(right, stream)
    done = program("synth", recipe, "-o", trace), program("run", recipe, "-o", log, "--contract", "golden", "--quiet")
    tap.check(all(one.code == 0 for one in done), "a trace and a log of it", done)
    tap.check(info_of(program, trace)["stream"]["launches"] == wanted, "launches of a trace")
    tap.check(info_of(program, log)["log"]["launches"] == wanted, "launches of a log")
    some = info_of(program, trace, "--rows", "1", "--steps", "0:4")["stream"]["launches"]
    tap.check(some == {"by_drafts": {"1": 1, "3": 1}, "by_accepted": {"1": 1}, "rows_from_another_block": 2}, "of a slice", some)
    plain = info_of(program, os.path.join(ROOT, "traces", "h200_k64_mixed.h5"))
    tap.check("launches" not in plain["stream"] and "warnings" not in plain and "layout" not in plain, "nothing of it in version 1", plain)
    return trace, log


def check_history(tap, program, trace, log):
    wanted = [
        "block 1: sequence 7, steps 0:7: allocated by event 0 (start), load in layers 0 to 1 by events 3 to 4 (start), 5 rows in steps 0 to 6",
        "block 2: sequence 7, steps 0:7: allocated by event 1 (start), 1 row in steps 2 to 2",
        "block 3: sequence 7, steps 0:7: allocated by event 2 (start), 1 row in steps 3 to 3",
        "block 4: sequence 9, steps 0:7: allocated by event 5 (start), load in layers 0 to 1 by events 8 to 9 (start), 5 rows in steps 0 to 6",
        "block 5: sequence 9, steps 0:7: allocated by event 6 (start), 1 row in steps 2 to 2",
        "block 6: sequence 9, steps 0:7: allocated by event 7 (start), 1 row in steps 3 to 3",
    ]
    for name, path in (("trace", trace), ("log", log)):
        found = [block["says"] for block in info_of(program, path, "--history")["history"]]
        tap.check(found == wanted, f"who held each block, of a {name}", "\n".join(found))
    text = program("info", trace, "--history", "--blocks", "4-5").out
    tap.check("\nhistory\n  " + "\n  ".join(wanted[3:5]) + "\n" in text, "of some blocks, as text", text)
    some = info_of(program, trace, "--history", "--rows", "1")["history"]
    tap.check([block["block"] for block in some] == [4, 5, 6], "of a row's blocks", some)
    first = info_of(program, trace, "--history", "--blocks", "1")["history"][0]
    tap.check(
        first == {
            "block": 1, "sequence": 7, "steps": [0, 7], "rows": 5, "row_steps": [0, 6],
            "began": {"event": 0, "step": 0, "kind": "allocate", "why": "start"},
            "filled": [{"event": 3 + layer, "step": 0, "kind": "load", "layer": layer, "why": "start"} for layer in (0, 1)],
            "says": wanted[0],
        },
        "the same for programs", first,
    )
    tap.check("history" not in info_of(program, trace), "only when asked for")
    recipe = os.path.join(BUGS, "10-aborted-copy.json")
    lines = [block["says"] for block in info_of(program, recipe, "--history")["history"]]
    tap.check(
        lines == [
            "block 1: sequence 7, steps 0:5: allocated by event 0 (start), load in layers 0 to 1 by events 1 to 2 (start), 5 rows in steps 0 to 4",
            "block 3: sequence 5, steps 0:1: allocated by event 3 (start), load in layers 0 to 1 by events 4 to 5 (start), 1 row in steps 0 to 0, "
            "freed by event 6 (finish)",
            "block 3: sequence 9, steps 1:5: allocated by event 7 (fork), copy of block 1 by event 8 (fork), "
            "4 rows in steps 1 to 4",
        ],
        "a block that changes hands", "\n".join(lines),
    )
    sample = os.path.join(ROOT, "traces", "h200_k64_mixed.h5")
    lines = [block["says"] for block in info_of(program, sample, "--history")["history"]]
    tap.check(len(lines) >= 4 and all("load in layer 0 by event" in line and " in steps " in line for line in lines),
              "without allocate events, by the rows", "\n".join(lines))


def check_layouts(tap, program, folder):
    import seeds

    if not seeds.has_h5py():
        return tap.skip("layouts", "python3-h5py is not installed")
    out = os.path.join(folder, "seeds")
    os.makedirs(out)
    seeds.launches(program.path, folder, out)
    found = info_of(program, os.path.join(out, "trace-packed-flat.h5"))
    wanted = {"z_packing": "flat", "ba_packing": "flat", "conv_order": "rolled", "conv_layout": "columns", "conv_columns": "5",
              "table": "3 columns a row"}
    tap.check(found.get("layout") == wanted, "layouts of a trace, tables too", found)
    text = program("info", os.path.join(out, "trace-packed-interleaved.h5")).out
    tap.check("\nlayout\n  z_packing  interleaved\n" in text and "\n  conv_order  circular\n" in text, "as text", text)
    flat = info_of(program, os.path.join(out, "trace-launches.h5"))
    tap.check("layout" not in flat, "a flat trace has none", flat)
    return None


def check_bundle(tap, program, folder):
    """A bundle's contract by name, or by how far it is from one; the JSON has all of it."""
    sample = os.path.join(ROOT, "traces", "h200_k64_mixed.h5")
    shown = {name: program("contracts", "--show", name).out for name in ("golden", "triton-sm90")}
    custom = shown["golden"].replace("beta = f32", "beta = bf16").replace("name = golden", "name = mine")
    decode, mixed = shown["triton-sm90"].split("[mixed]")
    mixed = mixed.replace("update = fma", "update = multiply-add").replace("beta = f32", "beta = bf16")
    mixed = mixed.replace("name = triton-sm90-mixed", "name = mine")
    magic, golden = shown["golden"].replace("name = golden", "name = mine").split("\n", 1)
    beta = golden.replace("beta = f32", "beta = bf16")
    fma = golden.replace("update = multiply-add", "update = fma")
    own = decode.replace("[decode]\n", "").replace("beta = f32", "beta = bf16").replace("name = triton-sm90", "name = mine")
    files = {"custom": custom, "apart": f"{decode}[mixed]{mixed}", "unlike": f"{magic}\n[decode]\n{beta}[mixed]\n{fma}",
             "own": own, "renamed": shown["triton-sm90"].replace("name = triton", "name = my")}
    for name, text in files.items():
        with open(os.path.join(folder, name + ".contract"), "w", encoding="utf-8") as stream:
            stream.write(text)
    custom, apart, unlike, own, renamed = (os.path.join(folder, name + ".contract") for name in files)
    for contract, line in [
        ("golden", "golden"),
        ("triton-sm90+golden", "triton-sm90; mixed steps: golden"),
        ("triton-sm90", "triton-sm90"),
        ("triton-sm90+triton-sm90", "triton-sm90; mixed steps: triton-sm90"),
        ("triton-sm90-mixed", "triton-sm90-mixed"),
        (renamed, "triton-sm90"),
        (custom, "custom, 1 field differs from golden"),
        (unlike, "custom, 1 field differs from golden; mixed steps: custom, 1 field differs from golden"),
        (own, "custom, 1 field differs from triton-sm90; mixed steps: custom, 1 field differs from triton-sm90"),
        (apart, "triton-sm90; mixed steps: custom, 2 fields differ from triton-sm90-mixed"),
    ]:
        bundle = os.path.join(folder, "bundle.h5")
        done = program("pack", sample, "-o", bundle, "--contract", contract, "--steps", "0:2", "--quiet", "--force")
        text = program("info", bundle).out
        tap.check(done.code == 0 and f"\n  bundle_contract  {line}\n" in text, f"a bundle's contract: {line}", f"{done}\n{text}")
        full = info_of(program, bundle)["provenance"]["bundle_contract"]
        tap.check("beta = " in full and len(full) > 900, "and whole in the JSON", full)


def main():
    tap, program = Tap(), Program(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        check_wrapped(tap, program)
        trace, log = check_launches(tap, program, folder)
        check_history(tap, program, trace, log)
        check_layouts(tap, program, folder)
        check_bundle(tap, program, folder)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
