"""The conv kernels. The update writes its output over its input, as the real one does."""

import numpy as np
from toy_step import GOLDEN, conv_acc, exp, f32


def one(model, window, weight, bias, x):
    """Output and new window of one token; window [dim, W-1]."""
    columns = [*window.T, x]
    with np.errstate(all="ignore"):
        acc = conv_acc(model, GOLDEN, columns, weight, bias)
        return acc / (f32(1) + exp(-acc)), np.stack(columns[1:], 1)


def causal_conv1d_update(
    x,
    conv_state,
    weight,
    bias=None,
    activation=None,
    conv_state_indices=None,
    num_accepted_tokens=None,
    query_start_loc=None,
    max_query_len=-1,
    null_block_id=0,
    validate_data=False,
    out=None,
):
    for row, block in enumerate(conv_state_indices.tolist()):
        if block != null_block_id:
            x[row], conv_state[block] = one(
                causal_conv1d_update.model, conv_state[block].copy(), weight, bias, x[row].copy()
            )
    return x


def causal_conv1d_fn(
    x,
    weight,
    bias,
    activation=None,
    conv_states=None,
    has_initial_state=None,
    cache_indices=None,
    query_start_loc=None,
    metadata=None,
):
    out = np.empty_like(x)
    for row, block in enumerate(cache_indices.tolist()):
        if not has_initial_state[row]:
            conv_states[block] = 0
        for at in range(query_start_loc[row], query_start_loc[row + 1]):
            out[:, at], conv_states[block] = one(
                causal_conv1d_update.model, conv_states[block].copy(), weight, bias, x[:, at].copy()
            )
    return out
