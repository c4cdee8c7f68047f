"""Faults of values, formulas and layouts, several at once, and none, for explain_cases.py."""

import dataclasses

import numpy as np
import toy_faults as faults
from cases_blocks import BF16, F32CONV, WIDE, stale_stream
from explain_case import ABSENT, Case, Want, block_of, everywhere, row_of, says, unused
from toy_engine import Hooks, run_engine
from toy_faults import BOTH, REC
from toy_step import Model, f32, to_bf16
from toy_trace import DEFAULT_TAPS, INNER_TAPS, make_stream


def memory():
    for seed, model, part, at, bit, snapshots, within in [
        (81, Model(), 0, 77, 12, "fifth", (5, 7)),
        (82, Model(), 0, 200, 30, "every", (6, 7)),
        (83, BF16, 0, 33, 18, "every", (6, 7)),
        (84, Model(), 1, 100, 20, "every", (6, 7)),
        (85, WIDE, 0, 11, 3, "every", (6, 7)),
    ]:
        s = make_stream(seed, model)
        block = block_of(s, 0)
        yield Case(
            f"memory-corruption state {seed}",
            s,
            faults.flips_state(6, 1, block, at, bit, part),
            [Want("memory-corruption", within=within, layer=1, block=block)],
            snapshots,
        )
    for seed, bit in [(74, 22), (75, 20)]:
        s = make_stream(seed)
        block = block_of(s, 3)  # loaded before step 4, which reads it
        yield Case(
            f"memory-corruption of a loaded state {seed}",
            s,
            faults.loads_flipped(4, 1, block, 77, bit),
            [Want("memory-corruption", within=(4, 4), layer=1, block=block)],
            [7],
        )
    s = make_stream(86)
    block = unused(s)
    yield Case(
        "memory-corruption in a block nobody names",
        s,
        faults.flips_state(3, 0, block, 5, 9),
        [Want("memory-corruption", within=(2, 4), layer=0, block=block)],
        [2, 4, 7],
    )
    for seed, tap, at, bit in [(87, "core_out", 9, 17), (88, "conv_out", 60, 22), (89, "norm_out", 3, 31)]:
        s = make_stream(seed)
        row = row_of(s, 3)
        yield Case(
            f"memory-corruption {tap}",
            s,
            faults.changes_output(tap, lambda v, at=at, bit=bit: faults.flip(v, at, bit), 5, 1, row),
            [Want("memory-corruption", step=5, layer=1, row=row)],
        )


def inputs():
    """A recorded input is not what the engine was given: one bit. First seen where it is first read."""
    for seed, name, at, bit, tap in [
        (91, "x", 3, 22, "conv_out"),
        (92, "z", 5, 23, "norm_out"),
        (93, "b", 1, 22, "state"),
    ]:
        s = make_stream(seed)
        row = row_of(s, 0)

        def given(place, value, row=row, name=name, at=at, bit=bit):
            return {**value, name: faults.flip(value[name], at, bit)} if place.is_at(4, 1, row) else value

        def first(report, row=row, tap=tap):
            found = report["first"]
            here = (found["step"], found["layer"], found["row"], found["tap"]) == (4, 1, row, tap)
            return [] if here else [f"first {found}"]

        yield Case(
            f"memory-corruption input {name}",
            s,
            Hooks(inputs=given),
            [Want(("memory-corruption", "unexplained"), step=4, layer=1)],
            check=first,
        )


def formulas():
    for seed, sigmoid in [(101, False), (102, True)]:
        model = Model(norm_gate="sigmoid" if sigmoid else "silu")
        for name, norm in (("norm-gate-order", "gate-first"), ("norm-cast-order", "hf")):
            yield Case(
                f"{name} {model.norm_gate}", make_stream(seed, model), faults.computes(norm=norm), [everywhere(name)]
            )
    for name, decay in (("log given as linear", "log"), ("linear given as log", "exp-exp")):
        yield Case(f"gate-domain {name}", make_stream(103), faults.computes(decay=decay), [everywhere("gate-domain")])
    s = make_stream(104, Model(H=2, HV=4, V=4))
    order = faults.unpack_order(s.model)
    yield Case("qkv-packing interleaved as flat", s, faults.permutes_inputs(order), [everywhere("qkv-packing")])
    yield Case(
        "qkv-packing flat as interleaved", s, faults.permutes_inputs(np.argsort(order)), [everywhere("qkv-packing")]
    )


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
        yield Case(
            f"not-repeatable {when}",
            s,
            faults.changes_output("core_out", lambda v: faults.flip(v, 4, 16), when, 0, row),
            [Want("not-repeatable")],
            also=("memory-corruption", "unexplained"),
            check=lambda r: (
                [] if r["mechanisms"] and r["mechanisms"][0]["id"] == "not-repeatable" else ["not said first"]
            ),
        )


