"""The loop over the layers of one step. A step is {"decodes": [(request, block)], "prefills": [(request, block, tokens,
continues)], "padding": rows, "drafts": bool, "fused": bool, "unknown": bool, "writes": [block]}: decode rows come
first, padding names block 0."""

import numpy as np
import types

from vllm.forward_context import current
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update
from vllm.third_party.flash_linear_attention.ops import fused_recurrent_gated_delta_rule_packed_decode
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata

GROUP = 8  # layer 1's blocks lie elsewhere than layer 0's, as cache groups of their own do


class GPUModelRunner:
    def __init__(self, vllm_config, model, params, seed=1):
        self.vllm_config, self.model, self.rng = vllm_config, model, np.random.default_rng(seed)
        causal_conv1d_update.model = model
        fused_recurrent_gated_delta_rule_packed_decode.model = model
        self.layers = [
            QwenGatedDeltaNetAttention(model, layer, values, 40) for layer, values in zip(model.layer_ids, params)
        ]
        current.no_compile_layers = {layer.prefix: layer for layer in self.layers}
        self.input_batch = types.SimpleNamespace(req_ids=[], num_computed_tokens_cpu=[])
        self.computed = {}

    def metadata(self, step, group):
        decodes, prefills, padding = step.get("decodes", []), step.get("prefills", []), step.get("padding", 0)
        lengths = [1] * len(decodes) + [count for _, _, count, _ in prefills]
        blocks = [block for _, block in decodes] + [block for _, block, _, _ in prefills]
        index = np.array([block + group * GROUP for block in blocks] + [0] * padding, np.int32)
        return GDNAttentionMetadata(
            len(prefills),
            len(decodes),
            len(decodes),
            sum(lengths) + padding,
            [True] * len(decodes) + [continues for *_, continues in prefills],
            np.cumsum([0, *lengths]),
            index,
            np.ones(1) if step.get("drafts") or step.get("fused") else None,
            step.get("unknown", False),
            step.get("fused", False),
        )

    def execute_model(self, step):
        requests = [request for request, *_ in [*step.get("decodes", []), *step.get("prefills", [])]]
        self.input_batch.req_ids = requests
        self.input_batch.num_computed_tokens_cpu = [self.computed.get(request, 0) for request in requests]
        for layer, block in step.get("writes", []):
            self.layers[layer].kv_cache[1][block + layer * GROUP] += 1  # somebody else's write
        current.attn_metadata = {layer.prefix: self.metadata(step, group) for group, layer in enumerate(self.layers)}
        for layer in self.layers:
            self.run_layer(layer, current.attn_metadata[layer.prefix].num_actual_tokens)
        for request, count in [(r, 1) for r, _ in step.get("decodes", [])] + [
            (r, n) for r, _, n, _ in step.get("prefills", [])
        ]:
            self.computed[request] = self.computed.get(request, 0) + count

    def run_layer(self, layer, tokens):
        m = self.model
        x, a, b, z = (self.rng.standard_normal((tokens, size), np.float32) for size in (m.dim, m.HV, m.HV, m.HV * m.V))
        core = np.zeros((tokens, m.HV, m.V), np.float32)
        if current.attn_metadata[layer.prefix].fused:
            layer._forward_core_decode_spec_fused_norm(core)
            return core
        layer._forward_core(mixed_qkv=x, b=b, a=a, core_attn_out=core)
        return layer.norm(core, z.reshape(tokens, m.HV, m.V))
