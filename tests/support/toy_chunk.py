"""The chunked form of the recurrence in float32: the same equations in another order, as a trainer computes them.

Not bit for bit anybody's kernel: what matters is that it is neither the recurrent form nor wrong.
"""

import numpy as np
from toy_engine import Run
from toy_step import GOLDEN, add_norm, dot, f32, row_step, to_type


def chunk_run(stream, size):
    """A Run of sequences that fill all steps of their rows. States exist after each chunk only."""
    steps, rows = stream.shape
    taps = [{} for _ in stream.params]
    after = [{} for _ in range(steps)]
    for layer, params in enumerate(stream.params):
        for row in range(rows):
            block = int(stream.index[0, row])
            source = next(e[4] for e in stream.events if e[:3] == (0, layer, block))
            recurrent, conv = stream.loads[source]
            for begin in range(0, steps, size):
                recurrent, conv = chunk(
                    stream, layer, row, range(begin, min(begin + size, steps)), recurrent, conv, taps[layer]
                )
                for t in range(begin, min(begin + size, steps)):
                    after[t][layer, block] = (recurrent, conv)
    zeros = (np.zeros_like(stream.loads[0][0]), np.zeros_like(stream.loads[0][1]))
    return Run(taps, after, {}, named=tuple(sorted(set(stream.index.ravel().tolist()))), zeros=zeros)


def chunk(stream, layer, row, steps, recurrent, conv, taps):
    """One chunk of one row: its taps into `taps`, the states after it back."""
    model, params = stream.model, stream.params[layer]
    made = []
    for t in steps:
        own, _, conv = row_step(model, GOLDEN, params, stream.row_inputs(t, layer, row), recurrent, conv)
        made.append(own)
    width = 2 * model.H * model.K
    values = [one["conv_out"][width:].reshape(model.HV, model.V) for one in made]
    key = np.arange(model.HV) // (model.HV // model.H)
    k, q = ([one[name][key] for one in made] for name in ("k", "q"))
    total = np.cumsum(
        np.stack([one["g"] for one in made]), axis=0, dtype=f32
    )  # [C, HV]: log of the decay since the chunk began
    u, end = [], len(made)
    for i in range(end):
        old = np.exp(total[i])[:, None] * dot(recurrent, k[i][:, None, :], "sequential")
        for j in range(i):
            weight = np.exp(total[i] - total[j]) * dot(k[j], k[i], "sequential")
            old = old + weight[:, None] * u[j]
        u.append((values[i] - old) * made[i]["beta"][:, None])
    for i, t in enumerate(steps):
        core = np.exp(total[i])[:, None] * dot(recurrent, q[i][:, None, :], "sequential")
        for j in range(i + 1):
            weight = np.exp(total[i] - total[j]) * dot(k[j], q[i], "sequential")
            core = core + weight[:, None] * u[j]
        made[i]["core_out"] = to_type(core, model.act)
        add_norm(model, GOLDEN, params, stream.row_inputs(t, layer, row), made[i])
        for name in ("conv_out", "core_out", "norm_out"):
            whole = taps.setdefault(name, np.zeros((*stream.shape, *made[i][name].shape), f32))
            whole[t, row] = made[i][name]
    state = np.exp(total[-1])[:, None, None] * recurrent
    for j in range(end):
        state = state + np.exp(total[-1] - total[j])[:, None, None] * (u[j][:, :, None] * k[j][:, None, :])
    return to_type(state, model.state), conv
