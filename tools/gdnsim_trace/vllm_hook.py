"""The session that watches a vLLM worker's gated delta layers and hands their decode rows to the recorder.

A step is what the model runner does in one execute_model. In it each layer's `_forward_core` runs once; the kernels
that it calls are wrapped in the layer's module, so what a row went through is seen and not guessed. Prefill, prefix
cache and preemption write states outside of this: BlockWatch finds them by digest before a row reads them.
"""

import atexit
import contextlib
import functools

from .model import TraceError
from .recorder import Recorder, say
from .vllm_layer import Call, Plan, describe, params_of
from .vllm_targets import CONV_PREFILL, CONV_UPDATE, CORE, DRAFT_CORES, GATING, PACKED

PATHS = {PACKED: 0, GATING: 1}
GRAPHS = (
    "CUDA graphs are on: a replayed graph calls no function, so nothing can be seen. "
    "Start the engine with enforce_eager=True (--enforce-eager)"
)


class Session:
    """One worker process's capture. `step()` brackets a step by hand, where no model runner does (a layer driven
    alone).
    """

    def __init__(self, target, options, version="", tell=say):
        self.target, self.options, self.version, self.tell = target, options, version, tell
        self.recorder = Recorder(options, tell)
        self.call, self.plan, self.why, self.paths, self.kernels = None, None, None, set(), set()
        self.layers, self.names, self.requests, self.runner, self.batch = None, {}, {}, None, None
        self.tokens_in_launch = 0
        atexit.register(self.stop)

    def stop(self):
        if self.recorder.writer and not self.recorder.stopped:
            self.recorder.writer.provenance["kernels"] = " ".join(sorted(self.kernels))
            if self.recorder.counts["inactive_rows"] and self.paths_written == {0}:
                self.recorder.writer.change(inactive_core_out="zero")
        if self.expected:
            self.recorder.stop()

    paths_written = frozenset()
    expected = False  # a model runner was made in this process; the others have nothing to say

    # Steps.

    def begin(self):
        self.plan, self.why, self.paths, self.batch = None, None, set(), None
        self.recorder.begin()

    def end(self):
        plan, recorder = self.plan, self.recorder
        if plan is not None and (plan.rows or self.why) and recorder.recording and recorder.writer:
            path = 2 if self.why or len(self.paths) != 1 else self.paths.pop()
            sequence, position, token = self.rows_of(plan)
            index = [block if name is None else name for block, name in zip(plan.index, self.blocks_of(plan.index))]
            before = recorder.counts["unreplayable"]
            recorder.end(
                index,
                sequence,
                path,
                token,
                position,
                {"launch_tokens": self.tokens_in_launch},
                self.why or "its layers went through different kernels or were not seen whole",
            )
            if recorder.counts["unreplayable"] == before:
                self.paths_written = self.paths_written | {path}
        recorder.values = None

    @contextlib.contextmanager
    def step(self, requests=None, positions=None, tokens=None):
        self.expected = True
        self.begin()
        self.batch = (requests, positions, tokens)
        try:
            yield self
        finally:
            self.end()

    def rows_of(self, plan):
        """Request numbers, positions and tokens of the rows, where the engine tells; else one number a block."""
        requests, positions, tokens = self.batch or engine_batch(self.runner, plan.rows)
        active = self.blocks_of(plan.index)
        if requests is None or len(requests) < sum(block is not None for block in active):
            return [-1 if block is None else block for block in active], None, None
        pad = [None] * plan.rows
        found = [
            -1 if block is None or name is None else self.requests.setdefault(name, len(self.requests))
            for block, name in zip(active, [*requests, *pad])
        ]
        return found, fitted(positions, plan.rows), fitted(tokens, plan.rows)

    def blocks_of(self, index):
        """The engine's blocks of this step under the trace's own small numbers, from 1; None marks an inactive row."""
        canonical = self.plan.index if self.plan else index
        return [
            None if self.skipped(block) else self.names.setdefault(block, len(self.names) + 1) for block in canonical
        ]

    def skipped(self, block):
        return block <= 0 if self.target.sentinel == "nonpositive" else block < 0

    # Layers.

    def core(self, original, layer, mixed_qkv, b, a, core_attn_out):
        """In place of `_forward_core`."""
        if self.recorder.values is None or self.recorder.stopped or (plan := self.plan_of(layer)) is None:
            return original(layer, mixed_qkv, b, a, core_attn_out)
        self.enter(layer, plan, mixed_qkv, b, a)
        try:
            out = original(layer, mixed_qkv, b, a, core_attn_out)
        finally:
            call, self.call = self.call, None
        if call is not None:
            self.leave(call, core_attn_out)
        return out

    def draft_core(self, original, layer, *args, **kwargs):
        if self.recorder.values is not None and not self.recorder.stopped:
            self.plan_of(layer)
        return original(layer, *args, **kwargs)

    def plan_of(self, layer):
        metadata = self.space.get_forward_context().attn_metadata
        metadata = metadata.get(layer.prefix) if isinstance(metadata, dict) else None
        if metadata is None:
            return None
        plan = Plan(metadata)
        if self.plan is None:
            self.plan, self.tokens_in_launch = plan, int(metadata.num_actual_tokens)
        self.why = self.why or plan.why
        return plan if plan.rows else None

    def enter(self, layer, plan, mixed_qkv, b, a):
        try:
            position = self.position_of(layer, mixed_qkv)
            if [self.skipped(block) for block in plan.index] != [self.skipped(block) for block in self.plan.index]:
                raise TraceError(
                    f"{layer.prefix}: expected the first layer's rows, blocks {self.plan.index}, found {plan.index}"
                )
            self.call = Call(self, position, layer, plan, mixed_qkv, b, a)
        except TraceError as problem:
            self.recorder.fail(str(problem))
            return
        self.recorder.enter(position, self.call.blocks, self.call.read)

    def leave(self, call, core_attn_out):
        call.finish(core_attn_out)
        self.why = self.why or call.why
        if call.kernel is not None:
            self.paths.add(PATHS[call.kernel])
            self.kernels.add(call.kernel)
        extra = {"engine_block": call.plan.index}
        self.recorder.leave(call.position, call.blocks, call.read, {**call.values, **extra})

    def position_of(self, layer, mixed_qkv):
        if self.layers is None:
            self.open(layer, mixed_qkv)
        return self.layers.index(layer.prefix)

    def open(self, layer, mixed_qkv):
        from .bits import type_of

        known = self.space.get_forward_context().no_compile_layers.values()
        layers = sorted((each for each in known if isinstance(each, type(layer))), key=lambda each: each.layer_idx)
        act = type_of(mixed_qkv)
        model = describe(layer, layers, act, self.target.sentinel)
        self.layers = [each.prefix for each in layers]
        for position, each in enumerate(layers):
            each.norm.register_forward_hook(functools.partial(self.norm, position))
        self.recorder.options = self.options.for_rank(**self.ranks(layer))
        self.recorder.open(
            model,
            [params_of(each, act) for each in layers],
            extra=("launch_tokens",),
            layer_extra=("engine_block",),
            provenance=self.provenance(layer),
        )

    def norm(self, position, _, arguments, output):
        """After the layer's gated norm: (core_attn_out, z) -> output."""
        if self.recorder.values is None or self.plan is None or not self.plan.rows or len(arguments) < 2:
            return
        rows = self.plan.rows
        heads = self.recorder.writer.model.num_v_heads if self.recorder.writer else 1
        z, out = (value.reshape(-1, heads, value.shape[-1])[:rows] for value in (arguments[1], output))
        self.recorder.add(position, z=z.reshape(rows, -1), norm_out=out)

    # What the file says of the engine.

    def ranks(self, layer):
        found = {"tp": (layer.tp_rank, layer.tp_size)}
        parallel = getattr(getattr(self.runner, "vllm_config", None), "parallel_config", None)
        if parallel is not None:
            stages = parallel.pipeline_parallel_size
            found["pp"] = (parallel.rank // layer.tp_size % stages, stages)
            found["dp"] = (parallel.data_parallel_rank, parallel.data_parallel_size)
        return found

    def provenance(self, layer):
        layout = "interleaved" if layer.gqa_interleaved_layout else "flat"
        found = {
            "engine": "vLLM",
            "engine_version": self.version,
            "tp_rank": layer.tp_rank,
            "tp_size": layer.tp_size,
            "packing": "flat",
            "projection": layout,
        }
        try:
            import torch

            found.update(
                torch=torch.__version__, device=torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
            )
            import triton

            found["triton"] = triton.__version__
        except ImportError:
            pass
        return found

    # Taking hold.

    def patch_layers(self, space):
        """`space`: the layer's module."""
        self.space = space
        missing = [
            name
            for name in (CONV_UPDATE, CONV_PREFILL, PACKED, GATING, self.target.layer_class)
            if not hasattr(space, name)
        ]
        if missing:
            raise TraceError(f"vLLM {self.version}: {space.__name__}: expected a name {missing[0]}, found none")
        layer_class = getattr(space, self.target.layer_class)
        wrap(layer_class, CORE, self.core)
        for name in DRAFT_CORES:
            if hasattr(layer_class, name):
                wrap(layer_class, name, self.draft_core)
        for name, work in (
            (CONV_UPDATE, self.conv_update),
            (CONV_PREFILL, self.conv_prefill),
            (PACKED, self.packed),
            (GATING, self.gating),
        ):
            setattr(space, name, bound(getattr(space, name), work))

    def conv_update(self, original, *args, **kwargs):
        out = original(*args, **kwargs)
        if self.call is not None:
            self.call.drafts |= kwargs.get("num_accepted_tokens") is not None
            self.call.conv_update(out)
        return out

    def conv_prefill(self, original, *args, **kwargs):
        out = original(*args, **kwargs)
        if self.call is not None:
            self.call.conv_prefill(out)
        return out

    def packed(self, original, *args, **kwargs):
        if self.call is not None:
            self.call.kernel = PACKED
        return original(*args, **kwargs)

    def gating(self, original, *args, **kwargs):
        if self.call is not None:
            self.call.kernel = GATING
            self.call.drafts |= kwargs.get("num_accepted_tokens") is not None
        return original(*args, **kwargs)


def bound(original, work):
    """`original` replaced by work(original, ...)."""
    return functools.wraps(original)(functools.partial(work, original))


def wrap(cls, name, work):
    """A method replaced by work(original, self, ...)."""
    original = getattr(cls, name)

    @functools.wraps(original)
    def wrapped(self, *args, **kwargs):
        return work(original, self, *args, **kwargs)

    setattr(cls, name, wrapped)


def fitted(values, rows):
    if values is None:
        return None
    found = [int(value) for value in list(values)[:rows]]
    return found + [-1] * (rows - len(found))


def engine_batch(runner, rows):
    """(request ids, positions, tokens) of the runner's batch, as far as it shows them; the decode rows come first in
    it.
    """
    batch = getattr(runner, "gdnsim_batch", None) or getattr(runner, "input_batch", None)
    requests = getattr(batch, "req_ids", None)
    positions = getattr(batch, "num_computed_tokens_np", getattr(batch, "num_computed_tokens_cpu", None))
    tokens = getattr(batch, "input_ids", None)
    return requests, positions, None if tokens is None else tokens[:rows].tolist()
