#!/usr/bin/env python3
"""Files that are not what they should be: one line that names file, dataset and index, exit 2, nothing written.

bad_input.py ROOT PROGRAM
"""

import os
import re
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from program import Checks, Program, contents, read_bytes, write_recipe  # noqa: E402
from tap import Tap  # noqa: E402

try:
    import h5py
    import numpy as np
except ImportError:
    h5py = None


def attribute(path, name, value):
    def change(file):
        if value is None:
            del file[path].attrs[name]
        else:
            file[path].attrs[name] = value

    return change


def element(name, at, value):
    def change(file):
        file[name][at] = value

    return change


def gone(name):
    def change(file):
        del file[name]

    return change


def replaced(name, make):
    """The dataset made anew from its old values."""

    def change(file):
        values = file[name][()]
        del file[name]
        file[name] = make(values)

    return change


def first_rows(count):
    return lambda values: values[:count]


def twice(file):
    """Some step's two active rows on one block."""
    index = file["steps/index"]
    step, rows = next(
        (step, np.flatnonzero(row > 0)) for step, row in enumerate(index[()]) if np.count_nonzero(row > 0) == 2
    )
    index[step, rows[1]] = index[step, rows[0]]


def unsorted(file):
    step = file["events/step"]
    step[0] = 7
    assert step[1] < 7


def trace_faults():
    """(name, change, words of the message)"""
    nan = float("nan")
    return [
        ("another format", attribute("/", "format", "parquet"), ["@format", "gdnsim-trace"]),
        ("no format", attribute("/", "format", None), ["format"]),
        ("a newer version", attribute("/", "version", 3), ["version", "3"]),
        ("not closed", attribute("/", "complete", 0), ["complete"]),
        ("never closed", attribute("/", "complete", None), ["complete"]),
        ("no steps", gone("steps/index"), ["steps/index"]),
        ("a missing input", gone("steps/1/a"), ["steps/1/a"]),
        ("a missing parameter", gone("params/1/A_log"), ["params/1/A_log"]),
        ("missing layer numbers", gone("model/layer_ids"), ["model/layer_ids"]),
        ("a missing attribute", attribute("model", "num_v_heads", None), ["num_v_heads"]),
        ("an input of too few steps", replaced("steps/0/b", first_rows(7)), ["steps/0/b", "8", "7"]),
        (
            "a parameter of another length",
            replaced("params/0/dt_bias", lambda values: np.zeros(3, "f4")),
            ["params/0/dt_bias", "2", "3"],
        ),
        ("a tap of another shape", replaced("recorded/1/core_out", first_rows(3)), ["recorded/1/core_out", "8", "3"]),
        (
            "an index of another type",
            replaced("steps/index", lambda values: values.astype("i8")),
            ["steps/index", "int32"],
        ),
        ("an input of another type", replaced("steps/1/a", lambda values: values.astype("f4")), ["steps/1/a", "bf16"]),
        (
            "a parameter of another type",
            replaced("params/0/A_log", lambda values: values.astype("f8")),
            ["params/0/A_log", "f32"],
        ),
        ("a block out of range", element("steps/index", (4, 1), 6), ["/steps: index[4, 1]", "6"]),
        ("a block used twice in a step", twice, ["/steps: index[", "both name block"]),
        ("an event of an unknown kind", element("events/kind", 1, 9), ["events/kind", "[1]", "9"]),
        ("an event of a block out of range", element("events/block", 0, 6), ["events/block", "[0]", "6"]),
        ("an event of a layer out of range", element("events/layer", 1, 2), ["events/layer", "[1]", "2"]),
        ("an event of a load row out of range", element("events/source", 0, 999), ["events/source", "[0]", "999"]),
        ("events out of order", unsorted, ["events/step", "[1]"]),
        (
            "a snapshot of a block out of range",
            element("recorded/state/block", 3, 6),
            ["recorded/state/block", "[3]", "6"],
        ),
        (
            "a snapshot of a step out of range",
            element("recorded/state/step", 2, 8),
            ["recorded/state/step", "[2]", "8"],
        ),
        (
            "heads that do not divide",
            lambda file: (attribute("model", "num_k_heads", 2)(file), attribute("model", "num_v_heads", 3)(file)),
            ["num_v_heads", "3"],
        ),
        ("no heads", attribute("model", "num_k_heads", 0), ["num_k_heads", "0"]),
        ("a negative width", attribute("model", "head_v_dim", -32), ["head_v_dim", "-32"]),
        ("a scale that is no number", attribute("model", "scale", np.float32(nan)), ["scale", "finite"]),
        ("an unknown state type", attribute("model", "state_dtype", "fp8"), ["state_dtype", "fp8"]),
        ("NaN in A_log", element("params/1/A_log", 1, nan), ["params/1/A_log", "[1]"]),
        ("NaN in dt_bias", element("params/0/dt_bias", 0, nan), ["params/0/dt_bias", "[0]"]),
        ("NaN in conv_weight", element("params/1/conv_weight", (17, 2), nan), ["params/1/conv_weight", "[17, 2]"]),
        ("NaN in norm_weight", element("params/0/norm_weight", 5, nan), ["params/0/norm_weight", "[5]"]),
    ]


