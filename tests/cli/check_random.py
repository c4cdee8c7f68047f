#!/usr/bin/env python3
"""gdnsim check FILE on random streams that are told twice: the second time in other rows and blocks, behind the first. It finds as many
rows that were given the same as a dictionary of histories does, nothing differs, and a bit that is changed in one of them is named.

    check_random.py ROOT GDNSIM [FIRST:LAST]      seeds, by default a few
"""

import hashlib
import json
import os
import random
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import needs_h5py  # noqa: E402, F401
import numpy as np  # noqa: E402
from pool_model import TAPS, PoolModel, write_trace  # noqa: E402
from program import Program  # noqa: E402
from random_stream import ALLOCATE, COPY, FREE, LOAD, OPAQUE, ZERO, Plan, RandomStream  # noqa: E402
from tap import Tap  # noqa: E402

OTHER = 1000  # added to the sequences of the second time


def launches(plans):
    """(first, last) of each launch's steps."""
    first = [t for t, plan in enumerate(plans) if plan.draft == 0]
    return zip(first, first[1:] + [len(plans)])


def blank(stream):
    """The stream's events, and zeros wherever a block would be what nobody knows."""
    if not any(event[3] == ALLOCATE for event in stream.events):
        zeros = [(0, -1, block, ZERO, -1, -1, 0) for block in range(stream.lowest, stream.model.blocks)]
        return zeros + stream.events
    events = []
    for event in stream.events:
        events.append(event)
        if event[3] == ALLOCATE:
            events.append((event[0], -1, event[2], ZERO, -1, event[5], 0))
    return events


def owned(events):
    blocks = set()
    for _, _, block, kind, *_ in events:
        (blocks.add if kind == ALLOCATE else blocks.discard if kind == FREE else lambda _: None)(block)
    return sorted(blocks)


def plan_again(plan, order, block, model):
    active = [not model.inactive(index, row, plan.present) for row, index in enumerate(plan.index)]
    index = np.array([block(one) if here else one for one, here in zip(plan.index, active)], np.int32)
    source = None if plan.source is None else np.array([block(one) for one in plan.source], np.int32)[order]
    accepted = None if plan.accepted is None else plan.accepted[order]
    sequence = np.where(plan.sequence >= 0, plan.sequence + OTHER, plan.sequence)
    return Plan(plan.path, index[order], sequence[order], plan.present, plan.draft, source, accepted)


def told_twice(seed):
    stream, rng = RandomStream(seed), np.random.default_rng(seed + 99)
    steps, model, others = len(stream.plans), stream.model, np.arange(stream.model.blocks)
    others[stream.lowest :] = rng.permutation(others[stream.lowest :])
    block = lambda one: int(others[one]) if one >= 0 else int(one)  # noqa: E731
    events = blank(stream)
    again = [(t + steps, layer, block(to), kind, block(source) if kind == COPY else source, sequence + OTHER * (sequence >= 0), why)
             for t, layer, to, kind, source, sequence, why in events]
    stream.events = events + [(steps, -1, one, FREE, -1, -1, 0) for one in owned(events)] + again
    plans, orders = [], []
    for first, last in launches(stream.plans):
        order, present = np.arange(stream.rows), min(plan.present for plan in stream.plans[first:last])
        order[:present] = rng.permutation(present)
        plans += [plan_again(plan, order, block, model) for plan in stream.plans[first:last]]
        orders += [order] * (last - first)
    stream.plans += plans
    for inputs in stream.inputs:
        for name, values in inputs.items():
            inputs[name] = np.concatenate([values, np.stack([values[t][order] for t, order in enumerate(orders)])])
    return stream


def digest(*parts):
    return hashlib.md5(repr(parts).encode()).hexdigest()


