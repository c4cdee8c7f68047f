#!/usr/bin/env python3
"""gdnsim check FILE on random streams that are told twice: the second time in other blocks, mostly in other rows, now and then with
another z or beside a prefill of another length, behind the first. It finds as many rows that were given the same as a dictionary of
histories does, in the same launch or in another; nothing differs; and a bit that is changed in one of them is named.

    check_random.py ROOT GDNSIM [FIRST:LAST]      seeds, by default a few
"""

import dataclasses
import hashlib
import json
import os
import random
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import needs_h5py  # noqa: E402, F401
import h5py  # noqa: E402
import numpy as np  # noqa: E402
from pool_model import TAPS, PoolModel, write_trace  # noqa: E402
from program import Program  # noqa: E402
from random_stream import ALLOCATE, COPY, FREE, LOAD, MIXED, OPAQUE, ZERO, Plan, RandomStream  # noqa: E402
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
    plans, orders, same_rows = [], [], rng.random() < 0.5
    for first, last in launches(stream.plans):
        order, present = np.arange(stream.rows), min(plan.present for plan in stream.plans[first:last])
        if not same_rows:
            order[:present] = rng.permutation(present)
        plans += [plan_again(plan, order, block, model) for plan in stream.plans[first:last]]
        orders += [order] * (last - first)
    stream.plans += plans
    for inputs in stream.inputs:
        for name, values in inputs.items():
            inputs[name] = np.concatenate([values, np.stack([values[t][order] for t, order in enumerate(orders)])])
        for row in np.ndindex(steps, stream.rows) if rng.random() < 0.5 else ():
            if rng.random() < 0.1:
                inputs["z"][steps + row[0], row[1]] *= -1
    return stream


def tokens_of_launches(stream, rng):
    """/steps/launch_tokens, 0: not known. Mostly the same the second time."""
    active = [sum(not stream.model.inactive(one, row, plan.present) for row, one in enumerate(plan.index)) for plan in stream.plans]
    tokens = [int(rng.choice([0, count, count + 1, count + 3000])) for count in active]
    half = len(tokens) // 2
    return np.array(tokens[:half] + [a if rng.random() < 0.9 else b for a, b in zip(tokens, tokens[half:])], np.int32)


def digest(*parts):
    return hashlib.md5(repr(parts).encode()).hexdigest()


@dataclasses.dataclass
class Repeat:
    """A row that was given what an earlier one was. Places are (step, row)."""

    layer: int
    place: tuple
    earlier: tuple
    earlier_state: tuple  # the first that ends in the same state, whatever its z
    same_launch: bool
    other_z: bool

    def answers(self, place, of_state):
        """What check says first of a bit changed at `place`, as far as this repeat sees it; None where it does not."""
        earlier = self.earlier_state if of_state else self.earlier
        return (not self.same_launch, self.place, earlier) if place in (self.place, earlier) else None


class Repeats:
    """Every row that was given what another was, by a dictionary of histories: of what went into a block, and of all that was in the
    launches since."""

    def __init__(self, stream, tokens):
        self.stream, self.tokens, self.found = stream, tokens, []
        for layer in range(stream.layers):
            self.layer, self.histories, self.seen = layer, {}, {}
            for t, plan in enumerate(stream.plans):
                for event in [event for event in stream.events if event[0] == t and event[1] in (-1, layer)]:
                    self.event(*event[2:5])
                self.histories.update(self.step(t, plan))

    def event(self, block, kind, source):
        if kind == ZERO:
            self.histories[block] = ("zeros", "zeros")
        elif kind == LOAD:
            states = self.stream.loads[source]
            root = digest(*(one.tobytes() for one in states)) if any(one.any() for one in states) else "zeros"
            self.histories[block] = (root, root)
        elif kind == COPY:
            self.histories[block] = self.of(source)

    def of(self, block):
        """A block that nothing has filled holds what nobody knows, the same again where it is copied."""
        return self.histories.setdefault(block, (f"as block {block} was",) * 2)

    def step(self, t, plan):
        starts = {}  # row: history
        for row, block in enumerate(plan.index):
            if not self.stream.model.inactive(block, row, plan.present):
                moves = plan.source is not None and plan.source[row] >= 0
                starts[row] = self.of(int(plan.source[row] if moves else block))
        if plan.path == OPAQUE:
            return {int(plan.index[row]): (digest("lost", t, row),) * 2 for row in starts}
        return self.rows(t, plan, starts)

    def rows(self, t, plan, starts):
        inputs, words = self.stream.inputs[self.layer], {}
        for row, (values, _) in starts.items():
            key = digest(values, plan.path, plan.draft, *(inputs[name][t, row].tobytes() for name in ("x", "a", "b")))
            words[row] = key, digest(key, inputs["z"][t, row].tobytes())
        unknown = t if plan.path == MIXED and self.tokens[t] == 0 else -1
        batch = digest(plan.path, plan.draft, plan.present, self.tokens[t], unknown, sorted((row, z) for row, (_, z) in words.items()))
        after = {}
        for row, (key, with_z) in words.items():
            launches = digest(starts[row][1], batch, row)
            self.meet((t, row), key, with_z, launches)
            after[int(plan.index[row])] = key, launches
        return after

    def meet(self, place, key, with_z, launches):
        same, whole, state = (self.seen.get(one) for one in (launches, with_z, key))
        if state is not None:
            self.found.append(Repeat(self.layer, place, same or whole or state, same or state, same is not None, not (same or whole)))
        for one in (key, with_z, launches):
            self.seen.setdefault(one, place)


