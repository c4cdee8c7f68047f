#!/usr/bin/env python3
"""explain names arithmetic that its author did not plant, in all of a trace or in a part, and rows of another kernel.

Half of the traces are computed in numpy (tests/support/toy_*.py); the functions of a GPU come from recordings under
contract files.

explain_arithmetic.py ROOT PROGRAM [--keep FOLDER] [--only TEXT]
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import needs_h5py  # noqa: E402, F401
import h5py  # noqa: E402
import numpy as np  # noqa: E402
import toy_faults as faults  # noqa: E402
from explain_case import ABSENT, Want, everywhere, main  # noqa: E402
from program import write_contract, write_recipe  # noqa: E402
from toy_step import Model  # noqa: E402
from toy_trace import DEFAULT_TAPS, INNER_TAPS, make_stream  # noqa: E402

ODD = Model(K=12, V=5, H=1, HV=3)
LONG = Model(K=70, V=40, H=1, HV=2, layer_ids=(2,))
BF16 = Model(state="bf16")
F32CONV = Model(conv="f32")
F32 = Model(conv="f32", act="f32")  # outputs keep the bits that bf16 ones round away
F32ODD = Model(conv="f32", act="f32", K=12, V=5, H=1, HV=3, W=3, activation="none")
WIDE = {
    "num_k_heads": 4,
    "num_v_heads": 4,
    "head_k_dim": 64,
}  # enough for every row and layer to tell the kernels apart
KERNEL_SEED = 11  # of its eight steps the fifth is mixed, and shows in every row and layer

# (id, fields of Rules, models). Every change shows in these models' bits.
NUMPY = [
    ("update-fma", {"update": "fma"}, (Model(), ODD)),
    ("dot-order", {"state_dot": "sequential"}, (Model(), LONG)),
    ("dot-order", {"state_dot": "narrowest"}, (Model(), LONG)),
    ("dot-order", {"qk_dot": "sequential"}, (F32, ODD)),
    ("dot-order", {"norm_dot": "sequential"}, (F32, F32ODD)),
    ("conv-product", {"conv_product": "f32"}, (Model(), BF16)),
    ("conv-product", {"conv_product": "fma"}, (F32, F32ODD)),
    ("conv-taps", {"conv_taps": "newest"}, (F32, F32ODD)),
    ("bias-order", {"conv_bias": "last"}, (F32, F32ODD)),
    ("softplus", {"softplus": "log"}, (Model(), ODD)),
    ("beta-bf16", {"beta": "bf16"}, (ODD, BF16)),
    ("params-bf16", {"params": "bf16"}, (Model(), BF16)),
    ("state-store-bf16", {"state_store": "bf16"}, (Model(), ODD)),
    ("qk-eps", {"qk_eps": "mean"}, (Model(), LONG)),
    ("qk-eps", {"qk_eps": "max"}, (Model(), ODD)),
    ("qk-norm-missing", {"qk_norm": "missing"}, (Model(), LONG)),
    ("scale-order", {"scale": "before"}, (Model(), ODD)),
    ("head-map", {"head_map": "tiled"}, (Model(), Model(H=3, HV=6))),
    ("decay-lost", {"decay": "one"}, (Model(), BF16)),
]
# The same rules in a part: place for faults.computes, and the scope to be told.
PARTS = [
    ("beta-bf16", {"beta": "bf16"}, {"layer": 1}, {"layer": 1, "row": ABSENT, "step": ABSENT}),
    ("update-fma", {"update": "fma"}, {"t": range(4, 8)}, {"since": 4, "layer": ABSENT, "row": ABSENT}),
    ("qk-eps", {"qk_eps": "mean"}, {"t": range(3, 8), "layer": 0}, {"since": 3, "layer": 0, "row": ABSENT}),
    ("dot-order", {"state_dot": "sequential"}, {"t": range(3, 8), "layer": 1}, {"since": 3, "layer": 1, "row": ABSENT}),
    ("dot-order", {"state_dot": "sequential"}, {"t": range(3, 8)}, {"since": 3, "layer": ABSENT, "row": ABSENT}),
    ("head-map", {"head_map": "tiled"}, {"layer": 0}, {"layer": 0, "row": ABSENT, "step": ABSENT}),
    ("norm-cast-order", {"norm": "hf"}, {"layer": 1}, {"layer": 1, "row": ABSENT, "step": ABSENT}),
    ("scale-order", {"scale": "before"}, {"layer": 0}, {"layer": 0, "row": ABSENT, "step": ABSENT}),
    ("params-bf16", {"params": "bf16"}, {"layer": 1}, {"layer": 1, "row": ABSENT, "step": ABSENT}),
]
# (base, field, value, id, model). Recorded under a contract file that the program is not shown.
RECORDED = [
    ("golden", "exp", "ex2", "exp", {}),
    ("golden", "div", "full", "div", {}),
    ("golden", "sqrt", "approx", "sqrt", {}),
    ("triton-sm90", "exp", "exact", "exp", {}),
    ("triton-sm90", "div", "ieee", "div", {}),
    ("triton-sm90", "sqrt", "ieee", "sqrt", {}),
    ("triton-sm90", "softplus", "log1p", "softplus", {}),
    ("triton-sm90", "softplus", "log", "softplus", WIDE),
    ("triton-sm90", "state_dot.product", "rounded", "dot-fma", WIDE),
    ("triton-sm90", "update", "multiply-add", "update-fma", {}),
    ("triton-sm90", "state_dot.lane", "8", "dot-order", {}),
    ("triton-sm90", "state_dot.tree", "narrowest", "dot-order", {}),
    ("triton-sm90", "conv_product", "f32", "conv-product", {}),
    ("triton-sm90", "scale", "before", "scale-order", {}),
    ("triton-sm90", "norm", "hf", "norm-cast-order", {}),
    ("triton-sm90", "params", "bf16", "params-bf16", {}),
]


def computed(cases, name, seed, model, hooks, wants, snapshots="every", taps=DEFAULT_TAPS, also=()):
    stream = make_stream(seed, model, bias=seed % 2 == 0 or "bias" in name)
    cases.run(name, stream, hooks, wants, snapshots, taps, also=also)


def numpy_whole(cases):
    for at, (name, changes, models) in enumerate(NUMPY):
        for which, model in enumerate(models):
            said = " ".join(f"{k} {v}" for k, v in changes.items())
            yield f"{name}, {said}, {which}", lambda title, a=(
                200 + 2 * at + which,
                model,
                faults.computes(**changes),
                [everywhere(name)],
                "fifth" if which else "every",
            ): computed(cases, title, *a)
    # FMA inside a lane needs lanes of several elements: both choices changed, and either name says so.
    yield "sequential fma dots", lambda title: computed(
        cases,
        title,
        251,
        Model(),
        faults.computes(state_dot="fma"),
        [Want(("dot-order", "dot-fma"), layer=ABSENT)],
        also=("dot-order", "dot-fma"),
    )
    yield "update-fma, inner taps", lambda title: computed(
        cases,
        title,
        252,
        Model(),
        faults.computes(update="fma"),
        [everywhere("update-fma")],
        taps=DEFAULT_TAPS + INNER_TAPS,
    )
    yield "qk-eps, inner taps", lambda title: computed(
        cases,
        title,
        253,
        Model(),
        faults.computes(qk_eps="mean"),
        [everywhere("qk-eps")],
        taps=DEFAULT_TAPS + INNER_TAPS,
    )
    for name, changes in [
        ("conv-taps", {"conv_taps": "newest"}),
        ("conv-product", {"conv_product": "fma"}),
        ("bias-order", {"conv_bias": "last"}),
    ]:
        # The outputs round to the same bf16; conv_acc shows it.
        yield f"{name}, inner taps", lambda title, name=name, changes=changes: computed(
            cases, title, 255, F32CONV, faults.computes(**changes), [everywhere(name)], taps=DEFAULT_TAPS + INNER_TAPS
        )
    yield "beta-bf16, only the last snapshot", lambda title: computed(
        cases, title, 254, Model(), faults.computes(beta="bf16"), [everywhere("beta-bf16")], "last"
    )


def numpy_parts(cases):
    for at, (name, changes, place, scope) in enumerate(PARTS):
        title = f"{name} in {' '.join(place)}"
        yield title, lambda t, a=(
            300 + at,
            Model(),
            faults.computes(**place, **changes),
            [Want(name, **scope)],
        ): computed(cases, t, *a)
    stream = make_stream(321)
    row = int(np.argwhere(stream.sequence == 0)[0, 1])
    yield "beta-bf16 in one row", lambda t: computed(
        cases,
        t,
        321,
        Model(),
        faults.computes(row=row, beta="bf16"),
        [Want("beta-bf16", row=row, layer=ABSENT, step=ABSENT)],
    )
    yield "update-fma in one step", lambda t: computed(
        cases, t, 322, Model(), faults.computes(t=4, update="fma"), [Want("update-fma", step=4, row=ABSENT)]
    )
    yield "two changes", lambda t: computed(
        cases,
        t,
        323,
        Model(),
        faults.computes(update="fma", beta="bf16"),
        [everywhere("update-fma"), everywhere("beta-bf16")],
    )
    yield "three changes", lambda t: computed(
        cases,
        t,
        324,
        F32,
        faults.computes(conv_taps="newest", qk_eps="mean", norm="gate-first"),
        [everywhere("conv-taps"), everywhere("qk-eps"), everywhere("norm-gate-order")],
    )


def record(cases, name, contract, model=None, **recipe):
    """A recording of a small stream of width 32 under a contract."""
    source = write_recipe(
        os.path.join(cases.folder, "recipe.json"),
        model=model or {},
        inputs={"z": {"normal": [0, 1]}},
        params={"norm_weight": {"normal": [1, 0.1]}},
        **recipe,
    )
    path = cases.path(name)
    done = cases.program(
        "synth",
        source,
        "-o",
        path,
        "--record",
        "--snapshots",
        2,
        "--contract",
        contract,
        "--backend",
        "golden",
        "--force",
    )
    assert done.code == 0, done
    return path


def changed(cases, title, at):
    base, field, value, name, model = RECORDED[at]
    contract = write_contract(
        cases.program, os.path.join(cases.folder, "changed.contract"), {"name": "changed", field: value}, base
    )
    path = record(cases, title, contract, model, seed=400 + at)
    # Without an FMA in the update the preset without any FMA is as near as the one that was changed.
    options = ("--contract", base) if base == "golden" or field == "update" else ()
    cases.ask(title, path, [everywhere(name)], 8, options=options)


def recorded(cases):
    for at, (base, field, value, _, _) in enumerate(RECORDED):
        yield f"{base} with {field} = {value}", lambda title, at=at: changed(cases, title, at)


def kernels(cases, title, seed, rows):
    """One step is declared a decode-only step; all or some rows were computed by the kernel of mixed steps.

    A row's bits depend on its own block alone, so a recording with that step mixed lends its rows to one without.
    """
    recipe = {"seed": seed, "schedule": {"running": 3}, "states": {"recurrent": {"normal": [0, 0.5]}}, "model": WIDE}
    plain = record(cases, title, "triton-sm90", **recipe)
    lender = record(cases, "lender", "triton-sm90", **{**recipe, "schedule": {"running": 3, "mixed": 0.15}})
    with h5py.File(plain, "r+") as into, h5py.File(lender, "r") as source:
        index, path = into["steps/index"][:], source["steps/path"][:]
        assert (index == source["steps/index"][:]).all() and path.sum() == 1, (index, path)
        chosen = list(range(index.shape[1])) if rows is None else rows
        lend(into, source, chosen, sorted(set(index[:, chosen].ravel().tolist())))
    os.remove(lender)
    want = Want("kernel-path", step=int(np.argmax(path)), row=ABSENT if rows is None else rows[0], layer=ABSENT)
    cases.ask(title, plain, [want], 8)


def lend(into, source, rows, blocks):
    for layer in ("0", "1"):
        for tap in DEFAULT_TAPS:
            words = raw(into[f"recorded/{layer}/{tap}"])
            words[:, rows] = raw(source[f"recorded/{layer}/{tap}"])[:, rows]
            put(into[f"recorded/{layer}/{tap}"], words)
    state = into["recorded/state"]
    lent = np.isin(state["block"][:], blocks)
    for part in ("recurrent", "conv"):
        words = raw(state[part])
        words[lent] = raw(source[f"recorded/state/{part}"])[lent]
        put(state[part], words)


def all_by_the_other(cases, title):
    path = record(cases, title, "triton-sm90-mixed", WIDE, seed=9)
    cases.ask(title, path, [everywhere("kernel-path")], 8, options=("--contract", "triton-sm90"))


def kernel_paths(cases):
    yield "kernel-path, one step", lambda title: kernels(cases, title, KERNEL_SEED, None)
    yield "kernel-path, one step of one row", lambda title: kernels(cases, title, KERNEL_SEED, [2])
    yield "kernel-path, every step", lambda title: all_by_the_other(cases, title)


def raw(dataset):
    kind = dataset.id.get_type()
    words = np.empty(dataset.shape, {2: "<u2", 4: "<u4"}[kind.get_size()])
    dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, words, mtype=kind)
    return words


def put(dataset, words):
    dataset.id.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(words), mtype=dataset.id.get_type())


GROUPS = [numpy_whole, numpy_parts, recorded, kernel_paths]


def questions(cases):
    for group in GROUPS:
        for title, ask in group(cases):
            yield title, lambda title=title, ask=ask: ask(title)


if __name__ == "__main__":
    main(questions)
