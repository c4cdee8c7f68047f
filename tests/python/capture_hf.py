#!/usr/bin/env python3
"""The transformers hook, end to end: a tiny random Qwen3-Next generates 32 tokens for 3 prompts; its capture replays.

capture_hf.py ROOT PROGRAM

Needs torch and transformers: tools/engines installs them.
"""

import json
import os
import subprocess
import sys
import tempfile

SUPPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
sys.path.insert(0, SUPPORT)
import needs_h5py  # noqa: E402, F401
import numpy as np  # noqa: E402
from program import Program, write_contract  # noqa: E402
from tap import Tap  # noqa: E402

ROOT = sys.argv[1]
sys.path.insert(0, os.path.join(ROOT, "tools"))
from gdnsim_trace import TraceReader  # noqa: E402
from gdnsim_trace.bits import bf16_to_f32  # noqa: E402

# transformers' own rules where a contract can say them. What it cannot: torch's sums and exponentials on this CPU.
RULES = {"name": "transformers", "conv_product": "f32", "conv_sum": "act", "beta": "bf16", "norm": "hf"}


def engines():
    """The python that has torch and transformers, or None."""
    done = subprocess.run(
        [os.path.join(ROOT, "tools", "engines"), "--path"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def taps_of(program, path, contract, mode):
    done = program("replay", path, "--contract", contract, "--mode", mode, "--json", "-")
    assert done.code in (0, 1), done
    report = json.loads(done.out)
    return report["taps"][mode]


def say(name, taps):
    for tap, found in taps.items():
        differ = f"{found['differing']} of {found['compared']} differ"
        print(f"# {name}: {tap}: {differ}, max ULP {found['max_ulp']}, max abs {found['max_abs']:.3g}")


def largest(path, tap):
    """The largest recorded magnitude of a tap, or of the states."""
    with TraceReader(path) as trace:
        names = (
            [f"recorded/{layer}/{tap}" for layer in range(trace.model.layers)]
            if tap != "state"
            else ["recorded/state/recurrent"]
        )
        words = [trace.words(name) for name in names]
    return max(float(np.abs(bf16_to_f32(each) if each.dtype == np.uint16 else each).max()) for each in words)


def check_contents(tap, path):
    with TraceReader(path) as trace:
        plans = [trace.plan(step) for step in range(trace.steps)]
        positions = [plan["position"].tolist() for plan in plans]
        loads = sorted((step, layer, block) for step, layer, block, *_ in trace.events)
        tokens = np.array([plan["token"] for plan in plans])
        tap.check(
            trace.steps == 31 and trace.rows == 3 and trace.model.layer_ids == [0, 1, 2],
            "31 decode steps of 3 rows; the attention layer is left out",
        )
        tap.check(
            loads == [(0, layer, block) for layer in range(3) for block in (1, 2, 3)],
            "the prefill's states are loads, found by digest, once",
            loads,
        )
        tap.check(
            positions == [[5 + step] * 3 for step in range(31)] and len(np.unique(tokens)) > 1,
            "tokens and positions",
            positions[:3],
        )


def check_f32(tap, program, path):
    """Float sums in another order: close everywhere, so the tensors are what they are called."""
    taps = taps_of(program, path, "golden", "local")
    say("float32, golden", taps)
    tap.check(
        taps["conv_state"]["differing"] == 0 < taps["conv_state"]["compared"],
        "float32: the conv state is exact",
        taps["conv_state"],
    )
    for name in ("conv_out", "beta", "g", "core_out", "norm_out"):
        bound = 2.0**-19 * largest(path, name)
        tap.check(
            taps[name]["max_abs"] <= bound and taps[name]["compared"] > 1000,
            f"float32: {name} is within 2^-19 of its largest value",
            f"{taps[name]} bound {bound}",
        )


def check_bf16(tap, program, path, folder):
    contract = write_contract(program, os.path.join(folder, "hf.contract"), RULES)
    taps = taps_of(program, path, contract, "local")
    say("bfloat16, transformers' rules", taps)
    tap.check(
        taps["conv_state"]["differing"] == 0 < taps["conv_state"]["compared"],
        "bfloat16: the conv state is exact",
        taps["conv_state"],
    )
    tap.check(
        taps["beta"]["differing"] == 0 < taps["beta"]["compared"],
        "bfloat16: beta is exact under beta = bf16",
        taps["beta"],
    )
    tap.check(
        taps["conv_out"]["differing"] == 0 < taps["conv_out"]["compared"],
        "bfloat16: conv_out is exact under conv_sum = act",
        taps["conv_out"],
    )
    golden = taps_of(program, path, "golden", "local")
    tap.check(
        golden["beta"]["differing"] > 0 and golden["conv_out"]["differing"] > 0 and golden["conv_state"]["differing"] == 0,
        "and under golden beta and conv_out are not: the test can fail",
        golden,
    )
    fitted = os.path.join(folder, "fitted.contract")
    done = program("fit", path, "--layers", "0", "--steps", "0:4", "--seconds", "3", "--partial", "-o", fitted)
    found = taps_of(program, path, fitted, "local") if done.code in (0, 1) else {}
    say("bfloat16, fitted", found)
    tap.check(
        found and all(found[name]["differing"] == 0 for name in ("conv_state", "conv_out", "beta")),
        "fit finds conv_sum = act and beta = bf16 by itself",
        done,
    )
    report = program("replay", path, "--contract", fitted)
    tap.check(
        (report.code == 0) == all(each["differing"] == 0 for each in found.values()),
        "what no contract reproduces is called a divergence",
        report,
    )


def main():
    tap = Tap()
    python = engines()
    if python is None:
        tap.skip("transformers, end to end", "torch and transformers are not installed: tools/engines installs them (2.5 GB to download, 4 GB on disk)")
        return tap.finish()
    program = Program(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="gdnsim-test-") as folder:
        done = subprocess.run(
            [python, os.path.join(SUPPORT, "hf_run.py"), folder], capture_output=True, text=True, check=False
        )
        if not tap.check(done.returncode == 0, "tiny models generate, captured", done.stderr[-2000:]):
            return tap.finish()
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"# torch {found['torch']}, transformers {found['transformers']}")
        tap.check(
            found["codes"] == [0, 0] and "31 steps, " in done.stderr,
            "capture_hf.py says what it cost",
            f"{found}{done.stderr[-500:]}",
        )
        tap.check(
            found["again"] == 2 and "already exists" in done.stderr, "an existing file is kept", done.stderr[-500:]
        )
        tap.check(found["undisturbed"], "the tokens are those without capture; afterwards the model is its old self")
        tap.check(
            len(found["refusals"]) == 1 and "gated delta layers" in found["refusals"][0],
            "a model without such layers is refused",
            found,
        )
        tap.check(found["words"], "all 65,536 bf16 words go through torch, ml_dtypes and numpy alike")
        path = os.path.join(folder, "bfloat16.h5")
        check_contents(tap, path)
        check_bf16(tap, program, path, folder)
        check_f32(tap, program, os.path.join(folder, "float32.h5"))
        both = program("diff", os.path.join(folder, "rollout.h5"), os.path.join(folder, "trainer.h5"))
        tap.check(
            both.code == 0 and "compared" in both.verdict, "a rollout equals a trainer's loop over its tokens", both
        )
        twice = program("info", os.path.join(folder, "twice.h5"))
        tap.check(twice.code == 0 and "steps  10" in twice.out, "two generations in one trace", twice)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
