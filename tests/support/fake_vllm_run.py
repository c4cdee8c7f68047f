"""A worker process of the stand-in for vLLM, captured: run by tests/python/capture_vllm.py.

fake_vllm_run.py SCENARIO OUTPUT        the capture comes from GDNSIM_CAPTURE, as it does in a real worker
"""

import hashlib
import os
import signal
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "..", "tools"), HERE, os.path.join(HERE, "fake_vllm")]
from gdnsim_trace import vllm_plugin  # noqa: E402
from gdnsim_trace.model import TraceError  # noqa: E402
from toy_step import Model  # noqa: E402
from toy_trace import Maker  # noqa: E402

A, B, C = ("A", 1), ("B", 2), ("C", 3)
STEPS = [
    {"prefills": [("A", 1, 3, False), ("B", 2, 5, False)]},  # nothing decodes: not a step of the trace
    {"decodes": [A, B]},
    {"decodes": [A, B], "padding": 1},
    {"decodes": [B, A], "prefills": [("C", 3, 4, False)]},
    {"decodes": [B, A, C]},
    {"decodes": [B, A, C], "writes": [(1, 2)]},  # somebody changes B's block in layer 1
    {"decodes": [B, A, C], "drafts": True},
    {"decodes": [A, C]},
    {"prefills": [("D", 2, 2, False)]},  # B was preempted: its block is D's now
    {"decodes": [("D", 2), C]},
    {"decodes": [("D", 2), C], "unknown": True},
    {"decodes": [("D", 2), C]},
]
MANY = [{"prefills": [("A", 1, 3, False), ("B", 2, 5, False)]}] + [{"decodes": [A, B]}] * 40
FUSED = [MANY[0], {"decodes": [A, B]}, {"decodes": [A, B], "fused": True}, {"decodes": [A, B]}]
PADDED = [MANY[0], {"decodes": [A, B], "padding": 1}, {"decodes": [A]}, {"decodes": [A, B], "padding": 2}]


def make_runner(kind, eager=True):
    model = Model(act="f32", conv="f32", blocks=12)
    make = Maker(3, model)
    params = [make.params(False) for _ in model.layer_ids]
    for values in params:
        values["norm_weight"][::3] *= -1  # so that the norm of zeros has both signs
    config = types.SimpleNamespace(model_config=types.SimpleNamespace(enforce_eager=eager))
    if kind == "v2":
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    else:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    return GPUModelRunner(config, model, params)


def outputs_of(runner):
    """A digest of every cache: what the engine made is the same with and without a capture."""
    layers = getattr(runner, "inner", runner).layers
    words = b"".join(cache.tobytes() for layer in layers for cache in layer.kv_cache)
    return hashlib.sha256(words).hexdigest()


def kill_in_layer(runner, steps):
    """Ends the process in the second layer of the sixth decode step."""
    layer, count = runner.layers[1], [0]
    run = type(layer.norm).__call__

    def norm(self, x, z):
        count[0] += self is layer.norm
        if count[0] == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return run(self, x, z)

    type(layer.norm).__call__ = norm


def step_by_hand(runner, step):
    """Without a model runner in between, as a layer that is driven alone."""
    names = [name for name, *_ in step.get("decodes", [])]
    with vllm_plugin.started[0].step(requests=names, positions=[100 + at for at in range(len(names))]):
        type(runner).execute_model.__wrapped__(runner, step)


def main():
    scenario = sys.argv[1]
    vllm_plugin.register()
    runner = make_runner("v2" if scenario == "v2" else "v1", eager=scenario != "graphs")
    steps = {"many": MANY, "kill": MANY, "padded": PADDED, "fused": FUSED}.get(scenario, STEPS)
    if scenario == "kill":
        kill_in_layer(runner, steps)
    for step in steps:
        if scenario == "alone":
            step_by_hand(runner, step)
        else:
            runner.execute_model(step)
    print(outputs_of(runner))


if __name__ == "__main__":
    try:
        main()
    except TraceError as problem:
        sys.exit(f"TraceError: {problem}")
