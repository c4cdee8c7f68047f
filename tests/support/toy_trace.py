"""Toy streams - a model, random inputs, sequences that come and go - and traces of what a toy engine made of them.

stream = make_stream(seed=3, model=Model(K=8, V=4))
run = run_engine(stream)                   toy_engine.py
write_trace("toy.h5", stream, run, snapshots="every")
"""

import dataclasses

import h5py
import numpy as np
from toy_step import Model, f32, log, to_type

ZERO, LOAD, COPY, FREE = range(4)
DEFAULT_TAPS = ("conv_out", "core_out", "norm_out")
INNER_TAPS = ("conv_acc", "q", "k", "beta", "g", "decay", "dot_k", "u", "rstd")
ACT_TAPS = DEFAULT_TAPS


@dataclasses.dataclass
class Stream:
    """What goes in. Inputs and params are lists over layers."""

    model: Model
    params: list
    inputs: list  # [L] of {"x": [T, B, dim], "a": [T, B, HV], "b", "z": [T, B, HV*V] (optional)}
    index: np.ndarray  # [T, B]
    sequence: np.ndarray  # [T, B]
    position: np.ndarray  # [T, B]
    events: list  # (step, layer, block, kind, source)
    loads: list  # (recurrent [HV, V, K], conv [W-1, dim])
    rows: np.ndarray | None = None
    path: np.ndarray | None = None

    @property
    def shape(self):
        return self.index.shape

    def inactive(self, t, row):
        present = self.index.shape[1] if self.rows is None else self.rows[t]
        return self.model.inactive(self.index[t, row], row, present)

    def row_inputs(self, t, layer, row):
        return {name: values[t, row] for name, values in self.inputs[layer].items()}

    def row_of(self, t, block):
        """The row that names a block in a step; -1: none."""
        rows = [row for row in range(self.shape[1]) if self.index[t, row] == block and not self.inactive(t, row)]
        return rows[0] if rows else -1


class Maker:
    """Random values of one seed in a model's stored types."""

    def __init__(self, seed, model):
        self.rng, self.model = np.random.default_rng(seed), model

    def normal(self, shape, scale=1.0, kind="f32", mean=0.0):
        return to_type((mean + scale * self.rng.standard_normal(shape)).astype(f32), kind)

    def params(self, bias):
        m = self.model
        made = {
            "A_log": log(self.rng.uniform(0.05, 1.6, m.HV).astype(f32)),
            "dt_bias": self.normal(m.HV, 0.7),
            "conv_weight": self.normal((m.dim, m.W), 0.5, m.act),
            "norm_weight": self.normal(m.V, 0.2, m.act, 1.0),
        }
        if bias:
            made["conv_bias"] = self.normal(m.dim, 0.3, m.act)
        return made

    def inputs(self, steps, rows, z):
        m = self.model
        sizes = {"x": m.dim, "a": m.HV, "b": m.HV, **({"z": m.HV * m.V} if z else {})}
        return {name: self.normal((steps, rows, n), 1.0, m.act) for name, n in sizes.items()}

    def state(self):
        m = self.model
        return self.normal((m.HV, m.V, m.K), 0.5, m.state), self.normal((m.W - 1, m.dim), 1.0, m.conv)


def schedule(steps, blocks, padding, change, pause):
    """index, sequence, position of three rows: 0 all the way; 1, then 3 from step `change`; 2 with pauses."""
    index = np.full((steps, 3), padding, np.int32)
    sequence = np.full((steps, 3), -1, np.int64)
    for t in range(steps):
        second = (blocks[1], 1) if t < change else (blocks[3], 3)
        third = (padding, -1) if t in pause else (blocks[2], 2)
        for row, (block, name) in enumerate([(blocks[0], 0), second, third]):
            index[t, row], sequence[t, row] = block, name
    return index, sequence


def positions(sequence):
    position, met = np.full(sequence.shape, -1, np.int32), {}
    for t, row in np.argwhere(sequence >= 0):
        name = sequence[t, row]
        position[t, row] = met.get(name, 0)
        met[name] = position[t, row] + 1
    return position


