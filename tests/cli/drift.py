#!/usr/bin/env python3
"""gdnsim drift: every curve recomputed by numpy from two ordinary runs; the same bytes however the work was spread; refusals.

    drift.py ROOT PROGRAM
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import needs_h5py  # noqa: E402, F401
from program import Checks, Program, read_bytes  # noqa: E402
from tap import Tap  # noqa: E402

import h5py  # noqa: E402
import numpy as np  # noqa: E402

root, program = os.path.abspath(sys.argv[1]), Program(sys.argv[2])
tap = Tap()
checks = Checks(tap, program)

BASE = {
    "rows": 3,
    "model": {"num_k_heads": 1, "num_v_heads": 2, "head_k_dim": 32, "head_v_dim": 32, "num_blocks": 6, "layer_ids": [3, 7]},
    "params": {"A_log": {"uniform": [-9, -2]}},
    "schedule": {"running": 2, "length": [5, 9], "shuffle": 0.3},
}
STEPS, SEEDS = 80, [4, 9]  # more than one side runs ahead of the other
PAIRS = [
    {"name": "bf16 state", "reference": {"contract": "golden"}, "other": {"contract": "golden", "state": "bf16"}},
    {"name": "triton", "reference": {"contract": "golden"}, "other": {"contract": "triton-sm90"}},
    {"name": "same", "reference": {"contract": "golden"}, "other": {"contract": "golden"}},
    {"name": "oracle", "reference": "f64", "other": {"contract": "golden"}},
]
AXES = [{"name": "gate", "values": [{"name": "as drawn"}, {"name": "open", "set": {"params": {"A_log": {"constant": -16}}}}]}]


def sweep_of(**changes):
    sweep = {"schema": "gdnsim.drift/1", "base": BASE, "steps": STEPS, "seeds": SEEDS, "axes": AXES, "pairs": PAIRS}
    return {**sweep, **changes}


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(value, stream)
    return path


class Run:
    """An ordinary run of a cell's side, read back: what every active row had."""

    def __init__(self, folder, seed, side, set_params, inputs=None):
        recipe = json.loads(json.dumps(BASE))
        recipe.update(schema="gdnsim.recipe/1", seed=seed, steps=STEPS)
        recipe["params"].update(set_params)
        recipe["inputs"] = inputs or {}
        recipe["model"]["state_dtype"] = side.get("state", "f32")
        path = write_json(os.path.join(folder, "recipe.json"), recipe)
        log = os.path.join(folder, "run.h5")
        done = program("run", path, "-o", log, "--contract", side["contract"], "--taps", "core_out,norm_out,decay", "--force", "--quiet")
        assert done.code == 0, done
        with h5py.File(log, "r") as file:
            as_double = lambda name: file[name][:].astype(np.float64)  # noqa: E731
            self.block = file["state/block"][:]
            self.sequence = file["steps/sequence"][:]
            self.state, self.decay = as_double("state/recurrent"), as_double("out/decay")
            self.core, self.norm = as_double("out/core_out"), as_double("out/norm_out")

    def rows(self, step):
        return np.flatnonzero(self.block[step] >= 0)

    def kept(self, step, layer):
        """Share of nonzero state elements that the step left alone; rows that began in this step are known from the load, not here."""
        nonzero = kept = 0
        for row in self.rows(step):
            before = [r for r in self.rows(step - 1) if self.sequence[step - 1, r] == self.sequence[step, row]] if step > 0 else []
            if not before:
                return None
            old, new = self.state[step - 1, layer, before[0]], self.state[step, layer, row]
            closing = (self.decay[step, layer, row] < 1)[:, None, None] & (old != 0)
            nonzero, kept = nonzero + closing.sum(), kept + (closing & (old == new)).sum()
        return kept / nonzero if nonzero else 0.0


def bf16(values):
    words = values.astype(np.float32).view(np.uint32)
    return (words + 0x7FFF + ((words >> 16) & 1)) >> 16


