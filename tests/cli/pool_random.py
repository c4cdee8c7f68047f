#!/usr/bin/env python3
"""Random streams against a pool that is a dictionary: the recording replays, every event's and pool's digest in the log is the
dictionary's, poison is read where the dictionary has a block that nobody filled, the history names the rows and events there are, and
in another layout of an engine's memory it is the same stream.

    pool_random.py ROOT GDNSIM [FIRST:LAST]      seeds, by default a few; 0:3000 takes a quarter of an hour
"""

import collections
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import needs_h5py  # noqa: E402, F401
import h5py  # noqa: E402
import numpy as np  # noqa: E402
from pool_layouts import Drawn  # noqa: E402
from pool_model import Forgetful, PoolModel, write_trace  # noqa: E402
from program import Program, read_bytes  # noqa: E402
from random_stream import COPY, LOAD, OPAQUE, ZERO, RandomStream  # noqa: E402
from tap import Tap  # noqa: E402

QUIET = ("--contract", "golden", "--quiet", "--no-progress")
STATES = (("--state", "full"), ("--state", "digest"), ("--state", "every:2"))
CHECKPOINTS = (("--checkpoint", "none"), ("--checkpoint", "every:1"), ("--checkpoint", "every:3"))


class Wrong(Exception):
    pass


def expect(what, found, wanted):
    if found != wanted:
        raise Wrong(f"{what}: expected {wanted}, found {found}")


def run(program, code, *arguments):
    done = program(*arguments)
    if done.code != code:
        raise Wrong(f"{' '.join(arguments)}: expected exit {code}, found {done.code}: {(done.err or done.out)[-500:]}")
    return done


def check_digests(log, stream, model):
    with h5py.File(log, "r") as file:
        pools = file["digest/pool"][()].tolist()
        expect("pool digests", pools, [[step[layer] for layer in range(stream.layers)] for step in model.pools])
        if stream.events:
            for at, name in enumerate(("before", "after")):
                wanted = [[one.get(layer, (0, 0))[at] for layer in range(stream.layers)] for one in model.around]
                expect(f"digests {name} the events", file["events"][name][()].tolist(), wanted)


def check_poison(program, trace, folder, model):
    poison = model.first_poison
    done = run(program, 1 if poison else 0, "run", trace, "-o", os.path.join(folder, "poison.h5"), "--force", *QUIET, "--poison", "--audit",
               "1", *(("--json", "-") if poison else ()))
    if poison:
        found = json.loads(done.out)
        expect("poison read", tuple(found[name] for name in ("step", "layer", "row", "block")), poison)


def check_history(program, trace, stream):
    lives = json.loads(run(program, 0, "info", trace, "--history", "--json", "-").out)["history"]
    rows, found = collections.Counter(), collections.Counter()
    for plan in stream.plans:
        rows.update(int(plan.index[row]) for row in range(stream.rows) if not stream.model.inactive(plan.index[row], row, plan.present))
    for life in lives:
        found[life["block"]] += life["rows"]
    expect("rows of each block's history", +found, rows)
    fills = [event for event, (_, _, _, kind, *_) in enumerate(stream.events) if kind in (ZERO, LOAD, COPY)]
    expect("fills of the history", sorted(fill["event"] for life in lives for fill in life["filled"]), fills)


def check_layout(program, trace, folder, stream, model):
    """The same stream in a drawn layout of an engine's memory: its recording replays, and its log has the same bytes."""
    if stream.version == 1 or stream.seed % 2 == 1:
        return
    dressed = os.path.join(folder, "dressed.h5")
    write_trace(dressed, stream, model, layout=Drawn(stream, np.random.default_rng(stream.seed + 11)))
    run(program, 0, "replay", dressed, *QUIET)
    logs = [os.path.join(folder, f"{name}.log.h5") for name in ("flat", "dressed")]
    for source, log in zip((trace, dressed), logs):
        run(program, 0, "run", source, "-o", log, "--force", *QUIET, "--no-provenance")
    expect("the log of another layout", read_bytes(logs[0]) == read_bytes(logs[1]), True)


def check_stream(program, folder, stream, model):
    """Throws Wrong at the first disagreement."""
    trace, log = os.path.join(folder, "trace.h5"), os.path.join(folder, "log.h5")
    write_trace(trace, stream, model)
    run(program, 0, "replay", trace, *QUIET)
    run(program, 0, "run", trace, "-o", log, "--force", *QUIET, *STATES[stream.seed % 3], *CHECKPOINTS[stream.seed // 3 % 3])
    check_digests(log, stream, model)
    run(program, 0, "verify", log)
    run(program, 0, "replay", log, "--trace", trace, "--quiet", "--no-progress")
    check_poison(program, trace, folder, model)
    check_history(program, trace, stream)
    check_layout(program, trace, folder, stream, model)


def verdict(program, folder, seed, lost_event=None):
    """What is wrong with the seed's stream; None when its steps all lie outside the operator."""
    stream = RandomStream(seed)
    if all(plan.path == OPAQUE for plan in stream.plans):
        return None
    try:
        check_stream(program, folder, stream, PoolModel(stream, None if lost_event is None else Forgetful(lost_event)))
    except Wrong as wrong:
        return str(wrong)
    return ""


def fills_that_matter(seeds):
    """(seed, event): the first load of a stream that has one."""
    for seed in seeds:
        loads = [event for event, (_, _, _, kind, *_) in enumerate(RandomStream(seed).events) if kind == LOAD]
        if loads:
            yield seed, loads[0]


def main():
    program, tap = Program(sys.argv[2]), Tap()
    first, last = (int(part) for part in (sys.argv[3] if len(sys.argv) > 3 else "0:40").split(":"))
    with tempfile.TemporaryDirectory() as folder:
        found = {seed: verdict(program, folder, seed) for seed in range(first, last)}
        ran = [seed for seed, wrong in found.items() if wrong is not None]
        wrong = [f"seed {seed}: {found[seed]}" for seed in ran if found[seed]]
        tap.check(ran and not wrong, f"{len(ran)} random streams agree with the dictionary", "\n".join(wrong[:20]))
        versions = collections.Counter(RandomStream(seed).version for seed in ran)
        tap.check(min(versions[1], versions[2]) > 0, f"both versions: {versions[1]} and {versions[2]}")
        lost = list(fills_that_matter(ran))[:5]
        seen = [seed for seed, event in lost if verdict(program, folder, seed, event)]
        tap.check(lost and len(seen) == len(lost), "a dictionary that forgets a load disagrees", f"{seen} of {lost}")
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