def make_stream(
    seed, model=None, steps=8, bias=False, z=True, change=None, pause=(2, 5), reuse=False, second="load", padding=None
):
    """Three rows; every block starts from a load of its own for each layer.

    Sequence 3 takes over row 1 at step `change`: on a block of its own, or (`reuse`) on sequence 1's, which is then
    loaded or (`second="zero"`) zeroed.
    """
    model = model or Model()
    make = Maker(seed, model)
    layers = len(model.layer_ids)
    first = 0 if model.sentinel == "minus_one" else 1
    chosen = first + make.rng.permutation(model.blocks - first)
    blocks = [*chosen[:3], chosen[1] if reuse else chosen[3]]
    padding = padding if padding is not None else {"nonpositive": 0, "zero": 0, "minus_one": -1}[model.sentinel]
    change = steps // 2 if change is None else change
    index, sequence = schedule(steps, blocks, padding, change, pause)
    places = make.rng.permutation(3)
    index, sequence = index[:, places].copy(), sequence[:, places].copy()
    events, loads = [], []

    def load(step, layer, block):
        events.append((step, layer, int(block), LOAD, len(loads)))
        loads.append(make.state())

    for layer in range(layers):
        for block in range(model.blocks):
            load(0, layer, block)
    if second == "zero":
        events.append((change, -1, int(blocks[3]), ZERO, -1))
    else:
        for layer in range(layers):
            load(change, layer, blocks[3])
    return Stream(
        model,
        [make.params(bias) for _ in range(layers)],
        [make.inputs(steps, 3, z) for _ in range(layers)],
        index,
        sequence,
        positions(sequence),
        events,
        loads,
    )


def stream_of(seed, model, index, rows=None, bias=False, z=True, start="load"):
    """A stream with a given index [T][B]; a block's number is its sequence. All blocks are loaded, or none ("zero")."""
    make = Maker(seed, model)
    index = np.array(index, np.int32)
    layers = range(len(model.layer_ids))
    stream = Stream(
        model,
        [make.params(bias) for _ in layers],
        [make.inputs(*index.shape, z) for _ in layers],
        index,
        np.full(index.shape, -1, np.int64),
        np.full(index.shape, -1, np.int32),
        [],
        [],
        rows,
    )
    for t, row in np.ndindex(index.shape):
        if not stream.inactive(t, row):
            stream.sequence[t, row] = index[t, row]
    stream.position = positions(stream.sequence)
    if start == "load":
        for layer in layers:
            for block in range(model.blocks):
                add_load(stream, 0, layer, block, make.state())
    return stream


def add_load(stream, t, layer, block, state):
    """A load event; events stay sorted by step."""
    stream.events.append((t, layer, block, LOAD, len(stream.loads)))
    stream.events.sort(key=lambda event: event[0])
    stream.loads.append(state)


def add_event(stream, t, layer, block, kind, source=-1):
    stream.events.append((t, layer, block, kind, source))
    stream.events.sort(key=lambda event: event[0])


