"""Writes a trace step by step: what a capture holds in memory is one step at most.

    with TraceWriter("rollout.h5", model, params, rows=8, taps=("conv_out", "core_out", "norm_out"), z=True) as trace:
        trace.load(layer, block, recurrent, conv)     # events come before the step that they belong to
        trace.step(index, sequence, layers)           # layers: [L] of {"mixed_qkv": [n, dim], "a", "b", "z", taps}
        trace.snapshot(layer, block, recurrent, conv) # the state after that step

A launch that verifies n candidate tokens a row is n steps, draft=0 to n-1 (docs/trace-format.md, "Launches"); `source` is
the block that each row goes on from, `accepted` what was accepted of its launch before. Any of it, an allocate event or a
sequence or a reason of an event makes the file one of version 2.

A step may have fewer rows than the trace: the rest is padding that /steps/rows names. Words are never converted
(bits.py).
"""

import dataclasses
import os

import numpy as np

from .bits import WORD, has_nan, signed_zeros, words
from .finish import finish
from .model import ALLOCATE, COPY, FREE, LOAD, TAPS, WHY, ZERO, TraceError
from .spool import SpoolWriter


def partial_name(path):
    return str(path) + ".partial"


class TraceWriter:
    """`params`: [L] of {"A_log", "dt_bias", "conv_weight", "conv_bias", "norm_weight"}. `extra`: {name: one number a
    step} and `layer_extra`: {name: one number a row}, int32, written beside the known datasets of /steps and
    /steps/<l>; readers ignore them."""

    def __init__(
        self,
        path,
        model,
        params,
        rows,
        taps=("conv_out", "core_out", "norm_out"),
        z=True,
        force=False,
        provenance=None,
        extra=(),
        layer_extra=(),
    ):
        self.path, self.model, self.rows, self.taps, self.z = str(path), model, int(rows), tuple(taps), z
        self.force, self.extra, self.layer_extra = force, tuple(extra), tuple(layer_extra)
        self.provenance = dict(provenance or {})
        self.steps, self.changes, self.failed = 0, {}, False
        self.pending_events, self.last_draft = [], -1
        self.check_start()
        found = [self.checked_params(layer, values) for layer, values in enumerate(params)]
        if len(found) != model.layers:
            raise TraceError(f"{path}: params: expected {model.layers} layers, found {len(found)}")
        # The norm of an absent row's zeros, should those be compared: zeros with the weight's signs.
        self.norm_signs = [
            signed_zeros(layer["norm_weight"], model.act_dtype) if "norm_weight" in layer else None for layer in found
        ]
        self.spool = SpoolWriter(partial_name(path))
        self.start(found)

    def check_start(self):
        if os.path.lexists(self.path) and not self.force:
            raise TraceError(f"{self.path}: already exists (force replaces it)")
        unknown = [tap for tap in self.taps if tap not in TAPS]
        if unknown:
            raise TraceError(f"{self.path}: taps: expected some of {TAPS}, found {unknown[0]!r}")
        if self.rows < 1:
            raise TraceError(f"{self.path}: rows: expected 1 or more, found {self.rows}")

    def checked_params(self, layer, values):
        found = {}
        for name, (kind, shape, required) in self.model.param_shapes().items():
            if values.get(name) is None:
                if required:
                    raise TraceError(f"{self.path}: params of layer {layer}: {name}: expected, found nothing")
                continue
            where = f"{self.path}: params of layer {layer}: {name}"
            found[name] = words(values[name], kind, shape, where)
            if has_nan(found[name], kind):
                raise TraceError(f"{where}: expected numbers, found a NaN")
        return found

    def start(self, params):
        model = {field.name: getattr(self.model, field.name) for field in dataclasses.fields(self.model)}
        self.append(
            {
                "kind": "start",
                "model": model,
                "rows": self.rows,
                "taps": self.taps,
                "z": self.z,
                "extra": self.extra,
                "layer_extra": self.layer_extra,
                "provenance": self.provenance,
                "params": [list(layer) for layer in params],
            },
            [array for layer in params for array in layer.values()],
        )

    def append(self, head, arrays=()):
        if self.spool is None or self.failed:
            raise TraceError(
                f"{self.path}: is closed" if self.spool is None else f"{self.path}: an earlier write failed"
            )
        try:
            self.spool.append(head, arrays)
        except TraceError:
            self.failed = True
            raise

    @property
    def bytes(self):
        """Written so far."""
        return self.spool.size if self.spool else 0

    # Events, applied before the next step.

    def event(self, kind, layer, block, source=-1, sequence=-1, why="none"):
        """`sequence`: whose block it is; `why`: one of WHY, or its number."""
        if why not in WHY and why not in range(len(WHY)):
            raise TraceError(f"{self.path}: event: why: expected one of {WHY}, found {why!r}")
        if kind not in (ZERO, LOAD, COPY, FREE, ALLOCATE):
            raise TraceError(f"{self.path}: event: kind: expected 0 to 4, found {kind!r}")
        if not -1 <= layer < self.model.layers:
            raise TraceError(f"{self.path}: event: layer: expected -1 to {self.model.layers - 1}, found {layer}")
        why = WHY.index(why) if why in WHY else int(why)
        self.pending_events.append([int(layer), int(block), int(kind), int(source), int(sequence), why])

    def zero(self, layer, block, **whose):
        self.event(ZERO, layer, block, **whose)

    def copy(self, layer, block, source, **whose):
        self.event(COPY, layer, block, source, **whose)

    def free(self, layer, block, **whose):
        self.event(FREE, layer, block, **whose)

    def allocate(self, block, sequence, why="none"):
        """From here on the block is the sequence's, in every layer."""
        self.event(ALLOCATE, -1, block, sequence=sequence, why=why)

    def load(self, layer, block, recurrent, conv, **whose):
        """The block holds this state from the next step on: recurrent [HV, V, K], conv [W-1, dim]."""
        words_of_it = self.state(recurrent, conv, f"load of layer {layer} block {block}")
        self.append({"kind": "load"}, words_of_it)
        self.event(LOAD, layer, block, **whose)

    def snapshot(self, layer, block, recurrent, conv, step=None):
        """The state of a block after a step: the one written last, or `step` (it may be the next: then it counts once
        that is there).
        """
        step = self.steps - 1 if step is None else int(step)
        where = f"snapshot of layer {layer} block {block}"
        if not 0 <= step <= self.steps:
            raise TraceError(f"{self.path}: {where}: expected a step in 0..{self.steps}, found {step}")
        head = {"kind": "snapshot", "step": step, "layer": int(layer), "block": int(block)}
        self.append(head, self.state(recurrent, conv, where))

    def state(self, recurrent, conv, where):
        model = self.model
        return [
            words(recurrent, model.state_dtype, model.state_shape, f"{self.path}: {where}: recurrent"),
            words(conv, model.conv_state_dtype, model.conv_shape, f"{self.path}: {where}: conv"),
        ]

    # Steps.

    def step(
        self,
        index,
        sequence,
        layers,
        path=0,
        token=None,
        position=None,
        extra=None,
        draft=0,
        source=None,
        accepted=None,
    ):
        """`index` [n] blocks, `sequence` [n] request ids (-1: inactive), n <= rows. A step of path 2 needs no
        layers. `source` [n] (-1: the row's own block) and `accepted` [n] (0: none) belong to launches.
        """
        index = np.asarray(index, np.int32).ravel()
        n = len(index)
        where = f"{self.path}: step {self.steps}"
        self.check_index(index, n, where)
        self.check_draft(int(draft), int(path), where)
        plan = [self.padded(index, self.model.padding(), np.int32), self.padded(sequence, -1, np.int64, n, where)]
        for values, filler in ((token, -1), (position, -1), (source, -1), (accepted, 0)):
            plan += [self.padded(values, filler, np.int32, n, where)] if values is not None else []
        arrays = []
        for layer in range(self.model.layers):
            arrays += self.layer_arrays(layer, layers[layer] if path != 2 or layers else None, n, where)
        head = {
            "kind": "step",
            "rows": n,
            "path": int(path),
            "token": token is not None,
            "position": position is not None,
            "draft": int(draft),
            "source": source is not None,
            "accepted": accepted is not None,
            "events": self.pending_events,
            "blocks": int(max(index, default=0)),
            "extra": [int((extra or {}).get(name, -1)) for name in self.extra],
        }
        self.append(head, plan + arrays)
        self.pending_events, self.last_draft = [], int(draft)
        self.steps += 1

    def check_draft(self, draft, path, where):
        if draft not in (0, self.last_draft + 1) or (draft and not self.steps):
            raise TraceError(f"{where}: draft: expected 0 or {self.last_draft + 1}, found {draft}")
        if draft and path != 1:
            raise TraceError(f"{where}: draft {draft}: expected path 1, found {path}: a launch of several tokens is mixed")
        if draft and self.pending_events:
            raise TraceError(f"{where}: draft {draft}: expected no event within a launch, found {self.pending_events[0]}")

    def check_index(self, index, n, where):
        if n > self.rows:
            raise TraceError(f"{where}: expected at most {self.rows} rows, found {n}")
        active = index[~self.model.inactive(index)]
        if len(set(active.tolist())) != len(active):
            raise TraceError(f"{where}: index: expected each block once, found {index.tolist()}")
        least, blocks = (0 if self.model.sentinel == "minus_one" else 1), self.model.num_blocks
        wrong = active[(active < least) | (active >= (blocks or 1 << 31))]
        if len(wrong):
            raise TraceError(
                f"{where}: index: expected blocks from {least}{f' to {blocks - 1}' if blocks else ''}, found {wrong[0]}"
            )

    def padded(self, values, filler, dtype, n=None, where=""):
        values = np.asarray(values, dtype).ravel()
        if n is not None and len(values) != n:
            raise TraceError(f"{where}: expected {n} rows, found {len(values)}")
        found = np.full(self.rows, filler, dtype)
        found[: len(values)] = values
        return found

    def layer_arrays(self, layer, values, n, where):
        """Every dataset's rows of one layer, in the order of `finish.layer_datasets`."""
        arrays = []
        kinds = {**self.model.input_shapes(self.z), **{tap: self.model.tap_shape(tap) for tap in self.taps}}
        for name, (kind, shape) in kinds.items():
            full = np.zeros((self.rows, *shape), WORD[kind])
            if name == "norm_out" and self.norm_signs[layer] is not None:
                full[n:] = self.norm_signs[layer]
            if values is not None:
                if name not in values:
                    raise TraceError(f"{where}: layer {layer}: {name}: expected, found nothing")
                full[:n] = words(values[name], kind, (n, *shape), f"{where}: layer {layer}: {name}")
            arrays.append(full)
        for name in self.layer_extra:
            arrays.append(self.padded((values or {}).get(name, []), -1, np.int32))
        return arrays

    # The end.

    def change(self, **attributes):
        """Attributes of /model that are known only at the end, e.g. inactive_core_out="zero"."""
        self.changes.update(attributes)

    def close(self):
        """Makes the trace. Without a step there is none, and nothing is left behind."""
        if self.spool is None:
            return
        spool, partial = self.spool, self.spool.path
        if not self.failed:
            self.append({"kind": "end", "model": self.changes, "provenance": self.provenance})
        spool.close()
        self.spool = None
        if self.steps == 0:
            os.remove(partial)
            raise TraceError(f"{self.path}: no step was written")
        finish(partial, self.path, self.force)
        os.remove(partial)

    def abandon(self):
        """Stops without making the trace; what was committed stays in PATH.partial."""
        if self.spool is not None:
            self.spool.close()
            self.spool = None

    def discard(self):
        """Stops and leaves nothing behind."""
        if self.spool is not None:
            self.abandon()
            os.remove(partial_name(self.path))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()
        else:
            self.abandon()
