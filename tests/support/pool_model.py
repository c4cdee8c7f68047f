"""The pool as a dictionary, (layer, block) -> the two states, and what a stream does to it; shares nothing with src/. Writes the trace."""

import dataclasses

import h5py
import numpy as np

from digest_vectors import C, MASK, block_digest, mix
from pool_layouts import Flat
from random_stream import ALLOCATE, COPY, LOAD, OPAQUE, ZERO
from toy_step import GOLDEN, f32, inactive_row, row_step, to_type
from toy_trace import put, put_model, stacked

TAPS = ("conv_out", "core_out", "norm_out")
SIZES = {"f32": 4, "bf16": 2}


def words(values, kind):
    values = np.ascontiguousarray(values, f32)
    return values.tobytes() if kind == "f32" else (values.view(np.uint32) >> 16).astype("<u2").tobytes()


class RightEngine:
    """Does everything right; one that does not overrides this. States are pairs: recurrent, conv."""

    def event(self, pool, layer, event):
        """True: the event was dealt with."""
        return False

    def read(self, place, states, before):
        """What the row (step, layer, row) goes on from. before: (layer, block) -> states, before the step."""
        return states

    def write(self, place, block, states, before):
        """What is stored of it: pairs of block and states; None: that part stays."""
        return [(block, states)]

    def after(self, step, layer, pool):
        """When the step's rows are done."""


class Forgetful(RightEngine):
    def __init__(self, event):
        self.lost = event

    def event(self, pool, layer, event):
        return event == self.lost


class PoolModel:
    """Plays a stream as an engine does."""

    def __init__(self, stream, engine=None):
        self.stream, self.engine = stream, engine or RightEngine()
        m = stream.model
        self.zero = (np.zeros((m.HV, m.V, m.K), f32), np.zeros((m.W - 1, m.dim), f32))
        self.states, self.digests = {}, {}
        self.poisoned = {(layer, block) for layer in range(stream.layers) for block in range(m.blocks)}
        self.first_poison = None  # (step, layer, row, block) of the first row that goes on from a block nobody filled
        self.taps = [{} for _ in range(stream.layers)]
        self.around = []  # of each event: {layer: (digest before, digest after)}
        self.pools = []  # of each step: {layer: digest of the pool}
        self.after = []  # of each step: the states
        self.carried = {}  # (layer, row): the state before its store rounded it, for the next candidate of a launch
        events = 0
        for t in range(len(stream.plans)):
            while events < len(stream.events) and stream.events[events][0] == t:
                self.apply(events)
                events += 1
            for layer in range(stream.layers):
                self.step(t, layer)
            self.after.append(dict(self.states))
            self.pools.append({layer: self.pool_digest(layer) for layer in range(stream.layers)})

    def at(self, layer, block):
        return self.states.get((layer, block), self.zero)

    def digest(self, layer, block):
        state, m = self.at(layer, block), self.stream.model
        if id(state) not in self.digests:  # the state is kept beside it, so that its id is not given again
            data = words(state[0], m.state), words(state[1], m.conv)
            self.digests[id(state)] = block_digest(*data, m.HV, m.K * SIZES[m.state], m.dim * SIZES[m.conv])[2], state
        return self.digests[id(state)][0]

    def pool_digest(self, layer):
        blocks = range(self.stream.model.blocks)
        return sum(mix((self.digest(layer, block) + (block + 1) * C) & MASK) for block in blocks) & MASK

    def apply(self, event):
        _, only, block, kind, source, *_ = self.stream.events[event]
        around = {}
        for layer in range(self.stream.layers) if only < 0 else [only]:
            before, place = self.digest(layer, block), (layer, block)
            if not self.engine.event(self, layer, event) and kind in (ZERO, LOAD, COPY):
                self.states[place] = {ZERO: lambda: self.zero, LOAD: lambda: self.stream.loads[source],
                                      COPY: lambda: self.at(layer, source)}[kind]()
            if kind == ALLOCATE or kind == COPY and (layer, source) in self.poisoned:
                self.poisoned.add(place)
            elif kind in (ZERO, LOAD, COPY):
                self.poisoned.discard(place)
            around[layer] = before, self.digest(layer, block)
        self.around.append(around)

    def step(self, t, layer):
        """Every row reads the pool as it was before the step."""
        plan, m = self.stream.plans[t], self.stream.model
        if plan.path == OPAQUE:
            return
        written, cleaned, before = [], set(), dict(self.states)
        for row in range(self.stream.rows):
            inputs = {name: values[t, row] for name, values in self.stream.inputs[layer].items()}
            if m.inactive(plan.index[row], row, plan.present):
                made = inactive_row(m, self.stream.params[layer], inputs)
            else:
                block = int(plan.index[row])
                made, states = self.active_row((t, layer, row), block, inputs, before)
                written += self.engine.write((t, layer, row), block, states, before)
                cleaned.add((layer, block))
            for tap in TAPS:
                shape = (len(self.stream.plans), self.stream.rows, *made[tap].shape)
                self.taps[layer].setdefault(tap, np.zeros(shape, f32))[t, row] = made[tap]
        for block, states in written:
            self.put(layer, block, states)
        self.poisoned -= cleaned
        self.engine.after(t, layer, self)

    def put(self, layer, block, states):
        """Stores both states, or the one that is not None."""
        self.states[layer, block] = tuple(old if new is None else new for new, old in zip(states, self.at(layer, block)))

    def active_row(self, place, block, inputs, before):
        t, layer, row = place
        plan, m = self.stream.plans[t], self.stream.model
        source = block if plan.source is None or plan.source[row] < 0 else int(plan.source[row])
        if self.first_poison is None and (layer, source) in self.poisoned:
            self.first_poison = t, layer, row, source
        recurrent, conv = self.engine.read(place, self.at(layer, source), before)
        if plan.draft > 0 and m.state != "f32":
            recurrent = self.carried[layer, row]
        wide = dataclasses.replace(m, state="f32")
        made, state, window = row_step(wide, GOLDEN, self.stream.params[layer], inputs, recurrent, conv)
        self.carried[layer, row] = state
        return made, (to_type(state, m.state), window)


