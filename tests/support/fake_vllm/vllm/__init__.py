"""A stand-in for vLLM with the module, class, function and argument names that the capture hook takes hold of, on
numpy.

What it computes is tests/support/toy_step.py. Nothing of vLLM is in it but those names
(tools/gdnsim_trace/vllm_targets.py).
"""

import os

__version__ = os.environ.get("FAKE_VLLM_VERSION", "0.33.0")
