#!/usr/bin/env python3
"""Random streams recorded by an engine with one fault: explain puts the first divergence where the recordings part, and names the
fault or one that gives the same bits. And logs with one flipped bit: found by verify, and no command falls over them; nor over
traces with a dataset that says what cannot be, of another size or type.

    explain_random.py ROOT GDNSIM [FIRST:LAST]      seeds, by default a few; 0:1000 takes five minutes
"""

import collections
import json
import os
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import needs_h5py  # noqa: E402, F401
import h5py  # noqa: E402
from pool_faults import Planter  # noqa: E402
from pool_layouts import Drawn  # noqa: E402
from pool_model import PoolModel, words, write_trace  # noqa: E402
from program import Program, read_bytes  # noqa: E402
from random_stream import OPAQUE, RandomStream  # noqa: E402
from tap import Tap  # noqa: E402

GOLDEN = ("--contract", "golden", "--quiet", "--no-progress")


def differ(model, right, wrong, step, layer):
    """Does anything recorded of that layer of that step differ? Every block is recorded."""
    if any(words(right.taps[layer][tap][step], model.act) != words(wrong.taps[layer][tap][step], model.act) for tap in right.taps[layer]):
        return True
    for block in range(model.blocks):
        for part, kind in ((0, model.state), (1, model.conv)):
            states = [pool.after[step].get((layer, block), pool.zero)[part] for pool in (right, wrong)]
            if words(states[0], kind) != words(states[1], kind):
                return True
    return False


def first_difference(stream, right, wrong):
    for step, plan in enumerate(stream.plans):
        for layer in range(stream.layers):
            if plan.path != OPAQUE and differ(stream.model, right, wrong, step, layer):
                return step, layer
    return None


def is_fault(mechanism, fault):
    scope = {"step": mechanism["scope"].get("from_step"), **mechanism["scope"]}
    return mechanism["id"] in fault.ids and all(scope.get(key) == value for key, value in fault.scope.items())


def judged(report, place, fault):
    """What the report makes of it: "named", "equal", or in words what is wrong."""
    first = report["first"]["step"], report["first"]["layer"]
    if first != place:
        return f"first divergence {first}, expected {place}"
    found = report["mechanisms"]
    ids = [mechanism["id"] for mechanism in found]
    if not ids or "unexplained" in ids:
        return f"found {ids}, expected {fault.ids} {fault.scope}"
    if any(is_fault(mechanism, fault) for mechanism in found):
        return "named"
    return "equal" if len(found) <= fault.most else f"found {ids}: {[m['says'] for m in found]}, expected {fault.ids} {fault.scope}"


def plant(program, folder, seed):
    """(what came of it, the fault); None when the stream gives no occasion."""
    stream = RandomStream(seed)
    if stream.plans[-1].path == OPAQUE:
        return None
    fault = Planter(stream, np.random.default_rng(seed + 5)).fault()
    if fault is None:
        return None
    right, wrong = PoolModel(stream), PoolModel(stream, fault.engine)
    place = first_difference(stream, right, wrong)
    trace = os.path.join(folder, "wrong.h5")
    write_trace(trace, stream, wrong, every_block=True)
    done = program("explain", trace, *GOLDEN, "--json", "-")
    if place is None:
        return "nothing differs" if done.code == 0 else f"expected a match, found {done}", fault
    if done.code != 1:
        return f"expected a divergence at {place}, found {done}", fault
    return judged(done.json, place, fault), fault


def planted(program, tap, folder, seeds):
    found = {seed: plant(program, folder, seed) for seed in seeds}
    verdicts = {seed: outcome for seed, outcome in found.items() if outcome}
    counts = collections.Counter(outcome for outcome, _ in verdicts.values() if outcome in ("named", "equal", "nothing differs"))
    wrong = [f"seed {seed}, {fault.name}: {outcome}" for seed, (outcome, fault) in verdicts.items() if outcome not in counts]
    tap.check(not wrong, f"{len(verdicts)} faults: {dict(counts)}", "\n".join(wrong[:20]))
    tap.check(counts["named"] * 2 > len(verdicts), "most are named for what they are", counts)


# ---- logs with a flipped bit


def flip(path, place, rng):
    """One bit of the dataset's bytes."""
    data = bytearray(read_bytes(path))
    with h5py.File(path) as file:
        start, size = file[place].id.get_offset(), file[place].id.get_storage_size()
    data[start + int(rng.integers(size))] ^= 1 << int(rng.integers(8))
    return data


def places(path):
    found = []

    def add(name, item):
        if isinstance(item, h5py.Dataset) and item.size and item.id.get_offset() is not None:
            found.append(name)

    with h5py.File(path) as file:
        file.visititems(add)
    return found


