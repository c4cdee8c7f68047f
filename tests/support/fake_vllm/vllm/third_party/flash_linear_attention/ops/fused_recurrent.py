"""The recurrent kernel of decode-only steps."""

import numpy as np
from toy_step import GOLDEN, canonical, dot, f32, gates, unit


def advance(model, params, mixed, a, b, state):
    """core_out [HV, V] and the new state of one token: the recurrence of docs/arithmetic.md, rule A2.5."""
    width = model.H * model.K
    key = np.arange(model.HV) // (model.HV // model.H)
    with np.errstate(all="ignore"):
        q, k = (unit(model, GOLDEN, mixed[i * width : (i + 1) * width].reshape(model.H, model.K)) for i in (0, 1))
        v = mixed[2 * width :].reshape(model.HV, model.V)
        beta, _, decay = gates(GOLDEN, params, a, b)
        kh, qh = canonical(k)[key][:, None, :], canonical(q * f32(model.scale))[key][:, None, :]
        state = decay[:, None, None] * state
        u = (v - dot(state, kh, "chunks")) * beta[:, None]
        state = canonical(state + u[:, :, None] * kh)
        return canonical(dot(state, qh, "chunks")), state


def fused_recurrent_gated_delta_rule_packed_decode(
    mixed_qkv, a, b, A_log, dt_bias, scale, initial_state, out, ssm_state_indices, use_qk_l2norm_in_kernel=False
):
    params = {"A_log": A_log, "dt_bias": dt_bias}
    for row, state_idx in enumerate(ssm_state_indices.tolist()):
        if state_idx <= 0:
            out[row] = 0
            continue
        model = fused_recurrent_gated_delta_rule_packed_decode.model
        out[row, 0], initial_state[state_idx] = advance(
            model, params, mixed_qkv[row], a[row], b[row], initial_state[state_idx]
        )
    return out, initial_state
