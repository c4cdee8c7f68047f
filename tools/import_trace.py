#!/usr/bin/env python3
"""Makes a trace of arrays in .npz, .safetensors or .pt files; a mapping says which array is what (docs/capture.md).

    tools/import_trace.py mapping.json -o rollout.h5
    tools/import_trace.py --example          prints a mapping to start from
    tools/import_trace.py --list FILE        the arrays of a file

Words are moved, never converted: an array of another type than the mapping's model says is refused.
"""

import argparse
import dataclasses
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np  # noqa: E402
from gdnsim_trace.arrays import open_arrays  # noqa: E402
from gdnsim_trace.bits import narrowed, widened  # noqa: E402
from gdnsim_trace.model import LOAD, TAPS, Model, TraceError  # noqa: E402
from gdnsim_trace.writer import TraceWriter  # noqa: E402

SCHEMA = "gdnsim.import/1"
EXAMPLE = {
    "schema": SCHEMA,
    "model": {
        "num_k_heads": 16,
        "num_v_heads": 32,
        "head_k_dim": 128,
        "head_v_dim": 128,
        "conv_width": 4,
        "layer_ids": [0, 1, 2, 4],
        "num_blocks": 9,
        "state_dtype": "f32",
        "conv_state_dtype": "bf16",
        "act_dtype": "bf16",
        "norm_eps": 1e-6,
    },
    "packing": "flat",
    "files": {"w": "weights.safetensors", "r": "rollout.npz"},
    "params": {
        "A_log": "w:layers.{layer_id}.A_log",
        "dt_bias": "w:layers.{layer_id}.dt_bias",
        "conv_weight": {"array": "w:layers.{layer_id}.conv1d.weight", "reshape": [8192, 4]},
        "norm_weight": "w:layers.{layer_id}.norm.weight",
    },
    "steps": {"index": "r:index", "sequence": "r:request"},
    "inputs": {"mixed_qkv": "r:{layer}.mixed_qkv", "a": "r:{layer}.a", "b": "r:{layer}.b", "z": "r:{layer}.z"},
    "recorded": {"core_out": "r:{layer}.core_out"},
    "events": {
        "step": "r:ev.step",
        "layer": "r:ev.layer",
        "block": "r:ev.block",
        "kind": "r:ev.kind",
        "source": "r:ev.source",
        "recurrent": {"array": "r:ev.recurrent", "transpose": [0, 1, 3, 2]},
        "conv": "r:ev.conv",
    },
    "snapshots": {
        "step": "r:st.step",
        "layer": "r:st.layer",
        "block": "r:st.block",
        "recurrent": "r:st.recurrent",
        "conv": "r:st.conv",
    },
    "provenance": {"engine": "which made it"},
}
STEP_ARRAYS, EVENT, SNAPSHOT = (
    ("index", "sequence", "rows", "path", "token", "position"),
    ("step", "layer", "block", "kind", "source"),
    ("step", "layer", "block"),
)
ALLOWED = {
    "params": ("A_log", "dt_bias", "conv_weight", "conv_bias", "norm_weight"),
    "steps": STEP_ARRAYS,
    "inputs": ("mixed_qkv", "a", "b", "z"),
    "recorded": TAPS,
    "events": (*EVENT, "recurrent", "conv"),
    "snapshots": (*SNAPSHOT, "recurrent", "conv"),
}
NEEDED = {
    "params": ("A_log", "dt_bias", "conv_weight"),
    "steps": ("index", "sequence"),
    "inputs": ("mixed_qkv", "a", "b"),
}