def falls_over(done, codes):
    """A crash, or a refusal that is not one line."""
    said = done.err.count("\n") == 1 or done.verdict.startswith("verdict: inconclusive")
    return done.code not in codes or done.code == 2 and not said


def recorded(folder, seed, **how):
    """The seed's stream and its trace; None when it has nothing to break."""
    stream, trace = RandomStream(seed), os.path.join(folder, "trace.h5")
    if not stream.events or all(plan.path == OPAQUE for plan in stream.plans):
        return None, None
    write_trace(trace, stream, PoolModel(stream), **how)
    return stream, trace


def ask(program, commands):
    """Complaints about commands: exit codes that they may have, and their arguments."""
    return [f"{command[0]}: {done}" for codes, *command in commands if falls_over(done := program(*command), codes)]


def broken(program, folder, seed, share):
    """Complaints about the commands that are given logs of this seed's stream with a flipped bit; and how many logs there were."""
    stream, trace = recorded(folder, seed)
    if stream is None:
        return [], 0
    rng, (log, bad) = np.random.default_rng(seed), (os.path.join(folder, name) for name in ("log.h5", "bad.h5"))
    made = program("run", trace, "-o", log, "--force", *GOLDEN, "--state", ("full", "digest", "every:2")[seed % 3], "--checkpoint",
                   ("none", "every:2")[seed % 2])
    complaints, chosen = [str(made)] if made.code else [], [place for place in places(log) if rng.random() <= share]
    for place in chosen:
        data = flip(log, place, rng)
        with open(bad, "wb") as file:
            file.write(data)
        found = ask(program, (((1, 2), "verify", bad), ((0, 1, 2), "replay", bad, "--trace", trace), ((0, 1, 2), "diff", log, bad),
                              ((0, 1, 2), "explain", bad, "--trace", trace), ((0, 1, 2), "info", bad, "--history")))
        complaints += [f"seed {seed}, {place}: {complaint}" for complaint in found]
    return complaints, len(chosen)


def spoil(file, place, rng):
    """Another value, size or type of a dataset; says which."""
    values = file[place][()]
    how = ("value", "shorter", "longer", "flat", "type")[int(rng.integers(5))]
    if how == "value" and values.dtype.kind == "i":
        limits = np.iinfo(values.dtype)
        worst = int(rng.choice([limits.min, limits.max, -1, -2, 0, 1, 2, 3, 100]))
        values.ravel()[int(rng.integers(values.size))] = worst
        file[place][...] = values
        return f"{place}: {worst}"
    changed = {"shorter": values[:-1], "longer": np.concatenate([values, values[:1]]), "flat": values.reshape(1, -1)}.get(how, values.astype("f8"))
    del file[place]
    file.create_dataset(place, data=changed)
    return f"{place}: {how}"


def hostile(program, folder, seed, share):
    """The same of traces with a spoiled dataset."""
    stream, trace = recorded(folder, seed)
    if stream is None:
        return [], 0
    if stream.version == 2:
        write_trace(trace, stream, PoolModel(stream), layout=Drawn(stream, np.random.default_rng(seed)))
    rng, bad, complaints = np.random.default_rng(seed + 1), os.path.join(folder, "bad.h5"), []
    chosen = [place for place in places(trace) if place.split("/")[0] in ("steps", "events", "recorded") and rng.random() <= share]
    for place in chosen:
        with open(bad, "wb") as file:
            file.write(read_bytes(trace))
        with h5py.File(bad, "r+") as file:
            what = spoil(file, place, rng)
        any_code, log = (0, 1, 2), os.path.join(folder, "bad.log.h5")
        found = ask(program, ((any_code, "info", bad, "--history"), (any_code, "replay", bad, *GOLDEN), (any_code, "explain", bad, *GOLDEN),
                              (any_code, "run", bad, "-o", log, "--force", *GOLDEN, "--poison", "--audit", "1")))
        complaints += [f"seed {seed}, {what}: {complaint}" for complaint in found]
    return complaints, len(chosen)


def each(tap, what, found):
    complaints = [complaint for complaints, _ in found for complaint in complaints]
    count = sum(count for _, count in found)
    tap.check(count and not complaints, f"{count} {what}", "\n".join(complaints[:5]))


def main():
    program, tap = Program(sys.argv[2]), Tap()
    asked = sys.argv[3] if len(sys.argv) > 3 else None
    first, last = (int(part) for part in (asked or "0:20").split(":"))
    seeds, share = (range(first, last), 0.5) if asked else (range(3), 0.08)
    with tempfile.TemporaryDirectory() as folder:
        planted(program, tap, folder, range(first, last))
        each(tap, "logs with one flipped bit", [broken(program, folder, seed, share) for seed in seeds])
        each(tap, "traces with a spoiled dataset", [hostile(program, folder, seed, share * 2) for seed in seeds])
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
