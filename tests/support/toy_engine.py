"""The step loop of a toy engine over a paged pool, with places where faults hook in.

Within a layer's step every row reads before any row writes, as rows of one launch do. States are never changed in
place, so a saved pool is a shallow copy.
"""

import dataclasses

import numpy as np
from toy_step import GOLDEN, f32, inactive_row, row_step
from toy_trace import COPY, LOAD, ZERO


@dataclasses.dataclass
class Place:
    """Where a hook is called. `pool` is {(layer, block): (recurrent, conv)} before the layer's step."""

    engine: "Engine"
    t: int
    layer: int
    row: int = -1
    block: int = -1

    @property
    def pool(self):
        return self.engine.pool

    @property
    def stream(self):
        return self.engine.stream

    def state(self, block, layer=None):
        return self.engine.state(self.layer if layer is None else layer, block)

    def is_at(self, t=None, layer=None, row=None):
        """A number, a container of numbers, or None for any."""
        return all(
            want is None or (mine in want if hasattr(want, "__contains__") else mine == want)
            for want, mine in ((t, self.t), (layer, self.layer), (row, self.row))
        )


class Hooks:
    """Faults. Each hook takes a place and a value and gives the value back, changed or not; several are chained.

    event     bool             is this event (place.event) applied
    rules     Rules            how this row computes
    inputs    {name: value}    what the row is given in place of the recorded inputs
    params    {name: value}
    live      block or None    the block that a row works on; None: inactive
    read      (rec, conv)      the state the row starts from
    window    columns or None  the conv columns in the sum, apart from those stored
    taps      {name: value}    what the row puts out
    write     [(block, rec or None, conv or None)]
    pool      None             called after each layer's step; may set engine.pool entries
    """

    def __init__(self, **hooks):
        self.hooks = {name: [hook] for name, hook in hooks.items()}

    def __add__(self, other):
        both = Hooks()
        for part in (self, other):
            for name, hooks in part.hooks.items():
                both.hooks.setdefault(name, []).extend(hooks)
        return both

    def __call__(self, name, place, value):
        for hook in self.hooks.get(name, ()):
            value = hook(place, value)
        return value


@dataclasses.dataclass
class Run:
    taps: list  # [L] of {tap: [T, B, ...]}
    after: list  # [T] of {(layer, block): (rec, conv)}
    before: dict  # {(step, layer, row): (rec, conv)} that the row started from
    changed: dict = dataclasses.field(default_factory=dict)  # (step, layer, block): what a snapshot says instead
    named: tuple = ()  # the blocks that snapshots show; empty: all
    zeros: tuple = ()

    def blocks(self, stream):
        return self.named or range(stream.model.blocks)

    def snapshot(self, place):
        t, layer, block = place
        return self.changed.get(place) or self.after[t].get((layer, block)) or self.zeros


class Engine:
    def __init__(self, stream, hooks):
        self.stream, self.hooks, self.pool, self.before = stream, hooks, {}, {}
        model = stream.model
        self.zeros = (np.zeros((model.HV, model.V, model.K), f32), np.zeros((model.W - 1, model.dim), f32))

    def state(self, layer, block):
        return self.pool.get((layer, block), self.zeros)

    def event(self, t, event):
        _, layer, block, *_ = event
        for one in range(len(self.stream.params)) if layer < 0 else [layer]:
            place = Place(self, t, one, block=block)
            place.event = event
            if self.hooks("event", place, True):
                self.apply(one, event)

    def apply(self, layer, event):
        _, _, block, kind, source = event
        if kind == ZERO:
            self.pool[layer, block] = self.zeros
        elif kind == LOAD:
            self.pool[layer, block] = self.stream.loads[source]
        elif kind == COPY:
            self.pool[layer, block] = self.state(layer, source)

    def row(self, t, layer, row):
        """The taps of one row and its writes, nothing changed yet."""
        stream, hooks = self.stream, self.hooks
        block = None if stream.inactive(t, row) else int(stream.index[t, row])
        place = Place(self, t, layer, row, -1 if block is None else block)
        params = hooks("params", place, stream.params[layer])
        inputs = hooks("inputs", place, stream.row_inputs(t, layer, row))
        block = hooks("live", place, block)
        if block is None:
            return hooks("taps", place, inactive_row(stream.model, params, inputs)), []
        place.block = block
        before = hooks("read", place, self.state(layer, block))
        self.before[t, layer, row] = before
        window = hooks("window", place, None)
        taps, *after = row_step(stream.model, hooks("rules", place, GOLDEN), params, inputs, *before, window)
        return hooks("taps", place, taps), hooks("write", place, [(block, *after)])

    def write(self, layer, block, recurrent, conv):
        old = self.state(layer, block)
        self.pool[layer, block] = (old[0] if recurrent is None else recurrent, old[1] if conv is None else conv)

    def run(self):
        steps, rows = self.stream.shape
        layers = len(self.stream.params)
        taps, after = [{} for _ in range(layers)], []
        for t in range(steps):
            for event in self.stream.events:
                if event[0] == t:
                    self.event(t, event)
            for layer in range(layers):
                done = [self.row(t, layer, row) for row in range(rows)]
                for row, (made, writes) in enumerate(done):
                    for write in writes:
                        self.write(layer, *write)
                    for name, value in made.items():
                        whole = taps[layer].setdefault(name, np.zeros((steps, rows, *np.shape(value)), f32))
                        whole[t, row] = value
                self.hooks("pool", Place(self, t, layer), None)
            after.append(dict(self.pool))
        return Run(taps, after, self.before, zeros=self.zeros)


def run_engine(stream, hooks=None):
    return Engine(stream, hooks or Hooks()).run()
