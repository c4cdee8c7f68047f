"""What the engine hooks share: one step at a time is put together from its layers and written; budgets stop it cleanly.

    recorder = Recorder(Options.from_environment())
    recorder.open(model, params, ...)             once, when the layers are known
    recorder.begin()                              a step
    recorder.enter(layer, index, read)            before a layer's kernels: blocks that changed since then become loads
    recorder.leave(layer, index, read, values)    after them: the layer's inputs and outputs, [rows, ...] each
    recorder.end(index, ...)                      the step is written

`read(row)` gives (recurrent [HV, V, K], conv [W-1, dim]) of that row's block, as arrays or tensors, on whatever device.
"""

import dataclasses
import os
import re
import sys
import time

from .bits import copied
from .blocks import BlockWatch
from .digest import block_digest
from .model import TraceError
from .writer import TraceWriter


def say(text):
    print(f"gdnsim capture: {text}", file=sys.stderr, flush=True)


def parse_bytes(text):
    """2GiB, 500M, 123."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B)?\s*", str(text), re.IGNORECASE)
    if not found:
        raise TraceError(f"budget: expected a size like 2GiB, found {text!r}")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def parse_count(name, text, least):
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise TraceError(f"{name}: expected a whole number, {least} or more, found {text!r}")
    return number


@dataclasses.dataclass
class Options:
    """What a user chooses. Environment: GDNSIM_CAPTURE and GDNSIM_CAPTURE_ROWS, _BUDGET, _STEPS, _SNAPSHOTS, _FORCE."""

    path: str
    rows: int = 16
    budget: int = 2 << 30  # bytes; 0: none
    steps: int = 0  # 0: no limit
    snapshots: int = 16  # states after every so many steps; 0: none
    force: bool = False

    @classmethod
    def from_environment(cls, environment=None):
        environment = os.environ if environment is None else environment

        def value(name, parse):
            text = environment.get(f"GDNSIM_CAPTURE_{name}")
            return {} if not text else {name.lower(): parse(text)}

        return cls(
            environment["GDNSIM_CAPTURE"],
            **value("ROWS", lambda text: parse_count("GDNSIM_CAPTURE_ROWS", text, 1)),
            **value("BUDGET", parse_bytes),
            **value("STEPS", lambda text: parse_count("GDNSIM_CAPTURE_STEPS", text, 0)),
            **value("SNAPSHOTS", lambda text: parse_count("GDNSIM_CAPTURE_SNAPSHOTS", text, 0)),
            **value("FORCE", lambda text: text == "1"),
        )

    def for_rank(self, **ranks):
        """One file a rank: rollout.h5 becomes rollout.tp1of4.h5. Groups of one rank leave no mark."""
        stem, ending = os.path.splitext(self.path)
        marks = "".join(f".{name}{rank}of{size}" for name, (rank, size) in ranks.items() if size > 1)
        return dataclasses.replace(self, path=stem + marks + ending)


class Recorder:
    def __init__(self, options, tell=say):
        self.options, self.tell = options, tell
        self.writer, self.watch, self.stopped = None, None, False
        self.values, self.after, self.seconds = None, {}, 0.0
        self.counts = {"unreplayable": 0, "inactive_rows": 0}
        self.notes, self.lost_draft = set(), False

    @property
    def recording(self):
        return not self.stopped

    def note(self, text):
        """Said once."""
        if text not in self.notes:
            self.notes.add(text)
            self.tell(text)

    def open(self, model, params, taps=("conv_out", "core_out", "norm_out"), z=True, **more):
        self.guarded(lambda: self.create(model, params, taps, z, more))

    def create(self, model, params, taps, z, more):
        self.writer = TraceWriter(
            self.options.path, model, params, self.options.rows, taps, z, self.options.force, **more
        )
        self.watch = BlockWatch(self.writer)
        self.header = self.writer.bytes  # not of the budget: it differs between ranks, which must stop at the same step

    def guarded(self, work):
        """Runs what may fail; a failure ends the capture, never the engine's step."""
        begun = time.perf_counter()
        try:
            return work()
        except TraceError as problem:
            self.fail(str(problem))
        finally:
            self.seconds += time.perf_counter() - begun

    # One step.

    def begin(self):
        if self.recording:
            self.values, self.after = {}, {}

    def enter(self, layer, blocks, read):
        """`blocks`: the row's block numbers, or None for an inactive row."""
        if self.recording and self.writer:
            self.guarded(lambda: self.look_before(layer, blocks, read))

    def look_before(self, layer, blocks, read):
        for row, block in enumerate(blocks):
            if block is not None:
                recurrent, conv = read(row)
                self.watch.before(layer, block, recurrent, conv)

    def leave(self, layer, blocks, read, values):
        if self.recording and self.writer and self.values is not None:
            self.guarded(lambda: self.take(layer, blocks, read, values))

    def take(self, layer, blocks, read, values):
        self.values.setdefault(layer, {}).update({name: copied(value) for name, value in values.items()})
        every = self.options.snapshots
        due = every and (self.writer.steps + 1) % every == 0
        for row, block in enumerate(blocks):
            if block is None:
                continue
            recurrent, conv = read(row)
            self.after[layer, block] = block_digest(recurrent, conv)
            if due:
                self.writer.snapshot(layer, block, recurrent, conv, step=self.writer.steps)

    def add(self, layer, **values):
        """More of a layer that was left, such as its gated norm."""
        if self.recording and self.values is not None and layer in self.values:
            begun = time.perf_counter()
            self.values[layer].update({name: copied(value) for name, value in values.items()})
            self.seconds += time.perf_counter() - begun

    def complete(self):
        """Every layer of the step gave everything that the trace wants."""
        model, writer = self.writer.model, self.writer
        wanted = {*model.input_shapes(writer.z), *writer.taps}
        return all(wanted <= set(self.values.get(layer, ())) for layer in range(model.layers))

    def end(
        self,
        index,
        sequence,
        path=0,
        token=None,
        position=None,
        extra=None,
        why="a layer gave no outputs",
        draft=0,
        source=None,
        accepted=None,
    ):
        """Writes the step. What was not seen whole, or came from an unknown kernel, goes in as a step without rows, of
        path 2; so does the rest of its launch.
        """
        if not self.recording or not self.writer or self.values is None:
            return
        launch = {"draft": draft, "source": source, "accepted": accepted}
        self.guarded(lambda: self.write(index, sequence, path, token, position, extra, why, launch))
        self.values = None
        if self.recording:
            self.check_limits()

    def write(self, index, sequence, path, token, position, extra, why, launch):
        if len(index) > self.writer.rows:
            path, why = (
                2,
                f"{len(index)} rows, more than the {self.writer.rows} there is room for (GDNSIM_CAPTURE_ROWS)",
            )
        elif path != 2 and not self.complete():
            path = 2
        if launch["draft"] and self.lost_draft:
            path, why = 2, "the launch began with a step that cannot be replayed"
        self.lost_draft = path == 2
        if path == 2:
            self.counts["unreplayable"] += 1
            self.note(f"step {self.writer.steps} cannot be replayed (path 2): {why}; later ones are counted")
            self.writer.step([], [], [], path=2, extra=extra)
            return
        layers = [self.values[layer] for layer in range(self.writer.model.layers)]
        self.writer.step(index, sequence, layers, path, token, position, extra, **launch)
        self.watch.seen.update(self.after)
        self.counts["inactive_rows"] += int(self.writer.model.inactive(index).sum()) if len(index) else 0

    def check_limits(self):
        budget, steps = self.options.budget, self.options.steps
        if budget and self.writer.bytes - self.header >= budget:
            self.stop(f"the byte budget of {budget} is used up")
        elif steps and self.writer.steps >= steps:
            self.stop(f"{steps} steps were asked for")

    # The end.

    def fail(self, problem):
        """The capture is over; what was committed is kept."""
        self.stopped = True
        self.tell(problem)
        if self.writer and self.writer.steps:
            self.tell(
                f"stopped; {self.writer.steps} steps are kept: `python -m gdnsim_trace recover {self.options.path}`"
            )
        if self.writer:
            self.writer.abandon()

    def stop(self, why=None):
        if self.stopped:
            return
        self.stopped = True
        if self.writer is None:
            self.tell("nothing was captured: no decode step of a gated delta layer was seen")
            return
        self.writer.provenance.update({f"capture_{name}": str(count) for name, count in self.counts.items()})
        size, steps = self.writer.bytes, self.writer.steps
        try:
            self.writer.close()
        except TraceError as problem:
            self.tell(str(problem))
            return
        self.tell(
            f"{self.options.path}: {steps} steps, {size // steps} bytes and {1000 * self.seconds / steps:.1f} ms a step"
            f"{f'; stopped: {why}' if why else ''}"
        )