def check_trace(checks, folder, name, path, words):
    """Every command that opens it refuses it, and none writes or changes anything."""
    out, report = os.path.join(folder, "never.h5"), os.path.join(folder, "never.json")
    before = contents(folder)
    checks.refused(name, ["replay", path], path, *words)
    line = checks.program("replay", path).err
    others = [
        ["run", path, "-o", out, "--quiet"],
        ["info", path, "--json", report],
        ["verify", path],
        ["diff", path, path, "--json", report],
    ]
    different = [
        done
        for done in (checks.program(*arguments) for arguments in others)
        if (done.code, done.out, done.err) != (2, "", line)
    ]
    checks.tap.check(
        not different,
        f"{name}: run, info, verify and diff say the same",
        "\n".join(map(str, different)) + f"\nreplay: {line}",
    )
    checks.tap.check(contents(folder) == before, f"{name}: nothing written, nothing lost")


def check_traces(checks, trace, folder):
    bad = os.path.join(folder, "bad.h5")
    for name, change, words in trace_faults():
        shutil.copy(trace, bad)
        with h5py.File(bad, "r+") as file:
            change(file)
        check_trace(checks, folder, name, bad, words)


def check_chunk_twice(checks, trace, folder):
    """A damaged index names one chunk twice and another never: their number is right, and HDF5 would make up the values."""
    import odd_hdf5

    chunked, bad = os.path.join(folder, "chunked.h5"), os.path.join(folder, "bad.h5")
    odd_hdf5.VARIANTS["chunks"](trace, chunked)
    with h5py.File(chunked, "r") as file:
        data = file["steps/1/a"]
        last = data.id.get_chunk_info(data.id.get_num_chunks() - 1)
    step, *rest = last.chunk_offset
    whole, key = read_bytes(chunked), struct.pack(f"<II{len(rest) + 2}Q", last.size, 0, step, *rest, 0)
    places = [found.start() + 8 for found in re.finditer(re.escape(key), whole)]  # its own, and those of datasets of the same shape
    done = [check_one_twice(checks.program, bad, whole, at, step - 2) for at in places]
    tidy = [one.code == 2 and one.err.count("\n") == 1 and "/steps/" in one.err and "chunk" in one.err for one in done]
    named = ["/steps/1/a" in one.err for one in done]
    checks.tap.check(all(tidy) and any(named), f"a chunk stored twice, another never, in {len(places)} datasets", "\n".join(map(str, done)))


def check_one_twice(program, bad, whole, at, step):
    with open(bad, "wb") as stream:
        stream.write(whole[:at] + struct.pack("<Q", step) + whole[at + 8 :])
    return program("verify", bad)


