#!/usr/bin/env python3
"""explain names faults that its author did not plant: states, blocks, windows and outputs gone wrong in a toy engine.

The traces are made by tests/support/toy_*.py in numpy, which share no code with the program.

explain_cases.py ROOT PROGRAM [--keep FOLDER] [--only TEXT]
"""

import argparse
import dataclasses
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import numpy as np  # noqa: E402
import toy_faults as faults  # noqa: E402
from explain_case import ABSENT, Cases, Want, everywhere  # noqa: E402
from program import Program  # noqa: E402
from tap import Tap  # noqa: E402
from toy_engine import Hooks, run_engine  # noqa: E402
from toy_faults import BOTH, CONV, REC  # noqa: E402
from toy_step import Model, f32, to_bf16  # noqa: E402
from toy_trace import DEFAULT_TAPS, INNER_TAPS, make_stream  # noqa: E402

WIDE = Model(K=8, V=4, H=1, HV=3)
BF16 = Model(state="bf16")
F32CONV = Model(conv="f32", activation="none")


@dataclasses.dataclass
class Case:
    name: str
    stream: object
    hooks: object = None
    wants: tuple = ()
    snapshots: object = "every"
    taps: tuple = DEFAULT_TAPS
    also: tuple = ()
    change: object = None  # called with (run, stream) after the run
    check: object = None
    code: int = 1


def row_of(stream, sequence):
    return int(np.argwhere(stream.sequence == sequence)[0, 1])


def block_of(stream, sequence):
    return int(stream.index[stream.sequence == sequence][0])


def unused(stream):
    """A block that no row ever names; every block holds a loaded state of its own."""
    return next(b for b in range(1, stream.model.blocks) if not (stream.index == b).any())


def wrong_block():
    for seed, model, parts, snapshots, t, layer, name in [
        (1, Model(), BOTH, "every", 5, 1, 0), (2, WIDE, REC, "fifth", 3, 0, 1), (3, F32CONV, CONV, "every", 6, 1, 3),
        (4, BF16, BOTH, "last", 5, 0, 3), (5, Model(), REC, "last", 1, 1, 2),
    ]:
        s = make_stream(seed, model)
        row, other = row_of(s, name), unused(s) if seed % 2 else block_of(s, 1 if name != 1 else 0)
        yield Case(f"wrong-block read {seed}", s, faults.reads_block(t, layer, row, other, parts),
                   [Want("wrong-block", step=t, layer=layer, row=row, block=other)], snapshots)
    for seed, parts, snapshots in [(6, BOTH, "every"), (7, REC, "fifth"), (8, CONV, "every"), (9, BOTH, "last")]:
        s = make_stream(seed)
        row = row_of(s, 0)
        other = unused(s) if seed % 2 else block_of(s, 2)  # sequence 2 sits step 5 out
        yield Case(f"wrong-block write {seed}", s, faults.writes_block(5, 0, row, other, parts),
                   [Want("wrong-block", step=5, layer=0, row=row, block=other)], snapshots)
    s = make_stream(10)
    row, other = row_of(s, 3), unused(s)

    def live(place, value):
        return other if place.is_at(range(4, 8), None, row) else value
    yield Case("wrong-block from step 4 on", s, Hooks(live=live), [Want("wrong-block", since=4, row=row, block=other, layer=ABSENT)])


def wrong_position():
    for seed, model, n, parts, snapshots in [
        (11, Model(), -2, BOTH, "every"), (12, WIDE, -3, REC, "every"), (13, BF16, 1, BOTH, "every"),
        (14, Model(), -1, BOTH, "every"), (15, F32CONV, -2, REC, "fifth"), (16, Model(), 1, REC, "last"),
    ]:
        s = make_stream(seed, model)
        row = row_of(s, 0)
        yield Case(f"wrong-position read {n} {seed}", s, faults.reads_position(run_engine(s), 6, 1, row, n, parts),
                   [Want("wrong-position", step=6, layer=1, row=row)], snapshots)
    for seed, t, n, parts, snapshots in [(17, 4, -2, BOTH, "every"), (18, 5, 1, BOTH, "every"), (19, 4, -3, REC, "fifth")]:
        s = make_stream(seed)
        block = block_of(s, 0)
        yield Case(f"wrong-position snapshot {n} {seed}", s, None, [Want("wrong-position", step=t, layer=0, block=block)], snapshots,
                   change=lambda run, s, t=t, n=n, parts=parts, block=block: faults.snapshot_of_position(run, s, t, 0, block, n, parts))