def put_steps(group, stream, layout):
    def column(name, kind, of):
        put(group, name, np.array([of(plan) for plan in stream.plans]), kind)

    column("index", "i32", lambda plan: plan.index)
    column("sequence", "i64", lambda plan: plan.sequence)
    column("rows", "i32", lambda plan: plan.present)
    column("path", "i8", lambda plan: plan.path)
    if stream.version == 2:
        column("draft", "i8", lambda plan: plan.draft)
        column("source", "i32", lambda plan: plan.source)
        if all(plan.accepted is not None for plan in stream.plans):
            column("accepted", "i32", lambda plan: plan.accepted)
    for name, values in layout.tables(stream).items():
        put(group, name, values, "i32")


def put_states(group, states, model, layout):
    """Both states of each, and where the window begins."""
    put(group, "recurrent", stacked([state for state, _ in states], (model.HV, model.V, model.K)), model.state)
    windows, first = layout.windows(stacked([window for _, window in states], (model.W - 1, model.dim)))
    put(group, "conv", windows, model.conv)
    if first is not None:
        put(group, "conv_offset", first, "i32")


def put_events(group, stream, layout):
    names = [("step", "i32"), ("layer", "i32"), ("block", "i32"), ("kind", "i8"), ("source", "i32"), ("sequence", "i64"), ("why", "i8")]
    for at, (name, kind) in enumerate(names[: 5 if stream.version == 1 else 7]):
        put(group, name, np.array(stream.events, np.int64)[:, at], kind)
    put_states(group, stream.loads, stream.model, layout)


def put_snapshots(group, stream, model, every_block, layout):
    """Some blocks now and then, and all of them after the last step that runs; or all of them after every step."""
    rng, ran = np.random.default_rng(stream.seed + 7), [t for t, plan in enumerate(stream.plans) if plan.path != OPAQUE]
    places = [(t, layer, block) for t in ran for layer in range(stream.layers) for block in range(stream.model.blocks)
              if every_block or t == ran[-1] or rng.random() < 0.35]
    for at, name in enumerate(("step", "layer", "block")):
        put(group, name, np.array([place[at] for place in places]), "i32")
    put_states(group, [model.after[t].get((layer, block), model.zero) for t, layer, block in places], stream.model, layout)


def write_trace(path, stream, model, every_block=False, layout=None):
    layout = layout or Flat()
    with h5py.File(path, "w") as file:
        file.attrs["format"], file.attrs["version"] = np.bytes_("gdnsim-trace"), np.int32(stream.version)
        put_model(file.create_group("model"), stream.model)
        file["model"].attrs.update(layout.attributes)
        for layer in range(stream.layers):
            for name, values in stream.params[layer].items():
                group = file.require_group(f"params/{layer}")
                put(group, name, values, "f32" if name in ("A_log", "dt_bias") else stream.model.act)
            for name, values in layout.inputs(stream.inputs[layer]).items():
                put(file.require_group(f"steps/{layer}"), name, values, stream.model.act)
            for name, values in model.taps[layer].items():
                put(file.require_group(f"recorded/{layer}"), name, values, stream.model.act)
        put_steps(file["steps"], stream, layout)
        if stream.events:
            put_events(file.create_group("events"), stream, layout)
        put_snapshots(file.create_group("recorded/state"), stream, model, every_block, layout)
        file.attrs["complete"] = np.int32(1)
