"""Generates with tiny random models of transformers, captured, in one process: run by tests/python/capture_hf.py with
the engines' python.

hf_run.py FOLDER        writes bfloat16.h5, float32.h5 and words.h5 there and prints what it found as JSON
"""

import json
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))
import capture_hf  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from gdnsim_trace import Model, TraceError, TraceWriter  # noqa: E402
from gdnsim_trace.hf import Capture, gated_delta_layers  # noqa: E402

TINY = {
    "model_type": "qwen3_next",
    "architectures": ["Qwen3NextForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
PROMPTS = ([3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8])


def by_command(folder, dtype):
    """Through tools/capture_hf.py: 3 prompts, 32 tokens."""
    config = os.path.join(folder, "config.json")
    with open(config, "w", encoding="utf-8") as stream:
        json.dump(TINY, stream)
    path = os.path.join(folder, dtype + ".h5")
    prompts = [part for ids in PROMPTS for part in ("--ids", ",".join(map(str, ids)))]
    sys.argv = ["capture_hf.py", config, "-o", path, "--seed", "5", *prompts, "--new-tokens", "32", "--dtype", dtype]
    return capture_hf.main()


def undisturbed(folder):
    """The tokens are those of a model without capture, and the model is its old self afterwards; two generations, one
    trace.
    """
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(transformers.Qwen3NextConfig(**TINY)).eval()
    ids = torch.tensor([PROMPTS[0][:3], PROMPTS[1]])
    said = []

    def generate():
        return model.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0).tolist()

    with torch.no_grad():
        before = generate()
        with Capture(model, os.path.join(folder, "twice.h5"), tell=said.append):
            during = [generate(), generate()]
        after = generate()
    layer = gated_delta_layers(model)[0]
    clean = "fix_query_key_value_ordering" not in vars(layer) and not layer._forward_hooks and not model._forward_hooks
    return before == during[0] == during[1] == after and clean and len(said) == 1


def rollout_and_trainer(folder):
    """generate, and a trainer's loop over the same tokens: two traces to compare."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(transformers.Qwen3NextConfig(**TINY)).eval()
    with torch.no_grad():
        with Capture(model, os.path.join(folder, "rollout.h5"), rows=1):
            tokens = model.generate(
                torch.tensor([PROMPTS[0]]), max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0
            )
        with Capture(model, os.path.join(folder, "trainer.h5"), rows=1):
            cache = model(tokens[:, :5], use_cache=True).cache
            for at in range(5, tokens.shape[1] - 1):
                model(tokens[:, at : at + 1], cache=cache, use_cache=True)


def refusals(folder):
    """What a model without such layers, or an existing file, gets."""
    found = []
    for model, path in ((torch.nn.Linear(2, 2), "none.h5"),):
        try:
            with Capture(model, os.path.join(folder, path)):
                pass
        except TraceError as problem:
            found.append(str(problem))
    return found


def nan_words(folder):
    """Every bf16 word through torch, ml_dtypes and numpy: the same file."""
    import ml_dtypes

    words = np.arange(1 << 16, dtype=np.uint16)
    model = Model(1, 4, 16, ((1 << 16) - 32) // 4, 2, [0], inactive_conv_out="unwritten", inactive_core_out="unwritten")
    params = [
        {
            "A_log": np.zeros(4, np.float32),
            "dt_bias": np.zeros(4, np.float32),
            "conv_weight": np.zeros((model.dim, 2), np.uint16),
        }
    ]
    views = {
        "numpy": words,
        "ml_dtypes": words.view(ml_dtypes.bfloat16),
        "torch": torch.from_numpy(words.view(np.int16)).view(torch.bfloat16),
    }
    digests = set()
    for view in views.values():
        path = os.path.join(folder, "words.h5")
        with TraceWriter(path, model, params, rows=1, taps=(), z=False, force=True) as trace:
            gate = np.zeros((1, 4), np.uint16)
            trace.step([1], [0], [{"mixed_qkv": view.reshape(1, -1), "a": gate, "b": gate}])
        with open(path, "rb") as stream:
            digests.add(stream.read())
    return len(digests) == 1 and all(words.tobytes() in data for data in digests)


def main():
    folder = sys.argv[1]
    found = {"torch": torch.__version__, "transformers": transformers.__version__}
    found["codes"] = [by_command(folder, dtype) for dtype in ("bfloat16", "float32")]
    found["again"] = by_command(folder, "float32")
    found["undisturbed"] = undisturbed(folder)
    rollout_and_trainer(folder)
    found["refusals"] = refusals(folder)
    found["words"] = nan_words(folder)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