def conv_window():
    for seed, model, n, stored, snapshots in [
        (21, Model(), -1, False, "every"), (22, F32CONV, 1, False, "fifth"), (23, WIDE, -2, False, "last"),
        (24, Model(), 2, False, "every"), (25, BF16, -1, True, "every"), (26, Model(), 1, True, "every"),
    ]:
        s = make_stream(seed, model, bias=seed % 2 == 0)
        row = row_of(s, 0 if seed % 2 else 3)
        t = 3 if seed % 2 else 6
        yield Case(f"conv-window-shift {n} {'stored ' if stored else ''}{seed}", s, faults.shifts_window(t, 1, row, n, stored),
                   [Want("conv-window-shift", step=t, layer=1, row=row)], snapshots)
    s = make_stream(27)
    yield Case("conv-window-shift, one layer from step 3 on", s, faults.shifts_window(range(3, 8), 0, None, -1),
               [Want("conv-window-shift", since=3, layer=0, row=ABSENT)])


def write_missing():
    for seed, model, parts, snapshots, t in [
        (31, Model(), REC, "every", 6), (32, WIDE, CONV, "every", 3), (33, BF16, BOTH, "every", 5),
        (34, Model(), REC, "fifth", 6), (35, F32CONV, CONV, "last", 2), (36, Model(), REC, "last", 1),
    ]:
        s = make_stream(seed, model)
        row = row_of(s, 0)
        yield Case(f"write-missing {seed}", s, faults.loses_write(t, 1, row, parts),
                   [Want("write-missing", step=t, layer=1, row=row)], snapshots)
    for seed, parts, which, snapshots in [(37, CONV, None, "every"), (38, REC, 0, "every"), (39, REC, None, "fifth")]:
        s = make_stream(seed)
        row = None if which is None else row_of(s, which)
        yield Case(f"write-missing from step 3 on {seed}", s, faults.loses_write(range(3, 8), 0, row, parts),
                   [Want("write-missing", since=3, layer=0, row=ABSENT if row is None else row)], snapshots)


def reset_missing():
    for seed, reuse, second, layer, snapshots in [
        (41, True, "zero", None, "every"), (42, True, "load", 1, "fifth"), (43, False, "load", None, "last"),
        (44, False, "zero", 0, "every"),
    ]:
        s = make_stream(seed, reuse=reuse, second=second)
        block = block_of(s, 3)
        yield Case(f"reset-missing {second} {seed}", s, faults.loses_event(4, block, layer),
                   [Want("reset-missing", step=4, block=block, layer=ABSENT if layer is None else layer)], snapshots)
    s = make_stream(45)
    block = block_of(s, 0)
    yield Case("reset-missing at step 0", s, faults.loses_event(0, block, 1), [Want("reset-missing", step=0, block=block, layer=1)])


def padded_rows():
    """Blocks that the inactive row never had before; an old one of its own would be a stale tail."""
    for seed, padding, block, parts, shows, snapshots in [
        (51, 0, 0, BOTH, False, "every"), (520, -1, 5, BOTH, False, "every"), (53, -1, 0, REC, False, "every"),
        (54, 0, 0, BOTH, True, "fifth"), (55, 0, None, CONV, False, "every"), (56, -1, None, BOTH, True, "last"),
    ]:
        s = next(s for s in (make_stream(one, padding=padding) for one in range(seed, seed + 40)) if free(s, 2, block))
        row = row_of(s, 2)
        block = unused(s) if block is None else block
        # As it computed: the outputs of an inactive row differ too, which is the same fault.
        yield Case(f"padded-row-wrote {seed}", s, faults.inactive_works(2, 0, row, block, parts, shows),
                   [Want("padded-row-wrote", step=2, layer=0, row=row, block=block)], snapshots)
    s = make_stream(59)
    row, block = row_of(s, 2), block_of(s, 2)
    yield Case("the block of its last step, though the index says 0", s, faults.inactive_works(2, 0, row, block),
               [Want("stale-tail", step=2, layer=0, row=row, block=block)])
    s = two_writers()
    row, block = row_of(s, 2), block_of(s, 0)
    yield Case("padded-row-wrote after the block's own row", s, faults.inactive_works(2, 0, row, block),
               [Want("padded-row-wrote", step=2, layer=0, row=row, block=block)])
    s = next(s for s in (make_stream(one, Model(sentinel="minus_one")) for one in range(570, 610)) if free(s, 2, 0))
    row, block = row_of(s, 2), 0
    yield Case("padded-row-wrote, -1 clamped to a live block 0", s, faults.inactive_works(2, 1, row, block, BOTH, False),
               [Want("padded-row-wrote", step=2, layer=1, row=row, block=block)])


