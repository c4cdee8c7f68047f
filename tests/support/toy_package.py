"""Small traces written with tools/gdnsim_trace, for the tests of that package. Imported after its folder is on the
path.
"""

import numpy as np
from gdnsim_trace import Model, TraceWriter


def toy_model(**changes):
    sizes = {
        "num_k_heads": 1,
        "num_v_heads": 2,
        "head_k_dim": 4,
        "head_v_dim": 3,
        "conv_width": 4,
        "layer_ids": [2, 5],
        "norm_eps": 1e-6,
    }
    return Model(**{**sizes, **changes})


class Maker:
    """Random words of one seed."""

    def __init__(self, model, seed=1):
        self.model, self.rng = model, np.random.default_rng(seed)

    def words(self, kind, shape):
        values = self.rng.standard_normal(shape).astype(np.float32)
        return (values.view(np.uint32) >> 16).astype(np.uint16) if kind == "bf16" else values

    def params(self):
        return [
            {name: self.words(kind, shape) for name, (kind, shape, _) in self.model.param_shapes().items()}
            for _ in range(self.model.layers)
        ]

    def layers(self, rows, taps):
        shapes = {**self.model.input_shapes(True), **{tap: self.model.tap_shape(tap) for tap in taps}}
        return [
            {name: self.words(kind, (rows, *shape)) for name, (kind, shape) in shapes.items()}
            for _ in range(self.model.layers)
        ]

    def state(self):
        m = self.model
        return self.words(m.state_dtype, m.state_shape), self.words(m.conv_state_dtype, m.conv_shape)


TAPS = ("conv_out", "core_out", "norm_out", "beta")


def write_toy(path, steps=4, before_step=lambda step: None, close=True, **more):
    """A trace of two rows with events and snapshots; `before_step` may interfere."""
    model = toy_model()
    make = Maker(model)
    trace = TraceWriter(path, model, make.params(), rows=3, taps=TAPS, **more)
    for step in range(steps):
        before_step(step)
        if step % 2 == 0:
            trace.load(step // 2 % 2, 1, *make.state())
        trace.step(
            [1, 2], [7, 9], make.layers(2, TAPS), path=int(step == 1), position=[step, step + 3], token=[5, step]
        )
        for layer in range(model.layers):
            trace.snapshot(layer, 2, *make.state())
    if close:
        trace.close()
    return trace


def input_digest(program, path):
    done = program("verify", path)
    return done.out.partition("input digest ")[2].split()[0] if done.code == 0 else str(done)