class Mapping:
    def __init__(self, path):
        self.path = path
        try:
            with open(path, encoding="utf-8") as stream:
                self.data = json.load(stream)
        except (OSError, ValueError) as problem:
            raise TraceError(f"{path}: cannot be read: {problem}") from None
        self.check()
        folder = os.path.dirname(os.path.abspath(path))
        self.files = {name: open_arrays(os.path.join(folder, file)) for name, file in self.data["files"].items()}
        self.model = self.read_model()

    def check(self):
        if not isinstance(self.data, dict) or self.data.get("schema") != SCHEMA:
            raise TraceError(f"{self.path}: schema: expected {SCHEMA}")
        known = {"schema", "model", "packing", "files", "provenance", *ALLOWED}
        for key in (*self.data, *(f"{part}.{key}" for part in ALLOWED for key in self.data.get(part, {}))):
            part, _, name = key.partition(".")
            if part not in known or (name and name not in ALLOWED[part]):
                raise TraceError(
                    f"{self.path}: {key}: unknown; expected one of "
                    f"{', '.join(ALLOWED[part] if name else sorted(known))}"
                )
        for part, names in {**NEEDED, "": ("model", "files", "packing")}.items():
            for name in names:
                if name not in (self.data.get(part, {}) if part else self.data):
                    raise TraceError(f"{self.path}: {part + '.' if part else ''}{name}: expected, found nothing")
        if self.data["packing"] not in ("flat", "interleaved"):
            raise TraceError(
                f"{self.path}: packing: expected flat (q | k | v) or interleaved (key head by key head), "
                f"found {self.data['packing']!r}"
            )

    def read_model(self):
        fields = {field.name for field in dataclasses.fields(Model)}
        unknown = sorted(set(self.data["model"]) - fields)
        if unknown:
            raise TraceError(f"{self.path}: model.{unknown[0]}: unknown; expected one of {', '.join(sorted(fields))}")
        try:
            return Model(**self.data["model"])
        except TypeError as problem:
            raise TraceError(f"{self.path}: model: {problem}") from None

    def has(self, part, name):
        return name in self.data.get(part, {})

    def get(self, part, name, layer=0):
        """The array, reshaped and transposed as its entry says."""
        entry = self.data[part][name]
        entry = {"array": entry} if isinstance(entry, str) else entry
        where = f"{self.path}: {part}.{name}"
        file, _, array = str(entry.get("array")).partition(":")
        array = array.replace("{layer}", str(layer)).replace("{layer_id}", str(self.model.layer_ids[layer]))
        if file not in self.files:
            raise TraceError(
                f"{where}: expected FILE:ARRAY with a file of {', '.join(self.files)}, found {entry.get('array')!r}"
            )
        if array not in self.files[file].names():
            raise TraceError(f"{where}: {self.files[file].path}: expected an array {array!r}, found nothing")
        found = self.files[file].get(array)
        try:
            found = found.reshape(entry["reshape"]) if "reshape" in entry else found
            return found.transpose(entry["transpose"]) if "transpose" in entry else found
        except ValueError as problem:
            raise TraceError(f"{where}: shape {found.shape}: {problem}") from None

    def numbers(self, part, name, shape):
        found = self.get(part, name)
        if found.dtype.kind not in "iu" or found.shape != shape:
            raise TraceError(
                f"{self.path}: {part}.{name}: expected whole numbers of shape {shape}, "
                f"found {found.dtype} of {found.shape}"
            )
        return found.astype(np.int64)

    def words(self, part, name, layer, kind):
        """bf16 as it came; f32 parameters exactly widened from what the file holds."""
        found = self.get(part, name, layer)
        if part == "params" and kind == "f32":
            return widened(found, f"{self.path}: {part}.{name}")
        if part == "params" and found.dtype != np.uint16:
            return narrowed(found, kind, f"{self.path}: {part}.{name}")
        return found


def flat_order(model):
    """Where each channel of a flat q | k | v row lies in an interleaved one: [H] of q[K], k[K], v[HV/H * V]."""
    keys, values = model.head_k_dim, model.num_v_heads // model.num_k_heads * model.head_v_dim
    width = 2 * keys + values
    parts = ((0, keys), (keys, 2 * keys), (2 * keys, width))
    return np.concatenate(
        [
            np.arange(head * width + begin, head * width + end)
            for begin, end in parts
            for head in range(model.num_k_heads)
        ]
    )


