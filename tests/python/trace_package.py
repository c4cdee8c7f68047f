#!/usr/bin/env python3
"""tools/gdnsim_trace: what it writes is what the program reads, word for word; refusals are one line.

trace_package.py ROOT PROGRAM
"""

import glob
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
from packed_trace import rewrite  # noqa: E402
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
    launch = {name: plan[name][:rows] for name in ("source", "accepted", "token", "position") if name in plan}
    draft = int(plan.get("draft", 0))
    for layer, values in enumerate(layers):
        values.update({name: trace.words(f"steps/{layer}/{name}", step)[:rows] for name in out.layer_extra})
    extra = {name: int(plan[name]) for name in out.extra}
    out.step(plan["index"][:rows], plan["sequence"][:rows], layers, path=int(plan["path"]), extra=extra, draft=draft, **launch)


# Of a step and of its layers, which the writer lays out itself; the rest is extra.
STEP = ("rows", "path", "draft")
LAYER = ("mixed_qkv", "z", "a", "b", "qkvz", "ba")


def extras(trace):
    steps = trace.file["steps"]
    extra = [name for name in steps if name not in STEP and getattr(steps[name], "ndim", 0) == 1]
    return {"extra": extra, "layer_extra": [name for name in steps["0"] if name not in LAYER]}


def copy_trace(source, target):
    """Through the reader and the writer, word for word."""
    with TraceReader(source) as trace:
        z, taps = trace.has_input("z"), trace.taps()
        out = TraceWriter(
            target,
            trace.model,
            [trace.params(layer) for layer in range(trace.model.layers)],
            trace.rows,
            taps,
            z,
            provenance=trace.provenance(),
            **extras(trace),
        )
        events = list(zip(trace.events, trace.reasons))
        for step in range(trace.steps):
            while events and events[0][0][0] == step:
                (_, layer, block, kind, source_row), (sequence, why) = events.pop(0)
                whose = {"sequence": sequence, "why": why}
                if kind == 1:
                    out.load(layer, block, *trace.load_row(source_row), **whose)
                else:
                    out.event(kind, layer, block, source_row, **whose)
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
    for source in sorted(glob.glob(os.path.join(ROOT, "traces", "**", "*.h5"), recursive=True)):
        name = os.path.basename(source)
        target = os.path.join(folder, name)
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
    done = program("replay", os.path.join(folder, "golden_speculative.h5"), "--contract", "golden")
    tap.check(done.code == 0, "and so does one of version 2, launches, forks and all", done)


# Version 2.


def write_launches(path, force=False, **changes):
    """Two sequences: one comes and is verified three tokens at a time, the other decodes beside it and is forked."""
    model = toy_model(layer_ids=[2], num_blocks=8, block_stride=64, index_bits=32, **changes)
    make = Maker(model, 7)
    with TraceWriter(path, model, make.params(), rows=3, taps=("core_out",), force=force) as trace:
        for block, sequence in ((1, 7), (2, 7), (3, 7), (4, 9)):
            trace.allocate(block, sequence, why="start")
        trace.load(-1, 1, *make.state(), sequence=7)
        trace.zero(-1, 4, sequence=9)
        launch = {"path": 1}
        trace.step([1, 4], [7, 9], make.layers(2, ("core_out",)), draft=0, accepted=[0, 0], **launch)
        trace.step([2], [7], make.layers(1, ("core_out",)), draft=1, source=[1], **launch)
        trace.step([3], [7], make.layers(1, ("core_out",)), draft=2, source=[2], position=[2], **launch)
        trace.allocate(5, 11, why="fork")
        trace.copy(-1, 5, 4, sequence=11, why="fork")
        layers = make.layers(3, ("core_out",))
        trace.step([1, 5, 4], [7, 11, 9], layers, draft=0, source=[2, -1, -1], accepted=[2, 0, 1], **launch)
        trace.free(-1, 4, sequence=9, why="finish")
        trace.step([2, 5], [7, 11], make.layers(2, ("core_out",)), source=[1, -1], accepted=[1, 1])
        trace.snapshot(0, 2, *make.state())
    return model