def expected(reference, other, step, layer):
    """The curves of one step, by their definitions."""
    rows = reference.rows(step)
    found = {}
    pick = lambda values: values[step, layer, rows]  # noqa: E731
    for name, a, b in (("state", reference.state, other.state), ("core", reference.core, other.core), ("norm", reference.norm, other.norm)):
        a, b = pick(a), pick(b)
        size = np.sqrt((a * a).sum())
        difference = np.sqrt(((b - a) ** 2).sum())
        found[name + "_relative"] = 0 if difference == 0 else difference / size
        found[name + "_max_abs"] = np.abs(b - a).max()
        found[name + "_differing"] = (a.astype(np.float32).view(np.uint32) != b.astype(np.float32).view(np.uint32)).mean()
        if name == "state":
            found["state_norm"] = size
        else:
            found[name + "_bf16_changed"] = (bf16(a) != bf16(b)).mean()
    for name, side in (("decay_lost_reference", reference), ("decay_lost_other", other)):
        if (kept := side.kept(step, layer)) is not None:
            found[name] = kept
    return found


def compare_unit(file, folder, cell, pair, set_params, seed):
    """Differences between the file's curves and the definitions, and how many numbers were compared."""
    reference = Run(folder, SEEDS[seed], PAIRS[pair]["reference"], set_params)
    other = Run(folder, SEEDS[seed], PAIRS[pair]["other"], set_params)
    wrong, compared, seen = [], 0, set()
    for layer in range(2):
        changed = [s for s in range(STEPS) for r in reference.rows(s) if (reference.norm[s, layer, r] != other.norm[s, layer, r]).any()
                   or (reference.core[s, layer, r] != other.core[s, layer, r]).any()]
        first = file["summary/first_output_change"][cell, seed, layer]
        if first != (min(changed) if changed else -1):
            wrong.append(f"layer {layer}: first change {first}, expected {changed[:1]}")
        for step in range(STEPS):
            for name, value in expected(reference, other, step, layer).items():
                found = file["curves/" + name][cell, seed, layer, step]
                compared += 1
                seen |= {name} if value > 0 else set()
                if not np.isclose(found, value, rtol=2e-6, atol=0):
                    wrong.append(f"layer {layer} step {step} {name}: found {found}, expected {value}")
    return wrong, compared, seen


def run_drift(sweep, result, *more, **options):
    return program("drift", sweep, "-o", result, "--quiet", *more, **options)


def check_curves(folder, result):
    wrong, compared, seen = [], 0, set()
    with h5py.File(result, "r") as file:
        names = [cell["name"] for cell in json.loads(bytes(file["cells"][:]))]
        tap.check(names[:2] == ["as drawn, bf16 state", "as drawn, triton"] and len(names) == 8, "the pair is the fastest axis", names)
        for cell, (pair, params) in enumerate((p, s) for s in ({}, {"A_log": {"constant": -16}}) for p in range(4)):
            if PAIRS[pair]["reference"] != "f64" and cell < 6:
                more = compare_unit(file, folder, cell, pair, params, cell % 2)
                wrong, compared, seen = wrong + more[0], compared + more[1], seen | more[2]
        tap.check(not wrong and compared > 10000, "every curve is what numpy makes of two ordinary runs", "\n".join(wrong[:20]) + f"\n{compared}")
        tap.check(len(seen) == 14, "each of them was other than zero somewhere", sorted(seen))
        curves = {name: data[:] for name, data in file["curves"].items()}
        same = [cell for cell, name in enumerate(names) if name.endswith("same")]
        still = [name for name in curves if not name.startswith(("decay_lost", "state_norm")) and (curves[name][same] != 0).any()]
        tap.check(not still and (file["growth/state/class"][:][same] == 0).all(), "a pair of the same contract does not drift", still)
        oracle = curves["state_relative"][[cell for cell, name in enumerate(names) if name.endswith("oracle")]]
        tap.check((oracle > 0).all() and oracle.max() < 1e-2, "the oracle's states are near, and never the same", (oracle.min(), oracle.max()))
        crossing = file["summary/crossing_state"][:]
        points = curves["state_relative"]
        for t, threshold in enumerate(file["thresholds"][:]):
            above = points >= threshold
            steps = np.where(above.any(-1), above.argmax(-1), -1)
            tap.check((crossing[..., t] == steps).all(), f"first step at {threshold:g} or above", crossing[..., t] - steps)


