#!/usr/bin/env python3
"""Writes the fuzzer's seeds with the program itself, and its traces as other HDF5 writers would store them.

    seeds.py PROGRAM OUT

Without h5py the variants are left out. What earlier runs found is corpus/*.z next to this script, zlib-compressed.
"""

import glob
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
VARIANTS = ("plain", "latest", "latest_extendible", "chunks", "deflate", "fletcher", "extendible", "words", "python_values")
RECIPE = {
    "schema": "gdnsim.recipe/1",
    "seed": 3,
    "steps": 4,
    "rows": 2,
    "model": {"num_k_heads": 1, "num_v_heads": 2, "head_k_dim": 4, "head_v_dim": 4, "num_blocks": 4, "layer_ids": [0, 5]},
    "schedule": {"running": 2, "length": [2, 3]},
}
# Version 2: launches of two tokens, moves, lives, accept counts; and the same in layouts of engines.
LAUNCHES = {
    **RECIPE,
    "steps": 8,
    "model": {**RECIPE["model"], "num_k_heads": 2, "num_v_heads": 4, "num_blocks": 9, "layer_ids": [5], "block_stride": 4096, "index_bits": 32},
    "schedule": {"running": 2, "length": [2, 4], "fork": 0.5, "allocator": "lifo", "preempt": 0.2,
                 "speculative": {"drafts": 1, "rate": 0.5, "plain": 0.2}},
}
LAYOUTS = {
    "flat": ("flat", "rolled", "columns", 5, 2, 3),
    "interleaved": ("interleaved", "circular", "channels", 4, 3),
}
STATES = ("full", "every:2", "digest")
WHOLE, WITHOUT_H5PY = 21, 9  # seeds
FOUND = 4  # files in corpus/


def call(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"seeds: {' '.join(arguments)}: exit {done.returncode}: {done.stderr}")
    return done.stdout


def has_h5py():
    return importlib.util.find_spec("h5py") is not None


def logs(program, recipe, out):
    run = ("run", recipe, "--contract", "golden", "--backend", "golden", "--quiet", "-o")
    for state in STATES:
        call(program, *run, os.path.join(out, f"log-{state.replace(':', '')}.h5"), "--state", state, "--no-provenance")
    call(program, *run, os.path.join(out, "log-provenance.h5"), "--layers", "1", "--steps", "1:4")
    call(program, *run, os.path.join(out, "log-checkpoint.h5"), "--state", "digest", "--checkpoint", "every:1")


def cut_short(out):
    """A log whose last record was never written: its reader goes another way."""
    import h5py

    path = os.path.join(out, "log-every2.h5")
    with h5py.File(path, "r") as file:
        commit = file["commit"]
        at = commit.id.get_offset() + 32 * (commit.shape[0] - 1)
    with open(path, "rb") as stream:
        data = stream.read()
    with open(os.path.join(out, "log-incomplete.h5"), "wb") as stream:
        stream.write(data[:at] + bytes(32) + data[at + 32:])


def variants(trace, out):
    """The trace as other HDF5 writers store it."""
    if not has_h5py():
        return
    sys.path.insert(0, os.path.join(HERE, "..", "support"))
    import odd_hdf5

    for name in VARIANTS:
        odd_hdf5.VARIANTS[name](trace, os.path.join(out, f"trace-{name}.h5"))
    cut_short(out)


def write(program, out):
    """The seeds themselves."""
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        recipe, trace = os.path.join(folder, "recipe.json"), os.path.join(out, "trace.h5")
        with open(recipe, "w", encoding="utf-8") as stream:
            json.dump(RECIPE, stream)
        call(program, "synth", recipe, "-o", trace, "--record", "--quiet")
        call(program, "synth", recipe, "-o", os.path.join(out, "trace-inputs.h5"), "--quiet")
        logs(program, recipe, out)
        variants(trace, out)
        launches(program, folder, out)
    written, wanted = len(os.listdir(out)), WHOLE if has_h5py() else WITHOUT_H5PY
    if written != wanted:
        sys.exit(f"seeds: expected {wanted}, wrote {written}")


def launches(program, folder, out):
    """Traces and logs of version 2."""
    recipe, trace = os.path.join(folder, "launches.json"), os.path.join(out, "trace-launches.h5")
    with open(recipe, "w", encoding="utf-8") as stream:
        json.dump(LAUNCHES, stream)
    call(program, "synth", recipe, "-o", trace, "--record", "--snapshots", "4", "--quiet")
    call(program, "run", recipe, "--contract", "golden", "--backend", "golden", "--quiet", "--no-provenance", "--state", "every:3",
         "--checkpoint", "every:3", "-o", os.path.join(out, "log-launches.h5"))
    if not has_h5py():
        return
    sys.path.insert(0, os.path.join(HERE, "..", "support"))
    import packed_trace

    for name, layout in LAYOUTS.items():
        packed_trace.rewrite(trace, os.path.join(out, f"trace-packed-{name}.h5"), *layout)


def found_before(out):
    """Unpacks what earlier runs found."""
    os.makedirs(out, exist_ok=True)
    for path in glob.glob(os.path.join(HERE, "corpus", "*.z")):
        with open(path, "rb") as stream, open(os.path.join(out, os.path.basename(path)[:-2]), "wb") as target:
            target.write(zlib.decompress(stream.read()))


def main():
    program, out = os.path.abspath(sys.argv[1]), sys.argv[2]
    write(program, out)
    print(len(os.listdir(out)))


if __name__ == "__main__":
    main()
