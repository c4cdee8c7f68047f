#!/usr/bin/env python3
"""Generates with a transformers model and captures its gated delta layers as a trace (docs/capture.md).

    tools/capture_hf.py Qwen/Qwen3-Next-80B-A3B-Instruct -o rollout.h5 --prompt "Once upon a time" --new-tokens 64
    tools/capture_hf.py config.json -o toy.h5 --seed 5 --ids 3,1,4 --ids 1,5,9 --new-tokens 32

MODEL is a folder or a name of the hub; or a config (.json), which gets random weights of that seed. Prompts are text
(--prompt) or token ids (--ids). In a script of your own: `from gdnsim_trace.hf import Capture`.
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gdnsim_trace.model import TraceError  # noqa: E402
from gdnsim_trace.recorder import parse_bytes  # noqa: E402


def load(arguments):
    import torch
    import transformers

    dtype = getattr(torch, arguments.dtype)
    if not arguments.model.endswith(".json"):
        return transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype).to(arguments.device)
    torch.manual_seed(arguments.seed)
    config = transformers.AutoConfig.from_pretrained(arguments.model)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval().to(arguments.device)


def prompts(arguments):
    """input_ids and attention_mask, padded on the left."""
    import torch

    if arguments.prompt:
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model, padding_side="left")
        return tokenizer(arguments.prompt, return_tensors="pt", padding=True).to(arguments.device)
    rows = [[int(part) for part in text.split(",")] for text in arguments.ids]
    width = max(len(row) for row in rows)
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=arguments.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=arguments.device)
    return {"input_ids": ids, "attention_mask": mask}


def capture(arguments):
    import torch

    from gdnsim_trace.hf import Capture

    if os.path.lexists(arguments.output) and not arguments.force:
        raise TraceError(f"{arguments.output}: already exists (--force replaces it)")
    model, inputs = load(arguments), prompts(arguments)
    options = {"budget": parse_bytes(arguments.budget), "snapshots": arguments.snapshots, "force": arguments.force}
    with torch.no_grad(), Capture(model, arguments.output, **options) as running:
        model.generate(
            **inputs,
            max_new_tokens=arguments.new_tokens,
            min_new_tokens=arguments.new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
    return 0 if os.path.exists(arguments.output) and running.recorder.writer else 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-o", "--output", required=True)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--prompt", action="append", help="text; may be repeated")
    chosen.add_argument("--ids", action="append", metavar="3,1,4", help="token ids; may be repeated")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0, help="of random weights")
    parser.add_argument("--budget", default="2GiB", help="stop after so many bytes (0: no limit)")
    parser.add_argument(
        "--snapshots", type=int, default=16, metavar="N", help="record states after every N steps (0: none)"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    try:
        return capture(parser.parse_args())
    except (TraceError, ImportError, OSError, ValueError) as problem:
        print(f"capture_hf: {str(problem).splitlines()[0]}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