def free(stream, t, block):
    """Neither a row of this step nor sequence 2, which sits it out, has the block."""
    rows = [row for row in range(3) if not stream.inactive(t, row)]
    return block not in (*stream.index[t, rows], block_of(stream, 2))


def two_writers():
    """A stream whose pausing row comes after sequence 0's, so that its write is the one that stays."""
    return next(s for s in map(make_stream, range(580, 600)) if row_of(s, 2) > row_of(s, 0))


def stale_tails():
    for seed, parts, snapshots, shows in [(61, BOTH, "every", False), (62, CONV, "every", False), (63, BOTH, "fifth", True)]:
        s = stale_stream(seed)
        block = int(s.index[5, 2])
        yield Case(f"stale-tail {seed}", s, faults.inactive_works(5, 0, 2, block, parts, shows),
                   [Want("stale-tail", step=5, layer=0, row=2, block=block)], snapshots)
    s = stale_stream(64)
    block = unused(s)
    s.index[5, 2] = block
    yield Case("a row beyond the present ones, its index not an old one", s, faults.inactive_works(5, 0, 2, block, BOTH, False),
               [Want("padded-row-wrote", step=5, layer=0, row=2, block=block)])


def stale_stream(seed):
    """Row 2 is beyond the rows present at step 5, and its index is the one that step 4 left."""
    s = make_stream(seed, pause=())
    s.rows = np.full(8, 3, np.int32)
    s.rows[5] = 2
    s.sequence[5, 2] = -1
    later = s.sequence[6:, 2] == s.sequence[4, 2]
    s.position[6:, 2] -= later
    s.position[5, 2] = -1
    return s


def transposed():
    for seed, snapshots in [(71, "every"), (72, "fifth")]:
        s = make_stream(seed)
        block = block_of(s, 3)
        yield Case(f"kv-transposed load {seed}", s, faults.loads_transposed(4, 1, block), [Want("kv-transposed", step=4, layer=1)], snapshots)
        row = row_of(s, 0)
        yield Case(f"kv-transposed read {seed}", s, faults.reads_transposed(5, 0, row),
                   [Want("kv-transposed", step=5, layer=0, row=row)], snapshots)
    s = make_stream(73, BF16)
    row = row_of(s, 0)
    yield Case("kv-transposed write", s, faults.writes_transposed(6, 1, row), [Want("kv-transposed", step=6, layer=1, row=row)])


def memory():
    for seed, model, part, at, bit, snapshots, within in [
        (81, Model(), 0, 77, 12, "fifth", (5, 7)), (82, Model(), 0, 200, 30, "every", (6, 7)), (83, BF16, 0, 33, 18, "every", (6, 7)),
        (84, Model(), 1, 100, 20, "every", (6, 7)), (85, WIDE, 0, 11, 3, "every", (6, 7)),
    ]:
        s = make_stream(seed, model)
        block = block_of(s, 0)
        yield Case(f"memory-corruption state {seed}", s, faults.flips_state(6, 1, block, at, bit, part),
                   [Want("memory-corruption", within=within, layer=1, block=block)], snapshots)
    s = make_stream(86)
    block = unused(s)
    yield Case("memory-corruption in a block nobody names", s, faults.flips_state(3, 0, block, 5, 9),
               [Want("memory-corruption", within=(2, 4), layer=0, block=block)], [2, 4, 7])
    for seed, tap, at, bit in [(87, "core_out", 9, 17), (88, "conv_out", 60, 22), (89, "norm_out", 3, 31)]:
        s = make_stream(seed)
        row = row_of(s, 3)
        yield Case(f"memory-corruption {tap}", s, faults.changes_output(tap, lambda v, at=at, bit=bit: faults.flip(v, at, bit), 5, 1, row),
                   [Want("memory-corruption", step=5, layer=1, row=row)])


