"""Captures the decode steps of a transformers model with gated delta layers (Qwen3-Next, Qwen3.5): docs/capture.md.

    with Capture(model, "rollout.h5"):
        model.generate(...)

The functions that a layer's forward calls - conv update and recurrent step - are looked up in its module at each call,
so they are replaced there while the capture runs; the projections and the gated norm are seen through hooks. Nothing is
computed differently.
"""

import functools
import os
import sys

from .bits import narrowed, type_of, widened
from .model import Model, TraceError
from .recorder import Options, Recorder, say

CONV, RECURRENT = "causal_conv1d_update", "torch_recurrent_gated_delta_rule"
CHECKED = "5.24.0"
TAPS = ("conv_out", "beta", "g", "core_out", "norm_out")


def gated_delta_layers(model):
    return [module for module in model.modules() if type(module).__name__.endswith("GatedDeltaNet")]


class Call:
    """One layer's forward of one decode step."""

    def __init__(self, position, cache):
        self.position, self.cache, self.values, self.rows, self.read = position, cache, {}, 0, None


class Capture:
    """`inner`: also the taps beta and g, which are in sight (on by default)."""

    def __init__(self, model, path, rows=None, inner=True, tell=say, **options):
        self.model, self.rows = model, rows
        self.recorder = Recorder(Options(str(path), rows=rows or 1, **options), tell)
        self.layers = gated_delta_layers(model)
        if os.path.lexists(path) and not options.get("force"):
            raise TraceError(f"{path}: already exists (force replaces it)")
        if not self.layers:
            raise TraceError(f"{type(model).__name__}: expected a model with gated delta layers, found none")
        self.taps = TAPS if inner else tuple(tap for tap in TAPS if tap.endswith("out"))
        self.undo, self.call, self.cache, self.first_sequence, self.inputs = [], None, None, 0, None

    # Hooks.

    def __enter__(self):
        for space in {type(layer).__module__ for layer in self.layers}:
            self.replace(sys.modules[space])
        for position, layer in enumerate(self.layers):
            self.hook_layer(position, layer)
        self.keep(self.model.register_forward_pre_hook(self.begin, with_kwargs=True))
        self.keep(self.model.register_forward_hook(self.end, with_kwargs=True))
        return self

    def __exit__(self, *_):
        for undo in reversed(self.undo):
            undo()
        self.undo = []
        self.recorder.stop()

    def keep(self, handle):
        self.undo.append(handle.remove)

    def replace(self, space):
        missing = [name for name in (CONV, RECURRENT) if not callable(getattr(space, name, None))]
        if missing:
            import transformers

            raise TraceError(
                f"transformers {transformers.__version__}: {space.__name__}: expected {missing[0]}, found none "
                f"(checked: {CHECKED})"
            )
        for name, wrapper in ((CONV, self.conv), (RECURRENT, self.recurrent)):
            original = getattr(space, name)
            setattr(space, name, functools.wraps(original)(functools.partial(wrapper, original)))
            self.undo.append(functools.partial(setattr, space, name, original))

    def hook_layer(self, position, layer):
        self.keep(layer.register_forward_pre_hook(functools.partial(self.enter, position), with_kwargs=True))
        self.keep(layer.register_forward_hook(self.leave))
        self.keep(layer.norm.register_forward_hook(self.norm))
        if hasattr(layer, "fix_query_key_value_ordering"):
            original = layer.fix_query_key_value_ordering
            layer.fix_query_key_value_ordering = functools.partial(self.split, original)
            self.undo.append(functools.partial(delattr, layer, "fix_query_key_value_ordering"))
        else:
            for name, value in (("in_proj_a", "a"), ("in_proj_b", "b"), ("in_proj_z", "z")):
                self.keep(getattr(layer, name).register_forward_hook(functools.partial(self.projected, value)))

    # A step: one call of the whole model with one new token a row.

    def begin(self, _, args, kwargs):
        ids = kwargs.get("input_ids", args[0] if args else None)
        new = ids if ids is not None else kwargs.get("inputs_embeds")
        self.inputs = ids
        if new is not None and new.shape[1] == 1:
            self.recorder.begin()
        else:
            self.recorder.values = None

    def end(self, _, args, kwargs, output):
        writer, values = self.recorder.writer, self.recorder.values
        if writer is None or values is None:
            return
        rows = max((len(layer["a"]) for layer in values.values()), default=0)
        token = self.inputs[:, 0].tolist() if self.inputs is not None and rows else None
        first = self.first_sequence
        self.recorder.end(list(range(1, rows + 1)), list(range(first, first + rows)), 0, token, self.positions(rows))

    def positions(self, rows):
        """Of the token fed, counted with what pads the prompt; None where the cache does not say."""
        try:
            return [int(self.cache.get_seq_length()) - 1] * rows
        except (AttributeError, TypeError, ValueError):
            return None

    # A layer.

    def enter(self, position, layer, args, kwargs):
        cache = kwargs.get("cache", kwargs.get("cache_params", kwargs.get("past_key_values")))
        if self.recorder.values is None or cache is None:
            self.call = None
            return
        if cache is not self.cache:
            self.first_sequence += self.rows or 0
            self.cache = cache
        self.call = Call(position, cache)

    def projected(self, name, _, args, output):
        if self.call:
            self.call.values[name] = output[:, 0]

    def split(self, original, *args):
        found = original(*args)
        if self.call:
            for name, value in zip(("z", "b", "a"), found[3:]):
                self.call.values[name] = value[:, 0].reshape(value.shape[0], -1)
        return found

    def conv(self, original, hidden_states, conv_state, *args, **kwargs):
        call = self.call
        if call is None:
            return original(hidden_states, conv_state, *args, **kwargs)
        layer = self.layers[call.position]
        call.rows, call.values["mixed_qkv"] = hidden_states.shape[0], hidden_states[:, :, 0].clone()
        call.read = functools.partial(self.state, call.cache, layer)
        if self.recorder.writer is None and self.recorder.recording:
            self.open(call, conv_state)
        self.recorder.enter(call.position, range(1, call.rows + 1), call.read)
        out = original(hidden_states, conv_state, *args, **kwargs)
        call.values["conv_out"] = out[:, :, 0]
        return out

    @staticmethod
    def state(cache, layer, row):
        """The cache keeps [K, V] and the last W columns; a trace [V, K] and the last W-1."""
        conv = cache.get_conv_state(layer.layer_idx)[row][:, -(layer.conv_kernel_size - 1) :]
        return cache.get_recurrent_state(layer.layer_idx)[row].transpose(-1, -2).contiguous(), conv.transpose(
            0, 1
        ).contiguous()

    def recurrent(self, original, *args, **kwargs):
        out = original(*args, **kwargs)
        if self.call:
            self.call.values["core_out"] = out[0][:, 0]
            for name, at in (("g", 3), ("beta", 4)):
                value = kwargs.get(name, args[at] if len(args) > at else None)
                self.call.values[name] = value[:, 0].float()
        return out

    def norm(self, _, args, output):
        if self.call and self.call.rows:
            self.call.values["norm_out"] = output.reshape(self.call.rows, -1, output.shape[-1])

    def leave(self, layer, args, output):
        call, self.call = self.call, None
        if call and call.rows:
            wanted = {
                name: value
                for name, value in call.values.items()
                if name in self.taps or name in ("mixed_qkv", "a", "b", "z")
            }
            self.recorder.leave(call.position, range(1, call.rows + 1), call.read, wanted)

    # The trace.

    def open(self, call, conv_state):
        if self.rows is None:
            self.rows = self.recorder.options.rows = call.rows
        import torch
        import transformers

        device = str(conv_state.device)
        provenance = {
            "engine": "transformers",
            "engine_version": transformers.__version__,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if device.startswith("cuda") else "CPU",
            "packing": "flat",
            "tp_rank": "0",
            "tp_size": "1",
            "inputs_of": type(self.model).__name__,
        }
        recurrent = call.cache.get_recurrent_state(self.layers[0].layer_idx)
        try:
            model = self.describe(recurrent, conv_state)
            params = [self.params(layer, model.act_dtype) for layer in self.layers]
        except TraceError as problem:
            self.recorder.fail(str(problem))
            return
        self.recorder.open(model, params, self.taps, True, provenance=provenance)

    def describe(self, recurrent, conv):
        layer = self.layers[0]
        return Model(
            num_k_heads=layer.num_k_heads,
            num_v_heads=layer.num_v_heads,
            head_k_dim=layer.head_k_dim,
            head_v_dim=layer.head_v_dim,
            conv_width=layer.conv_kernel_size,
            layer_ids=[each.layer_idx for each in self.layers],
            activation={"swish": "silu"}.get(layer.activation, layer.activation),
            state_dtype=type_of(recurrent),
            conv_state_dtype=type_of(conv),
            act_dtype=type_of(layer.conv1d.weight),
            norm_eps=float(layer.norm.variance_epsilon),
            norm_gate=getattr(layer.norm, "activation", "silu"),
        )

    @staticmethod
    def params(layer, act):
        found = {
            "A_log": widened(layer.A_log),
            "dt_bias": widened(layer.dt_bias),
            "conv_weight": narrowed(layer.conv1d.weight.squeeze(1), act, "conv1d.weight"),
            "norm_weight": narrowed(layer.norm.weight, act, "norm.weight"),
        }
        if layer.conv1d.bias is not None:
            found["conv_bias"] = narrowed(layer.conv1d.bias, act, "conv1d.bias")
        return found