def kill_and_go_on(folder, sweep, want):
    """SIGKILL at random moments until it is through; the bytes are those of a run that was left alone."""
    result, kills = os.path.join(folder, "killed.h5"), 0
    pick = random.Random(7)
    begun = 0
    for attempt in range(60):
        process = subprocess.Popen([program.path, "drift", sweep, "-o", result, "--quiet", "--threads", "2"], stdout=subprocess.DEVNULL)
        time.sleep(pick.uniform(0.02, 0.1 + 0.05 * attempt))
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        if os.path.exists(result):
            break
        begun = max(begun, len(os.listdir(result + ".parts")) if os.path.isdir(result + ".parts") else 0)
    done = run_drift(sweep, result)  # whatever the last kill left
    left = [name for name in os.listdir(folder) if name.startswith("killed.h5.")]
    tap.check(done.code == 0 and kills > 0 and begun > 0 and read_bytes(result) == want and not left, f"the same bytes after {kills} kills, nothing left behind", (begun, left))


def check_spread(folder, sweep, want):
    """Threads, shards, resumed parts: one file."""
    path = lambda name: os.path.join(folder, name)  # noqa: E731
    for threads in ("1", "2", "5"):
        done = run_drift(sweep, path("t" + threads), "--threads", threads)
        tap.check(done.code == 0 and read_bytes(path("t" + threads)) == want, f"{threads} threads: the same bytes", done)
    for shard in range(4):
        done = program("drift", sweep, "-o", path("s.h5"), "--no-progress", "--shard", f"{shard}/4", "--parts", path(f"shard{shard}"))
        tap.check(done.code == 0 and not os.path.exists(path("s.h5")), f"shard {shard} of 4", done)
        tap.check("24 of 32 units are missing here; run the other shards, then --merge" in done.err, f"shard {shard} says what comes next", done)
    missing = run_drift(sweep, path("s.h5"), "--merge", path("shard0"), path("shard2"))
    tap.check(missing.code == 2 and "16 of 32 units have no part" in missing.err, "a merge says what is missing", missing)
    done = run_drift(sweep, path("s.h5"), "--merge", *(path(f"shard{shard}") for shard in range(4)))
    tap.check(done.code == 0 and read_bytes(path("s.h5")) == want, "4 shards: the same bytes", done)
    shutil.copytree(path("shard1"), path("r.h5.parts"))
    times = {name: os.stat(path("r.h5.parts/" + name)).st_mtime_ns for name in os.listdir(path("r.h5.parts"))}
    done = run_drift(sweep, path("r.h5"), "--keep-parts")
    now = {name: os.stat(path("r.h5.parts/" + name)).st_mtime_ns for name in os.listdir(path("r.h5.parts"))}
    tap.check(done.code == 0 and read_bytes(path("r.h5")) == want, "a run that was begun goes on", done)
    tap.check(len(now) == 32 and all(now[name] == when for name, when in times.items()), "what was there was not computed again", now)