def unexplained():
    """What nothing in the table gives. Each may take a line for all layers or one for each."""
    rng = np.random.default_rng(7)

    def pool(place, value):
        for key, (rec, conv) in list(place.pool.items()):
            place.pool[key] = (np.array(rec * f32(1.0001), f32), conv)
        return value

    def tries_all(report):
        says = [m["says"] for m in report["mechanisms"]]
        return [f"it did not try everything: {text}" for text in says if "time ran out" in text]

    def cut_short(report):
        return [] if "time ran out" in report["mechanisms"][-1]["says"] else ["it does not say that the time ran out"]

    noise = faults.changes_output("core_out", lambda v: noisy(rng, v))
    one_layer = Model(layer_ids=(0,))
    for seed, name, model, hooks, layer, check, options in [
        (131, "core_out times 1.001 from step 3", None, faults.computes(range(3, 8), 1, core_factor=1.001), 1, tries_all, ()),
        (132, "noise on random elements", one_layer, noise, None, tries_all, ()),
        (133, "a state that grows by a hair", one_layer, Hooks(pool=pool), None, tries_all, ()),
        (134, "noise, and a second of time", None, noise, None, cut_short, ("--seconds", 1)),
    ]:
        yield Case(
            name,
            make_stream(seed, model, steps=8 if model is None else 4),
            hooks,
            [Want("unexplained", layer=layer)],
            also=("unexplained",),
            check=check,
            options=options,
        )


def too_many():
    """More faults in a layer than are looked for: the rest must not pass for explained."""
    s = make_stream(135, Model(layer_ids=(0,)), steps=28, pause=())
    row, own, hooks = row_of(s, 0), block_of(s, 0), Hooks()
    others = [b for b in range(1, s.model.blocks) if b != own]
    for t in range(1, 28):
        hooks = hooks + faults.reads_block(t, 0, row, others[t % len(others)], REC)

    def said(report):
        return [] if "after 16 findings" in report["mechanisms"][-1]["says"] else ["it does not say that it stopped"]

    yield Case("a wrong block in each of 27 steps", s, hooks, [Want("unexplained", layer=0)], also=("wrong-block",), check=said)


def noisy(rng, values):
    hit = rng.random(values.shape) < 0.05
    return np.where(hit, to_bf16(values * (1 + 0.1 * rng.standard_normal(values.shape)).astype(f32)), values)


