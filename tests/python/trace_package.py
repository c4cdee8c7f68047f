#!/usr/bin/env python3
"""tools/gdnsim_trace: what it writes is what the program reads, word for word; refusals are one line.

trace_package.py ROOT PROGRAM
"""

import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import needs_h5py  # noqa: E402, F401
import digest_vectors  # noqa: E402
import numpy as np  # noqa: E402
from program import Program  # noqa: E402
from tap import Tap  # noqa: E402

ROOT = sys.argv[1]
sys.path.insert(0, os.path.join(ROOT, "tools"))
from gdnsim_trace import BlockWatch, TraceError, TraceReader, TraceWriter, digest  # noqa: E402
from gdnsim_trace.hdf5 import read_words  # noqa: E402
from toy_package import Maker, input_digest, toy_model, write_toy  # noqa: E402

NANS = np.array([0x7F81, 0x7FFF, 0xFF81, 0xFFC1, 0x7FC0, 0x8000, 0x0001, 0x7F80], np.uint16)


# Round trips.


def copy_step(trace, out, step, z, taps):
    model, plan = trace.model, trace.plan(step)
    rows = int(plan["rows"])
    layers = [
        {
            **{name: trace.input(name, step, layer)[:rows] for name in model.input_shapes(z)},
            **{tap: trace.tap(tap, step, layer)[:rows] for tap in taps},
        }
        for layer in range(model.layers)
    ]
    out.step(plan["index"][:rows], plan["sequence"][:rows], layers, path=int(plan["path"]))


def copy_trace(source, target):
    """Through the reader and the writer, word for word."""
    with TraceReader(source) as trace:
        z, taps = trace.has("steps/0/z"), trace.taps()
        out = TraceWriter(
            target,
            trace.model,
            [trace.params(layer) for layer in range(trace.model.layers)],
            trace.rows,
            taps,
            z,
            provenance=trace.provenance(),
        )
        events = list(trace.events)
        for step in range(trace.steps):
            while events and events[0][0] == step:
                _, layer, block, kind, source_row = events.pop(0)
                out.load(layer, block, *trace.load_row(source_row)) if kind == 1 else out.event(
                    kind, layer, block, source_row
                )
            copy_step(trace, out, step, z, taps)
            for at, (after, layer, block) in enumerate(trace.snapshots):
                if after == step:
                    out.snapshot(layer, block, *trace.snapshot(at))
        out.close()


def dataset_names(trace):
    names = set()
    trace.file.visit(lambda name: names.add(name) if hasattr(trace.file[name], "shape") else None)
    return names


def different_words(a, b):
    """Datasets of two traces that are missing or hold other words."""
    names = (dataset_names(a) | dataset_names(b)) - {"steps/rows"}
    missing = [name for name in names if not a.has(name) or not b.has(name)]
    both = names - set(missing)
    return missing + [name for name in both if read_words(a.get(name)).tobytes() != read_words(b.get(name)).tobytes()]


def check_samples(tap, program, folder):
    for name in sorted(os.listdir(os.path.join(ROOT, "traces"))):
        if not name.endswith(".h5"):
            continue
        source, target = os.path.join(ROOT, "traces", name), os.path.join(folder, name)
        copy_trace(source, target)
        a, b = input_digest(program, source), input_digest(program, target)
        tap.check(a == b, f"{name}: through Python, the program finds the same inputs", f"{a}\n{b}")
        with TraceReader(source) as old, TraceReader(target) as new:
            tap.check(
                not different_words(old, new),
                f"{name}: through Python, every word is the same",
                different_words(old, new),
            )
    done = program("replay", os.path.join(folder, "h200_k64_3layers.h5"), "--steps", "0:4")
    tap.check(done.code == 0, "a copied sample replays", done)


