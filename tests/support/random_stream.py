"""Random streams of both trace versions, all valid: events of every kind, swaps, forks, preempted sequences, launches of candidates,
padding, inactive rows. A stream of version 2 is a little engine's: sequences own blocks and move between them."""

import dataclasses

import numpy as np

from toy_step import Model, f32
from toy_trace import Maker

ZERO, LOAD, COPY, FREE, ALLOCATE = range(5)
DECODE, MIXED, OPAQUE = range(3)


@dataclasses.dataclass
class Plan:
    """One step: who takes part. source and accepted are None in version 1."""

    path: int
    index: np.ndarray
    sequence: np.ndarray
    present: int
    draft: int = 0
    source: np.ndarray | None = None
    accepted: np.ndarray | None = None


@dataclasses.dataclass
class Sequence:
    number: int
    blocks: list = dataclasses.field(default_factory=list)
    current: int = -1  # the block of its last token
    columns: list | None = None  # blocks of its last launch's tokens; None: its state was set by an event


class RandomStream:
    """events: (step, layer or -1, block, kind, source, sequence, why)."""

    def __init__(self, seed):
        self.seed, self.rng = seed, np.random.default_rng(seed)
        self.version = 1 if self.chance(0.4) else 2
        self.layers = self.between(1, 3)
        self.model = self.random_model()
        maker = Maker(seed + 1, self.model)
        self.maker = maker
        self.params = [maker.params(self.chance(0.3)) for _ in range(self.layers)]
        self.loads, self.events, self.plans = [], [], []
        self.rows, steps = self.between(1, 4), self.between(1, 12)
        self.lowest = 0 if self.model.sentinel == "minus_one" else 1
        VersionOne(self, steps) if self.version == 1 else Engine(self, steps)
        self.inputs = [maker.inputs(len(self.plans), self.rows, True) for _ in range(self.layers)]

    def random_model(self):
        heads, K = self.between(1, 2), int(self.rng.choice([2, 3, 4, 8]))
        return Model(
            H=heads, HV=heads * self.between(1, 2), K=K, V=self.between(2, 4), W=self.between(2, 5),
            layer_ids=tuple(range(0, 2 * self.layers, 2)), blocks=self.between(5, 13), scale=float(f32(K**-0.5)),
            state=self.one_of("f32", "f32", "bf16"), conv=self.one_of("bf16", "f32"), act=self.one_of("bf16", "f32"),
            sentinel=self.one_of("nonpositive", "zero", "minus_one"),
        )

    def chance(self, share):
        return bool(self.rng.random() < share)

    def between(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def one_of(self, *choices):
        return choices[int(self.rng.integers(len(choices)))]

    def shuffled(self, items):
        return [int(item) for item in self.rng.permutation(np.array(list(items), np.int64))]

    def event(self, t, block, kind, source=-1, layer=-1, sequence=-1, why=0):
        self.events.append((t, layer, block, kind, source, sequence, why))

    def fill(self, t, block, copied_from, sequence=-1, why=0):
        """Zero, load or copy, for all layers or for some."""
        kind = self.one_of(ZERO, LOAD, COPY) if copied_from else self.one_of(ZERO, LOAD)
        layers = [-1] if self.chance(0.6) else self.shuffled(range(self.layers))[: self.between(1, self.layers)]
        for layer in layers:
            source = {ZERO: lambda: -1, LOAD: self.load, COPY: lambda: self.one_of(*copied_from)}[kind]()
            self.event(t, block, kind, source, layer, sequence, why)

    def load(self):
        if self.loads and self.chance(0.3):
            return self.between(0, len(self.loads) - 1)
        self.loads.append(self.maker.state())
        return len(self.loads) - 1


class VersionOne:
    """Blocks and events drawn without a thought of who owns what."""

    def __init__(self, stream, steps):
        for t in range(steps):
            for _ in range(stream.between(0, 3)):
                self.events_of(stream, t)
            stream.plans.append(self.plan(stream))

    @staticmethod
    def events_of(s, t):
        blocks = s.model.blocks
        if s.chance(0.1):
            s.event(t, s.between(0, blocks - 1), FREE, layer=s.between(-1, s.layers - 1))
        elif s.chance(0.15):  # two blocks change places through a third
            x, y, free = s.shuffled(range(blocks))[:3]
            for to, source in ((free, x), (x, y), (y, free)):
                s.event(t, to, COPY, source)
        else:
            s.fill(t, s.between(0, blocks - 1), range(blocks))

    @staticmethod
    def plan(s):
        present = s.between(0, s.rows) if s.chance(0.5) else s.rows
        index = np.array(s.shuffled(range(s.lowest, s.model.blocks))[: s.rows], np.int32)
        for row in range(s.rows):
            if s.chance(0.25):
                index[row] = s.one_of(*{"nonpositive": (0, -1, -7), "zero": (0,), "minus_one": (-1,)}[s.model.sentinel])
            if row >= present:
                index[row] = s.between(-(2**31), 2**31 - 1)
        sequence = np.full(s.rows, -1, np.int64)
        for row in range(s.rows):
            if not s.model.inactive(index[row], row, present):
                sequence[row] = s.between(0, 4)
        return Plan(s.one_of(DECODE, DECODE, DECODE, MIXED, MIXED, OPAQUE), index, sequence, present)


class Engine:
    """Sequences with `drafts` blocks each: a launch writes candidate d's state to a block of its own, the next goes on from the accepted
    one. With `owned` the stream says whose each block is."""

    def __init__(self, stream, steps):
        self.s, self.owned, self.drafts = stream, stream.chance(0.6), stream.between(1, 3)
        self.free = stream.shuffled(range(stream.lowest, stream.model.blocks))
        self.live, self.away, self.next = {}, [], 0
        self.says_accepted = stream.chance(0.75)
        while len(stream.plans) < steps:
            self.leave(len(stream.plans))
            self.come(len(stream.plans))
            self.launch(len(stream.plans))

    def begin(self, t, sequence, why):
        s = self.s
        others = [other.current for other in self.live.values()]
        sequence.blocks = [self.free.pop() for _ in range(self.drafts)]
        for block in sequence.blocks if self.owned else []:
            s.event(t, block, ALLOCATE, sequence=sequence.number, why=why)
        sequence.current, sequence.columns = sequence.blocks[0], None
        if s.chance(0.85):
            s.fill(t, sequence.current, others, sequence.number if self.owned or s.chance(0.7) else -1, 2)
        self.live[sequence.number] = sequence

    def leave(self, t):
        s = self.s
        for sequence in [one for one in self.live.values() if s.chance(0.12)]:
            for block in sequence.blocks if self.owned else []:
                s.event(t, block, FREE, sequence=sequence.number if s.chance(0.5) else -1, why=5)
            self.free[:0] = sequence.blocks
            del self.live[sequence.number]
            if self.owned and s.chance(0.4):
                self.away.append(sequence)

    def come(self, t):
        s = self.s
        for sequence in [one for one in self.away if s.chance(0.3)]:
            if len(self.free) >= self.drafts:
                self.away.remove(sequence)
                self.begin(t, sequence, 4)
        while len(self.free) >= self.drafts and s.chance(0.6):
            self.begin(t, Sequence(self.next), 1)
            self.next += 1
        for sequence in self.live.values():
            if s.chance(0.06):
                s.event(t, sequence.current, ZERO)
                sequence.columns = None

    def launch(self, t):
        s = self.s
        count = s.between(1, self.drafts)
        path = MIXED if count > 1 else s.one_of(DECODE, MIXED)
        names = s.shuffled(self.live)[: s.rows] if self.live and s.chance(0.9) else []
        rows = dict(zip(names, s.shuffled(range(s.rows))))
        present = s.rows if not rows or s.chance(0.7) else max(rows.values()) + 1
        nobody = 0 if s.model.sentinel == "zero" else -1
        plans = [
            Plan(path, np.full(s.rows, nobody, np.int32), np.full(s.rows, -1, np.int64), present, draft,
                 np.full(s.rows, -1, np.int32), np.zeros(s.rows, np.int32))
            for draft in range(count)
        ]
        for name, row in rows.items():
            self.take_part(plans[: count if name == names[0] else s.between(1, count)], row, self.live[name])
        for plan in plans:
            if not self.says_accepted:
                plan.accepted = None
        s.plans += plans

    def take_part(self, plans, row, sequence):
        s = self.s
        source, accepted = sequence.current, s.between(0, 3)  # what is said of no launch before means nothing
        if sequence.columns is not None:
            accepted = s.between(1, len(sequence.columns)) if self.says_accepted else len(sequence.columns)
            source = sequence.columns[accepted - 1]
        written = s.shuffled(sequence.blocks)[: len(plans)]
        plans[0].accepted[row] = accepted
        for plan, block in zip(plans, written):
            plan.index[row], plan.sequence[row] = block, sequence.number
            if source != block or s.chance(0.5):
                plan.source[row] = source
            source = block
        sequence.columns, sequence.current = written, written[-1]