def flip(values, place, kind):
    values.reshape(-1).view(np.uint32)[place] ^= np.uint32(1 << 16 if kind == "bf16" else 1)


class Case:
    def __init__(self, program, path, seed):
        self.program, self.path = program, path
        self.stream, self.drawn = told_twice(seed), random.Random(seed)
        self.tokens = tokens_of_launches(self.stream, np.random.default_rng(seed + 199))
        self.model, self.repeats = PoolModel(self.stream), Repeats(self.stream, self.tokens).found

    def check(self):
        write_trace(self.path, self.stream, self.model, every_block=True)
        with h5py.File(self.path, "r+") as file:
            file["steps"].create_dataset("launch_tokens", data=self.tokens)
        done = self.program("check", self.path, "--json", "-", "--quiet")
        return done.code, json.loads(done.out)

    def count(self, name):
        return sum(getattr(repeat, name) for repeat in self.repeats)

    def clean(self):
        code, report = self.check()
        counts = [report[name] for name in ("repeats", "same_launch", "other_z", "differing")]
        return (code, *counts) == (0 if self.repeats else 2, len(self.repeats), self.count("same_launch"), self.count("other_z"), 0)

    def names(self, planted, tap, shape, element):
        """Is the difference planted there the one that is reported?"""
        sees = [r for r in self.repeats if r.layer == planted.layer and not (tap == "norm_out" and r.other_z)]
        answers = [r.answers(planted.place, tap == "state") for r in sees]
        other, place, earlier = min(answer for answer in answers if answer)
        each = int(np.prod(shape[1:])) if tap != "conv_out" else int(np.prod(shape))
        wanted = (1, tap, planted.layer, None if tap == "conv_out" else element // each, element % each, *earlier, *place,
                  "different launches" if other else "the same launch again")
        code, report = self.check()
        first = report["first"] or {"places": [{}, {}]}
        places = [one.get(name) for one in first["places"] for name in ("step", "row")]
        return (code, *(first.get(name) for name in ("tap", "layer", "head", "element")), *places, first.get("between")) == wanted

    def tap(self):
        planted = self.drawn.choice(self.repeats)
        tap = self.drawn.choice([tap for tap in TAPS if tap != "norm_out" or not planted.other_z])
        values = self.model.taps[planted.layer][tap][planted.place]
        element = self.drawn.randrange(values.size)
        flip(values, element, self.stream.model.act)
        found = self.names(planted, tap, values.shape, element)
        flip(values, element, self.stream.model.act)
        return found

    def state(self):
        planted = self.drawn.choice(self.repeats)
        step, row = planted.place
        states, key = self.model.after[step], (planted.layer, int(self.stream.plans[step].index[row]))
        recurrent = states[key][0].copy()
        element = self.drawn.randrange(recurrent.size)
        flip(recurrent, element, self.stream.model.state)
        states[key] = recurrent, states[key][1]
        return self.names(planted, "state", recurrent.shape, element)


def main():
    program, tap = Program(sys.argv[2]), Tap()
    first, last = (int(part) for part in (sys.argv[3] if len(sys.argv) > 3 else "0:8").split(":"))
    with tempfile.TemporaryDirectory() as folder:
        cases = [Case(program, os.path.join(folder, f"{seed}.h5"), seed) for seed in range(first, last)]
        repeating = [case for case in cases if case.repeats]
        tap.check(len(repeating) > len(cases) // 2, f"{len(repeating)} of {len(cases)} streams repeat themselves")
        for name in ("same_launch", "other_z"):
            tap.check(any(case.count(name) for case in cases), f"some rows are of that kind: {name}")
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