def check_refusals(folder, sweep):
    path = lambda name: os.path.join(folder, name)  # noqa: E731
    result = path("refused.h5")

    def refused(name, changes, *words):
        checks.refused(name, ["drift", write_json(path("bad.json"), changes), "-o", result, "--quiet"], *words)

    refused("an unknown key", sweep_of(step=3), "step: expected only known keys")
    refused("no pairs", sweep_of(pairs=[]), "pairs: expected an array of 1 to 1024 pairs")
    refused("two values of one name", sweep_of(axes=[{"name": "x", "values": [{"name": "a"}, {"name": "a"}]}]), 'axes[0].values[1].name', "twice")
    refused("a contract that is none", sweep_of(pairs=[{**PAIRS[0], "other": {"contract": "nope"}}]), "pairs[0].other.contract", "nope")
    odd = {**BASE, "model": {**BASE["model"], "head_k_dim": 48}}
    refused("a contract that is not defined for the cell", sweep_of(base=odd, pairs=PAIRS[:2]), 'cell "as drawn, triton"')
    refused("a part of a recipe that is none", sweep_of(axes=[{"name": "x", "values": [{"name": "a", "set": {"inputs": {"q": 1}}}]}]),
            'cell "a"', "inputs.q")
    refused("a seed twice", sweep_of(seeds=[1, 1]), "seeds: expected each seed once")
    refused("seeds beyond the last", sweep_of(seeds={"first": 2**64 - 1, "count": 2}), "seeds: expected 2 seeds of at most")
    refused("a name that would steer a terminal", sweep_of(pairs=[{**PAIRS[0], "name": "x\x1b[2J"}]), "pairs[0].name", "control characters")
    wide = [{"name": name, "values": [{"name": str(i)} for i in range(32)]} for name in "xy"]
    refused("more than a disk holds", sweep_of(axes=wide, seeds={"first": 0, "count": 64}, steps=1 << 23), "the disk cannot hold 524288 units")
    checks.refused("a table in place of the result", ["drift", sweep, "-o", result, "--csv", result, "--quiet"], "--csv", "another file of this command")
    checks.refused("parts that are nowhere", ["drift", sweep, "-o", result, "--merge", path("nowhere"), "--quiet"], "nowhere: expected a folder of parts")
    shutil.rmtree(path("refused.h5.parts"), ignore_errors=True)
    os.makedirs(path("refused.h5.parts"))
    first = next(name for name in sorted(os.listdir(path("shard0"))))
    shutil.copy(os.path.join(path("shard0"), first), path("refused.h5.parts/" + first))
    refused("a part of another sweep", sweep_of(seeds=[5, 9]), "unit-000000.h5", "a part of another sweep")
    with open(path("refused.h5.parts/" + first), "r+b") as stream:
        stream.seek(-900, os.SEEK_END)
        byte = stream.read(1)
        stream.seek(-900, os.SEEK_END)
        stream.write(bytes([byte[0] ^ 1]))
    done = run_drift(sweep, result)
    tap.check(done.code == 2 and "unit-000000.h5" in done.err and not os.path.exists(result), "a damaged part is seen", done)
    check_hostile(folder, sweep, result, os.path.join(path("shard0"), first))
    shutil.rmtree(path("refused.h5.parts"))
    other = write_json(path("other.json"), sweep_of(seeds=[5, 9]))
    for there in ("t1", "sweep.json"):
        checks.refused("what is there is not replaced", ["drift", other, "-o", path(there), "--quiet"], "exists already; --force replaces it")
    done = run_drift(sweep, path("t1"))
    tap.check(done.code == 0 and done.out.count("\n") == 9, "a sweep whose result is there is done", done)
    both = [{"name": "x", "values": [{"name": "a", "trace": os.path.join(root, "traces", "h200_k64_3layers.h5")}]},
            {"name": "y", "values": [{"name": "b", "set": {"params": {}}}]}]
    refused("a trace and parts of a recipe", sweep_of(axes=both), 'cell "a, b"', "its stream is a trace")
    checks.refused("a shard that is none", ["drift", sweep, "-o", result, "--quiet", "--shard", "4/4"], "--shard", "4/4")


NAMED_OF_60 = 34  # the others hit padding that means nothing


def check_hostile(folder, sweep, result, part):
    """Parts whose HDF5 was made to hurt: a line that names one, whatever the library does with it."""
    pick = random.Random(5)
    good, wrong, named = read_bytes(part), [], 0
    place = os.path.join(result + ".parts", os.path.basename(part))
    for attempt in range(60):
        bad = bytearray(good)
        for _ in range(pick.choice((1, 4, 64))):
            bad[pick.randrange(min(len(bad), 4096))] = pick.choice((0, 0xFF, 0x7F, pick.randrange(256)))
        with open(place, "wb") as stream:
            stream.write(bad[: pick.randrange(len(bad))] if attempt % 10 == 0 else bad)
        done = program("drift", sweep, "-o", result, "--merge", result + ".parts", "--quiet")
        named += "unit-000000.h5" in done.err
        harmless = "31 of 32 units have no part" in done.err  # none of those bytes mattered: only the other parts are missing
        if done.code != 2 or not ("unit-000000.h5" in done.err or harmless) or done.err.count("\n") != 1:
            wrong.append((attempt, str(done)))
    tap.check(not wrong, "60 damaged parts: each is refused with a line, or is whole", wrong[:3])
    tap.check(named >= NAMED_OF_60, f"{named} of the 60 are named, at least {NAMED_OF_60}")
    shutil.copy(part, place)
    with h5py.File(place, "r") as file:
        first = {name: file[name].id.get_offset() for name in ("curves", "first_changes")}
    places = {f"first_changes[{i // 8}] byte {i % 8}": first["first_changes"] + i for i in range(16)} | {"curves": first["curves"]}
    unseen = []
    for name, at in places.items():
        bad = bytearray(good)
        bad[at] ^= 1
        with open(place, "wb") as stream:
            stream.write(bad)
        done = program("drift", sweep, "-o", result, "--merge", result + ".parts", "--quiet")
        if "unit-000000.h5: @digest: " not in done.err:
            unseen.append((name, done.err))
    tap.check(not unseen, f"each of {len(places)} flipped bits of what a part holds is seen", unseen)
    shutil.copy(part, place)
    with h5py.File(place, "r+") as file:
        file.attrs.modify("version", 1)
    done = program("drift", sweep, "-o", result, "--merge", result + ".parts", "--quiet")
    tap.check(done.code == 2 and "unit-000000.h5: @version: expected 2, found 1" in done.err, "a part of an older format is refused", done)


