#!/usr/bin/env python3
"""tools/break_trace.py changes one bit of one word, names it, and refuses what is not there."""

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

ROOT = os.path.abspath(sys.argv[1])
SAMPLE = os.path.join(ROOT, "traces", "h200_k64_mixed.h5")
# What to break, the dataset that is then another, and the flat number of the word in it: 3 rows, 4 heads, V = K = 64, 512 channels.
PLACES = [
    ("core_out", {"step": 2, "row": 1, "head": 3, "element": 9, "bit": 6}, "recorded/0/core_out", (2 * 3 + 1) * 256 + 3 * 64 + 9),
    ("conv_out", {"step": 2, "row": 1, "element": 400, "bit": 0}, "recorded/0/conv_out", (2 * 3 + 1) * 512 + 400),
    ("mixed_qkv", {"step": 15, "row": 2, "element": 511, "bit": 15}, "steps/0/mixed_qkv", 16 * 3 * 512 - 1),
    ("z", {"step": 0, "row": 0, "head": 1, "element": 5, "bit": 3}, "steps/0/z", 64 + 5),
    ("a", {"step": 0, "row": 2, "head": 3, "bit": 3}, "steps/0/a", 2 * 4 + 3),
    ("state", {"step": 15, "block": 1, "head": 2, "element": 777, "bit": 31}, "recorded/state/recurrent",
     5 * 4 * 4096 + 2 * 4096 + 777),
    ("conv_state", {"step": 0, "block": 5, "element": 513, "bit": 1}, "recorded/state/conv", 4 * 3 * 512 + 513),
]


def run_tool(source, target, tap, *options, **place):
    words = [text for key, value in place.items() for text in (f"--{key}", str(value))]
    tool = os.path.join(ROOT, "tools", "break_trace.py")
    done = subprocess.run([sys.executable, tool, source, target, "--tap", tap, *words, *options],
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def raw(dataset):
    """The stored words as rows of bytes."""
    size = dataset.id.get_type().get_size()
    words = np.empty((*dataset.shape, size), "u1")
    if dataset.size:
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, words, mtype=dataset.id.get_type())
    return words.reshape(-1, size)


def changes(a, b):
    """(dataset, flat number, bits changed) of every word in which two files differ."""
    found = []

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            before, after = raw(item), raw(b[name])
            for at in np.flatnonzero((before != after).any(axis=1)):
                bits = int.from_bytes((before[at] ^ after[at]).tobytes(), "little")
                found.append((name, int(at), bits))

    a.visititems(visit)
    return found


def check_places(tap, directory):
    target = os.path.join(directory, "broken.h5")
    for name, place, dataset, at in PLACES:
        code, said, message = run_tool(SAMPLE, target, name, "--force", **place)
        with h5py.File(SAMPLE) as a, h5py.File(target) as b:
            found = changes(a, b)
            attributes = dict(a.attrs) == dict(b.attrs) and list(a) == list(b)
        wanted = [(dataset, at, 1 << place["bit"])]
        tap.check(code == 0 and found == wanted and attributes, f"{name}: that bit and no other", f"{found}\n{message}")
        tap.check(f"/{dataset}[" in said and said.count("\n") == 1, f"{name}: one line says which word", said)


def check_refusals(tap, directory):
    existing, new = os.path.join(directory, "broken.h5"), os.path.join(directory, "new.h5")
    good = {"step": 1, "row": 0}
    for name, source, target, what, options, place, words in [
        ("an existing target", SAMPLE, existing, "core_out", [], good, "exists"),
        ("the source itself", SAMPLE, SAMPLE, "core_out", ["--force"], good, "exists"),
        ("another file", os.path.join(ROOT, "README.md"), new, "core_out", [], good, "not an HDF5 file"),
        ("an unknown tap", SAMPLE, new, "core", [], good, "recorded are conv_out, core_out, norm_out"),
        ("a tap that was not recorded", SAMPLE, new, "beta", [], good, "not in this trace"),
        ("a step too far", SAMPLE, new, "core_out", [], {"step": 16}, "expected 0 to 15"),
        ("a row too far", SAMPLE, new, "core_out", [], {"step": 0, "row": 3}, "expected 0 to 2"),
        ("a layer too far", SAMPLE, new, "core_out", [], {"step": 0, "layer": 1}, "expected 0 to 0"),
        ("a negative head", SAMPLE, new, "core_out", [], {"step": 0, "head": -1}, "expected 0 to 3"),
        ("an element of the next head", SAMPLE, new, "core_out", [], {"step": 0, "element": 64}, "expected 0 to 63"),
        ("a bit that is not there", SAMPLE, new, "core_out", [], {"step": 0, "bit": 16}, "expected 0 to 15"),
        ("a state without a block", SAMPLE, new, "state", [], {"step": 0}, "needs --block"),
        ("a snapshot that is not there", SAMPLE, new, "state", [], {"step": 3, "block": 1}, "no snapshot of step 3"),
    ]:
        code, said, message = run_tool(source, target, what, *options, **place)
        right = code == 2 and said == "" and words in message and message.count("\n") == 1
        tap.check(right, f"refused: {name}", f"{code}: {said}{message}")
    tap.check(sorted(os.listdir(directory)) == ["broken.h5"], "a refusal leaves nothing", os.listdir(directory))


def main():
    tap = Tap()
    if h5py is None:
        tap.skip("break_trace", "python3-h5py is not installed")
        return tap.finish()
    with open(SAMPLE, "rb") as stream:
        before = stream.read()
    with tempfile.TemporaryDirectory() as directory:
        check_places(tap, directory)
        check_refusals(tap, directory)
    with open(SAMPLE, "rb") as stream:
        tap.check(stream.read() == before, "the sample is as it was")
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
