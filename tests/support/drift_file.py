"""A made-up result of a drift sweep, as docs/drift.md describes the file: curves whose shapes are known."""

import json

import h5py
import numpy as np

CURVES = [
    "state_relative", "state_max_abs", "state_differing", "state_norm", "core_relative", "core_max_abs", "core_differing",
    "core_bf16_changed", "norm_relative", "norm_max_abs", "norm_differing", "norm_bf16_changed", "decay_lost_reference",
    "decay_lost_other", "nonfinite",
]  # fmt: skip
GROWTH = ["level", "level_error", "exponent", "exponent_error", "rate", "rate_error", "gain", "gain_error"]


def bytes_of(text):
    return np.frombuffer(text.encode(), dtype="i1")


def shapes(points, layer, seed, cell):
    """Plateau, square root, linear, and nothing at all."""
    t = points + 1.0
    wobble = 1 + 0.1 * np.sin(seed + layer + np.log(t))
    return [9e-3 * t / (t + 30), 1e-4 * np.sqrt(t), 1e-5 * t, 0 * t][cell % 4] * wobble * (1 + 0.3 * layer)


def write_drift_file(path, layers=2, seeds=3, steps=64, regimes=("A_log=-4", "A_log=-9"), pairs=("bf16 state", "beta")):
    points = np.arange(0, steps, 2, dtype="i4")
    cells = [
        {"name": f"{regime}, {pair}", "pair": pair, "labels": {"regime": regime}, "layer_ids": list(range(3, 3 + layers))}
        for regime in regimes
        for pair in pairs
    ]
    dims = (len(cells), seeds, layers)
    with h5py.File(path, "w") as file:
        file.attrs["format"], file.attrs["version"], file.attrs["sweep_digest"] = "gdnsim-drift", 1, "00" * 16
        file["sweep"] = bytes_of(json.dumps({"schema": "gdnsim.drift/1"}))
        file["note"] = bytes_of("made up </script><b>")
        file["cells"] = bytes_of(json.dumps(cells))
        file["seeds"] = np.arange(1, 1 + seeds, dtype="u8")
        file["steps"], file["thresholds"] = points, np.array([1e-3, 1e-2], dtype="f4")
        for name in CURVES:
            values = np.empty((*dims, len(points)), dtype="f4")
            for cell, seed, layer in np.ndindex(dims):
                values[cell, seed, layer] = shapes(points, layer, seed, cell)
            file["curves/" + name] = values
        for name in ("first_output_change", "first_bf16_change"):
            file["summary/" + name] = np.zeros(dims, dtype="i8")
        for name in ("crossing_state", "crossing_output"):
            file["summary/" + name] = np.full((*dims, 2), -1, dtype="i8")
        for kind in ("state", "output"):
            file[f"growth/{kind}/class"] = np.array([[1, 3, 2, 0][i % 4] for i in range(len(cells))], dtype="i1")
            for field in GROWTH:
                file[f"growth/{kind}/{field}"] = np.array([[9e-3, 5e-4, 4e-4, 0][i % 4] for i in range(len(cells))], dtype="f4")
    return path
