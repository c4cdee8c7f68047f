"""One fault in a random stream's engine: events lost, late or of another block, states read or written elsewhere, not at all or by
rows that are padding, bits that flip. Each says what explain may call it, and where."""

import dataclasses

import numpy as np

from pool_model import RightEngine
from random_stream import COPY, LOAD, OPAQUE, ZERO
from toy_step import GOLDEN, row_step

PARTS = ("both", "recurrent", "conv")
KINDS = ("event", "copied", "late", "read", "write", "also", "missing", "swap", "bit", "padded")


@dataclasses.dataclass
class Fault:
    name: str
    engine: RightEngine
    ids: tuple  # of the mechanisms that are this
    scope: dict  # step, layer, row, block, where the fault has one
    most: int = 1  # findings that may be said in its place, when other faults give the same bits


def taken(part, new, old):
    """The states with that part from `new`."""
    return new[0] if part != "conv" else old[0], new[1] if part != "recurrent" else old[1]


def only(part, states):
    return taken(part, states, (None, None))


class Planter:
    """Draws faults for one stream."""

    def __init__(self, stream, rng):
        self.s, self.m, self.rng = stream, stream.model, rng
        self.active, self.idle = [], []  # (step, row)
        for step, plan in enumerate(stream.plans):
            for row in range(stream.rows):
                inactive = self.m.inactive(plan.index[row], row, plan.present)
                if plan.path != OPAQUE:
                    (self.idle if inactive else self.active).append((step, row))

    def pick(self, items):
        return items[int(self.rng.integers(len(items)))] if items else None

    def block(self):
        return int(self.rng.integers(self.m.blocks))

    def own(self, step, row):
        return int(self.s.plans[step].index[row])

    def start(self, step, row):
        plan = self.s.plans[step]
        moves = plan.source is not None and plan.source[row] >= 0
        return int(plan.source[row]) if moves else self.own(step, row)

    def fault(self):
        """One that the stream gives occasion for; None after a few tries."""
        for _ in range(8):
            made = getattr(self, self.pick(KINDS))()
            if made:
                return made
        return None

    # ---- events

    def filling(self, *kinds):
        return self.pick([number for number, event in enumerate(self.s.events) if event[3] in kinds])

    def told(self, pool, layer, number):
        """What the event puts into the block."""
        _, _, block, kind, source, *_ = self.s.events[number]
        return {ZERO: lambda: pool.zero, LOAD: lambda: self.s.loads[source], COPY: lambda: pool.at(layer, source)}[kind]()

    def of_event(self, number, ids, block, engine):
        return Fault(f"{type(engine).__name__} {self.s.events[number]}", engine, ids, {"step": self.s.events[number][0], "block": block},
                     self.s.layers)

    def event(self):
        number = self.filling(ZERO, LOAD, COPY)
        if number is None:
            return None
        planter, part = self, self.pick(PARTS)

        class EventLost(RightEngine):
            def event(self, pool, layer, event):
                if event != number:
                    return False
                block = planter.s.events[number][2]
                pool.states[layer, block] = taken(part, pool.at(layer, block), planter.told(pool, layer, number))
                return True

        return self.of_event(number, ("reset-missing",), self.s.events[number][2], EventLost())

    def copied(self):
        number, other = self.filling(COPY), self.block()
        if number is None or self.s.events[number][4] == other:
            return None
        planter = self

        class CopiedOther(RightEngine):
            def event(self, pool, layer, event):
                if event == number:
                    pool.states[layer, planter.s.events[number][2]] = pool.at(layer, other)
                return event == number

        return self.of_event(number, ("wrong-block", "reset-missing"), other, CopiedOther())

    def late(self):
        number = self.filling(ZERO, LOAD, COPY)
        if number is None:
            return None
        planter, (end, only_layer, block, *_) = self, self.s.events[number]
        while end + 1 < len(self.s.plans) and self.s.plans[end + 1].draft > 0:
            end += 1
        if self.s.plans[end].path == OPAQUE:
            return None

        class EventLate(RightEngine):
            def event(self, pool, layer, event):
                return event == number

            def after(self, step, layer, pool):
                if step == end and only_layer in (-1, layer):
                    pool.states[layer, block] = planter.told(pool, layer, number)

        return self.of_event(number, ("reset-missing",), block, EventLate())

    # ---- rows

    def row(self):
        """(step, layer, row) and another block."""
        if not self.active:
            return None, None
        step, row = self.pick(self.active)
        return (step, int(self.rng.integers(self.s.layers)), row), self.block()

    @staticmethod
    def of_row(name, place, ids, engine, **more):
        return Fault(f"{name} {place} {more}", engine, ids, {"step": place[0], "layer": place[1], "row": place[2], **more})

    def read(self):
        place, other = self.row()
        if place is None or other == self.start(place[0], place[2]):
            return None
        part = self.pick(PARTS)

        class ReadOther(RightEngine):
            def read(self, at, states, before):
                there = before.get((place[1], other), tuple(np.zeros_like(state) for state in states))
                return taken(part, there, states) if at == place else states

        return self.of_row(f"read {part}", place, ("wrong-block",), ReadOther(), block=other)

    def stored(self, name, place, ids, stores, **more):
        """stores(block, new, old): what becomes of the row's states."""

        class Stored(RightEngine):
            def write(self, at, block, states, before):
                old = before.get((place[1], block), tuple(np.zeros_like(state) for state in states))
                return stores(block, states, old) if at == place else [(block, states)]

        return self.of_row(name, place, ids, Stored(), **more)

    def write(self):
        place, other = self.row()
        if place is None or other == self.own(place[0], place[2]):
            return None
        part = self.pick(PARTS)
        return self.stored(f"write {part}", place, ("wrong-block",),
                           lambda block, new, old: [(other, only(part, new)), (block, taken(part, old, new))], block=other)

    def also(self):
        place, other = self.row()
        if place is None or other == self.own(place[0], place[2]):
            return None
        return self.stored("also wrote", place, ("wrong-block",), lambda block, new, old: [(other, new), (block, new)], block=other)

    def missing(self):
        place, _ = self.row()
        if place is None:
            return None
        part = self.pick(PARTS)
        return self.stored(f"lost {part}", place, ("write-missing",), lambda block, new, old: [(block, taken(part, old, new))])

    def swap(self):
        """Two rows of an ordinary step have each other's block."""
        place, _ = self.row()
        if place is None:
            return None
        step, layer, row = place
        mate = self.pick([other for at, other in self.active if at == step and other != row])
        in_launch = self.s.plans[step].draft > 0 or any(plan.draft > 0 for plan in self.s.plans[step + 1 : step + 2])
        if mate is None or in_launch or any(self.start(step, one) != self.own(step, one) for one in (row, mate)):
            return None
        theirs = {row: self.own(step, mate), mate: self.own(step, row)}

        class Swapped(RightEngine):
            def read(self, at, states, before):
                zero = tuple(np.zeros_like(state) for state in states)
                return before.get((layer, theirs[at[2]]), zero) if at[:2] == (step, layer) and at[2] in theirs else states

            def write(self, at, block, states, before):
                return [(theirs[at[2]] if at[:2] == (step, layer) and at[2] in theirs else block, states)]

        return Fault(f"swap {place} {mate}", Swapped(), ("wrong-block",), {"step": step, "layer": layer}, 2)

    # ---- memory and padding

    def bit(self):
        place, _ = self.row()
        if place is None:
            return None
        step, layer, row = place
        block, part, bit, spot = self.own(step, row), int(self.rng.integers(2)), int(self.rng.integers(16, 32)), self.rng.random()

        class Flipped(RightEngine):
            def after(self, at, in_layer, pool):
                if (at, in_layer) == (step, layer):
                    states = list(pool.at(layer, block))
                    states[part] = states[part].copy()
                    states[part].view(np.uint32).ravel()[int(spot * states[part].size)] ^= np.uint32(1 << bit)
                    pool.states[layer, block] = tuple(states)

        return Fault(f"bit {bit} of block {block} {place} {part}", Flipped(), ("memory-corruption",), {"layer": layer, "block": block})

    def padded(self):
        """An inactive row is computed like any other, after the rows, on a block that none of them has."""
        found, block = self.pick(self.idle), self.block()
        if found is None or self.s.plans[found[0]].draft > 0 or block in self.s.plans[found[0]].index:
            return None
        (step, row), layer, stream = found, int(self.rng.integers(self.s.layers)), self.s

        class PaddedRow(RightEngine):
            def after(self, at, in_layer, pool):
                if (at, in_layer) == (step, layer):
                    inputs = {name: values[step, row] for name, values in stream.inputs[layer].items()}
                    _, *states = row_step(stream.model, GOLDEN, stream.params[layer], inputs, *pool.at(layer, block))
                    pool.states[layer, block] = tuple(states)

        return self.of_row("padded", (step, layer, row), ("padded-row-wrote", "stale-tail"), PaddedRow(), block=block)
