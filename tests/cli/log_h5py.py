#!/usr/bin/env python3
"""A log as another program sees it: read with h5py, every digest recomputed from the format's definition.

    log_h5py.py ROOT GDNSIM

Shares nothing with src/: block digests come from support/digest_vectors.py, XXH3 from libxxhash itself.
"""

import ctypes
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from digest_vectors import C, MASK, block_digest, lines_digest, mix  # noqa: E402
from tap import Tap  # noqa: E402

try:
    import h5py
except ImportError:
    h5py = None


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def xxh3():
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_64bits.restype, library.XXH3_64bits.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]
    library.XXH3_128bits.restype, library.XXH3_128bits.argtypes = Hash128, [ctypes.c_char_p, ctypes.c_size_t]
    return library


class LogFile:
    """Raw bytes of the datasets (h5py widens bf16, so they are read at the datasets' offsets)."""

    def __init__(self, path):
        self.file = h5py.File(path, "r")
        with open(path, "rb") as raw:
            self.raw = raw.read()

    def entries(self, name, axes):
        """The raw bytes of each entry of the first `axes` axes, in order."""
        data = self.file[name]
        start, size = data.id.get_offset(), data.id.get_storage_size()
        count = 1
        for n in data.shape[:axes]:
            count *= n
        each = size // count
        return [self.raw[start + i * each:start + (i + 1) * each] for i in range(count)]


