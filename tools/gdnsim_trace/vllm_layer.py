"""One gated delta layer of vLLM: its sizes and parameters, and one call of it while its kernels run."""

import numpy as np

from .bits import copied, narrowed, type_of, widened
from .model import Model, TraceError


def conv_view(cache, dim, width):
    """[blocks, dim, columns] of either layout of the conv cache; only the first W-1 columns belong to the window."""
    view = cache if cache.shape[1] == dim else cache.swapaxes(1, 2)
    if view.shape[1] != dim:
        raise TraceError(f"conv cache: expected an axis of {dim} channels, found shape {tuple(cache.shape)}")
    return view[:, :, : width - 1]


def weight_of(layer):
    """[dim, W]."""
    weight = layer.conv1d.weight
    return weight.reshape(weight.shape[0], weight.shape[-1])


def describe(layer, layers, act, sentinel):
    """The trace's model: this rank's share of each layer."""
    conv, recurrent = layer.kv_cache[0], layer.kv_cache[1]
    heads = recurrent.shape[1]
    key_heads = layer.num_k_heads // layer.tp_size
    for name, kind in (("recurrent state", type_of(recurrent)), ("conv state", type_of(conv))):
        if kind not in ("f32", "bf16"):
            raise TraceError(
                f"{layer.prefix}: {name}: expected float32 or bfloat16, found {recurrent.dtype} and {conv.dtype}"
            )
    return Model(
        num_k_heads=key_heads,
        num_v_heads=heads,
        head_k_dim=layer.head_k_dim,
        head_v_dim=layer.head_v_dim,
        conv_width=weight_of(layer).shape[1],
        layer_ids=[each.layer_idx for each in layers],
        activation=plain_activation(layer.activation),
        state_dtype=type_of(recurrent),
        conv_state_dtype=type_of(conv),
        act_dtype=act,
        sentinel=sentinel,
        norm_eps=float(layer.norm.eps),
        norm_gate=plain_activation(layer.norm.activation),
        inactive_conv_out="unwritten",
        inactive_core_out="unwritten",
    )


def plain_activation(name):
    return {"swish": "silu", None: "none"}.get(name, name)


def params_of(layer, act):
    found = {
        "A_log": widened(layer.A_log),
        "dt_bias": widened(layer.dt_bias),
        "conv_weight": narrowed(weight_of(layer), act, f"{layer.prefix}: conv1d.weight"),
        "norm_weight": narrowed(layer.norm.weight, act, f"{layer.prefix}: norm.weight"),
    }
    if layer.conv1d.bias is not None:
        found["conv_bias"] = narrowed(layer.conv1d.bias, act, f"{layer.prefix}: conv1d.bias")
    return found


class Plan:
    """What a step's metadata says: how many rows decode, their blocks, and whether it can be replayed at all."""

    def __init__(self, metadata):
        self.why = None
        self.prefills = metadata.num_prefills
        self.rows = metadata.num_decodes if self.prefills else metadata.num_actual_tokens
        if metadata.spec_sequence_masks is not None:
            self.why, self.rows = "drafts are verified in it (speculative decoding)", 0
        elif self.prefills and metadata.num_decode_tokens != metadata.num_decodes:
            self.why, self.rows = "a row decodes several tokens", 0
        indices = metadata.non_spec_state_indices_tensor
        self.index = [] if not self.rows else [int(block) for block in indices[: self.rows].tolist()]
        if len(self.index) != self.rows:
            self.why, self.rows, self.index = "it has more tokens than blocks", 0, []


class Call:
    """One call of `_forward_core`: filled by the kernels that run inside it."""

    def __init__(self, session, position, layer, plan, mixed_qkv, b, a):
        self.position, self.layer, self.plan = position, layer, plan
        n = plan.rows
        self.values = {
            "mixed_qkv": copied(mixed_qkv[:n]),
            "a": copied(a[:n]),
            "b": copied(b[:n]),
        }  # the conv overwrites its input
        self.kernel, self.drafts = None, False
        self.conv = conv_view(layer.kv_cache[0], mixed_qkv.shape[1], weight_of(layer).shape[1])
        self.recurrent = layer.kv_cache[1]
        self.blocks = session.blocks_of(plan.index)

    def read(self, row):
        block = self.plan.index[row]
        return self.recurrent[block], contiguous(self.conv[block].T)

    def conv_update(self, out):
        self.values["conv_out"] = copied(out[: self.plan.rows])

    def conv_prefill(self, out):
        self.values["conv_out"] = copied(out[:, : self.plan.rows].T)

    def finish(self, core_attn_out):
        self.values["core_out"] = copied(core_attn_out[: self.plan.rows])

    @property
    def why(self):
        """Why its rows cannot be replayed; None when they can."""
        if self.drafts:
            return "drafts are verified in it (speculative decoding)"
        if self.kernel is None:
            return "its decode rows went through another kernel than the two recurrent ones"
        return None if "conv_out" in self.values else "its conv kernel was not seen"


def contiguous(value):
    return value.contiguous() if hasattr(value, "contiguous") else np.ascontiguousarray(value)
