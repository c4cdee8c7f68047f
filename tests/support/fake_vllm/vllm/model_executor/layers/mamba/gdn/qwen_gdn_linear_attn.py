"""One gated delta layer with its caches."""

import types

import numpy as np

from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.layernorm import RMSNormGated
from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from vllm.third_party.flash_linear_attention.ops import (
    advance,
    fused_recurrent_gated_delta_rule_packed_decode,
    fused_sigmoid_gating_delta_rule_update,
)


class QwenGatedDeltaNetAttention:
    def __init__(self, model, layer_idx, params, blocks):
        self.model, self.layer_idx, self.prefix = model, layer_idx, f"model.layers.{layer_idx}.linear_attn"
        self.num_k_heads, self.num_v_heads, self.head_k_dim, self.head_v_dim = model.H, model.HV, model.K, model.V
        self.tp_rank, self.tp_size, self.gqa_interleaved_layout, self.activation = 0, 1, False, "silu"
        self.A_log, self.dt_bias = params["A_log"], params["dt_bias"]
        self.conv1d = types.SimpleNamespace(weight=params["conv_weight"][:, None, :], bias=None)
        self.norm = RMSNormGated(model, params["norm_weight"])
        self.kv_cache = [
            np.zeros((blocks, model.W - 1, model.dim), np.float32),
            np.zeros((blocks, model.HV, model.V, model.K), np.float32),
        ]

    def split(self, mixed):
        width = self.model.H * self.model.K
        heads = (
            (mixed[:, :width], self.model.K),
            (mixed[:, width : 2 * width], self.model.K),
            (mixed[:, 2 * width :], self.model.V),
        )
        return [part.reshape(1, len(mixed), -1, size) for part, size in heads]

    def _forward_core(self, mixed_qkv, b, a, core_attn_out):
        metadata = get_forward_context().attn_metadata[self.prefix]
        conv_state, state = self.kv_cache[0].swapaxes(1, 2), self.kv_cache[1]
        index = metadata.non_spec_state_indices_tensor
        weights = self.conv1d.weight[:, 0]
        if metadata.spec_sequence_masks is not None or metadata.unknown:
            core_attn_out[:] = 0.5
            state[index] += 1  # the kernel that nobody knows
            return
        if metadata.num_prefills:
            self.mixed(mixed_qkv, b, a, core_attn_out, metadata, conv_state, state)
            return
        out = causal_conv1d_update(
            mixed_qkv, conv_state, weights, None, "silu", conv_state_indices=index, validate_data=False
        )
        fused_recurrent_gated_delta_rule_packed_decode(
            mixed_qkv=out,
            a=a,
            b=b,
            A_log=self.A_log,
            dt_bias=self.dt_bias,
            scale=self.model.scale,
            initial_state=state,
            out=core_attn_out[: metadata.num_actual_tokens, None],
            ssm_state_indices=index,
            use_qk_l2norm_in_kernel=True,
        )

    def _forward_core_decode_spec_fused_norm(self, core_attn_out):
        metadata = get_forward_context().attn_metadata[self.prefix]
        self.kv_cache[1][metadata.non_spec_state_indices_tensor] += 1

    def mixed(self, mixed_qkv, b, a, core_attn_out, metadata, conv_state, state):
        n, index, starts = (
            metadata.num_decodes,
            metadata.non_spec_state_indices_tensor,
            metadata.non_spec_query_start_loc,
        )
        out = causal_conv1d_fn(
            mixed_qkv.T,
            self.conv1d.weight[:, 0],
            None,
            activation="silu",
            conv_states=conv_state,
            has_initial_state=metadata.has_initial_state,
            cache_indices=index,
            query_start_loc=starts,
        ).T
        if n:
            q, k, v = self.split(out[:n])
            core_attn_out[:n] = fused_sigmoid_gating_delta_rule_update(
                A_log=self.A_log,
                a=a[:n],
                b=b[:n],
                dt_bias=self.dt_bias,
                q=q,
                k=k,
                v=v,
                initial_state=state,
                cu_seqlens=starts[: n + 1],
                ssm_state_indices=index,
                use_qk_l2norm_in_kernel=True,
            )[0][0]
        for row in range(n, len(index)):
            found = state[index[row]] if metadata.has_initial_state[row] else np.zeros_like(state[0])
            for at in range(starts[row], starts[row + 1]):
                core_attn_out[at], found = advance(
                    self.model, {"A_log": self.A_log, "dt_bias": self.dt_bias}, out[at], a[at], b[at], found
                )
            state[index[row]] = found
