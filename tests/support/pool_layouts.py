"""How an engine's memory lies: a drawn layout of version 2, in which a stream is written. What the reader makes of it is the same."""

import numpy as np

from toy_step import f32


class Flat:
    """As this program has it."""

    attributes = {}

    def windows(self, windows):
        """[N, W-1, dim] as the file has them, and the first columns of each."""
        return windows, None

    def inputs(self, values):
        return {"mixed_qkv" if name == "x" else name: value for name, value in values.items()}

    def tables(self, stream):
        """Datasets of /steps: name -> values."""
        return {}


class Drawn(Flat):
    def __init__(self, stream, rng):
        self.m, self.rng = stream.model, rng
        self.conv_columns = stream.model.W - 1 + int(rng.integers(4))
        self.circular, self.channels = bool(rng.integers(2)), bool(rng.integers(2))
        self.z, self.ba = str(rng.choice(["apart", "flat", "interleaved"])), str(rng.choice(["split", "flat", "interleaved"]))
        self.qkv = str(rng.choice(["flat", "interleaved"])) if self.z == "apart" else self.z
        self.table = bool(rng.integers(2))
        self.attributes = {
            "conv_columns": np.int32(self.conv_columns), "conv_order": np.bytes_("circular" if self.circular else "rolled"),
            "conv_layout": np.bytes_("channels" if self.channels else "columns"), "qkv_packing": np.bytes_(self.qkv),
            "z_packing": np.bytes_(self.z), "ba_packing": np.bytes_(self.ba),
        }

    def windows(self, windows):
        count, width, dim = windows.shape
        stored = self.rng.choice(np.array([7, -7], f32), (count, self.conv_columns, dim))  # what lies beside the window
        last = self.conv_columns if self.circular else self.conv_columns - width + 1
        first = self.rng.integers(0, last, count).astype(np.int32)
        for i in range(count):
            stored[i, (first[i] + np.arange(width)) % self.conv_columns] = windows[i]
        return (stored.swapaxes(1, 2) if self.channels else stored), first

    def by_head(self, parts):
        """Parts [T, B, heads * n] of which each key head has its share, head after head."""
        shares = [part.reshape(*part.shape[:2], self.m.H, -1) for part in parts]
        return np.concatenate(shares, axis=-1).reshape(*parts[0].shape[:2], -1)

    def packed(self, how, parts):
        return self.by_head(parts) if how == "interleaved" else np.concatenate(parts, axis=-1)

    def inputs(self, values):
        keys = self.m.H * self.m.K
        parts = [values["x"][..., :keys], values["x"][..., keys : 2 * keys], values["x"][..., 2 * keys :]]
        made = {"mixed_qkv": self.packed(self.qkv, parts), "z": values["z"]}
        if self.z != "apart":
            made = {"qkvz": self.packed(self.z, [*parts, values["z"]])}
        if self.ba == "split":
            return {**made, "a": values["a"], "b": values["b"]}
        return {**made, "ba": self.packed(self.ba, [values["b"], values["a"]])}

    def tables(self, stream):
        if not self.table:
            return {}
        index = np.array([plan.index for plan in stream.plans])
        columns = int(self.rng.integers(1, 4))
        column = self.rng.integers(0, columns, index.shape)
        table = self.rng.integers(-1, self.m.blocks, (*index.shape, columns))
        np.put_along_axis(table, column[..., None], index[..., None], -1)
        return {"table": table, "column": column}