def inputs():
    """A recorded input is not what the engine was given: one bit. First seen where it is first read."""
    for seed, name, at, bit, tap in [(91, "x", 3, 22, "conv_out"), (92, "z", 5, 23, "norm_out"), (93, "b", 1, 22, "state")]:
        s = make_stream(seed)
        row = row_of(s, 0)

        def given(place, value, row=row, name=name, at=at, bit=bit):
            return {**value, name: faults.flip(value[name], at, bit)} if place.is_at(4, 1, row) else value

        def first(report, row=row, tap=tap):
            found = report["first"]
            here = (found["step"], found["layer"], found["row"], found["tap"]) == (4, 1, row, tap)
            return [] if here else [f"first {found}"]
        yield Case(f"memory-corruption input {name}", s, Hooks(inputs=given),
                   [Want(("memory-corruption", "unexplained"), step=4, layer=1)], check=first)


def formulas():
    for seed, sigmoid in [(101, False), (102, True)]:
        model = Model(norm_gate="sigmoid" if sigmoid else "silu")
        for name, norm in (("norm-gate-order", "gate-first"), ("norm-cast-order", "hf")):
            yield Case(f"{name} {model.norm_gate}", make_stream(seed, model), faults.computes(norm=norm), [everywhere(name)])
    for name, decay in (("log given as linear", "log"), ("linear given as log", "exp-exp")):
        yield Case(f"gate-domain {name}", make_stream(103), faults.computes(decay=decay), [everywhere("gate-domain")])
    s = make_stream(104, Model(H=2, HV=4, V=4))
    order = faults.unpack_order(s.model)
    yield Case("qkv-packing interleaved as flat", s, faults.permutes_inputs(order), [everywhere("qkv-packing")])
    yield Case("qkv-packing flat as interleaved", s, faults.permutes_inputs(np.argsort(order)), [everywhere("qkv-packing")])


def index_wraps():
    """2^20 blocks of 4,096 elements: a 32-bit element offset comes round. Only the recurrent kernel wraps."""
    s = make_stream(111, Model(H=1, HV=1, K=64, V=64, W=2, layer_ids=(0,), state="bf16"))
    far, hit = (1 << 20) + 3, 3
    s.model = dataclasses.replace(s.model, blocks=(1 << 20) + 8)
    mine = block_of(s, 0)
    s.index[s.index == mine] = far
    s.events = [(t, layer, far if b == mine else b, kind, source) for t, layer, b, kind, source in s.events]
    row = row_of(s, 0)
    if (s.index == hit).any():  # the block that is hit belongs to nobody, but holds a state
        s.index[s.index == hit] = mine
        s.events = [(t, layer, mine if b == hit and t else b, kind, source) for t, layer, b, kind, source in s.events]
    hooks = faults.reads_block(None, 0, row, hit, REC) + faults.writes_block(None, 0, row, hit, REC)

    def named(run, stream):
        run.named = (hit, far)
    yield Case("index-wrap", s, hooks, [Want("index-wrap", block=hit)], change=named)


def repeats():
    """Sequence 3 is fed what sequence 1 was, from the same loaded state; once its output differs in one bit."""
    for seed, when in [(121, 6), (122, 1)]:
        s = make_stream(seed, pause=())
        row = row_of(s, 1)
        for values in s.inputs:
            for array in values.values():
                array[4:, row] = array[:4, row]
        for layer in range(2):
            first = next(e[4] for e in s.events if e[:3] == (0, layer, block_of(s, 1)))
            again = next(i for i, e in enumerate(s.events) if e[:3] == (4, layer, block_of(s, 3)))
            s.events[again] = (*s.events[again][:4], first)
        # Our own replay tells which of the two is off, so the odd bit may be named as well.
        yield Case(f"not-repeatable {when}", s, faults.changes_output("core_out", lambda v: faults.flip(v, 4, 16), when, 0, row),
                   [Want("not-repeatable")], also=("memory-corruption", "unexplained"),
                   check=lambda r: [] if r["mechanisms"] and r["mechanisms"][0]["id"] == "not-repeatable" else ["not said first"])


def unexplained():
    s = make_stream(131)
    yield Case("core_out times 1.001 in one layer from step 3", s,
               faults.computes(range(3, 8), 1, core_factor=1.001), [Want("unexplained", layer=1)])
    s = make_stream(132)
    rng = np.random.default_rng(7)
    yield Case("noise on random elements", s, faults.changes_output("core_out", lambda v: noisy(rng, v)), [Want("unexplained")],
               also=("unexplained",))  # one line, or one a layer

    def pool(place, value):
        for key, (rec, conv) in list(place.pool.items()):
            place.pool[key] = (np.array(rec * f32(1.0001), f32), conv)
        return value
    yield Case("a state that grows by a hair", make_stream(133), Hooks(pool=pool), [Want("unexplained")],
               also=("unexplained",))


