"""Bug reports about number types, orders of addition and approximations: numbers 19 to 29 of docs/bug-reports.md."""

import numpy as np
import toy_faults as faults
from explain_case import ABSENT, Want, everywhere, first_is
from toy_chunk import chunk_run
from toy_engine import run_engine
from toy_faults import flip
from toy_step import Model, f32, to_bf16
from toy_trace import DEFAULT_TAPS, INNER_TAPS, add_load, stream_of

STEPS = 6
ALL_TAPS = DEFAULT_TAPS + INNER_TAPS


def lost_decay(cases, _):
    """19: a bf16 state does not decay when the gate is small."""
    model = Model()
    s = stream_of(1, model, [[1, 2]] * 8)
    for layer in range(2):
        s.params[layer]["A_log"][:] = f32(-7)
        s.inputs[layer]["a"][:] = 0.5
        s.inputs[layer]["b"][:] = -200  # beta is 0: nothing but the decay changes the state
    s.loads = [(to_bf16(rec), conv) for rec, conv in s.loads]
    cases.run(
        "#34489 stored as bf16, every store equals its load",
        s,
        faults.computes(state_store="bf16"),
        [Want("decay-lost", layer=ABSENT, row=ABSENT)],
        also=("state-store-bf16",),
    )
    s = stream_of(2, Model(), [[1, 2]] * 8)
    cases.run(
        "#34489 stored as bf16, ordinary gates",
        s,
        faults.computes(state_store="bf16"),
        [everywhere("state-store-bf16")],
    )


def beta_through_bf16(cases, checks):
    """20: beta rounded through bf16 on one path and not on the other: the contract must say which."""
    s = stream_of(3, Model(), [[1, 2]] * STEPS)
    for layer in range(2):
        s.inputs[layer]["b"][:, :, 0], s.inputs[layer]["b"][:, :, 1] = 0.5, -0.5
    cases.run(
        "#53877 beta through bf16",
        s,
        faults.computes(beta="bf16"),
        [everywhere("beta-bf16")],
        taps=ALL_TAPS,
        check=first_is(step=0, layer=0, tap="beta", head=0, want_hex="0x3f1f0000"),
    )
    contract = (
        checks.program("contracts", "--show", "golden")
        .out.replace("beta = f32", "beta = bf16")
        .replace("name = golden", "name = rounds")
    )
    path = cases.path("rounds")[:-3] + ".contract"
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(contract)
    cases.run(
        "#36014 the contract says bf16 and the engine keeps f32",
        s,
        None,
        [everywhere("beta-bf16")],
        options=("--contract", path),
    )


def rounded_params(cases, _):
    """21: A_log and dt_bias held in bf16: known before step 0, so no step is blamed."""
    s = stream_of(4, Model(), [[1, 2]] * STEPS)
    for layer in range(2):
        s.params[layer]["A_log"][:] = f32(-1.234567)
    cases.run("#2484 A_log in bf16", s, faults.computes(params="bf16"), [everywhere("params-bf16")])


def chunked_trainer(cases, _):
    """23: the trainer computes chunks, the rollout steps: rounding from the first chunk on, and nobody's mistake."""
    for seed, model in [(5, Model()), (6, Model(act="f32", conv="f32"))]:
        s = stream_of(seed, model, [[1, 2]] * 64)
        cases.run(
            f"#3214 chunks of 16, {model.act} outputs",
            s,
            None,
            [everywhere("algorithm-order")],
            list(range(15, 64, 16)),
            run=chunk_run(s, 16),
        )


def batch_sizes(cases, _):
    """24: one sequence alone and among others: golden's bits do not depend on the batch."""
    model = Model(blocks=64, layer_ids=(0,))
    state, inputs = faults.random_state(7, model), None
    for rows in (1, 2, 7, 62):
        s = stream_of(8, model, [list(range(1, rows + 1))] * 3)
        at = rows - 1
        s.params = stream_of(8, model, [[1]] * 3).params
        inputs = inputs or {name: values[:, 0].copy() for name, values in s.inputs[0].items()}
        for name, values in s.inputs[0].items():
            values[:, at] = inputs[name]
        add_load(s, 0, 0, at + 1, state)
        run = run_engine(s)
        cases.clean(f"#1003 the same row in a batch of {rows}", s, snapshots="last", run=run)
        if rows == 1:
            alone = run.taps[0]["core_out"][:, 0]
        same = (alone.view(np.uint32) == run.taps[0]["core_out"][:, at].view(np.uint32)).all()
        cases.tap.check(same, f"#1003 its bits in a batch of {rows}")
    s = stream_of(9, model, [list(range(1, 8))] * 4)
    cases.run(
        "#42960 another order of summing in a batch of 7",
        s,
        faults.computes(state_dot="sequential"),
        [everywhere("dot-order")],
    )


