"""The recurrent kernel of the decode rows beside a prefill."""

import numpy as np

from vllm.third_party.flash_linear_attention.ops.fused_recurrent import (
    advance,
    fused_recurrent_gated_delta_rule_packed_decode,
)


def fused_sigmoid_gating_delta_rule_update(
    A_log,
    a,
    b,
    dt_bias,
    q,
    k,
    v,
    beta=1.0,
    threshold=20.0,
    scale=None,
    initial_state=None,
    inplace_final_state=True,
    cu_seqlens=None,
    ssm_state_indices=None,
    num_accepted_tokens=None,
    use_qk_l2norm_in_kernel=False,
    is_kda=False,
):
    model = fused_recurrent_gated_delta_rule_packed_decode.model
    out = np.empty((1, *v.shape[1:]), np.float32)
    for row in range(len(cu_seqlens) - 1):
        state_idx = int(ssm_state_indices[row])
        if state_idx <= 0:
            continue
        mixed = np.concatenate([part[0, row].ravel() for part in (q, k, v)])
        out[0, row], initial_state[state_idx] = advance(
            model, {"A_log": A_log, "dt_bias": dt_bias}, mixed, a[row], b[row], initial_state[state_idx]
        )
    return out, initial_state