class Repeats:
    """(step, layer, row, earlier (step, row)) of every row that was given what another was, by a dictionary of histories."""

    def __init__(self, stream):
        self.stream, self.found = stream, []
        for layer in range(stream.layers):
            self.layer, self.histories, self.seen = layer, {}, {}
            for t, plan in enumerate(stream.plans):
                for event in [event for event in stream.events if event[0] == t and event[1] in (-1, layer)]:
                    self.event(*event[2:5])
                self.histories.update(self.step(t, plan))

    def event(self, block, kind, source):
        if kind == ZERO:
            self.histories[block] = "zeros"
        elif kind == LOAD:
            states = self.stream.loads[source]
            self.histories[block] = digest(*(one.tobytes() for one in states)) if any(one.any() for one in states) else "zeros"
        elif kind == COPY:
            self.histories[block] = self.of(source)

    def of(self, block):
        """A block that nothing has filled holds what nobody knows, the same again where it is copied."""
        return self.histories.setdefault(block, f"as block {block} was")

    def step(self, t, plan):
        inputs, after = self.stream.inputs[self.layer], {}
        for row, block in enumerate(plan.index):
            if self.stream.model.inactive(block, row, plan.present):
                continue
            moves = plan.source is not None and plan.source[row] >= 0
            history = self.of(int(plan.source[row] if moves else block))
            after[int(block)] = digest("lost", t, row)
            if plan.path == OPAQUE:
                continue
            key = digest(history, plan.path, plan.draft, *(inputs[name][t, row].tobytes() for name in ("x", "a", "b")))
            after[int(block)], whole = key, digest(key, inputs["z"][t, row].tobytes())
            if whole in self.seen:
                self.found.append((t, self.layer, row, self.seen[whole]))
            self.seen.setdefault(whole, (t, row))
        return after


def flip(values, place, kind):
    values.reshape(-1).view(np.uint32)[place] ^= np.uint32(1 << 16 if kind == "bf16" else 1)


class Case:
    def __init__(self, program, path, seed):
        self.program, self.path = program, path
        self.stream, self.drawn = told_twice(seed), random.Random(seed)
        self.model, self.repeats = PoolModel(self.stream), Repeats(self.stream).found

    def check(self):
        write_trace(self.path, self.stream, self.model, every_block=True)
        done = self.program("check", self.path, "--json", "-", "--quiet")
        return done.code, json.loads(done.out)

    def clean(self):
        code, report = self.check()
        return (code, report["repeats"], report["differing"]) == (0 if self.repeats else 2, len(self.repeats), 0)

    def names(self, place, tap, shape, element):
        """Is the difference planted there the one that is reported?"""
        t, layer, row, earlier = place
        each = int(np.prod(shape[1:])) if tap != "conv_out" else int(np.prod(shape))
        wanted = (1, tap, layer, None if tap == "conv_out" else element // each, element % each, *earlier, t, row)
        code, report = self.check()
        first = report["first"] or {"places": [{}, {}]}
        places = [one.get(name) for one in first["places"] for name in ("step", "row")]
        return (code, *(first.get(name) for name in ("tap", "layer", "head", "element")), *places) == wanted

    def tap(self):
        place, tap = self.drawn.choice(self.repeats), self.drawn.choice(TAPS)
        values = self.model.taps[place[1]][tap][place[0], place[2]]
        element = self.drawn.randrange(values.size)
        flip(values, element, self.stream.model.act)
        found = self.names(place, tap, values.shape, element)
        flip(values, element, self.stream.model.act)
        return found

    def state(self):
        place = self.drawn.choice(self.repeats)
        states, key = self.model.after[place[0]], (place[1], int(self.stream.plans[place[0]].index[place[2]]))
        recurrent = states[key][0].copy()
        element = self.drawn.randrange(recurrent.size)
        flip(recurrent, element, self.stream.model.state)
        states[key] = recurrent, states[key][1]
        return self.names(place, "state", recurrent.shape, element)


def main():
    program, tap = Program(sys.argv[2]), Tap()
    first, last = (int(part) for part in (sys.argv[3] if len(sys.argv) > 3 else "0:8").split(":"))
    with tempfile.TemporaryDirectory() as folder:
        cases = [Case(program, os.path.join(folder, f"{seed}.h5"), seed) for seed in range(first, last)]
        repeating = [case for case in cases if case.repeats]
        tap.check(len(repeating) > len(cases) // 2, f"{len(repeating)} of {len(cases)} streams repeat themselves")
        for name, asked, what in [
            ("clean", cases, "as many rows as the dictionary finds, and none differs"),
            ("tap", repeating, "a bit of an output is named by step, layer, row, head and element"),
            ("state", repeating, "a bit of a state is"),
        ]:
            wrong = [case.stream.seed for case in asked if not getattr(case, name)()]
            tap.check(not wrong, what, f"seeds {wrong}")
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