def check_launches(tap, program, folder):
    path = os.path.join(folder, "launches.h5")
    write_launches(path)
    info = program("info", path, "--json", "-")
    found = info.json if info.code == 0 else {}
    tap.check(
        found.get("stream", {}).get("events") == {"allocate": 5, "copy": 1, "free": 1, "load": 1, "zero": 1}
        and found.get("stream", {}).get("launches", {}).get("by_drafts") == {"1": 2, "3": 1},
        "the program reads launches, moves and lives",
        info,
    )
    with TraceReader(path) as trace:
        plans = [trace.plan(step) for step in range(5)]
        tap.check(
            trace.version == 2
            and [int(plan["draft"]) for plan in plans] == [0, 1, 2, 0, 0]
            and plans[0]["source"].tolist() == [-1, -1, -1]
            and plans[3]["source"].tolist() == [2, -1, -1]
            and plans[3]["accepted"].tolist() == [2, 0, 1]
            and plans[2]["position"].tolist() == [2, -1, -1]
            and plans[3]["position"].tolist() == [-1, -1, -1],
            "drafts, sources, accept counts, positions come back",
            plans,
        )
        tap.check(
            trace.reasons[0] == (7, 1) and trace.reasons[-1] == (9, 5) and trace.model.block_stride == 64,
            "so do sequences, reasons and strides",
            trace.reasons,
        )
    model = toy_model(layer_ids=[2], num_blocks=8)
    make = Maker(model)
    trace = TraceWriter(os.path.join(folder, "plain.h5"), model, make.params(), rows=1, taps=())
    trace.step([1], [7], make.layers(1, ()), draft=0)
    step = lambda **more: trace.step([1], [7], make.layers(1, ()), **more)  # noqa: E731
    refused(tap, "a draft out of turn", ("draft", "0 or 1", "found 2"), lambda: step(draft=2, path=1))
    refused(tap, "a draft of a decode step", ("path 1", "found 0"), lambda: step(draft=1))
    refused(tap, "an unknown reason", ("why", "'because'"), lambda: trace.zero(-1, 1, why="because"))
    trace.zero(-1, 1)
    refused(tap, "an event within a launch", ("within a launch",), lambda: step(draft=1, path=1))
    trace.close()
    with TraceReader(os.path.join(folder, "plain.h5")) as found:
        tap.check(found.version == 1, "what version 1 holds is of version 1", found.version)


def check_layouts(tap, program, folder):
    flat = os.path.join(folder, "two_heads.h5")
    write_launches(flat, num_k_heads=2, num_v_heads=4)
    wanted = input_digest(program, flat)
    for packing, order, layout, columns, offset in (
        ("flat", "rolled", "columns", 5, 2),
        ("interleaved", "rolled", "channels", 3, 0),
        ("interleaved", "circular", "columns", 4, 3),
        ("flat", "circular", "channels", 6, 5),
    ):
        name = f"{packing} projections, {order} windows in {layout}"
        path = os.path.join(folder, "layout.h5")
        rewrite(flat, path, packing, order, layout, columns, offset)
        found = input_digest(program, path)
        tap.check(found == wanted, f"{name}: the program finds the same inputs", f"{found}\n{wanted}")
        with TraceReader(flat) as old, TraceReader(path) as new:
            same = all(
                np.array_equal(old.input(what, step, 0), new.input(what, step, 0))
                for step in range(old.steps)
                for what in ("mixed_qkv", "z", "a", "b")
            )
            same &= all(np.array_equal(x, y) for x, y in zip(old.load_row(0), new.load_row(0)))
            same &= all(np.array_equal(x, y) for x, y in zip(old.snapshot(0), new.snapshot(0)))
        tap.check(same, f"{name}: so does Python")
        copy = os.path.join(folder, "copy.h5")
        copy_trace(path, copy)
        tap.check(input_digest(program, copy) == wanted, f"{name}: and a copy through Python is flat again")
        os.remove(path)
        os.remove(copy)


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
    # torch and ml_dtypes where they are installed: tests/python/hf_run.py has torch itself.
    tap.check(len(digests) == 1, f"the program sees the same inputs from {', '.join(kinds)}", digests)


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
        check_launches(tap, program, folder)
        check_layouts(tap, program, folder)
        check_words(tap, program, folder)
        check_digests(tap)
        check_watch(tap, folder)
        check_refusals(tap, folder)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
