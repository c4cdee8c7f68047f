#!/usr/bin/env python3
"""tools/import_trace.py: a sample taken apart and put together again is the same trace; refusals.

capture_import.py ROOT PROGRAM
"""

import json
import os
import struct
import subprocess
import sys
import tempfile

SUPPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
sys.path.insert(0, SUPPORT)
import needs_h5py  # noqa: E402, F401
import numpy as np  # noqa: E402
from program import Program  # noqa: E402
from tap import Tap  # noqa: E402

ROOT = sys.argv[1]
sys.path.insert(0, os.path.join(ROOT, "tools"))
from gdnsim_trace import TraceReader  # noqa: E402

SAFE = {"uint16": "BF16", "float32": "F32", "int32": "I32", "int64": "I64", "int8": "I8"}


def save_safetensors(path, arrays):
    header, data = {}, b""
    for name, words in arrays.items():
        words = np.ascontiguousarray(words)
        header[name] = {
            "dtype": SAFE[words.dtype.name],
            "shape": list(words.shape),
            "data_offsets": [len(data), len(data) + words.nbytes],
        }
        data += words.tobytes()
    text = json.dumps(header).encode()
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text + data)


def interleaved(model, rows):
    """[..., q | k | v] as [..., H of (q, k, v)]."""
    h, k = model.num_k_heads, model.head_k_dim
    values = model.num_v_heads // h * model.head_v_dim
    parts = [rows[..., head * k : (head + 1) * k] for head in range(h)]
    keys = [rows[..., (h + head) * k : (h + head + 1) * k] for head in range(h)]
    others = [rows[..., 2 * h * k + head * values : 2 * h * k + (head + 1) * values] for head in range(h)]
    return np.concatenate([part for three in zip(parts, keys, others) for part in three], -1)


def take_apart(source, folder, packing):
    """Files and mapping of a sample: states with K outermost, conv weights with the middle axis that Conv1d has."""
    with TraceReader(source) as trace:
        model, weights, rollout = trace.model, {}, {}
        for layer in range(model.layers):
            for name, words in trace.params(layer).items():
                weights[f"l{model.layer_ids[layer]}.{name}"] = words[:, None] if name == "conv_weight" else words
            for name in ("mixed_qkv", "a", "b", "z"):
                words = trace.words(f"steps/{layer}/{name}")
                rollout[f"{layer}.{name}"] = (
                    interleaved(model, words) if name == "mixed_qkv" and packing == "interleaved" else words
                )
            for tap in trace.taps(layer):
                rollout[f"{layer}.{tap}"] = trace.words(f"recorded/{layer}/{tap}")
        for folder_name, short in (("steps", "s"), ("events", "e"), ("recorded/state", "st")):
            for name, data in trace.get(folder_name).items():
                if hasattr(data, "shape"):
                    words = trace.words(f"{folder_name}/{name}")
                    rollout[f"{short}.{name}"] = words.swapaxes(-1, -2) if name == "recurrent" else words
        taps, fields = trace.taps(), dict(vars(model))
    save_safetensors(os.path.join(folder, "w.safetensors"), weights)
    rollout["far"] = rollout["st.step"] + 16
    np.savez(
        os.path.join(folder, "r.npz"),
        **{name: words.view("V2") if words.dtype == np.uint16 else words for name, words in rollout.items()},
    )
    return {
        "schema": "gdnsim.import/1",
        "model": fields,
        "packing": packing,
        "files": {"w": "w.safetensors", "r": "r.npz"},
        "params": {
            **{name: f"w:l{{layer_id}}.{name}" for name in ("A_log", "dt_bias", "norm_weight")},
            "conv_weight": {"array": "w:l{layer_id}.conv_weight", "reshape": [model.dim, model.conv_width]},
        },
        "steps": {name[2:]: f"r:{name}" for name in rollout if name.startswith("s.")},
        "inputs": {name: f"r:{{layer}}.{name}" for name in ("mixed_qkv", "a", "b", "z")},
        "recorded": {tap: f"r:{{layer}}.{tap}" for tap in taps},
        "events": entries(rollout, "e."),
        "snapshots": entries(rollout, "st."),
    }


def entries(rollout, short):
    names = {name[len(short) :]: f"r:{name}" for name in rollout if name.startswith(short)}
    names["recurrent"] = {"array": names["recurrent"], "transpose": [0, 1, 3, 2]}
    return names