def noisy(rng, values):
    hit = rng.random(values.shape) < 0.05
    return np.where(hit, to_bf16(values * (1 + 0.1 * rng.standard_normal(values.shape)).astype(f32)), values)


def composed():
    s = make_stream(141)
    row = row_of(s, 0)
    yield Case("beta-bf16 and a lost write", s, faults.computes(beta="bf16") + faults.loses_write(5, 1, row, REC),
               [everywhere("beta-bf16"), Want("write-missing", step=5, layer=1, row=row)])
    s = make_stream(142)
    row, other = row_of(s, 0), unused(s)
    yield Case("two layers, two faults", s, faults.reads_block(3, 0, row, other) + faults.shifts_window(5, 1, row, -1),
               [Want("wrong-block", step=3, layer=0, row=row, block=other), Want("conv-window-shift", step=5, layer=1, row=row)])
    s = make_stream(143)
    row, other = row_of(s, 0), row_of(s, 3)
    yield Case("one layer, two steps", s, faults.loses_write(2, 1, row, REC) + faults.reads_block(6, 1, other, unused(s), REC),
               [Want("write-missing", step=2, layer=1, row=row), Want("wrong-block", step=6, layer=1, row=other, block=unused(s))])
    s = make_stream(144)
    yield Case("head-map and bf16 store", s, faults.computes(head_map="tiled", state_store="bf16"),
               [everywhere("head-map"), everywhere("state-store-bf16")])
    s = make_stream(145)
    row = row_of(s, 2)
    yield Case("update-fma and a padded row that wrote", s, faults.computes(update="fma") + faults.inactive_works(2, 0, row, 0, BOTH),
               [everywhere("update-fma"), Want("padded-row-wrote", step=2, layer=0, row=row, block=0)])
    s = make_stream(146)
    block = block_of(s, 3)
    yield Case("norm order in layer 0, a lost load in layer 1", s, faults.computes(layer=0, norm="gate-first") + faults.loses_event(4, block, 1),
               [Want("norm-gate-order", layer=0, row=ABSENT, step=ABSENT), Want("reset-missing", step=4, layer=1, block=block)])


def clean():
    for seed, model, taps in [(151, Model(), DEFAULT_TAPS), (152, WIDE, DEFAULT_TAPS + INNER_TAPS), (153, BF16, DEFAULT_TAPS),
                              (154, F32CONV, DEFAULT_TAPS), (155, Model(sentinel="minus_one"), DEFAULT_TAPS)]:
        yield Case(f"clean {seed}", make_stream(seed, model, bias=seed % 2 == 0), None, [], "every" if seed % 2 else "last", taps, code=0)
    yield Case("clean, an old index beyond the rows present", stale_stream(156), None, [], code=0)


def with_inner_taps():
    """The same faults with every tap recorded: nothing else is said."""
    s = make_stream(161)
    row, other = row_of(s, 0), unused(s)
    for name, hooks, want in [
        ("wrong-block", faults.reads_block(5, 1, row, other), Want("wrong-block", step=5, layer=1, row=row, block=other)),
        ("write-missing", faults.loses_write(5, 1, row, REC), Want("write-missing", step=5, layer=1, row=row)),
        ("conv-window-shift", faults.shifts_window(5, 1, row, 1), Want("conv-window-shift", step=5, layer=1, row=row)),
        ("beta-bf16", faults.computes(beta="bf16"), everywhere("beta-bf16")),
    ]:
        yield Case(f"{name}, inner taps", s, hooks, [want], taps=DEFAULT_TAPS + INNER_TAPS)


GROUPS = [clean, wrong_block, wrong_position, conv_window, write_missing, reset_missing, padded_rows, stale_tails, transposed, memory,
          inputs, formulas, index_wraps, repeats, unexplained, composed, with_inner_taps]


def ask(cases, case):
    run = run_engine(case.stream, case.hooks)
    if case.change:
        case.change(run, case.stream)
    cases.run(case.name, case.stream, None, case.wants, case.snapshots, case.taps, run, also=case.also, code=case.code, check=case.check)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("program")
    parser.add_argument("--keep")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        cases = Cases(tap, Program(options.program), folder, options.keep)
        for group in GROUPS:
            for case in group():
                if options.only in case.name:
                    ask(cases, case)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
