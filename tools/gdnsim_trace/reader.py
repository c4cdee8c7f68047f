"""The stored words of a trace, for scripts: bf16 comes as uint16 (bits.py turns words into numbers)."""

import h5py
import numpy as np

from .hdf5 import ATTRIBUTES, STRIDES, TEXTS, kind_of, read_words
from .layouts import Layouts
from .model import Model, TraceError


def plain(value):
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value


class TraceReader:
    """trace.model, trace.steps, trace.rows; params(layer), plan(step), input(name, step, layer), tap(name, step,
    layer), events, load_row(source), snapshots, snapshot(at); of version 2 also reasons, (sequence, why) of each event.
    Whatever the file's layout, inputs are flat and conv states windows. Nothing beyond format, version and presence is
    checked: that is `gdnsim verify`."""

    def __init__(self, path):
        self.path = str(path)
        try:
            self.file = h5py.File(self.path, "r")
        except OSError as problem:
            raise TraceError(f"{path}: not an HDF5 file ({problem})") from None
        attributes = {name: plain(value) for name, value in self.file.attrs.items()}
        if (
            attributes.get("format") != "gdnsim-trace"
            or attributes.get("version") not in (1, 2)
            or attributes.get("complete") != 1
        ):
            raise TraceError(f"{path}: expected a complete gdnsim-trace of version 1 or 2, found {attributes}")
        self.version = attributes["version"]
        self.model, self.layouts = self.read_model()
        self.steps, self.rows = self.get("steps/index").shape
        self.events = list(zip(*self.columns("events", ("step", "layer", "block", "kind", "source"))))
        self.reasons = self.read_reasons()
        self.snapshots = list(zip(*self.columns("recorded/state", ("step", "layer", "block"))))

    def get(self, path):
        if path not in self.file:
            raise TraceError(f"{self.path}: /{path}: expected a dataset, found nothing")
        return self.file[path]

    def read_model(self):
        known = {name: plain(value) for name, value in self.get("model").attrs.items()}
        names = (*ATTRIBUTES, *TEXTS, *STRIDES, "scale", "norm_eps")
        model = Model(
            layer_ids=self.get("model/layer_ids")[()].tolist(), **{name: known[name] for name in names if name in known}
        )
        return model, Layouts(model, known if self.version > 1 else {}, self.path)

    def read_reasons(self):
        """(sequence, why) of each event; (-1, 0) where the file does not say."""
        count = len(self.events)
        found = [
            self.get(f"events/{name}")[()].tolist() if f"events/{name}" in self.file else [absent] * count
            for name, absent in (("sequence", -1), ("why", 0))
        ]
        return list(zip(*found))

    def columns(self, folder, names):
        return [self.get(f"{folder}/{name}")[()].tolist() for name in names] if f"{folder}/step" in self.file else []

    def has(self, path):
        return path in self.file

    def params(self, layer):
        return {name: read_words(dataset) for name, dataset in self.get(f"params/{layer}").items()}

    def plan(self, step):
        """{"index", "sequence", "rows", "path", and what else /steps has of a step}."""
        found = {name: data[step] for name, data in self.get("steps").items() if isinstance(data, h5py.Dataset)}
        return {"rows": self.rows, "path": 0, **found}

    def words(self, path, row=None):
        return read_words(self.get(path), row)

    def kind(self, path):
        return kind_of(self.get(path))

    def input(self, name, step, layer):
        return self.layouts.input(name, self.words(f"steps/{layer}/{self.layouts.dataset(name)}", step))

    def has_input(self, name, layer=0):
        return f"steps/{layer}/{self.layouts.dataset(name)}" in self.file

    def tap(self, name, step, layer):
        return self.words(f"recorded/{layer}/{name}", step)

    def taps(self, layer=0):
        return list(self.file[f"recorded/{layer}"]) if f"recorded/{layer}" in self.file else []

    def load_row(self, source):
        return self.state("events", source)

    def state(self, folder, at):
        offset = int(self.file[f"{folder}/conv_offset"][at]) if f"{folder}/conv_offset" in self.file else 0
        return self.words(f"{folder}/recurrent", at), self.layouts.window(self.words(f"{folder}/conv", at), offset)

    def snapshot(self, at):
        return self.state("recorded/state", at)

    def provenance(self):
        return (
            {name: plain(value) for name, value in self.file["provenance"].attrs.items()}
            if "provenance" in self.file
            else {}
        )

    def close(self):
        self.file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