def norm_by_rows(cases, _):
    """25: the gated norm is summed in another shape when there are many rows: the norm, not the recurrence."""
    model = Model(blocks=40, V=16, act="f32", conv="f32", layer_ids=(0,))
    s = stream_of(10, model, [list(range(1, 34))] * 2)
    cases.run(
        "#27869 33 rows, another norm sum",
        s,
        faults.computes(norm_dot="sequential"),
        [everywhere("dot-order")],
        "last",
        check=first_is(tap="norm_out"),
    )


def race(cases, _):
    """27: q is divided by k's norm when the barrier is missing: seen where a step is repeated."""
    s = stream_of(11, Model(), [[1, 2], [1, 2], [1, 3], [1, 3]])
    for layer in range(2):
        again = next(e[4] for e in s.events if e[:3] == (0, layer, 2))
        add_load(s, 2, layer, 3, s.loads[again])
        for values in s.inputs[layer].values():
            values[2:, 1] = values[:2, 1]
    hooks = faults.computes(2, 0, 1, qk_norm="race")
    said_first = first_is(step=2, layer=0, tap="q", row=1)

    def check(report):
        ids = [m["id"] for m in report["mechanisms"]]
        return said_first(report) + ([] if ids[:1] == ["not-repeatable"] else [f"said first: {ids[:1]}"])

    # What made q differ is no rounding and no block: beside the failed repeat nothing or `unexplained` may stand.
    cases.run(
        "#411 q divided by k's norm, once",
        s,
        hooks,
        [Want("not-repeatable")],
        taps=ALL_TAPS,
        also=("unexplained",),
        check=check,
    )
    s = stream_of(12, Model(), [[1, 2]] * 4)
    cases.run(
        "#411 without a repeat: q is the first bad tensor",
        s,
        faults.computes(2, 0, 1, qk_norm="race"),
        [Want("unexplained", step=2, layer=0, row=1)],
        taps=ALL_TAPS,
        check=first_is(step=2, layer=0, tap="q", row=1),
        options=("--seconds", 8),
    )


def fused_from_zero(cases, _):
    """29: from a zero state, FMA in the update shows in the state from the second token on."""
    s = stream_of(13, Model(act="f32", conv="f32"), [[1, 2]] * 2, start="zero")
    run = run_engine(s, faults.computes(update="fma"))
    clean = run_engine(s)
    same = [all((run.after[t][key][0] == clean.after[t][key][0]).all() for key in run.after[t]) for t in (0, 1)]
    cases.tap.check(same == [True, False], "#1686 the state differs at the second step only", same)
    cases.run("#1686 FMA in the update", s, None, [everywhere("update-fma")], run=run)
    cases.run(
        "#1686 FMA in the dots",
        s,
        faults.computes(state_dot="fma"),
        [Want(("dot-fma", "dot-order"))],
        also=("dot-fma", "dot-order"),
        check=first_is(step=0),
    )


def odd_bit(cases, _):
    """Not a report: a repeat that agrees is not called unrepeatable."""
    s = stream_of(14, Model(), [[1, 2], [1, 3]])
    for layer in range(2):
        again = next(e[4] for e in s.events if e[:3] == (0, layer, 2))
        add_load(s, 1, layer, 3, s.loads[again])
        for values in s.inputs[layer].values():
            values[1, 1] = values[0, 1]
    cases.clean("a repeat that agrees", s)
    cases.run(
        "a repeat that agrees, one flip elsewhere",
        s,
        faults.changes_output("core_out", lambda v: flip(v, 3, 18), 1, 1, 0),
        [Want("memory-corruption", step=1, layer=1, row=0)],
    )


REPORTS = [
    ("19", lost_decay),
    ("20", beta_through_bf16),
    ("21", rounded_params),
    ("23", chunked_trainer),
    ("24", batch_sizes),
    ("25", norm_by_rows),
    ("27", race),
    ("29", fused_from_zero),
    ("repeats", odd_bit),
]
