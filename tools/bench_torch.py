#!/usr/bin/env python3
"""One decode step of a Gated DeltaNet layer in PyTorch on the CPU, with golden's rounding and golden's summation order.

The reference that `gdnsim bench` is set beside: what an engineer writes in an afternoon to get batch-invariant bits.
Every sum is cut in chunks of 32 that are added by the butterfly 16, 8, 4, 2, 1, and the chunks from left to right, as
docs/arithmetic.md says.

    bench_torch.py [--gdnsim PROGRAM] [--threads N] [--rows N] [--repeat N]
    bench_torch.py --check [--gdnsim PROGRAM]

Prints the time of a step at TP1 shapes (H=16, HV=32, K=V=128, W=4, f32 state, bf16 conv state), then runs `gdnsim
bench` with the same number of threads and prints the ratios; then times the reference once more, to show what else
the machine did.

--check records small traces with `gdnsim synth` under golden, runs the same steps here and counts the elements that
differ: first with torch's own exp, log1p and sqrt, which are not correctly rounded, then with these taken through
double precision, where none may. Exit code 1 when one does. It needs h5py.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import torch

QK_EPS = 1e-6


@dataclass
class Shape:
    H: int
    HV: int
    K: int
    V: int
    W: int = 4

    @property
    def dim(self):
        return 2 * self.H * self.K + self.HV * self.V


TP1 = Shape(16, 32, 128, 128)


class Functions:
    """As torch has them. Its sqrt may come from MKL, which is not correctly rounded either."""

    exp, log1p, sqrt = staticmethod(torch.exp), staticmethod(torch.log1p), staticmethod(torch.sqrt)


class RoundedOnce:
    """The same through double precision: correctly rounded but for the rarest ties."""

    @staticmethod
    def exp(x):
        return torch.exp(x.double()).float()

    @staticmethod
    def log1p(x):
        return torch.log1p(x.double()).float()

    @staticmethod
    def sqrt(x):
        return torch.sqrt(x.double()).float()


def chunked_sum(products):
    """Over the last axis: butterflies in chunks of 32, then left to right (rules D3, D6)."""
    chunks = products.unflatten(-1, (-1, 32))
    width = 16
    while width:
        chunks = chunks[..., :width] + chunks[..., width : 2 * width]
        width //= 2
    total = chunks[..., 0, 0]
    for i in range(1, chunks.shape[-2]):
        total = total + chunks[..., i, 0]
    return total


def bf16(x):
    return x.to(torch.bfloat16).float()


class Layer:
    """Parameters and state of one layer: window [rows, W-1, dim] bf16, state [rows, HV, V, K] f32."""

    def __init__(self, shape, rows, params, functions=Functions):
        self.shape, self.functions = shape, functions
        self.weight, self.A_log, self.dt_bias, self.norm_weight, self.eps = params
        self.window = torch.zeros(rows, shape.W - 1, shape.dim, dtype=torch.bfloat16)
        self.state = torch.zeros(rows, shape.HV, shape.V, shape.K)

    def normalise(self, x):
        return x / self.functions.sqrt(chunked_sum(x * x) + QK_EPS).unsqueeze(-1)

    def sigmoid(self, x):
        return 1 / (self.functions.exp(-x) + 1)

    def conv_update(self, x):
        """x [B, dim] bf16 -> [B, dim] bf16; the window rolls."""
        acc = torch.zeros_like(x, dtype=torch.float32)
        for tap in range(self.shape.W - 1):
            acc = acc + bf16(self.window[:, tap].float() * self.weight[tap])
        acc = acc + bf16(x.float() * self.weight[-1])
        self.window[:, :-1] = self.window[:, 1:].clone()
        self.window[:, -1] = x
        return (acc / (self.functions.exp(-acc) + 1)).to(torch.bfloat16)

    def gates(self, a, b):
        s = a.float() + self.dt_bias
        softplus = torch.where(s <= 20, self.functions.log1p(self.functions.exp(s)), s)
        decay = self.functions.exp(-self.functions.exp(self.A_log) * softplus)
        return decay, self.sigmoid(b.float())

    def recurrent(self, q, k, v, decay, beta):
        """q, k [B, HV, K], v [B, HV, V] -> [B, HV, V] bf16; the state is updated in place."""
        self.state.mul_(decay[..., None, None])
        u = (v - chunked_sum(self.state * k.unsqueeze(-2))) * beta.unsqueeze(-1)
        self.state.add_(u.unsqueeze(-1) * k.unsqueeze(-2))
        return chunked_sum(self.state * q.unsqueeze(-2)).to(torch.bfloat16)

    def gated_norm(self, o, z):
        o, z = o.float(), z.float()
        rstd = 1 / self.functions.sqrt(chunked_sum(o * o) / self.shape.V + self.eps)
        return ((o * rstd.unsqueeze(-1)) * self.norm_weight * (z * self.sigmoid(z))).to(torch.bfloat16)

    def step(self, x, a, b, z):
        """-> conv_out, core_out, norm_out"""
        m, rows = self.shape, x.shape[0]
        conv_out = self.conv_update(x)
        q, k, v = conv_out.float().split([m.H * m.K, m.H * m.K, m.HV * m.V], dim=-1)
        q = self.normalise(q.view(rows, m.H, m.K)) * m.K**-0.5
        k = self.normalise(k.view(rows, m.H, m.K))
        q, k = (t.repeat_interleave(m.HV // m.H, dim=1) for t in (q, k))
        core_out = self.recurrent(q, k, v.view(rows, m.HV, m.V), *self.gates(a, b))
        return conv_out, core_out, self.gated_norm(core_out, z)


# ---- how fast ----


def random_layer(shape, rows):
    params = bf16(torch.randn(shape.W, shape.dim) * 0.3), torch.randn(shape.HV), torch.randn(shape.HV)
    layer = Layer(shape, rows, (*params, bf16(torch.randn(shape.V)), 1e-6))
    layer.window.copy_(torch.randn(layer.window.shape))
    layer.state.copy_(torch.randn(layer.state.shape) * 0.1)
    return layer


def times_of_step(rows, repeat):
    """(median, shortest) in seconds."""
    layer = random_layer(TP1, rows)
    inputs = [
        torch.randn(rows, *last).to(torch.bfloat16) for last in [(TP1.dim,), (TP1.HV,), (TP1.HV,), (TP1.HV, TP1.V)]
    ]
    times = []
    with torch.inference_mode():
        for _ in range(repeat + 5):
            start = time.perf_counter()
            layer.step(*inputs)
            times.append(time.perf_counter() - start)
    return statistics.median(times[5:]), min(times[5:])


def measures(options):
    command = [options.gdnsim, "bench", "--backend", "golden", "--quiet", "--json", "-"]
    command += ["--threads", str(options.threads), "--rows", str(options.rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [m for m in json.loads(done.stdout)["measures"] if m["stage"] != "recurrence" and m["seconds"]]


def compare_times(options):
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    median, best = times_of_step(options.rows, options.repeat)
    print(f"one step of {options.rows} row(s), {options.threads} thread(s); median and shortest of many")
    print(f"torch {torch.__version__:30} {median * 1e6:10.0f} us {best * 1e6:10.0f} us")
    for m in measures(options):
        name = f"{m['stage']:7} {m['variant']:8} {m['contract']}"
        print(
            f"gdnsim {name:36} {m['seconds'] * 1e6:10.0f} us {m['best'] * 1e6:10.0f} us"
            f"   torch takes {median / m['seconds']:6.1f} and {best / m['best']:6.1f} times as long"
        )
    median, best = times_of_step(options.rows, options.repeat)
    print(f"torch again {'':24} {median * 1e6:10.0f} us {best * 1e6:10.0f} us")
    return 0


# ---- whether it is the same step ----


def record(gdnsim, shape, folder):
    """A trace of a few steps from zero states, recorded under golden."""
    recipe = {
        "schema": "gdnsim.recipe/1",
        "seed": 11,
        "steps": 12,
        "rows": 3,
        "model": {
            "num_k_heads": shape.H,
            "num_v_heads": shape.HV,
            "head_k_dim": shape.K,
            "head_v_dim": shape.V,
            "conv_width": shape.W,
            "num_blocks": 4,
            "layer_ids": [0],
        },
        "states": {"start": "zero"},
    }
    source, trace = os.path.join(folder, "recipe.json"), os.path.join(folder, f"k{shape.K}.h5")
    with open(source, "w", encoding="utf-8") as stream:
        json.dump(recipe, stream)
    command = [gdnsim, "synth", source, "-o", trace, "--record", "--contract", "golden", "--backend", "golden"]
    subprocess.run([*command, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    return trace


def compare_bits(shape, trace, functions):
    """{tap: (elements that differ, elements)}"""
    import h5py

    with h5py.File(trace) as file:

        def read(name):
            return torch.from_numpy(file[name][:].astype("float32"))

        params = [read(f"params/0/{name}") for name in ("conv_weight", "A_log", "dt_bias", "norm_weight")]
        params[0] = params[0].T.contiguous()
        index = file["steps/index"][:]
        layer = Layer(shape, index.max() + 1, (*params, float(file["model"].attrs["norm_eps"])), functions)
        inputs = [read(f"steps/0/{name}") for name in ("mixed_qkv", "a", "b", "z")]
        inputs[3] = inputs[3].unflatten(-1, (shape.HV, shape.V))
        recorded = {name: read(f"recorded/0/{name}") for name in ("conv_out", "core_out", "norm_out")}
        snapshots = zip(file["recorded/state/block"][:], read("recorded/state/recurrent"))
    counts = dict.fromkeys([*recorded, "state"], (0, 0))

    def count(tap, mine, theirs):
        wrong, total = counts[tap]
        differ = mine.float().view(torch.int32) != theirs.view(torch.int32)
        counts[tap] = wrong + int(differ.sum()), total + differ.numel()

    whole_window, whole_state = layer.window, layer.state
    for step, blocks in enumerate(index):
        blocks = torch.from_numpy(blocks).long()
        assert (blocks > 0).all(), "every row takes part"
        layer.window, layer.state = whole_window[blocks], whole_state[blocks]
        outputs = layer.step(*(x[step].to(torch.bfloat16) for x in inputs))
        whole_window[blocks], whole_state[blocks] = layer.window, layer.state
        for (tap, theirs), mine in zip(recorded.items(), outputs):
            count(tap, mine, theirs[step].view(mine.shape))
    for block, theirs in snapshots:
        count("state", whole_state[block], theirs)
    return counts


def check(options):
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for shape in (Shape(2, 4, 128, 128), Shape(2, 4, 64, 64)):
            trace = record(options.gdnsim, shape, folder)
            for functions, name in ((Functions, "torch's functions"), (RoundedOnce, "correctly rounded")):
                counts = compare_bits(shape, trace, functions)
                text = ", ".join(f"{tap} {differ} of {total}" for tap, (differ, total) in counts.items())
                print(f"K=V={shape.K:<4} {name:19} differ: {text}")
                if functions is RoundedOnce:
                    wrong += sum(differ for differ, _ in counts.values())
                assert all(total > 0 for _, total in counts.values()), "every tap was compared"
    print("the same step" if wrong == 0 else "NOT the same step")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gdnsim", default="build/tools/gdnsim", help="the program (default build/tools/gdnsim)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--check", action="store_true", help="compare bits in place of times")
    options = parser.parse_args()
    return check(options) if options.check else compare_times(options)


if __name__ == "__main__":
    sys.exit(main())
