"""A sweep of two cells that takes no time: one layer of width 32, a bf16 state against an f32 state."""

import json


def value(name, A_log):
    return {"name": name, "set": {"params": {"A_log": {"constant": A_log}}}}


SWEEP = {
    "schema": "gdnsim.drift/1",
    "base": {
        "rows": 1,
        "model": {"num_k_heads": 1, "num_v_heads": 2, "head_k_dim": 32, "head_v_dim": 32, "num_blocks": 3, "layer_ids": [3, 7]},
    },
    "steps": 48,
    "seeds": [1, 2],
    "axes": [{"name": "decay", "values": [value("fast", 0), value("slow", -4)]}],
    "pairs": [
        {
            "name": "bf16 state",
            "reference": {"contract": "golden", "state": "f32"},
            "other": {"contract": "golden", "state": "bf16"},
        }
    ],
    "measure": {"every": 4},
}


def write_sweep(path, **changes):
    with open(path, "w", encoding="utf-8") as stream:
        json.dump({**SWEEP, **changes}, stream)
    return path
