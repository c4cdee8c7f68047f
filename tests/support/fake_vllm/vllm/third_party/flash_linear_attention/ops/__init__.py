"""The kernels under one name."""

from vllm.third_party.flash_linear_attention.ops.fused_recurrent import (
    advance,
    fused_recurrent_gated_delta_rule_packed_decode,
)
from vllm.third_party.flash_linear_attention.ops.fused_sigmoid_gating import fused_sigmoid_gating_delta_rule_update

__all__ = ["advance", "fused_recurrent_gated_delta_rule_packed_decode", "fused_sigmoid_gating_delta_rule_update"]