def check_toy(tap, program, folder):
    path = os.path.join(folder, "toy.h5")
    write_toy(path)
    info = program("info", path, "--json", "-")
    tap.check(
        info.code == 0 and program("verify", path).code == 0, "the program reads a trace with everything in it", info
    )
    done = program("replay", path, "--contract", "golden")
    tap.check(done.code == 1 and done.verdict.startswith("verdict: diverged, compared "), "and replays it", done)
    with TraceReader(path) as trace:
        plan = trace.plan(1)
        tap.check(
            plan["path"] == 1
            and plan["rows"] == 2
            and plan["position"].tolist() == [1, 4, -1]
            and plan["token"].tolist() == [5, 1, -1]
            and plan["sequence"].tolist() == [7, 9, -1]
            and plan["index"].tolist() == [1, 2, 0],
            "rows, paths, tokens and positions",
            plan,
        )
        tap.check(
            trace.events == [(0, 0, 1, 1, 0), (2, 1, 1, 1, 1)] and len(trace.snapshots) == 8,
            "events and snapshots",
            trace.events,
        )
    again = os.path.join(folder, "again.h5")
    write_toy(again)
    with open(path, "rb") as a, open(again, "rb") as b:
        tap.check(a.read() == b.read(), "the same calls give the same bytes")


def check_words(tap, program, folder):
    """Bits of bf16 stay as they are, however they are handed over."""
    model = toy_model(layer_ids=[0], inactive_conv_out="unwritten", inactive_core_out="unwritten")
    make = Maker(model)
    params, layers = make.params(), make.layers(1, ())
    layers[0]["mixed_qkv"][0, :8] = NANS
    kinds = {"uint16": lambda words: words, "int16": lambda words: words.view(np.int16)}
    try:
        import ml_dtypes

        kinds["ml_dtypes"] = lambda words: words.view(ml_dtypes.bfloat16)
    except ImportError:
        pass
    try:
        import torch

        kinds["torch"] = lambda words: torch.from_numpy(words.view(np.int16).copy()).view(torch.bfloat16)
    except ImportError:
        pass
    digests = set()
    for kind, view in kinds.items():
        path = os.path.join(folder, f"words_{kind}.h5")
        with TraceWriter(path, model, params, rows=1, taps=()) as trace:
            trace.step([1], [0], [{name: view(words) for name, words in layers[0].items()}])
        with TraceReader(path) as trace:
            found = trace.input("mixed_qkv", 0, 0)
        tap.check(
            np.array_equal(found, layers[0]["mixed_qkv"]) and found.dtype == np.uint16,
            f"{kind}: NaN payloads come back",
            found,
        )
        digests.add(input_digest(program, path))
    tap.check(
        len(digests) == 1 and len(kinds) >= 2, f"the program sees the same inputs from {', '.join(kinds)}", digests
    )


