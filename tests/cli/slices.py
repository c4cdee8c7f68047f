#!/usr/bin/env python3
"""Slices: --layers, --steps, --rows and --blocks look at what they name, find what is there, and read nothing else.

slices.py ROOT PROGRAM
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import kill_shim  # noqa: E402
from program import Checks, Program, write_recipe  # noqa: E402
from tap import Tap  # noqa: E402

try:
    import h5py
except ImportError:
    h5py = None

RUN = ["--contract", "golden", "--backend", "golden", "--quiet", "--no-provenance"]
LAYER, STEP, ROW = 1, 9, 2  # where a bit is flipped
WIDTH = {"conv_out": 2, "core_out": 2, "norm_out": 2, "conv_state": 2, "state": 4}  # bytes of an element


class Reads:
    """Bytes that a command reads from files of ours; those of the child that tries a file first count too."""

    def __init__(self, program, folder):
        self.program, self.library, self.log = program, os.path.join(folder, "read_shim.so"), os.path.join(folder, "reads")
        source = os.path.join(kill_shim.HERE, "read_shim.c")
        subprocess.run([kill_shim.compiler(), "-std=gnu11", "-O1", "-shared", "-fPIC", source, "-o", self.library], check=True)

    def __call__(self, *command):
        if os.path.exists(self.log):
            os.remove(self.log)
        done = self.program(*command, env={**os.environ, "LD_PRELOAD": self.library, "GDNSIM_READ_LOG": self.log})
        with open(self.log, encoding="utf-8") as stream:
            return done, sum(int(line.split(" ", 1)[0]) for line in stream)


def flip(path, name, place):
    """Flips the lowest bit of one word."""
    with h5py.File(path, "r") as file:
        data = file[name]
        shape, size = data.shape, data.id.get_storage_size() // data.size  # h5py has no type for bf16
        at = data.id.get_offset()
    for axis, index in enumerate(place):
        at += index * size * math.prod(shape[axis + 1 :])
    with open(path, "r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ 1]))


def bytes_compared(report):
    return sum(WIDTH[tap] * count["compared"] for tap, count in report["taps"]["carried"].items())


def check_little_is_read(tap, reads, a, b, kind):
    """A small slice of two large files: opening them, and a small multiple of the slice."""
    slice_options = ["--layers", "3", "--steps", "10:20", "--rows", "2"]
    done, total = reads("diff", a, b, *slice_options, "--json", "-", "--quiet")
    opening = reads("info", a)[1] + reads("info", b)[1]
    asked = 2 * bytes_compared(done.json)
    size = os.path.getsize(a) + os.path.getsize(b)
    say = f"{kind}: {total - opening} bytes beyond opening ({opening}) for a slice of {asked} bytes of {size}"
    tap.check(done.code == 0 and asked > 0 and asked <= total - opening <= 2 * asked, say, done)
    tap.check(asked * 50 < size, f"{kind}: the slice is a small part", say)
    whole = reads("diff", a, b, "--json", "-", "--quiet")[1]
    tap.check(whole > size // 2, f"{kind}: the whole is more (the counter counts)", whole)


def check_parts_add_up(tap, program, file, trace):
    """What the rows compare adds up to what the whole compares, and so do the blocks."""
    whole = program("replay", file, "--contract", "golden", "--json", "-", "--quiet").json["taps"]["carried"]
    outputs = ("conv_out", "core_out", "norm_out")
    for option, count in (("--rows", 3), ("--blocks", 6)):
        parts = [program("replay", file, "--contract", "golden", option, n, "--json", "-", "--quiet") for n in range(count)]
        sums = {tap_: sum(p.json["taps"]["carried"].get(tap_, {}).get("compared", 0) for p in parts if p.out) for tap_ in whole}
        same = [tap_ for tap_ in whole if sums[tap_] == whole[tap_]["compared"]]
        states = option == "--blocks" or not trace  # a trace may hold states of blocks that no row is on
        wanted = [tap_ for tap_ in whole if (states if tap_ not in outputs else option == "--rows")]
        tap.check(set(wanted) <= set(same), f"{option}: the parts add up to the whole", (sums, whole))


def check_found(tap, checks, trace, block):
    """A flipped bit is found by the slices that hold it, and by no other."""
    inside = (["--rows", ROW], ["--blocks", block], ["--rows", f"0-{ROW}", "--blocks", block, "--layers", LAYER],
              ["--steps", f"{STEP}:{STEP + 1}", "--rows", ROW])
    outside = (["--rows", "0-1"], ["--rows", 0, "--blocks", block, "--steps", f"{STEP}:{STEP + 1}"],
               ["--layers", 0, "--rows", ROW], ["--steps", f"0:{STEP}", "--rows", ROW])
    for command in ("replay", "explain"):
        for part in inside:
            done = checks.program(command, trace, "--contract", "golden", *part, "--json", "-")
            first = done.json["first"]
            place = (first["step"], first["layer"], first["row"], first["block"], first["tap"])
            tap.check(place == (STEP, LAYER, ROW, block, "core_out"), f"{command} {part}: at its place", first)
        for part in outside:
            done = checks.program(command, trace, "--contract", "golden", *part)
            match = done.code == 0 or "no element was compared" in done.out
            tap.check(match and "differing 0" in done.verdict or match and done.code == 2, f"{command} {part}: nothing", done)


def check_bundle(tap, checks, trace, block, folder):
    others = ",".join(str(other) for other in range(1, 6) if other != block)
    bundle, rest = os.path.join(folder, "row.h5"), os.path.join(folder, "rest.h5")
    checks.does("pack --rows", ["pack", trace, "-o", bundle, "--contract", "golden", "--rows", ROW])
    done = checks.ends("its replay", ["replay", bundle], 1, "diverged")
    tap.check(f"row {ROW}" in done.line("at") and "core_out" in done.line("at"), "the bundle shows the same row", done)
    checks.does("pack of other blocks", ["pack", trace, "-o", rest, "--contract", "golden", "--blocks", others, "--steps", "0:16"])
    checks.ends("its replay", ["replay", rest], 0, "match")


def check_verify(tap, checks, log, folder):
    broken = os.path.join(folder, "broken.h5")
    shutil.copy(log, broken)
    flip(broken, "out/core_out", (STEP, LAYER, ROW, 0, 3))
    for part, code, verdict in (([], 1, "diverged"), (["--layers", 0], 0, "match"), (["--layers", LAYER], 1, "diverged"),
                                (["--steps", f"0:{STEP}"], 0, "match"), (["--steps", f"{STEP}:{STEP + 1}"], 1, "diverged"),
                                (["--steps", f"{STEP + 1}:"], 0, "match")):
        checks.ends(f"verify {part}", ["verify", broken, *part], code, verdict)
    shutil.copy(log, broken)
    flip(broken, "digest/pool", (STEP, LAYER))
    done = checks.program("verify", broken, "--layers", 0)
    tap.check(done.code == 1, "verify of a layer still checks the chain", done)


def check_bisect(tap, checks, folder, recipe):
    """Two contracts part everywhere; a log and one with a changed row part there alone."""
    a, b = os.path.join(folder, "a.h5"), os.path.join(folder, "t.h5")
    checks.does("a log", ["run", recipe, "-o", b, *RUN[2:], "--contract", "triton-sm90"])
    done = checks.program("bisect", a, b, "--rows", ROW, "--json", "-")
    tap.check(done.code == 1 and json.loads(done.out)["first"]["row"] == ROW, "bisect --rows: of that row", done)
    checks.ends("bisect --rows of equal logs", ["bisect", a, a, "--rows", ROW], 0, "match")
    checks.ends("bisect --rows of one log", ["bisect", a, "--rows", ROW], 0, "match")
    done = checks.program("bisect", a, "--contract", "triton-sm90", "--blocks", 3, "--json", "-")
    tap.check(done.code == 1 and json.loads(done.out)["first"]["block"] == 3, "bisect --blocks: of that block", done)


def check_refused(checks, log, recipe, folder):
    out = os.path.join(folder, "never.h5")
    checks.refused("run has no rows: a log holds whole steps", ["run", recipe, "-o", out, "--rows", 1], "--rows")
    checks.refused("verify has no rows: an output's digest is of all", ["verify", log, "--rows", 1], "--rows")
    checks.refused("bisect --check takes steps", ["bisect", log, "--check", "true", "--rows", 1], "--check", "--steps")
    checks.refused("verify of a recipe", ["verify", recipe, "--steps", "0:1"], "--steps")
    for command in ("info", "replay", "explain", "fit", "bisect"):
        checks.refused(f"{command}: a row that is not there", [command, log, "--rows", 7], "row 7", "3 rows")
        checks.refused(f"{command}: a block that is not there", [command, log, "--blocks", "2-99"], "block 6", "6 blocks")
        checks.refused(f"{command}: no list", [command, log, "--rows", "x"], "--rows", "'x'")
    checks.refused("diff: a row that is not there", ["diff", log, log, "--rows", 7], "row 7", "3 rows")
    checks.refused("pack: a row that is not there", ["pack", log, "-o", out, "--rows", 7], "row 7", "3 rows")


def check_info(tap, program, log):
    whole, part = (program("info", log, *words, "--json", "-").json for words in ([], ["--rows", "0", "--layers", "1", "--steps", "0:4"]))
    tap.check("slice" not in whole and part["slice"] == {"layers": [1], "steps": [0, 4], "rows": [0]}, "info says the slice", part.get("slice"))
    tap.check(0 < part["snapshots"] <= 4 and whole["snapshots"] > part["snapshots"], "info counts its snapshots", (whole["snapshots"], part["snapshots"]))


def main():
    tap, program = Tap(), Program(sys.argv[2])
    obstacle = "python3-h5py is not installed" if h5py is None else kill_shim.obstacle(program.path)
    if obstacle:
        tap.skip("slices", obstacle)
        return tap.finish()
    checks = Checks(tap, program)
    with tempfile.TemporaryDirectory() as folder:
        def path(name):
            return os.path.join(folder, name)

        wide = write_recipe(path("wide.json"), steps=40, rows=4, model={"layer_ids": [0, 1, 2, 3, 4, 5], "num_blocks": 8},
                            schedule={"running": 4, "length": [10, 40], "shuffle": 0.5})
        recipe = write_recipe(path("recipe.json"), steps=16, schedule={"running": 3, "length": [6, 16], "shuffle": 0.5})
        checks.does("logs and traces", ["run", recipe, "-o", path("a.h5"), *RUN])
        checks.does("a wide log", ["run", wide, "-o", path("wide.h5"), *RUN])
        checks.does("a wide trace", ["synth", wide, "-o", path("wide_trace.h5"), "--record", "--contract", "golden", "--snapshots", 1])
        checks.does("a trace", ["synth", recipe, "-o", path("trace.h5"), "--record", "--contract", "golden", "--snapshots", 4])
        reads = Reads(program, folder)
        for kind, name in (("logs", "wide"), ("traces", "wide_trace")):
            shutil.copy(path(name + ".h5"), path(name + "_b.h5"))
            check_little_is_read(tap, reads, path(name + ".h5"), path(name + "_b.h5"), kind)
        for name in ("a.h5", "trace.h5"):
            check_parts_add_up(tap, program, path(name), name == "trace.h5")
        with h5py.File(path("trace.h5"), "r") as file:
            block = int(file["steps/index"][STEP][ROW])
        flip(path("trace.h5"), f"recorded/{LAYER}/core_out", (STEP, ROW, 0, 3))
        tap.check(block > 0, "the row is active", block)
        check_found(tap, checks, path("trace.h5"), block)
        checks.ends("fit of the rows without it", ["fit", path("trace.h5"), "--rows", "0-1"], 0, "match")
        check_bundle(tap, checks, path("trace.h5"), block, folder)
        check_verify(tap, checks, path("a.h5"), folder)
        check_bisect(tap, checks, folder, recipe)
        check_refused(checks, path("a.h5"), recipe, folder)
        check_info(tap, program, path("a.h5"))
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
