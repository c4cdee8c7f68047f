#!/usr/bin/env python3
"""fit finds contracts from recordings alone: presets, altered contracts, and says so when it cannot.

Recordings are made here, under contracts that fit is not told.

fit.py ROOT PROGRAM
"""

import os
import shutil
import sys
import tempfile

try:
    import h5py
except ImportError:
    h5py = None

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import schema  # noqa: E402
from program import Checks, Program  # noqa: E402
from tap import Tap  # noqa: E402

SAMPLE = "h200_k64_3layers.h5"
# field = value as the fit should name them; each is told from the preset by the sample's data.
ALTERED = [
    ["beta = bf16"],
    ["head_map = tiled"],
    ["update = multiply-add"],
    ["qk_eps = sum-k"],
    ["params = bf16"],
    ["norm = gate-first"],
    ["state_dot.sequential_k = all"],
    ["conv_sum = act"],
    ["softplus = log1p"],
    ["decay = twice"],
    ["qk_norm = none"],
    ["beta = bf16", "update = multiply-add"],
]


def altered_contract(program, folder, changes):
    """triton-sm90 with changes, as a file."""
    text = program("contracts", "--show", "triton-sm90").out
    lines = text.split("[mixed]")[0].replace("[decode]\n", "").replace("name = triton-sm90", "name = altered")
    wanted = {change.split(" = ")[0]: change for change in changes}
    lines = [wanted.get(line.split(" = ")[0], line) for line in lines.splitlines()]
    path = os.path.join(folder, "altered.contract")
    with open(path, "w", encoding="utf-8") as stream:
        stream.write("\n".join(lines) + "\n")
    return path


def check_altered(checks, sample, folder, changes):
    """A log of the sample run under an altered contract; fit does not read what a log says of its contracts."""
    name = " and ".join(changes)
    contract = altered_contract(checks.program, folder, changes)
    log = os.path.join(folder, "altered.log.h5")
    run = ["run", sample, "-o", log, "--contract", contract, "--backend", "golden", "--force"]
    checks.does(f"{name}: recorded", run)
    done = checks.program("fit", log, "--trace", sample, "--json", "-")
    found = done.json["paths"][0] if done.code in (0, 1) else {}
    checks.tap.check(
        done.code == 0 and found["nearest_preset"] == "triton-sm90" and found["changes"] == changes,
        f"{name}: found",
        f"{found.get('nearest_preset')} {found.get('changes')}\n{done.err}",
    )


def check_file(checks, sample, folder):
    """-o writes what --contract reads, and never over a file."""
    path = os.path.join(folder, "fitted.contract")
    done = checks.ends("fit of a sample", ["fit", sample, "-o", path], 0, "match")
    checks.tap.check("equals preset triton-sm90" in done.out, "it is the preset", done)
    timed = [line for line in done.out.splitlines() if line.startswith("time ")]
    checks.tap.check(len(timed) == 1 and timed[0].endswith(" s of search (wall time)"), "which clock its time is by", timed)
    checks.ends("replay under the file", ["replay", sample, "--contract", path], 0, "match")
    with open(path, "rb") as stream:
        before = stream.read()
    checks.refused("no overwriting", ["fit", sample, "-o", path], "exists already")
    with open(path, "rb") as stream:
        checks.tap.check(stream.read() == before, "the file is as it was")
    checks.ends("--force overwrites", ["fit", sample, "-o", path, "--force"], 0, "match")


def check_partial(checks, sample, folder):
    """A recording that no contract reproduces: -o writes nothing unless it is told to."""
    broken = os.path.join(folder, "broken.h5")
    shutil.copyfile(sample, broken)
    with h5py.File(broken, "r+") as file:
        words = file["recorded/0/core_out"]
        row = words[-1]
        row.view("u2").reshape(-1)[7] ^= 0x4000
        words[-1] = row
    path = os.path.join(folder, "partial.contract")
    done = checks.ends("fit of a file with a wrong element", ["fit", broken, "-o", path], 1, "diverged")
    checks.tap.check(not os.path.exists(path) and "not written" in done.out, "no contract is written", done)
    checks.ends("--partial", ["fit", broken, "-o", path, "--partial"], 1, "diverged")
    checks.ends("and the file is the nearest contract", ["replay", sample, "--contract", path], 0, "match")


def check_older_files(checks, sample, folder):
    """Logs and contract files from before a field was there mean its default."""
    later = {"decay": "exp", "conv_sum": "f32", "state_dot.sequential_k": "none"}
    log = os.path.join(folder, "older.log.h5")
    checks.does("a log", ["run", sample, "-o", log, "--contract", "triton-sm90", "--backend", "golden"])
    with h5py.File(log, "r+") as file:
        for path in ("decode", "mixed"):
            attributes = file["contract"][path].attrs
            for field, value in later.items():
                checks.tap.check(attributes[field] in (value.encode(), value), f"{path}: {field} is stored")
                del attributes[field]
    checks.does("verify a log without them", ["verify", log])
    text = checks.program("contracts", "--show", "golden").out
    for field, value in later.items():
        text = text.replace(f"{field} = {value}\n", "")
    path = os.path.join(folder, "older.contract")
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
    shown = checks.does("a contract file without them", ["contracts", "--show", path]).out
    for field, value in later.items():
        checks.tap.check(f"{field} = {value}\n" in shown, f"{field} means {value}", shown)


def check_schema(checks, report):
    if schema.jsonschema is None:
        checks.tap.skip("the published schema", schema.MISSING)
        return
    checks.tap.check(not schema.wrong(report), "it is as the published schema says", schema.wrong(report))
    checks.tap.check(schema.wrong({**report, "verdict": "perhaps"}), "which refuses another verdict")


def check_undecided(checks, sample):
    report = checks.does("fit --json", ["fit", sample, "--json", "-"]).json
    undecided = {u["field"]: u for u in report["paths"][0]["undecided"]}
    checks.tap.check(report["schema"] == "gdnsim.fit/1", "schema", report["schema"])
    check_schema(checks, report)
    checks.tap.check(undecided.get("conv_bias", {}).get("because") == "no bias", "no bias, no order of it", undecided)
    decided = "update" not in undecided and "exp" not in undecided
    checks.tap.check(decided, "what the bits decide is not listed", undecided)


def main():
    root, program = sys.argv[1], Program(sys.argv[2])
    tap = Tap()
    checks = Checks(tap, program)
    sample = os.path.join(root, "traces", SAMPLE)
    with tempfile.TemporaryDirectory() as folder:
        check_file(checks, sample, folder)
        check_undecided(checks, sample)
        if h5py is None:
            tap.skip("files with a wrong element, and older ones", "python3-h5py is not installed")
        else:
            check_partial(checks, sample, folder)
            check_older_files(checks, sample, folder)
        for changes in ALTERED:
            check_altered(checks, sample, folder, changes)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