def check_no_trace(checks, trace, folder):
    bad, whole = os.path.join(folder, "bad.h5"), read_bytes(trace)
    for name, data, words in [
        ("an empty file", b"", []),
        ("a text", b"Dear Sir or Madam\n", []),
        ("an HDF5 signature and nothing else", whole[:8], []),
        ("a truncated trace", whole[: len(whole) // 2], []),
        ("a trace that lacks its last byte", whole[:-1], []),
        ("zeros", bytes(5000), []),
    ]:
        with open(bad, "wb") as stream:
            stream.write(data)
        check_trace(checks, folder, name, bad, words)


def check_log(checks, recipe, folder):
    good, bad = os.path.join(folder, "good.log.h5"), os.path.join(folder, "bad.log.h5")
    checks.does("a log", ["run", recipe, "-o", good, "--quiet"])
    for name, change, words in [
        ("another format", attribute("/", "format", "gdnsim-lag"), ["format"]),
        ("a newer version", attribute("/", "version", 3), ["version", "3"]),
        ("a missing dataset", gone("commit"), ["commit"]),
        ("a missing tap", gone("out/core_out"), ["digest/out", "[8, 2, 2]"]),
        ("another contract than the digest says", attribute("contract/decode", "exp", "ex2"), ["contract"]),
        ("an unknown contract field", attribute("contract/decode", "exp", "banana"), ["exp", "banana"]),
        ("another sequence than the digest says", element("steps/sequence", (2, 0), 77), ["sequence"]),
    ]:
        shutil.copy(good, bad)
        with h5py.File(bad, "r+") as file:
            change(file)
        for command in (["replay", bad], ["verify", bad], ["diff", good, bad], ["info", bad]):
            checks.refused(f"log, {name}: {command[0]}", command, bad, *words)


def check_recipe(checks, folder):
    bad, out = os.path.join(folder, "bad.json"), os.path.join(folder, "never.h5")
    faults = [
        ("an unknown key", {"frobnicate": 1}, ["frobnicate"]),
        ("another schema", {"schema": "gdnsim.recipe/2"}, ["schema", "gdnsim.recipe/2"]),
        ("no steps", {"steps": 0}, ["steps"]),
        ("a text for a number", {"rows": "3"}, ["rows"]),
        ("heads that do not divide", {"model": {"num_k_heads": 2, "num_v_heads": 3}}, ["num_v_heads"]),
        ("an unknown type", {"model": {"act_dtype": "fp8"}}, ["act_dtype", "fp8"]),
        ("too many sequences", {"schedule": {"running": 4}}, ["running"]),
    ]
    for name, change, words in faults:
        write_recipe(bad, **change)
        before = contents(folder)
        for command in (["run", bad, "-o", out, "--quiet"], ["synth", bad, "-o", out], ["info", bad], ["verify", bad]):
            checks.refused(f"recipe, {name}: {command[0]}", command, bad, *words)
        checks.tap.check(contents(folder) == before, f"recipe, {name}: nothing written")
    with open(bad, "w", encoding="utf-8") as stream:
        stream.write('{"schema": "gdnsim.recipe/1", "seed": 1,')
    checks.refused("recipe, cut off: info", ["info", bad], bad)


def main():
    tap = Tap()
    checks = Checks(tap, Program(sys.argv[2]))
    with tempfile.TemporaryDirectory() as folder:
        recipe, trace = write_recipe(os.path.join(folder, "recipe.json")), os.path.join(folder, "good.h5")
        checks.does("a trace", ["synth", recipe, "-o", trace, "--record"])
        check_chunk_twice(checks, trace, folder)
        check_no_trace(checks, trace, folder)
        check_recipe(checks, folder)
        if h5py is None:
            tap.skip("traces and logs with faults", "python3-h5py is not installed")
            return tap.finish()
        check_traces(checks, trace, folder)
        check_log(checks, recipe, folder)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
