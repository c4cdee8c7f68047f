#!/usr/bin/env python3
"""tools/cut_trace.py keeps words, types and layout, renumbers what it must, and refuses what it cannot cut."""

import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402

try:
    import h5py
    import numpy as np
except ImportError:
    h5py = None

ROOT = sys.argv[1]
TRACES = os.path.join(ROOT, "traces")


def run_cut(*arguments):
    done = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "cut_trace.py"), *arguments],
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def raw(dataset):
    """Stored bytes as rows of the first axis, read with the file's own type."""
    size = dataset.id.get_type().get_size()
    words = np.empty((*dataset.shape, size), "u1")
    if dataset.size:
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, words, mtype=dataset.id.get_type())
    return words


def differences(a, b, path="/"):
    """Objects, attributes, types and words in which two files differ."""
    found = []
    if set(a.attrs) != set(b.attrs) or any(a.attrs[key] != b.attrs[key] for key in a.attrs):
        found.append(f"{path}: attributes")
    if isinstance(a, h5py.Dataset):
        if a.id.get_type() != b.id.get_type() or a.shape != b.shape or not np.array_equal(raw(a), raw(b)):
            found.append(f"{path}: type, shape or words")
        return found
    if set(a) != set(b):
        return found + [f"{path}: members {sorted(set(a) ^ set(b))}"]
    for name in a:
        found += differences(a[name], b[name], f"{path}{name}/")
    return found


def check_whole(tap, directory):
    for name in sorted(os.listdir(TRACES)):
        if not name.endswith(".h5"):
            continue
        source, target = os.path.join(TRACES, name), os.path.join(directory, name)
        code, message = run_cut(source, target)
        with h5py.File(source) as trace:
            newer = trace.attrs["version"] > 1
        if newer:  # `gdnsim pack` cuts those
            tap.check(code == 2 and "expected a gdnsim-trace of version 1" in message, f"{name}: refused by its version", f"exit {code}: {message}")
            continue
        tap.check(code == 0, f"{name}: a whole cut is made", message)
        with h5py.File(source) as a, h5py.File(target) as b:
            found = differences(a, b)
        tap.check(not found, f"{name}: a whole cut is the same trace", "\n".join(found))


def check_planted(tap, directory):
    """The comparison above can fail: one flipped bit is seen."""
    target = os.path.join(directory, "h200_k64_mixed.h5")
    with h5py.File(target, "r+") as b:
        words = b["steps/0/a"][:]
        words[3, 1, 2] = -words[3, 1, 2]
        b["steps/0/a"][:] = words
    with h5py.File(os.path.join(TRACES, "h200_k64_mixed.h5")) as a, h5py.File(target) as b:
        found = differences(a, b)
    tap.check(found == ["/steps/0/a/: type, shape or words"], "a flipped sign is seen", found)


def check_later_start(tap, directory):
    source, target = os.path.join(TRACES, "h200_k64_mixed.h5"), os.path.join(directory, "later.h5")
    code, message = run_cut(source, target, "--steps", "1:12")
    tap.check(code == 0, "a cut from step 1 is made", message)
    with h5py.File(source) as a, h5py.File(target) as b:
        tap.check(np.array_equal(raw(b["steps/0/mixed_qkv"]), raw(a["steps/0/mixed_qkv"])[1:12]), "its inputs are steps 1 to 11")
        tap.check(b["recorded/0/core_out"].shape[0] == 11, "its outputs are 11 steps")
        tap.check(b["steps/0/a"].chunks[0] == 1, "its chunks are one step")
        events, state = b["events"], a["recorded/state"]
        first = [i for i in range(events["step"].shape[0]) if events["step"][i] == 0]
        blocks = [int(state["block"][i]) for i in range(5) if raw(state["recurrent"])[i].any()]
        tap.check([int(events["block"][i]) for i in first] == blocks, "every block with a state is loaded before its step 0", blocks)
        matches = all(
            np.array_equal(raw(events["recurrent"])[int(events["source"][i])], raw(state["recurrent"])[int(events["block"][i]) - 1])
            for i in first)
        tap.check(matches, "with the words of the snapshot after step 0")
        tap.check(events["step"][:].tolist()[len(first):] == [4, 9], "later events moved by one step", events["step"][:].tolist())
        tap.check("state" not in b["recorded"], "no snapshot is left in its range")


def check_layers(tap, directory):
    source, target = os.path.join(TRACES, "h200_k64_3layers.h5"), os.path.join(directory, "layers.h5")
    code, message = run_cut(source, target, "--steps", "0:16", "--layers", "2,0")
    tap.check(code == 0, "a cut to two layers is made", message)
    with h5py.File(source) as a, h5py.File(target) as b:
        tap.check(b["model/layer_ids"][:].tolist() == [int(a["model/layer_ids"][i]) for i in (0, 2)], "the layers keep their ids")
        for part in ("params/1/conv_weight", "steps/1/z", "recorded/1/norm_out"):
            other = part.replace("/1/", "/2/")
            tap.check(np.array_equal(raw(b[part]), raw(a[other])), f"{part} is the source's {other}")
        tap.check(set(b["recorded/state/layer"][:].tolist()) == {0, 1}, "snapshots are renumbered")


def check_refusals(tap, directory):
    source = os.path.join(TRACES, "h200_k64_mixed.h5")
    existing = os.path.join(directory, "h200_k64_mixed.h5")
    for name, arguments, words in (
            ("no start state", [source, os.path.join(directory, "x.h5"), "--steps", "5:9"], "needs a snapshot of every block"),
            ("an existing target", [source, existing], "exists"),
            ("an empty range", [source, os.path.join(directory, "x.h5"), "--steps", "4:4"], "expected 0 <= A < B"),
            ("an unknown layer", [source, os.path.join(directory, "x.h5"), "--layers", "3"], "expected positions below 1"),
            ("another file", [os.path.join(TRACES, "README.md"), os.path.join(directory, "x.h5")], "not an HDF5 file")):
        code, message = run_cut(*arguments)
        tap.check(code == 2 and words in message and message.count("\n") == 1, f"refused: {name}", f"{code}: {message}")
    tap.check(not [name for name in os.listdir(directory) if name.startswith("x.h5")], "a refused cut leaves nothing")


def main():
    tap = Tap()
    if h5py is None:
        tap.skip("cut_trace", "python3-h5py is not installed")
        return tap.finish()
    with tempfile.TemporaryDirectory() as directory:
        check_whole(tap, directory)
        check_planted(tap, directory)
        check_later_start(tap, directory)
        check_layers(tap, directory)
        check_refusals(tap, directory)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