def check_digests(tap):
    for heads, values, keys, width, state, conv in (
        (2, 5, 3, 4, np.float32, np.uint16),
        (8, 8, 8, 3, np.uint16, np.float32),
        (4, 64, 64, 4, np.float32, np.uint16),
    ):
        make = np.random.default_rng(heads)
        dim = 2 * keys + heads * values
        blocks = [
            make.integers(0, 1 << 16, shape + (np.dtype(kind).itemsize // 2,), np.uint16).view(kind)[..., 0]
            for shape, kind in (((heads, values, keys), state), ((width - 1, dim), conv))
        ]
        words, window = (np.ascontiguousarray(block).tobytes() for block in blocks)
        size, column = keys * np.dtype(state).itemsize, dim * np.dtype(conv).itemsize
        _, _, wanted = digest_vectors.block_digest(words, window, heads, size, column)
        found = digest.block_digest(*blocks)
        tap.check(
            found == wanted,
            f"block digest of [{heads}, {values}, {keys}], as defined in plain integers",
            f"{found:x} {wanted:x}",
        )


def check_watch(tap, folder):
    model = toy_model(layer_ids=[0])
    make = Maker(model)
    trace = TraceWriter(os.path.join(folder, "watch.h5"), model, make.params(), rows=1, taps=())
    watch, zeros = BlockWatch(trace), (np.zeros(model.state_shape, np.float32), np.zeros(model.conv_shape, np.uint16))
    first, second = make.state(), make.state()
    negative = (np.copysign(zeros[0], np.float32(-1)), zeros[1])
    seen = [watch.before(0, 1, *zeros), watch.before(0, 1, *first)]
    watch.after(0, 1, *second)
    seen += [watch.before(0, 1, *second), watch.before(0, 1, *first), watch.before(0, 2, *negative)]
    trace.abandon()
    tap.check(
        seen == [False, True, False, True, True],
        "an untouched block is no event, a changed one is, minus zero is a change",
        seen,
    )


# Refusals.


def refused(tap, name, words, work):
    try:
        work()
    except TraceError as problem:
        text = str(problem)
        tap.check(all(word in text for word in words) and "\n" not in text, f"refused: {name}", text)
    else:
        tap.check(False, f"refused: {name}", "nothing was raised")


def check_refusals(tap, folder):
    model = toy_model(layer_ids=[0])
    make = Maker(model)
    params = make.params()
    path = os.path.join(folder, "refused.h5")
    refused(
        tap, "heads that do not divide", ("num_v_heads", "multiple"), lambda: toy_model(num_k_heads=2, num_v_heads=3)
    )
    refused(tap, "a missing parameter", ("A_log", "found nothing"), lambda: TraceWriter(path, model, [{}], rows=1))
    nan = [{**params[0], "A_log": np.full(2, np.nan, np.float32)}]
    refused(tap, "NaN in a parameter", ("A_log", "NaN"), lambda: TraceWriter(path, model, nan, rows=1))
    write_toy(os.path.join(folder, "there.h5"))
    refused(tap, "an existing file", ("there.h5", "exists"), lambda: write_toy(os.path.join(folder, "there.h5")))
    trace = TraceWriter(path, model, params, rows=2, taps=())
    layers = make.layers(1, ())
    wrong = [{**layers[0], "a": layers[0]["a"].astype(np.float32)}]
    refused(tap, "another type", ("layer 0: a", "bf16", "float32"), lambda: trace.step([1], [0], wrong))
    short = [{**layers[0], "b": layers[0]["b"][:, :1]}]
    refused(tap, "another shape", ("layer 0: b", "(1, 2)", "(1, 1)"), lambda: trace.step([1], [0], short))
    refused(tap, "a block twice", ("once", "[3, 3]"), lambda: trace.step([3, 3], [0, 1], make.layers(2, ())))
    refused(
        tap, "too many rows", ("at most 2", "found 3"), lambda: trace.step([1, 2, 3], [0, 1, 2], make.layers(3, ()))
    )
    refused(
        tap,
        "a missing input",
        ("layer 0: z",),
        lambda: trace.step([1], [0], [{k: v for k, v in layers[0].items() if k != "z"}]),
    )
    state = make.state()
    refused(tap, "a state of another shape", ("load", "recurrent"), lambda: trace.load(0, 1, state[0][:1], state[1]))
    trace.step([1], [0], layers)
    trace.close()
    with TraceReader(path) as found:
        tap.check(found.steps == 1 and not found.events, "a refused call leaves no trace in the file", found.events)
    refused(
        tap,
        "a trace without a step",
        ("no step",),
        lambda: TraceWriter(os.path.join(folder, "none.h5"), model, params, rows=1).close(),
    )
    refused(tap, "a file that is no trace", ("README.md", "HDF5"), lambda: TraceReader(os.path.join(ROOT, "README.md")))


def main():
    tap = Tap()
    program = Program(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="gdnsim-test-") as folder:
        check_samples(tap, program, folder)
        check_toy(tap, program, folder)
        check_words(tap, program, folder)
        check_digests(tap)
        check_watch(tap, folder)
        check_refusals(tap, folder)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
