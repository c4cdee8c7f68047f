"""Makes a trace out of a spool's committed records: HDF5 lays the file out, then the words go in with plain writes.

Used by TraceWriter.close and by `recover` alike, so what a kill leaves goes the same way as everything else. The trace
appears under its name only when it is whole.
"""

import os

import numpy as np

from .hdf5 import Layout
from .model import ALLOCATE, LOAD, Model, TraceError
from .spool import SpoolReader


ROWS = {"token": -1, "position": -1, "source": -1, "accepted": 0}  # optional words of each row, and what absent ones are


def layer_datasets(model, taps, z, layer_extra):
    """[(folder, name, type, shape of a row)] of one layer, in the order of a step record."""
    found = [("steps", name, *shape) for name, shape in model.input_shapes(z).items()]
    found += [("recorded", tap, *model.tap_shape(tap)) for tap in taps]
    return found + [("steps", name, "i32", ()) for name in layer_extra]


class Contents:
    """What the committed records add up to."""

    def __init__(self, spool):
        self.start, self.steps, self.loads, self.snapshots, self.events, self.reasons = None, [], [], [], [], []
        self.changes, self.provenance = {}, {}
        waiting = []  # loads of the step to come: they count only when it does
        for record in spool.records():
            kind = record.head["kind"]
            if kind == "start":
                self.start, self.provenance = record, record.head["provenance"]
            elif kind == "load":
                waiting.append(record)
            elif kind == "step":
                self.add_events(record.head["events"], waiting)
                waiting = []
                self.steps.append(record)
            elif kind == "snapshot":
                self.snapshots.append(record)
            elif kind == "end":
                self.changes, self.provenance = record.head["model"], record.head["provenance"]
        self.snapshots = [record for record in self.snapshots if record.head["step"] < len(self.steps)]
        if self.start is None or not self.steps:
            raise TraceError(f"{spool.path}: holds no complete step")

    def add_events(self, events, waiting):
        for event in events:
            layer, block, kind, source = event[:4]
            self.reasons.append(tuple(event[4:]) or (-1, 0))
            if kind == LOAD:
                source = len(self.loads)
                self.loads.append(waiting.pop(0))
            self.events.append((len(self.steps), layer, block, kind, source))

    def has(self, name):
        """Does any step say so? Spools of before have no such word."""
        return any(step.head.get(name) for step in self.steps)

    def version(self):
        reasons = any(reason != (-1, 0) for reason in self.reasons) or any(event[3] == ALLOCATE for event in self.events)
        launches = any(self.has(name) for name in ("draft", "source", "accepted"))
        return 2 if launches or reasons else self.model().version

    def model(self):
        model = Model(**{**self.start.head["model"], **self.changes})
        if model.num_blocks is None:
            named = [record.head["blocks"] for record in self.steps] + [event[2] for event in self.events]
            model.num_blocks = max(2, 1 + max(named, default=0))
        return model


