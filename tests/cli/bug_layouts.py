"""Bug reports about layouts, heads, formulas and NaN: numbers 31 to 45 of docs/bug-reports.md."""

import numpy as np
import toy_faults as faults
from explain_case import Want, everywhere, first_is
from toy_engine import Hooks
from toy_step import Model, f32, to_bf16
from toy_trace import DEFAULT_TAPS, INNER_TAPS, add_load, stream_of

STEPS = 5
ALL_TAPS = DEFAULT_TAPS + INNER_TAPS


def packing(cases, _):
    """31: value = column number; interleaved by key head against flat."""
    s = stream_of(1, Model(), [[1, 2]] * STEPS)
    for layer in range(2):
        s.inputs[layer]["x"][:] = to_bf16(np.arange(s.model.dim, dtype=f32) / 64 - 0.5)
    cases.run(
        "#3251 interleaved read as flat",
        s,
        faults.permutes_inputs(faults.unpack_order(s.model)),
        [everywhere("qkv-packing")],
    )
    one = stream_of(2, Model(H=1, HV=2), [[1, 2]] * STEPS)
    cases.clean(
        "#3251 one key head: the layouts coincide", one, hooks=faults.permutes_inputs(faults.unpack_order(one.model))
    )


def head_map(cases, _):
    """32: value heads take key heads tiled instead of grouped: 0 and the last agree."""
    s = stream_of(3, Model(), [[1, 2]] * STEPS)

    def heads(report):
        head = (report["first"] or {}).get("head")
        return [] if head in (1, 2) else [f"first head {head}"]

    cases.run("#21732 tiled", s, faults.computes(head_map="tiled"), [everywhere("head-map")], check=heads)
    for model in (Model(H=1, HV=4), Model(H=4, HV=4)):
        s = stream_of(4, model, [[1, 2]] * STEPS)
        cases.clean(f"#21732 H={model.H}, HV={model.HV}: the maps coincide", s, hooks=faults.computes(head_map="tiled"))


def transposed(cases, _):
    """34: prefill hands over a state with K and V swapped."""
    s = stream_of(5, Model(), [[1, 0], [1, 0], [1, 3], [1, 3], [1, 3]])
    for layer in range(2):
        add_load(s, 2, layer, 3, faults.random_state(51 + layer, s.model))
    cases.run(
        "#615 a transposed prefill state", s, faults.loads_transposed(2, 1, 3), [Want("kv-transposed", step=2, layer=1)]
    )
    s = stream_of(6, Model(), [[1, 2]] * STEPS, start="zero")
    cases.clean("#615 from zeros nothing shows", s, hooks=faults.reads_transposed(0, None, None))


def norms(cases, _):
    """38: gate before norm, cast before weight, with two eps; the state is clean."""
    for eps in (1e-6, 1e-5):
        for name, norm in (("norm-gate-order", "gate-first"), ("norm-cast-order", "hf")):
            s = stream_of(7, Model(norm_eps=eps), [[1, 2]] * STEPS)
            for layer in range(2):
                s.inputs[layer]["z"] = to_bf16(s.inputs[layer]["z"] * f32(8))
            cases.run(
                f"#63 {norm}, eps {eps}", s, faults.computes(norm=norm), [everywhere(name)], check=only_norm_differs
            )


def only_norm_differs(report):
    taps = report["taps"]["carried"]
    wrong = [name for name in taps if (taps[name]["differing"] > 0) != (name == "norm_out")]
    return [f"taps {wrong}"] if wrong else []