class Import:
    def __init__(self, mapping, output, force):
        self.mapping, self.model = mapping, mapping.model
        model, has = self.model, mapping.has
        index = mapping.get("steps", "index")
        if index.ndim != 2:
            raise TraceError(f"{mapping.path}: steps.index: expected shape [steps, rows], found {index.shape}")
        self.T, self.B = index.shape
        shapes = {"rows": (self.T,), "path": (self.T,)}
        self.plan = {
            name: mapping.numbers("steps", name, shapes.get(name, (self.T, self.B)))
            for name in STEP_ARRAYS
            if has("steps", name)
        }
        self.taps = [tap for tap in TAPS if has("recorded", tap)]
        kinds = {**model.input_shapes(has("inputs", "z")), **{tap: model.tap_shape(tap) for tap in self.taps}}
        self.layers = [
            {
                name: self.stepped("recorded" if name in self.taps else "inputs", name, layer, *kind)
                for name, kind in kinds.items()
            }
            for layer in range(model.layers)
        ]
        params = [
            {
                name: mapping.words("params", name, layer, kind)
                for name, (kind, *_) in model.param_shapes().items()
                if has("params", name)
            }
            for layer in range(model.layers)
        ]
        self.trace = TraceWriter(
            output, model, params, self.B, self.taps, has("inputs", "z"), force, mapping.data.get("provenance")
        )

    def stepped(self, part, name, layer, kind, shape):
        """[T, B, ...]; channels in flat order."""
        found = self.mapping.words(part, name, layer, kind)
        where = f"{self.mapping.path}: {part}.{name} of layer {layer}"
        if found.shape[:2] != (self.T, self.B) or found.size != self.T * self.B * int(np.prod(shape)):
            raise TraceError(f"{where}: expected shape {(self.T, self.B, *shape)}, found {found.shape}")
        if name == "mixed_qkv" and self.mapping.data["packing"] == "interleaved":
            found = found[..., flat_order(self.model)]
        return found.reshape(self.T, self.B, *shape)

    def table(self, part, names):
        if not self.mapping.data.get(part):
            return []
        count = self.mapping.get(part, "step").shape
        rows = list(zip(*(self.mapping.numbers(part, name, count).tolist() for name in names)))
        wrong = [row[0] for row in rows if not 0 <= row[0] < self.T]
        if wrong:
            raise TraceError(f"{self.mapping.path}: {part}.step: expected steps below {self.T}, found {wrong[0]}")
        return rows

    def run(self):
        events, snapshots = self.table("events", EVENT), self.table("snapshots", SNAPSHOT)
        states = {
            part: [self.mapping.get(part, name) for name in ("recurrent", "conv")]
            for part in ("events", "snapshots")
            if self.mapping.has(part, "recurrent")
        }
        for step in range(self.T):
            for _, layer, block, kind, source in (event for event in events if event[0] == step):
                if kind == LOAD:
                    self.trace.load(layer, block, *(self.row("events", words, source) for words in states["events"]))
                else:
                    self.trace.event(kind, layer, block, source)
            self.step(step)
            for at, (after, layer, block) in enumerate(snapshots):
                if after == step:
                    self.trace.snapshot(
                        layer, block, *(self.row("snapshots", words, at) for words in states["snapshots"])
                    )
        self.trace.close()
        return self.T

    def row(self, part, words, at):
        if not 0 <= at < len(words):
            raise TraceError(f"{self.mapping.path}: {part}: expected a row below {len(words)}, found {at}")
        return words[at]

    def step(self, step):
        plan = {name: values[step] for name, values in self.plan.items()}
        rows = int(plan.get("rows", self.B))
        layers = [{name: values[step][:rows] for name, values in layer.items()} for layer in self.layers]
        more = {name: plan[name][:rows] for name in ("token", "position") if name in plan}
        self.trace.step(plan["index"][:rows], plan["sequence"][:rows], layers, int(plan.get("path", 0)), **more)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mapping", nargs="?")
    parser.add_argument("-o", "--output")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument("--example", action="store_true", help="print a mapping to start from")
    parser.add_argument("--list", metavar="FILE", help="print the arrays of a file")
    arguments = parser.parse_args()
    try:
        if arguments.example:
            print(json.dumps(EXAMPLE, indent=2))
            return 0
        if arguments.list:
            arrays = open_arrays(arguments.list)
            for name in arrays.names():
                found = arrays.get(name)
                print(f"{name}  {found.dtype}  {list(found.shape)}")
            return 0
        if not arguments.mapping or not arguments.output:
            parser.error("expected MAPPING -o FILE")
        work = Import(Mapping(arguments.mapping), arguments.output, arguments.force)
        try:
            print(f"{arguments.output}: {work.run()} steps")
        except BaseException:
            work.trace.discard()
            raise
    except (TraceError, OSError) as problem:
        print(f"import_trace: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
