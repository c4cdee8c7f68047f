"""What a step says to its gated delta layers."""

import dataclasses


@dataclasses.dataclass
class GDNAttentionMetadata:
    num_prefills: int
    num_decodes: int
    num_decode_tokens: int
    num_actual_tokens: int
    has_initial_state: object
    non_spec_query_start_loc: object
    non_spec_state_indices_tensor: object
    spec_sequence_masks: object = None
    unknown: bool = False
    fused: bool = False  # drafts, conv to norm in one kernel