def run(*arguments):
    return subprocess.run(
        [sys.executable, os.path.join(ROOT, "tools", "import_trace.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def write(folder, mapping):
    path = os.path.join(folder, "mapping.json")
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(mapping, stream)
    return path


def input_digest(program, path):
    done = program("verify", path)
    return done.out.partition("input digest ")[2].split()[0] if done.code == 0 else str(done)


def check_round_trip(tap, program, folder):
    for name, packing in (("h200_k64_3layers.h5", "flat"), ("h200_tp4_bf16state.h5", "interleaved")):
        source, target = os.path.join(ROOT, "traces", name), os.path.join(folder, name)
        done = run(write(folder, take_apart(source, folder, packing)), "-o", target)
        a, b = input_digest(program, source), input_digest(program, target)
        tap.check(
            done.returncode == 0 and a == b,
            f"{name}, {packing}: the program finds the same inputs",
            f"{done}\n{a}\n{b}",
        )
        replayed = program("replay", target)
        wanted = program("replay", source)
        tap.check(
            replayed.code == 0 and replayed.verdict == wanted.verdict,
            f"{name}, {packing}: it replays like the sample",
            replayed,
        )


def check_refusals(tap, folder):
    mapping = take_apart(os.path.join(ROOT, "traces", "h200_k64_3layers.h5"), folder, "flat")
    target = os.path.join(folder, "refused.h5")

    def refused(name, words, change, files=None):
        changed = json.loads(json.dumps(mapping))
        change(changed)
        done = run(write(folder, changed), "-o", target)
        one = (
            done.returncode == 2
            and done.stdout == ""
            and done.stderr.count("\n") == 1
            and done.stderr.startswith("import_trace: ")
        )
        left = [file for file in os.listdir(folder) if file.startswith("refused")]
        tap.check(
            one and not left and all(word in done.stderr for word in words), f"refused: {name}", f"{done}\n{left}"
        )

    refused("no schema", ("schema", "gdnsim.import/1"), lambda m: m.pop("schema"))
    refused("a packing that is not named", ("packing", "expected"), lambda m: m.pop("packing"))
    refused("an unknown key", ("inputs.q", "unknown"), lambda m: m["inputs"].update(q="r:q"))
    refused("an unknown model field", ("model.heads", "unknown"), lambda m: m["model"].update(heads=3))
    refused("a missing input", ("inputs.a", "found nothing"), lambda m: m["inputs"].pop("a"))
    refused("a missing array", ("r.npz", "'0.nothing'"), lambda m: m["inputs"].update(a="r:{layer}.nothing"))
    refused("a missing file", ("gone.npz", "no such file"), lambda m: m["files"].update(r="gone.npz"))
    refused("another kind of file", ("mapping.json", ".npz"), lambda m: m["files"].update(x="mapping.json"))
    refused("another type", ("conv_weight", "f32", "uint16"), lambda m: m["model"].update(act_dtype="f32"))
    refused("other heads", ("mixed_qkv", "shape"), lambda m: m["model"].update(num_k_heads=1))
    refused(
        "a transposition of too many axes",
        ("events.recurrent", "axes"),
        lambda m: m["events"]["recurrent"].update(transpose=[0, 1, 2, 3, 4]),
    )
    refused("an event beyond the steps", ("snapshots.step", "below 16"), lambda m: m["snapshots"].update(step="r:far"))
    np.savez(os.path.join(folder, "o.npz"), a=np.array([{"x": 1}], object))
    refused(
        "Python objects", ("o.npz", "objects"), lambda m: (m["files"].update(o="o.npz"), m["steps"].update(index="o:a"))
    )
    for name, data in (
        ("short", b"1234"),
        ("long", struct.pack("<Q", 1 << 40) + b"{}"),
        ("bad", struct.pack("<Q", 2) + b"{x"),
    ):
        with open(os.path.join(folder, f"{name}.safetensors"), "wb") as stream:
            stream.write(data)
        refused(
            f"a safetensors file with a {name} header",
            (f"{name}.safetensors",),
            lambda m, name=name: m["files"].update(x=f"{name}.safetensors"),
        )
    text = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 20]}}).encode()
    with open(os.path.join(folder, "beyond.safetensors"), "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text + bytes(16))
    refused(
        "safetensors data beyond the file",
        ("do not fit",),
        lambda m: (m["files"].update(x="beyond.safetensors"), m["inputs"].update(a="x:a")),
    )


def check_help(tap, folder):
    done = run("--example")
    tap.check(
        done.returncode == 0 and json.loads(done.stdout)["schema"] == "gdnsim.import/1",
        "an example mapping is printed",
        done,
    )
    done = run("--list", os.path.join(folder, "w.safetensors"))
    tap.check(done.returncode == 0 and "conv_weight  uint16  [" in done.stdout, "the arrays of a file are listed", done)


def main():
    tap = Tap()
    program = Program(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="gdnsim-test-") as folder:
        check_round_trip(tap, program, folder)
        check_refusals(tap, folder)
        check_help(tap, folder)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