class Finisher:
    def __init__(self, spool, contents, layout):
        self.spool, self.contents, self.layout = spool, contents, layout
        self.head, self.model = contents.start.head, contents.model()
        self.T, self.B = len(contents.steps), self.head["rows"]
        self.datasets = layer_datasets(self.model, self.head["taps"], self.head["z"], self.head["layer_extra"])
        self.optional = [name for name in ROWS if contents.has(name)]

    def lay_out(self):
        add = self.layout.add
        self.layout.attributes(self.model)
        add("model/layer_ids", "i32", (self.model.layers,), np.array(self.model.layer_ids, np.int32))
        add("steps/index", "i32", (self.T, self.B))
        add("steps/sequence", "i64", (self.T, self.B))
        heads = [step.head for step in self.contents.steps]
        add("steps/rows", "i32", (self.T,), np.array([head["rows"] for head in heads], np.int32))
        if any(head["path"] for head in heads):
            add("steps/path", "i8", (self.T,), np.array([head["path"] for head in heads], np.int8))
        if self.contents.has("draft"):
            add("steps/draft", "i8", (self.T,), np.array([head.get("draft", 0) for head in heads], np.int8))
        for at, name in enumerate(self.head["extra"]):
            add(f"steps/{name}", "i32", (self.T,), np.array([head["extra"][at] for head in heads], np.int32))
        for name in self.optional:
            add(f"steps/{name}", "i32", (self.T, self.B))
        for layer in range(self.model.layers):
            for folder, name, kind, shape in self.datasets:
                add(f"{folder}/{layer}/{name}", kind, (self.T, self.B, *shape))
        self.lay_out_params()
        self.lay_out_states()
        self.layout.provenance(self.contents.provenance)

    def lay_out_params(self):
        shapes, at = self.model.param_shapes(), self.contents.start.offset
        for layer, names in enumerate(self.head["params"]):
            for name in names:
                kind, shape, _ = shapes[name]
                at = self.layout.add_copied(f"params/{layer}/{name}", kind, shape, self.spool, at)

    def lay_out_states(self):
        contents = self.contents
        if contents.events:
            self.table("events", ("step", "layer", "block", "kind", "source"), contents.events)
            if contents.version() > 1:
                self.table("events", ("sequence", "why"), contents.reasons)
            self.states("events", len(contents.loads))
        if contents.snapshots:
            rows = [tuple(record.head[name] for name in ("step", "layer", "block")) for record in contents.snapshots]
            self.table("recorded/state", ("step", "layer", "block"), rows)
            self.states("recorded/state", len(rows))

    def table(self, folder, names, rows):
        for name, column in zip(names, zip(*rows)):
            kind, dtype = {
                "kind": ("i8", np.int8),
                "why": ("i8", np.int8),
                "sequence": ("i64", np.int64),
            }.get(name, ("i32", np.int32))
            self.layout.add(f"{folder}/{name}", kind, (len(rows),), np.array(column, dtype))

    def states(self, folder, count):
        if count:
            self.layout.add(f"{folder}/recurrent", self.model.state_dtype, (count, *self.model.state_shape))
            self.layout.add(f"{folder}/conv", self.model.conv_state_dtype, (count, *self.model.conv_shape))

    def fill(self):
        for step, record in enumerate(self.contents.steps):
            self.fill_step(step, record)
        for folder, records in (("events", self.contents.loads), ("recorded/state", self.contents.snapshots)):
            for row, record in enumerate(records):
                at = self.layout.copy_row(f"{folder}/recurrent", row, self.spool, record.offset)
                self.layout.copy_row(f"{folder}/conv", row, self.spool, at)

    def fill_step(self, step, record):
        at = record.offset
        for name in ("index", "sequence"):
            at = self.layout.copy_row(f"steps/{name}", step, self.spool, at)
        for name, absent in ROWS.items():
            if record.head.get(name):
                at = self.layout.copy_row(f"steps/{name}", step, self.spool, at)
            elif name in self.optional:
                self.layout.put_row(f"steps/{name}", step, np.full(self.B, absent, np.int32))
        for layer in range(self.model.layers):
            for folder, name, _, _ in self.datasets:
                at = self.layout.copy_row(f"{folder}/{layer}/{name}", step, self.spool, at)


def require_room(temporary, spool, contents):
    """A disk that is too full fails here, in one plain call: some HDF5 versions do not survive it."""
    datasets = 32 + contents.model().layers * 32
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.posix_fallocate(file, 0, spool.length + 1024 * datasets)
    finally:
        os.close(file)


def finish(partial, path, force=False):
    """The trace of a spool, at `path`. Returns its number of steps. The spool stays."""
    if os.path.lexists(path) and not force:
        raise TraceError(f"{path}: already exists (force replaces it)")
    spool = SpoolReader(partial)
    temporary = path + ".writing"
    try:
        contents = Contents(spool)
        require_room(temporary, spool, contents)
        with Layout(temporary, path, contents.version()) as layout:
            finisher = Finisher(spool, contents, layout)
            finisher.lay_out()
            layout.begin_filling()
            finisher.fill()
            layout.complete()
        os.replace(temporary, path)
        return len(contents.steps)
    except OSError as problem:
        why = os.strerror(problem.errno) if problem.errno else str(problem).splitlines()[0]
        raise TraceError(f"{path}: cannot be written: {why}; {partial} keeps every step") from None
    finally:
        spool.close()
        if os.path.exists(temporary):
            os.remove(temporary)