def overflow(cases, _):
    """39: inf times 0 in the gate, a softplus without its branch, gates of exactly 1 and 0."""
    s = stream_of(8, Model(), [[1, 2]] * STEPS)
    for layer in range(2):
        s.params[layer]["A_log"][0] = 100
    s.inputs[0]["a"][2, 1, 0] = -200
    # exp(100) is inf and softplus is 0 on both sides: the NaN agrees, and is still worth a word.
    cases.clean("#314 NaN on both sides", s, taps=ALL_TAPS, wants=[Want("nan-born", step=2, layer=0, row=1, head=0)])
    s = stream_of(9, Model(), [[1, 2]] * STEPS)
    s.params[0]["A_log"][1], s.params[0]["dt_bias"][1] = -200, 0
    s.inputs[0]["a"][2, 1, 1] = 89
    cases.run(
        "#314 NaN from 0 * inf where the branch is missing",
        s,
        faults.computes(softplus="naive"),
        [Want("nan-born", step=2, layer=0, row=1, head=1)],
        taps=ALL_TAPS,
        also=("softplus", "unexplained"),
        check=first_is(step=2, layer=0, tap="g", row=1, head=1),
    )
    s = stream_of(10, Model(), [[1, 2]] * STEPS)
    s.params[0]["dt_bias"][2], s.params[0]["A_log"][2] = 0, -4
    s.inputs[0]["a"][3, 0, 2] = 89
    # The overflow of softplus: its own form, if the program knows it. A flipped bit that makes the input larger gives
    # the same decay of 0, so that is no wrong answer either; a fault of a block would be one.
    cases.run(
        "#314 softplus without its branch",
        s,
        faults.computes(softplus="naive"),
        [Want(("softplus", "unexplained", "memory-corruption"))],
        check=first_is(step=3, layer=0, row=0, head=2),
    )
    s = stream_of(11, Model(), [[1, 2]] * STEPS)
    s.inputs[0]["a"][:, 0, 0] = -200
    s.params[1]["A_log"][:] = 20
    cases.clean("#314 gates of exactly 1 and exactly 0", s)


def domains(cases, _):
    """40: a log gate given where the factor is wanted, and the reverse."""
    s = stream_of(12, Model(), [[1, 2]] * STEPS)
    for name, decay in (("log as linear", "log"), ("linear as log", "exp-exp")):
        cases.run(f"#2490 {name}", s, faults.computes(decay=decay), [everywhere("gate-domain")])


def payloads(cases, _):
    """44: NaN payloads, -0 and denormals go through a trace untouched."""
    model = Model()
    s = stream_of(13, model, [[1, 2]] * STEPS)
    rec, conv = faults.random_state(61, model)
    conv.view(np.uint32)[:, :4] = np.array([0x7FA50000, 0x80000000, 0x00010000, 0xFFC30000], np.uint32)
    rec.view(np.uint32)[0, 0, :3] = np.array([0x80000000, 0x00000001, 0x80000123], np.uint32)
    add_load(s, 0, 0, 1, (rec, conv))
    cases.run("#1825 payloads, -0, denormals", s, None, [], code=0, also=("nan-born",))

    def write(place, value):
        block, new, columns = value[0]
        columns = np.array(columns)
        words = columns.view(np.uint32)
        words[(words & 0x7FFFFFFF) > 0x7F800000] = 0x7FFF0000
        return [(block, new, columns)]

    s2 = stream_of(13, model, [[1, 2]] * STEPS)
    add_load(s2, 0, 0, 1, (rec, conv))
    cases.run(
        "#1825 payloads lost in a copy",
        s2,
        Hooks(write=write),
        [Want(("unexplained", "memory-corruption"), layer=0)],
        also=("nan-born", "unexplained", "memory-corruption"),
        check=first_is(step=0, layer=0, tap="conv_state"),
    )


def nan_in_one(cases, _):
    """45: a NaN on one side only is a difference."""
    s = stream_of(14, Model(), [[1, 2]] * STEPS)

    def nan(values):
        made = np.array(values)
        made[2, 3] = np.uint32(0x7FFF0000).view(f32)  # the NaN that arithmetic makes
        return made

    # One output word that no operation explains; that it is a NaN does not tell who made it.
    cases.run(
        "#6102 NaN in one",
        s,
        faults.changes_output("core_out", nan, 3, 1, 0),
        [Want(("memory-corruption", "nan-born", "poison-read"), step=3, layer=1, row=0, block=None)],
        check=first_is(**{"step": 3, "layer": 1, "tap": "core_out", "class": "nan"}),
    )


REPORTS = [
    ("31", packing),
    ("32", head_map),
    ("34", transposed),
    ("38", norms),
    ("39", overflow),
    ("40", domains),
    ("44", payloads),
    ("45", nan_in_one),
]
