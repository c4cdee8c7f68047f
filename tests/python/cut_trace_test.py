#!/usr/bin/env python3
"""tools/cut_trace.py keeps words, types and layout, renumbers what it must, and refuses what it cannot cut."""

import glob
import json
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
    for source in sorted(glob.glob(os.path.join(TRACES, "**", "*.h5"), recursive=True)):
        name = os.path.basename(source)
        target = os.path.join(directory, name)
        code, message = run_cut(source, target)
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


# Version 2: two sequences, launches of two tokens, some of them accepted; blocks come and go.
LAUNCHES = {
    "schema": "gdnsim.recipe/1", "seed": 11, "steps": 24, "rows": 2,
    "model": {"num_k_heads": 1, "num_v_heads": 2, "head_k_dim": 4, "head_v_dim": 4, "num_blocks": 10, "layer_ids": [0, 1]},
    "schedule": {"running": 2, "length": [4, 9], "arrival": 0.8, "fork": 0.5, "allocator": "lifo",
                 "speculative": {"drafts": 1, "rate": 0.5, "plain": 0.3}},
}


def check_launches(tap, directory):
    """A trace of version 2 with every state recorded: each cut between launches replays, and says what the whole one does."""
    program = os.path.abspath(sys.argv[2])
    call = lambda *command: subprocess.run([program, *command], capture_output=True, text=True, check=False)
    recipe, whole = os.path.join(directory, "launches.json"), os.path.join(directory, "launches.h5")
    with open(recipe, "w", encoding="utf-8") as stream:
        json.dump(LAUNCHES, stream)
    done = call("synth", recipe, "-o", whole, "--record", "--contract", "golden", "--snapshots", "1")
    tap.check(done.returncode == 0, "a trace of launches is made", done.stderr)
    with h5py.File(whole) as trace:
        drafts = trace["steps/draft"][:].tolist()
        kinds = set(trace["events/kind"][:].tolist())
    tap.check({0, 1} == set(drafts) and {2, 3, 4} <= kinds, "it has launches, forks, frees and allocations", (drafts, kinds))
    starts = [step for step, draft in enumerate(drafts) if draft == 0]
    for begin, end in [(starts[3], starts[-2]), (starts[len(starts) // 2], len(drafts)), (starts[-3], starts[-1])]:
        target = os.path.join(directory, f"launches{begin}.h5")
        code, message = run_cut(whole, target, "--steps", f"{begin}:{end}")
        tap.check(code == 0, f"steps {begin}:{end} are cut", message)
        done = call("replay", target, "--contract", "golden")
        tap.check(done.returncode == 0 and "verdict: match" in done.stdout, f"steps {begin}:{end} replay", done.stdout + done.stderr)
        with h5py.File(target, "r+") as trace:
            trace["events/recurrent"][0] = trace["events/recurrent"][0] + 1
        done = call("replay", target, "--contract", "golden")
        tap.check(done.returncode == 1, f"steps {begin}:{end}: a changed start state is seen", done.stdout + done.stderr)
    within = drafts.index(1)
    for arguments in (f"{within}:{len(drafts)}", f"0:{within}"):
        code, message = run_cut(whole, os.path.join(directory, "x.h5"), "--steps", arguments)
        words = f"step {within} is within the launch of steps {within - 1}:{within + 1}"
        tap.check(code == 2 and words in message and message.count("\n") == 1, f"refused: {arguments}", f"{code}: {message}")
    code, message = run_cut(whole, os.path.join(directory, "x.h5"), "--rows", "0")
    tap.check(code == 2 and "--rows: cannot be used with" in message, "refused: some rows of launches", f"{code}: {message}")


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
        check_launches(tap, directory)
        check_refusals(tap, directory)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