def bf16_type():
    """The file type: 1 sign, 8 exponent and 7 mantissa bits, little-endian."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


def put(group, name, values, kind):
    """A dataset of a stored type; words are moved, never converted by HDF5."""
    values = np.ascontiguousarray(values)
    if kind == "bf16":
        words = (np.ascontiguousarray(values, f32).view(np.uint32) >> 16).astype("<u2")
        file_type = bf16_type()
    else:
        words = values.astype({"f32": "<f4", "f16": "<f2", "i8": "i1", "i32": "<i4", "i64": "<i8"}[kind], copy=False)
        file_type = h5py.h5t.py_create(words.dtype)
    space = h5py.h5s.create_simple(words.shape)
    made = h5py.h5d.create(group.id, name.encode(), file_type, space)
    if words.size:
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, words, mtype=file_type)


def put_model(group, model):
    ints = {
        "num_k_heads": model.H,
        "num_v_heads": model.HV,
        "head_k_dim": model.K,
        "head_v_dim": model.V,
        "conv_width": model.W,
        "num_blocks": model.blocks,
        "use_qk_l2norm": model.use_qk_l2norm,
    }
    texts = {
        "activation": model.activation,
        "state_dtype": model.state,
        "conv_state_dtype": model.conv,
        "act_dtype": model.act,
        "sentinel": model.sentinel,
        "norm_gate": model.norm_gate,
        "inactive_conv_out": model.inactive_conv_out,
        "inactive_core_out": model.inactive_core_out,
    }
    for name, value in ints.items():
        group.attrs[name] = np.int32(value)
    for name, value in texts.items():
        group.attrs[name] = np.bytes_(value)
    group.attrs["scale"] = f32(model.scale)
    group.attrs["norm_eps"] = f32(model.norm_eps)
    put(group, "layer_ids", np.array(model.layer_ids), "i32")


def put_stream(file, stream):
    model = stream.model
    put_model(file.create_group("model"), model)
    for layer, params in enumerate(stream.params):
        group = file.create_group(f"params/{layer}")
        for name, values in params.items():
            put(group, name, values, "f32" if name in ("A_log", "dt_bias") else model.act)
    steps = file.create_group("steps")
    put(steps, "index", stream.index, "i32")
    put(steps, "sequence", stream.sequence, "i64")
    put(steps, "position", stream.position, "i32")
    if stream.rows is not None:
        put(steps, "rows", stream.rows, "i32")
    if stream.path is not None:
        put(steps, "path", stream.path, "i8")
    for layer, inputs in enumerate(stream.inputs):
        group = steps.create_group(str(layer))
        for name, values in inputs.items():
            put(group, "mixed_qkv" if name == "x" else name, values, model.act)
    put_events(file.create_group("events"), stream)


def put_events(group, stream):
    model, events = stream.model, np.array(stream.events, np.int64).reshape(-1, 5)
    for at, (name, kind) in enumerate(
        [("step", "i32"), ("layer", "i32"), ("block", "i32"), ("kind", "i8"), ("source", "i32")]
    ):
        put(group, name, events[:, at], kind)
    put(group, "recurrent", stacked([r for r, _ in stream.loads], (model.HV, model.V, model.K)), model.state)
    put(group, "conv", stacked([c for _, c in stream.loads], (model.W - 1, model.dim)), model.conv)


def stacked(rows, shape):
    return np.stack(rows) if rows else np.zeros((0, *shape), f32)


def snapshot_steps(how, steps):
    """`every` step, every fifth (4, 9, ...) and the last, only the `last`, or a list."""
    if isinstance(how, str):
        chosen = {"every": range(steps), "fifth": range(4, steps, 5), "last": ()}[how]
        return sorted({*chosen, steps - 1})
    return list(how)


def put_recorded(group, stream, run, taps, snapshots):
    model = stream.model
    for layer, made in enumerate(run.taps):
        one = group.create_group(str(layer))
        for name in taps:
            if name in made:
                put(one, name, made[name], model.act if name in ACT_TAPS else "f32")
    places = [
        (t, layer, block)
        for t in snapshot_steps(snapshots, stream.shape[0])
        for layer in range(len(run.taps))
        for block in run.blocks(stream)
    ]
    if not places:
        return
    state = group.create_group("state")
    for at, name in enumerate(("step", "layer", "block")):
        put(state, name, np.array([place[at] for place in places]), "i32")
    states = [run.snapshot(place) for place in places]
    put(state, "recurrent", np.stack([r for r, _ in states]), model.state)
    put(state, "conv", np.stack([c for _, c in states]), model.conv)


def write_trace(path, stream, run, taps=DEFAULT_TAPS, snapshots="every"):
    with h5py.File(path, "w") as file:
        file.attrs["format"] = np.bytes_("gdnsim-trace")
        file.attrs["version"] = np.int32(1)
        put_stream(file, stream)
        put_recorded(file.create_group("recorded"), stream, run, taps, snapshots)
        file.create_group("provenance").attrs["engine"] = np.bytes_("toy")
        file.attrs["complete"] = np.int32(1)
    return path
