"""How a trace of version 2 may lay out what a reader shows flat (docs/trace-format.md, "Layouts")."""

import numpy as np

from .model import TraceError

ATTRIBUTES = {
    "qkv_packing": ("flat", "interleaved"),
    "z_packing": ("apart", "flat", "interleaved"),
    "ba_packing": ("split", "flat", "interleaved"),
    "conv_order": ("rolled", "circular"),
    "conv_layout": ("columns", "channels"),
}


class Layouts:
    """`attributes`: those of /model. Absent ones are the first of their choices: what version 1 means."""

    def __init__(self, model, attributes, where):
        self.model = model
        for name, choices in ATTRIBUTES.items():
            chosen = attributes.get(name, choices[0])
            if chosen not in choices:
                raise TraceError(f"{where}: /model @{name}: expected one of {choices}, found {chosen!r}")
            setattr(self, name, chosen)
        self.conv_columns = int(attributes.get("conv_columns", model.conv_width - 1))

    def dataset(self, name):
        """The dataset of /steps/<l> that holds an input."""
        if name in ("mixed_qkv", "z") and self.z_packing != "apart":
            return "qkvz"
        return "ba" if name in ("a", "b") and self.ba_packing != "split" else name

    def input(self, name, words):
        """One input [..., n] out of its dataset's rows."""
        if name in ("a", "b"):
            return self.gate(name, words)
        z = self.z_packing != "apart"
        packing = self.z_packing if z else self.qkv_packing
        if packing == "flat":
            return words[..., self.model.dim :] if name == "z" and z else words[..., : self.model.dim] if z else words
        return self.interleaved(name, words, z) if z or name == "mixed_qkv" else words

    def gate(self, name, words):
        heads, values = self.model.num_k_heads, self.model.num_v_heads
        if self.ba_packing == "split":
            return words
        groups = heads if self.ba_packing == "interleaved" else 1
        halves = words.reshape(*words.shape[:-1], groups, 2, values // groups)
        return halves[..., 1 if name == "a" else 0, :].reshape(*words.shape[:-1], values)

    def interleaved(self, name, words, z):
        """For each key head: q, k, the v of its value heads and, with z, then their z."""
        model, rows = self.model, words.shape[:-1]
        keys, values = model.head_k_dim, model.num_v_heads // model.num_k_heads * model.head_v_dim
        heads = words.reshape(*rows, model.num_k_heads, 2 * keys + (2 if z else 1) * values)
        ends = np.cumsum([keys, keys, values, values if z else 0]).tolist()
        parts = [heads[..., a:b].reshape(*rows, -1) for a, b in zip([0, *ends], ends)]
        return parts[3] if name == "z" else np.concatenate(parts[:3], -1)

    def window(self, conv, offset):
        """The W-1 columns from `offset` on, [W-1, dim]."""
        columns = conv if self.conv_layout == "columns" else conv.T
        at = offset + np.arange(self.model.conv_width - 1)
        return np.ascontiguousarray(columns[at % self.conv_columns if self.conv_order == "circular" else at])