def check_growth_shown(folder, result):
    """Slopes with two standard errors; a file from before gains had theirs is shown without."""
    path = os.path.join(folder, "growth.h5")
    shutil.copy(result, path)
    with h5py.File(path, "r+") as file:
        growth = file["growth/state"]
        growth["class"][:2] = [2, 4]  # linear, exponential
        growth["gain"][0], growth["gain_error"][0], growth["rate"][1], growth["rate_error"][1] = 2e-6, 1e-7, 3e-3, 2e-4
    done = program("drift", path)
    told = [line for line in done.out.splitlines() if "linear 2.0e-06 +- 2.0e-07/step" in line or "exponential 3.0e-03 +- 4.0e-04/step" in line]
    tap.check(done.code == 0 and len(told) == 2, "a line and an exponential with two standard errors", done)
    report = json.loads(program("drift", path, "--json", "-").out)
    tap.check(np.isclose(report["cells"][0]["state_growth"].get("gain_error", 0), 1e-7), "and in the JSON", report["cells"][0])
    with h5py.File(path, "r+") as file:
        del file["growth/state/gain_error"], file["growth/output/gain_error"]
    done = program("drift", path)
    tap.check(done.code == 0 and "linear 2.0e-06/step" in done.out, "an older file is shown without the gain's error", done)


