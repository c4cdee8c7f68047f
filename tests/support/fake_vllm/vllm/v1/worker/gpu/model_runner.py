"""The other model runner: it makes a batch of its own for each step."""

import dataclasses
import types

from vllm.v1.worker import gpu_model_runner


@dataclasses.dataclass
class InputBatch:
    req_ids: list
    num_computed_tokens_np: list
    input_ids: object = None


class GPUModelRunner:
    def __init__(self, vllm_config, *args):
        self.vllm_config = vllm_config
        config = types.SimpleNamespace(model_config=types.SimpleNamespace(enforce_eager=True))
        self.inner = gpu_model_runner.GPUModelRunner(config, *args)

    def prepare_inputs(self, step):
        requests = [request for request, *_ in [*step.get("decodes", []), *step.get("prefills", [])]]
        return InputBatch(requests, [self.inner.computed.get(request, 0) for request in requests])

    def execute_model(self, step, dummy_run=False):
        batch = self.prepare_inputs(step)
        assert batch.req_ids is not None
        run = type(self.inner).execute_model
        getattr(run, "__wrapped__", run)(self.inner, step)
