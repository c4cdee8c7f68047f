"""The stored words of a trace, for scripts: bf16 comes as uint16 (bits.py turns words into numbers)."""

import h5py
import numpy as np

from .hdf5 import ATTRIBUTES, TEXTS, kind_of, read_words
from .model import Model, TraceError


def plain(value):
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value


class TraceReader:
    """trace.model, trace.steps, trace.rows; params(layer), plan(step), input(name, step, layer), tap(name, step,
    layer), events, load_row(source), snapshots, snapshot(at). Nothing beyond format, version and presence is checked:
    that is `gdnsim verify`."""

    def __init__(self, path):
        self.path = str(path)
        try:
            self.file = h5py.File(self.path, "r")
        except OSError as problem:
            raise TraceError(f"{path}: not an HDF5 file ({problem})") from None
        attributes = {name: plain(value) for name, value in self.file.attrs.items()}
        if (
            attributes.get("format") != "gdnsim-trace"
            or attributes.get("version") != 1
            or attributes.get("complete") != 1
        ):
            raise TraceError(f"{path}: expected a complete gdnsim-trace of version 1, found {attributes}")
        self.model = self.read_model()
        self.steps, self.rows = self.get("steps/index").shape
        self.events = list(zip(*self.columns("events", ("step", "layer", "block", "kind", "source"))))
        self.snapshots = list(zip(*self.columns("recorded/state", ("step", "layer", "block"))))

    def get(self, path):
        if path not in self.file:
            raise TraceError(f"{self.path}: /{path}: expected a dataset, found nothing")
        return self.file[path]

    def read_model(self):
        known = {name: plain(value) for name, value in self.get("model").attrs.items()}
        names = (*ATTRIBUTES, *TEXTS, "scale", "norm_eps")
        return Model(
            layer_ids=self.get("model/layer_ids")[()].tolist(), **{name: known[name] for name in names if name in known}
        )

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
        return self.words(f"steps/{layer}/{name}", step)

    def tap(self, name, step, layer):
        return self.words(f"recorded/{layer}/{name}", step)

    def taps(self, layer=0):
        return list(self.file[f"recorded/{layer}"]) if f"recorded/{layer}" in self.file else []

    def load_row(self, source):
        return self.words("events/recurrent", source), self.words("events/conv", source)

    def snapshot(self, at):
        return self.words("recorded/state/recurrent", at), self.words("recorded/state/conv", at)

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