def composed():
    s = make_stream(141)
    row = row_of(s, 0)
    yield Case(
        "beta-bf16 and a lost write",
        s,
        faults.computes(beta="bf16") + faults.loses_write(5, 1, row, REC),
        [everywhere("beta-bf16"), Want("write-missing", step=5, layer=1, row=row)],
    )
    s = make_stream(142)
    row, other = row_of(s, 0), unused(s)
    yield Case(
        "two layers, two faults",
        s,
        faults.reads_block(3, 0, row, other) + faults.shifts_window(5, 1, row, -1),
        [
            Want("wrong-block", step=3, layer=0, row=row, block=other),
            Want("conv-window-shift", step=5, layer=1, row=row),
        ],
    )
    s = make_stream(143)
    row, other = row_of(s, 0), row_of(s, 3)
    yield Case(
        "one layer, two steps",
        s,
        faults.loses_write(2, 1, row, REC) + faults.reads_block(6, 1, other, unused(s), REC),
        [
            Want("write-missing", step=2, layer=1, row=row),
            Want("wrong-block", step=6, layer=1, row=other, block=unused(s)),
        ],
    )
    s = make_stream(148)
    block, row = unused(s), row_of(s, 2)
    s.events = [event for event in s.events if event[2] != block]  # nothing ever names it
    lost = row_of(s, 0)
    yield Case(
        "a padded row's write to a block that nothing names, and a lost write after it",
        s,
        faults.inactive_works(2, 1, row, block) + faults.loses_write(5, 1, lost, REC),
        [
            Want("padded-row-wrote", step=2, layer=1, row=row, block=block),
            Want("write-missing", step=5, layer=1, row=lost),
        ],
    )
    s = make_stream(147)
    row, rules = row_of(s, 0), faults.computes(qk_eps="mean")
    # The earlier state is the one that this engine made.
    back = faults.reads_position(run_engine(s, rules), 6, 1, row, -2)
    yield Case(
        "qk-eps and a state of two tokens before",
        s,
        rules + back,
        [everywhere("qk-eps"), Want("wrong-position", step=6, layer=1, row=row)],
    )
    s = make_stream(144)
    yield Case(
        "head-map and bf16 store",
        s,
        faults.computes(head_map="tiled", state_store="bf16"),
        [everywhere("head-map"), everywhere("state-store-bf16")],
    )
    s = make_stream(145)
    row = row_of(s, 2)
    yield Case(
        "update-fma and a padded row that wrote",
        s,
        faults.computes(update="fma") + faults.inactive_works(2, 0, row, 0, BOTH),
        [everywhere("update-fma"), Want("padded-row-wrote", step=2, layer=0, row=row, block=0)],
    )
    s = make_stream(146)
    block = block_of(s, 3)
    yield Case(
        "norm order in layer 0, a lost load in layer 1",
        s,
        faults.computes(layer=0, norm="gate-first") + faults.loses_event(4, block, 1),
        [
            Want("norm-gate-order", layer=0, row=ABSENT, step=ABSENT),
            Want("reset-missing", step=4, layer=1, block=block),
        ],
    )


def switches():
    """The engine's activation or gate is not the one in /model."""
    for seed, field, used, wrong in [
        (171, "activation", "silu", "none"),
        (172, "activation", "none", "silu"),
        (173, "norm_gate", "silu", "sigmoid"),
        (174, "norm_gate", "sigmoid", "silu"),
    ]:

        def said(_, stream, field=field, wrong=wrong):
            stream.model = dataclasses.replace(stream.model, **{field: wrong})

        yield Case(
            f"model-field, {field} {wrong} for {used}",
            make_stream(seed, dataclasses.replace(Model(), **{field: used}), bias=seed % 2 == 0),
            None,
            [everywhere("model-field")],
            change=said,
            check=says(f"/model says {field} = {wrong}; the provider computed with {used}"),
        )


def clean():
    for seed, model, taps in [
        (151, Model(), DEFAULT_TAPS),
        (152, WIDE, DEFAULT_TAPS + INNER_TAPS),
        (153, BF16, DEFAULT_TAPS),
        (154, F32CONV, DEFAULT_TAPS),
        (155, Model(sentinel="minus_one"), DEFAULT_TAPS),
    ]:
        yield Case(
            f"clean {seed}",
            make_stream(seed, model, bias=seed % 2 == 0),
            None,
            [],
            "every" if seed % 2 else "last",
            taps,
            code=0,
        )
    yield Case("clean, an old index beyond the rows present", stale_stream(156), None, [], code=0)


def with_inner_taps():
    """The same faults with every tap recorded: nothing else is said."""
    s = make_stream(161)
    row, other = row_of(s, 0), unused(s)
    for name, hooks, want in [
        (
            "wrong-block",
            faults.reads_block(5, 1, row, other),
            Want("wrong-block", step=5, layer=1, row=row, block=other),
        ),
        ("write-missing", faults.loses_write(5, 1, row, REC), Want("write-missing", step=5, layer=1, row=row)),
        ("conv-window-shift", faults.shifts_window(5, 1, row, 1), Want("conv-window-shift", step=5, layer=1, row=row)),
        ("beta-bf16", faults.computes(beta="bf16"), everywhere("beta-bf16")),
    ]:
        yield Case(f"{name}, inner taps", s, hooks, [want], taps=DEFAULT_TAPS + INNER_TAPS)


GROUPS = [clean, memory, inputs, formulas, switches, index_wraps, repeats, unexplained, too_many, composed, with_inner_taps]