def check_shown(folder, result):
    """The table, CSV and JSON of a result that is there."""
    path = os.path.join(folder, "cells.csv")
    done = program("drift", result, "--csv", path, "--json", "-")
    report = json.loads(done.out)
    with open(path, encoding="utf-8") as stream:
        lines = stream.read().splitlines()
    tap.check("state_gain,state_gain_error,output_end," in lines[0], "the columns of a fit", lines[0])
    tap.check(done.code == 0 and len(lines) == 9 and len(report["cells"]) == 8, "a result shows its cells again", done)
    with h5py.File(result, "r") as file:
        ends = file["curves/state_relative"][0][..., -(STEPS // 16):].astype(np.float64).mean(-1).ravel()
    end = report["cells"][0]["state_end"]
    tap.check(np.isclose(end["median"], np.median(ends)) and np.isclose(end["highest"], ends.max()), "the end of a curve", (end, ends))
    check_growth_shown(folder, result)
    steering = os.path.join(folder, "steering.h5")
    shutil.copy(result, steering)
    with h5py.File(steering, "r+") as file:
        text = bytes(file["cells"][:]).replace(b"bf16 state", b"x\\u001b[2J")
        del file["cells"]
        file["cells"] = np.frombuffer(text, dtype="i1")
    checks.refused("a result whose names would steer a terminal", ["drift", steering], "control characters")
    table = program("drift", result).out.splitlines()
    tap.check(len(table) == 9 and table[1].startswith("as drawn, bf16 state "), "the table has a line a cell", "\n".join(table))


def check_nonfinite(folder):
    """Elements that are not finite are counted and left out of the sums."""
    inputs = {"specials": {"rate": 0.0005, "kinds": ["nan", "inf"]}}
    base = {**BASE, "inputs": inputs}
    sweep = write_json(os.path.join(folder, "special.json"), sweep_of(base=base, seeds=[4], axes=[], pairs=PAIRS[:1]))
    result = os.path.join(folder, "special.h5")
    done = run_drift(sweep, result)
    reference, other = (Run(folder, 4, PAIRS[0][side], {}, inputs) for side in ("reference", "other"))
    wrong, counts = [], []
    with h5py.File(result, "r") as file:
        for step in range(STEPS):
            rows, count = reference.rows(step), 0
            for name, a, b in (("state", reference.state, other.state), ("core", reference.core, other.core), ("norm", reference.norm, other.norm)):
                a, b = a[step, 0, rows], b[step, 0, rows]
                finite = np.isfinite(a) & np.isfinite(b)
                a, b = a[finite], b[finite]
                count += (~finite).sum()
                size, apart = np.sqrt((a * a).sum()), np.sqrt(((b - a) ** 2).sum())
                found = file["curves/" + name + "_relative"][0, 0, 0, step]
                if not np.isclose(found, apart / size if apart else 0, rtol=2e-6, atol=0):
                    wrong.append(f"step {step} {name}: found {found}, expected {apart / size}")
            if file["curves/nonfinite"][0, 0, 0, step] != count:
                wrong.append(f"step {step}: nonfinite {file['curves/nonfinite'][0, 0, 0, step]}, expected {count}")
            counts.append(count)
    tap.check(done.code == 0 and not wrong and 0 < np.mean(np.array(counts) > 0) < 1, "what is not finite is counted and left out",
              "\n".join(wrong[:20]) + f"\n{counts}")


class Truth:
    """The equations of docs/arithmetic.md in long double, over a trace of one layer and one row: what the oracle has to come to."""

    def __init__(self, path):
        with h5py.File(path, "r") as file:
            wide = lambda name: file[name][:].astype(np.longdouble)  # noqa: E731
            self.H, self.HV, self.K, self.V = (int(n) for n in (1, 2, 32, 32))
            self.scale, self.eps = np.longdouble(file["model"].attrs["scale"]), np.longdouble(file["model"].attrs["norm_eps"])
            self.x, self.a, self.b, self.z = (wide("steps/0/" + name)[:, 0] for name in ("mixed_qkv", "a", "b", "z"))
            self.A_log, self.dt_bias, self.taps, self.weight = (wide("params/0/" + name) for name in ("A_log", "dt_bias", "conv_weight", "norm_weight"))
            self.window, self.S = list(wide("events/conv")[0]), wide("events/recurrent")[0]
        self.steps = [self.step(*inputs) for inputs in zip(self.x, self.a, self.b, self.z)]

    def unit(self, rows):
        return rows / np.sqrt((rows * rows).sum(-1, keepdims=True) + np.longdouble(1e-6))

    def step(self, x, a, b, z):
        silu = lambda v: v / (1 + np.exp(-v))  # noqa: E731
        columns = [*self.window, x]
        self.window = columns[1:]
        out = silu(sum(column * self.taps[:, i] for i, column in enumerate(columns)))
        q, k, v = np.split(out, [self.H * self.K, 2 * self.H * self.K])
        q, k = self.unit(q.reshape(self.H, self.K)) * self.scale, self.unit(k.reshape(self.H, self.K))
        decay, beta = np.exp(-np.exp(self.A_log) * np.log1p(np.exp(a + self.dt_bias))), 1 / (1 + np.exp(-b))
        core = np.empty((self.HV, self.V), dtype=np.longdouble)
        for head in range(self.HV):
            key, state = k[head * self.H // self.HV], self.S[head] * decay[head]
            self.S[head] = state + np.outer(beta[head] * (v[head * self.V:(head + 1) * self.V] - state @ key), key)
            core[head] = self.S[head] @ q[head * self.H // self.HV]
        norm = core / np.sqrt((core * core).mean(-1, keepdims=True) + self.eps) * self.weight * silu(z.reshape(core.shape))
        return {"state": self.S.copy(), "core": core, "norm": norm}


def check_oracle(folder):
    """The oracle against another implementation: its norm and golden's distance from it, at every step."""
    base = {"rows": 1, "model": {**BASE["model"], "num_blocks": 2, "layer_ids": [0]}, "params": {"A_log": {"uniform": [-9, -2]}}}
    path = lambda name: os.path.join(folder, name)  # noqa: E731
    recipe = write_json(path("truth.json"), {**base, "schema": "gdnsim.recipe/1", "seed": 3, "steps": 300})
    sweep = write_json(path("truth_sweep.json"), sweep_of(base=base, steps=300, seeds=[3], axes=[], pairs=[PAIRS[3]]))
    runs = [program("synth", recipe, "-o", path("truth_trace.h5")),
            program("run", recipe, "-o", path("truth_log.h5"), "--contract", "golden", "--taps", "core_out,norm_out", "--quiet"),
            run_drift(sweep, path("truth.h5"))]
    truth, wrong = Truth(path("truth_trace.h5")).steps, []
    with h5py.File(path("truth_log.h5"), "r") as file:
        golden = {name: file[data][:, 0, 0] for name, data in (("state", "state/recurrent"), ("core", "out/core_out"), ("norm", "out/norm_out"))}
    with h5py.File(path("truth.h5"), "r") as file:
        curves = {name: data[0, 0, 0] for name, data in file["curves"].items()}
    for step, exact in enumerate(truth):
        size = {name: np.sqrt((value * value).sum()) for name, value in exact.items()}
        want = {"state_norm": size["state"]}
        for name, value in exact.items():
            off = golden[name][step].astype(np.longdouble).reshape(value.shape) - value
            want |= {name + "_relative": np.sqrt((off * off).sum()) / size[name], name + "_max_abs": np.abs(off).max()}
        wrong += [(step, name, curves[name][step], value) for name, value in want.items() if not np.isclose(curves[name][step], float(value), rtol=1e-6, atol=1e-12)]
    tap.check(all(done.code == 0 for done in runs) and len(truth) == 300 and not wrong, "the oracle is what the equations come to in long double", wrong[:5])


def check_captured(folder):
    """Captured traces as streams: the same tokens first, then the same ones again or fresh ones."""
    trace = os.path.join(root, "traces", "h200_k64_3layers.h5")
    axis = {"name": "stream", "values": [{"name": extend, "trace": trace, "extend": extend, "rows": 1} for extend in ("loop", "fresh")]}
    sweep = write_json(os.path.join(folder, "captured.json"), {"schema": "gdnsim.drift/1", "steps": 100, "seeds": [0], "axes": [axis], "pairs": PAIRS[:1]})
    result = os.path.join(folder, "captured.h5")
    done = run_drift(sweep, result)
    tap.check(done.code == 0, "captured streams", done)
    with h5py.File(result, "r") as file:
        loop, fresh = file["curves/state_relative"][:, 0]
        text = bytes(file["sweep"][:]).decode()
    same = (loop == fresh).all(0)
    known = int(np.argmin(same))
    with h5py.File(trace, "r") as file:
        sequence = file["steps/sequence"][:]
        longest = max((sequence == one).sum() for one in np.unique(sequence[sequence >= 0]))
    tap.check(loop.shape == (3, 100) and same[:known].all() and known == longest, "the captured tokens first", (known, longest))
    tap.check(not same[known:].any() and (loop > 0).all() and (fresh < 0.1).all(), "then other ones", (loop[:, -1], fresh[:, -1]))
    tap.check(trace not in text and "trace" in text, "the sweep knows the trace by its content", text)


def curves_of(folder, name):
    """A sweep of traces/recipes/drift: its curves, its points and its growth classes."""
    result = os.path.join(folder, name + ".h5")
    done = run_drift(os.path.join(root, "traces", "recipes", "drift", name + ".json"), result)
    tap.check(done.code == 0, f"{name} runs", done)
    with h5py.File(result, "r") as file:
        curves = {key: data[:, :, 0] for key, data in file["curves"].items()}  # [cells, seeds, points]
        return curves, file["steps"][:], file["growth/state/class"][:], file["summary/first_bf16_change"][:]


def within(low, high, values, factor=2):
    return (values >= low / factor).all() and (values <= high * factor).all()


def check_regimes(folder):
    """Three things that were measured elsewhere, each within a factor of two."""
    curves, steps, growth, _ = curves_of(folder, "bf16_state")
    short, long = curves["state_relative"]
    tap.check(within(9e-3, 9e-3, short[:, steps >= 1024]) and growth[0] == 1, "a short memory levels off near 9e-3", short[:, -1])
    tap.check(within(7e-2, 9e-2, long[:, steps >= 4095]), "a long one comes to 7e-2 .. 9e-2 at steps 4,096 to 8,192", long[:, -1])
    tap.check((long[:, -1] > 1.5 * long[:, steps == 1023][:, 0]).all() and growth[1] == 3, "and goes on growing", long[:, ::32])

    curves, steps, _, _ = curves_of(folder, "lost_decay")
    size = curves["state_norm"][0, 0] / 64  # of 64 x 64 equal elements
    other = size + curves["state_max_abs"][0, 0]
    tap.check(steps[-1] == 1999 and abs(size[-1] - 0.203) < 5e-4, "f32 decays from 1.5 to 0.203 in 2,000 steps", size[-1])
    tap.check((other == np.float32(1.5)).mean() > 0.99 and abs(other - 1.5).max() < 1e-6, "bf16 stays 1.5", other)
    lost = curves["decay_lost_other"][0, 0], curves["decay_lost_reference"][0, 0]
    tap.check((lost[0] == 1).all() and (lost[1] == 0).all(), "all of its decay is lost in bf16, none in f32", lost)

    curves, steps, growth, changed = curves_of(folder, "beta_bf16")
    state = curves["state_relative"]
    tap.check(within(1.3e-3, 2.4e-3, state[:, :, steps >= 8]), "beta through bf16 costs 1.3e-3 .. 2.4e-3 from step 8 on", (state.min(), state.max()))
    tap.check((growth == 1).all() and (changed <= 8).all(), "and does not grow", growth)


def check_page(folder):
    """The sweeps that docs/drift.md shows: the short one prints what stands there, the gallery has the cells of its table."""
    sweeps = os.path.join(root, "traces", "recipes", "drift")
    with open(os.path.join(root, "docs", "drift.md"), encoding="utf-8") as stream:
        page = stream.read()
    with open(os.path.join(sweeps, "tp1.json"), encoding="utf-8") as stream:
        text = stream.read()
    short = text.replace("4096", "512").replace('"set": {"conv_product": "fma"}, ', "")
    tap.check("s/4096/512/" in page and short.count("512") == text.count("4096") == 1, "tp1.json is cut as the page cuts it", short)
    done = run_drift(write_json(os.path.join(folder, "conv.json"), json.loads(short)), os.path.join(folder, "conv.h5"))
    missing = [line for line in done.out.splitlines() if f"    {line}\n" not in page]
    tap.check(done.code == 0 and len(done.out.splitlines()) == 4 and not missing, "and prints what the page shows", (missing, done))
    with open(os.path.join(sweeps, "gallery.json"), encoding="utf-8") as stream:
        gallery = {**json.load(stream), "steps": 24, "seeds": [1]}
    done = run_drift(write_json(os.path.join(folder, "gallery.json"), gallery), os.path.join(folder, "gallery.h5"))
    cells = [line.split("  ")[0] for line in done.out.splitlines()[1:]]
    missing = [cell for cell in cells if f"    {cell}  " not in page]
    tap.check(done.code == 0 and len(cells) == 12 and not missing, "the gallery has the cells of the page's table", (missing, done))


with tempfile.TemporaryDirectory() as folder:
    sweep = write_json(os.path.join(folder, "sweep.json"), sweep_of())
    result = os.path.join(folder, "result.h5")
    done = run_drift(sweep, result)
    tap.check(done.code == 0 and not os.path.exists(result + ".parts"), "a sweep runs", done)
    check_curves(folder, result)
    check_spread(folder, sweep, read_bytes(result))
    kill_and_go_on(folder, sweep, read_bytes(result))
    check_refusals(folder, sweep)
    check_shown(folder, result)
    checks.refused("a result is no trace, and is called what it is", ["info", result], result, "gdnsim drift")
    check_nonfinite(folder)
    check_oracle(folder)
    check_captured(folder)
    check_regimes(folder)
    check_page(folder)
sys.exit(tap.finish())
