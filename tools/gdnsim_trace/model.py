"""What a trace says about its model: sizes, types and rules, and the shapes that follow (docs/trace-format.md)."""

import dataclasses
import math

import numpy as np

ACT_TAPS = ("conv_out", "core_out", "norm_out")
INNER_TAPS = ("conv_acc", "q", "k", "beta", "g", "decay", "dot_k", "u", "rstd")
TAPS = ACT_TAPS + INNER_TAPS
ZERO, LOAD, COPY, FREE, ALLOCATE = range(5)
WHY = ("none", "start", "fork", "evict", "resume", "finish")


class TraceError(Exception):
    """One line for the user: what, where, expected, found."""


@dataclasses.dataclass
class Model:
    """The attributes of /model, under their names. A scale of None is head_k_dim ** -0.5; num_blocks of None is what
    the trace uses.
    """

    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    conv_width: int
    layer_ids: list
    scale: float = None
    activation: str = "silu"
    use_qk_l2norm: int = 1
    state_dtype: str = "f32"
    conv_state_dtype: str = "bf16"
    act_dtype: str = "bf16"
    sentinel: str = "nonpositive"
    num_blocks: int = None
    norm_eps: float = None
    norm_gate: str = "silu"
    inactive_conv_out: str = "zero"
    inactive_core_out: str = "zero"
    block_stride: int = 0  # elements from block to block in the engine's pools, 0: the content; and its offsets' bits
    conv_block_stride: int = 0
    index_bits: int = 64

    def __post_init__(self):
        if self.scale is None:
            self.scale = self.head_k_dim**-0.5
        self.layer_ids = [int(layer) for layer in self.layer_ids]
        self.check()

    CHOICES = {
        "activation": ("silu", "none"),
        "state_dtype": ("f32", "bf16"),
        "conv_state_dtype": ("f32", "bf16"),
        "act_dtype": ("bf16", "f16", "f32"),
        "sentinel": ("nonpositive", "zero", "minus_one"),
        "norm_gate": ("silu", "sigmoid"),
        "inactive_conv_out": ("zero", "unwritten"),
        "inactive_core_out": ("zero", "unwritten"),
        "use_qk_l2norm": (0, 1),
    }

    def check(self):
        for name, choices in self.CHOICES.items():
            if getattr(self, name) not in choices:
                raise TraceError(f"model: {name}: expected one of {choices}, found {getattr(self, name)!r}")
        for name, most in (("num_k_heads", 4096), ("num_v_heads", 4096), ("head_k_dim", 16384), ("head_v_dim", 16384)):
            if not 1 <= getattr(self, name) <= most:
                raise TraceError(f"model: {name}: expected 1 to {most}, found {getattr(self, name)}")
        if self.num_v_heads % self.num_k_heads:
            raise TraceError(
                f"model: num_v_heads: expected a multiple of num_k_heads {self.num_k_heads}, found {self.num_v_heads}"
            )
        if not 2 <= self.conv_width <= 64:
            raise TraceError(f"model: conv_width: expected 2 to 64, found {self.conv_width}")
        for name in ("block_stride", "conv_block_stride"):
            content = math.prod(self.state_shape if name == "block_stride" else self.conv_shape)
            if getattr(self, name) and getattr(self, name) < content:
                raise TraceError(f"model: {name}: expected 0 or {content} or more, found {getattr(self, name)}")
        if self.index_bits not in (32, 64):
            raise TraceError(f"model: index_bits: expected 32 or 64, found {self.index_bits}")
        if not math.isfinite(self.scale):
            raise TraceError(f"model: scale: expected a finite number, found {self.scale}")
        if not self.layer_ids or len(set(self.layer_ids)) != len(self.layer_ids) or min(self.layer_ids) < 0:
            raise TraceError(f"model: layer_ids: expected each layer once, 0 or more, found {self.layer_ids}")

    @property
    def version(self):
        """Of a trace of this model, whatever else is in it."""
        return 2 if self.block_stride or self.conv_block_stride or self.index_bits != 64 else 1

    @property
    def layers(self):
        return len(self.layer_ids)

    @property
    def dim(self):
        """Conv channels, packed q | k | v."""
        return 2 * self.num_k_heads * self.head_k_dim + self.num_v_heads * self.head_v_dim

    @property
    def state_shape(self):
        return (self.num_v_heads, self.head_v_dim, self.head_k_dim)

    @property
    def conv_shape(self):
        """Columns outermost, the oldest first."""
        return (self.conv_width - 1, self.dim)

    def inactive(self, index):
        """Which entries of an index mark an inactive row."""
        index = np.asarray(index)
        return {"nonpositive": index <= 0, "zero": index == 0, "minus_one": index == -1}[self.sentinel]

    def padding(self):
        return -1 if self.sentinel == "minus_one" else 0

    def input_shapes(self, z):
        """{input: (type, shape of a row)}."""
        shapes = {
            "mixed_qkv": (self.act_dtype, (self.dim,)),
            "a": (self.act_dtype, (self.num_v_heads,)),
            "b": (self.act_dtype, (self.num_v_heads,)),
        }
        if z:
            shapes["z"] = (self.act_dtype, (self.num_v_heads * self.head_v_dim,))
        return shapes

    def tap_shape(self, tap):
        """(type, shape of a row)."""
        heads, values = (self.num_v_heads,), (self.num_v_heads, self.head_v_dim)
        keys = (self.num_k_heads, self.head_k_dim)
        shape = {
            "conv_out": (self.dim,),
            "conv_acc": (self.dim,),
            "core_out": values,
            "norm_out": values,
            "q": keys,
            "k": keys,
            "beta": heads,
            "g": heads,
            "decay": heads,
            "rstd": heads,
            "dot_k": values,
            "u": values,
        }[tap]
        return (self.act_dtype if tap in ACT_TAPS else "f32", shape)

    def param_shapes(self):
        """{param: (type, shape, must be there)}."""
        heads = (self.num_v_heads,)
        return {
            "A_log": ("f32", heads, True),
            "dt_bias": ("f32", heads, True),
            "conv_weight": (self.act_dtype, (self.dim, self.conv_width), True),
            "conv_bias": (self.act_dtype, (self.dim,), False),
            "norm_weight": (self.act_dtype, (self.head_v_dim,), False),
        }
