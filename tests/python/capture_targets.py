#!/usr/bin/env python3
"""The names of vLLM that the capture hook takes hold of: the check of a source tree finds each that is missing.

capture_targets.py ROOT

GDNSIM_VLLM_SOURCES=DIR:DIR checks real source trees too (each holds the folder vllm).
"""

import os
import shutil
import subprocess
import sys
import tempfile

SUPPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
sys.path.insert(0, SUPPORT)
import needs_h5py  # noqa: E402, F401
from tap import Tap  # noqa: E402

ROOT = sys.argv[1]
sys.path.insert(0, os.path.join(ROOT, "tools"))
from gdnsim_trace import TraceError  # noqa: E402
from gdnsim_trace.vllm_targets import check_sources, target_of  # noqa: E402

FAKE = os.path.join(SUPPORT, "fake_vllm")


def tool(*arguments):
    return subprocess.run(
        [sys.executable, os.path.join(ROOT, "tools", "capture_vllm.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def check_tool(tap, folder):
    done = tool("--check-sources", FAKE)
    tap.check(
        done.returncode == 0 and done.stdout == "vLLM 0.33.0: every name is there\n",
        "the stand-in has every name that the table lists",
        done,
    )
    for name, file, old, new in (
        (
            "a renamed kernel",
            "vllm/third_party/flash_linear_attention/ops/fused_recurrent.py",
            "def fused_recurrent_gated",
            "def fused_gated",
        ),
        (
            "another rule for padded rows",
            "vllm/third_party/flash_linear_attention/ops/fused_sigmoid_gating.py",
            "state_idx <= 0",
            "state_idx < 0",
        ),
        (
            "a core with another argument",
            "vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py",
            "b, a, core_attn_out):",
            "b, a, out):",
        ),
        ("a missing field", "vllm/v1/attention/backends/gdn_attn.py", "num_prefills: int", "prefills: int"),
        ("a runner without batch", "vllm/v1/worker/gpu_model_runner.py", "self.input_batch", "self.batch"),
    ):
        broken = os.path.join(folder, "broken")
        shutil.copytree(FAKE, broken)
        with open(os.path.join(broken, file), encoding="utf-8") as stream:
            text = stream.read()
        with open(os.path.join(broken, file), "w", encoding="utf-8") as stream:
            stream.write(text.replace(old, new))
        done = tool("--check-sources", broken)
        tap.check(
            text.count(old) > 0 and done.returncode == 1 and "1 names are missing" in done.stdout,
            f"the check finds {name}",
            done,
        )
        shutil.rmtree(broken)
    done = tool("--check-sources", folder)
    tap.check(done.returncode == 2 and done.stderr.count("\n") == 1, "a folder without vLLM: one line, exit 2", done)
    done = tool("-o", os.path.join(folder, "x.h5"), "--", "true")
    tap.check(
        done.returncode == 2 and done.stderr.count("\n") == 1, "a command that captures nothing: one line, exit 2", done
    )


def check_real_sources(tap):
    """Not a skip: without the trees there is nothing that this could say of them."""
    for root in filter(None, os.environ.get("GDNSIM_VLLM_SOURCES", "").split(":")):
        version, problems = check_sources(root)
        tap.check(not problems, f"vLLM {version} has every name", "\n".join(problems))
    try:
        found = target_of("1.0.0")
    except TraceError as problem:
        found = str(problem)
    tap.check(isinstance(found, str) and "vLLM 1.0.0" in found, "a version to come is refused", found)


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory(prefix="gdnsim-test-") as folder:
        check_tool(tap, folder)
    check_real_sources(tap)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