def wrong_states(log):
    """Kept states whose digests differ from the stored ones; and how many were checked."""
    file = log.file
    snapshots, layers, rows, heads, width, _ = file["state/recurrent"].shape
    columns = file["state/conv"].shape[3]
    recurrent, conv = log.entries("state/recurrent", 3), log.entries("state/conv", 3)
    wrong = checked = 0
    for i, (state, window) in enumerate(zip(recurrent, conv)):
        s, layer, row = i // (layers * rows), i // rows % layers, i % rows
        t = int(file["state/step"][s]) - int(file["steps"].attrs["first_step"])
        active = file["state/block"][s, row] >= 0
        size = len(state) // heads
        want = [lines_digest(state[h * size:(h + 1) * size], size // width) if active else 0 for h in range(heads)]
        wrong += want != [int(d) for d in file["digest/recurrent"][t, layer, row]]
        wrong += (lines_digest(window, len(window) // columns) if active else 0) != int(file["digest/conv"][t, layer, row])
        wrong += not active and any(state + window)
        checked += active
    return wrong, checked


def wrong_checkpoints(log):
    """Layers of checkpoints whose blocks, and zeros for all others, do not give the pool digest (rules L4, L5)."""
    file = log.file
    points, layers, count, heads, width, _ = file["checkpoint/recurrent"].shape
    columns, every = file["checkpoint/conv"].shape[3], int(file["checkpoint"].attrs["every"])
    blocks = [int(b) for b in file["checkpoint/block"][()]]
    recurrent, conv = log.entries("checkpoint/recurrent", 3), log.entries("checkpoint/conv", 3)

    def share(state, window, block):
        _, _, digest = block_digest(state, window, heads, len(state) // heads // width, len(window) // columns)
        return mix(digest + (block + 1) * C & MASK)

    wrong = 0
    for point in range(points):
        step = int(file["checkpoint/step"][point])
        wrong += step != int(file["steps"].attrs["first_step"]) + (point + 1) * every - 1
        for layer in range(layers):
            first = (point * layers + layer) * count
            pool = 0
            for block in range(int(file["model"].attrs["num_blocks"])):
                i = first + blocks.index(block) if block in blocks else None
                state, window = (bytes(len(recurrent[0])), bytes(len(conv[0]))) if i is None else (recurrent[i], conv[i])
                pool += share(state, window, block)
            wrong += pool & MASK != int(file["digest/pool"][step - int(file["steps"].attrs["first_step"]), layer])
    return wrong, points * layers


def wrong_outputs(log, taps, library):
    wrong = checked = 0
    digests = log.file["digest/out"][()].reshape(-1, len(taps))
    for i, tap in enumerate(taps):
        for entry, words in enumerate(log.entries("out/" + tap, 2)):
            stored = int(digests[entry, i])
            wrong += library.XXH3_64bits(words, len(words)) != stored if stored else any(words)
            checked += stored != 0
    return wrong, checked


def wrong_records(log, library):
    """Commit records that do not follow from the one before and the step's digests."""
    file = log.file
    first, wrong, previous = int(file["steps"].attrs["first_step"]), 0, None
    event_steps = list(file["events/step"][()]) if "events" in file else []
    for t, record in enumerate(file["commit"][()]):
        wrong += int(record[0]) != first + t + 1
        wrong += library.XXH3_64bits(record[:3].tobytes(), 24) != int(record[3])
        if previous is not None:
            data = previous + b"".join(file["digest/" + section][t].tobytes() for section in ("recurrent", "conv", "pool", "out"))
            for event, step in enumerate(event_steps):
                if step == first + t:
                    data += file["events/before"][event].tobytes() + file["events/after"][event].tobytes()
            chain = library.XXH3_128bits(data, len(data))
            wrong += (chain.low, chain.high) != (int(record[1]), int(record[2]))
        previous = record[1:3].tobytes()
    return wrong


def wrong_events(log):
    """Event digests that do not follow from the rows and events before them; and how many were checked."""
    file = log.file
    zero = block_digest_of_zeros(file)
    wrong = checked = 0
    known = {}
    for t in range(file["commit"].shape[0]):
        step = int(file["steps"].attrs["first_step"]) + t
        for event in [e for e, s in enumerate(file["events/step"][()]) if s == step]:
            layer, block, kind, source = (int(file["events/" + f][event]) for f in ("layer", "block", "kind", "source"))
            for slot, position in enumerate(file["model/layers"][()]):
                before, after = int(file["events/before"][event, slot]), int(file["events/after"][event, slot])
                if layer not in (-1, position):
                    wrong += (before, after) != (0, 0)
                    continue
                begun = int(file["steps"].attrs["first_step"]) == 0  # else a block's content at first is not logged
                wrong += before != known.get((slot, block), zero if begun else before)
                wrong += kind == 0 and after != zero
                wrong += kind == 2 and after != known.get((slot, source), zero if begun else after)
                wrong += kind in (3, 4) and after != before
                known[slot, block] = after
                checked += 1
        for (slot, row), conv in [((s, r), int(c)) for s, cs in enumerate(file["digest/conv"][t]) for r, c in enumerate(cs)]:
            if conv:
                heads = [int(d) for d in file["digest/recurrent"][t, slot, row]]
                total = mix(conv + C & MASK) + sum(mix(d + (h + 1) * C & MASK) for h, d in enumerate(heads))
                known[slot, int(file["steps/index"][t, row])] = total & MASK
    return wrong, checked


def block_digest_of_zeros(file):
    model = {key: int(file["model"].attrs[key]) for key in ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "conv_width")}
    size = {b"f32": 4, b"bf16": 2, "f32": 4, "bf16": 2}
    state, conv = size[file["model"].attrs["state_dtype"]], size[file["model"].attrs["conv_state_dtype"]]
    heads, width, key = model["num_v_heads"], model["head_v_dim"], model["head_k_dim"]
    dim = 2 * model["num_k_heads"] * key + heads * width
    recurrent, window = bytes(heads * width * key * state), bytes((model["conv_width"] - 1) * dim * conv)
    return block_digest(recurrent, window, heads, key * state, dim * conv)[2]


def check_log(tap, name, path, taps, steps):
    log, library = LogFile(path), xxh3()
    root = {key: value.decode() if isinstance(value, bytes) else value for key, value in log.file.attrs.items()}
    tap.check(root["format"] == "gdnsim-log" and root["version"] == (2 if "events" in log.file else 1), f"{name}: format and version", root)
    tap.check(set(log.file) >= {"model", "contract", "source", "steps", "out", "digest", "commit"}, f"{name}: groups", list(log.file))
    offsets = [log.file[d].id.get_offset() % 4096 for d in ["commit", "digest/pool", "digest/out"] + ["out/" + t for t in taps]]
    tap.check(not any(offsets), f"{name}: datasets start at multiples of 4096", offsets)
    tap.check(log.file["commit"].shape == (steps, 4), f"{name}: every step has a record", log.file["commit"].shape)
    for what, (wrong, checked) in (("states", wrong_states(log)), ("outputs", wrong_outputs(log, taps, library))):
        tap.check(wrong == 0 and checked > 0, f"{name}: {what} match their digests", f"{wrong} wrong, {checked} checked")
    if "events" in log.file:
        wrong, checked = wrong_events(log)
        tap.check(wrong == 0 and checked > 0, f"{name}: event digests follow", f"{wrong} wrong, {checked} checked")
    if "checkpoint" in log.file:
        wrong, checked = wrong_checkpoints(log)
        tap.check(wrong == 0 and checked > 0, f"{name}: checkpoints give the pool digests", f"{wrong} wrong, {checked} checked")
    tap.check(wrong_records(log, library) == 0, f"{name}: the chain follows from the digests")


def main():
    root, program = sys.argv[1:3]
    tap = Tap()
    if h5py is None:
        tap.skip("a log read with h5py", "python3-h5py is not installed")
        return tap.finish()
    recipe, taps = os.path.join(root, "traces", "recipes", "tiny.json"), ["conv_out", "core_out", "norm_out"]
    cases = [("full", [], 8), ("every 3", ["--state", "every:3"], 8), ("a slice", ["--steps", "2:7", "--layers", "1"], 5),
             ("checkpoints", ["--checkpoint", "every:3"], 8), ("checkpoints of a slice", ["--steps", "1:8", "--checkpoint", "every:2"], 7)]
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, arguments, steps) in enumerate(cases):
            path = os.path.join(folder, f"{number}.log.h5")
            command = [program, "run", recipe, "-o", path, "--backend", "golden", "--quiet"] + arguments
            done = subprocess.run(command, capture_output=True, text=True)
            if tap.check(done.returncode == 0, f"{name}: gdnsim run", done.stderr):
                check_log(tap, name, path, taps, steps)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
