#!/usr/bin/env python3
"""explain on copies of the sample recordings with one thing broken: the place it names is the exact one; where its words go.

explain.py ROOT PROGRAM
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import needs_h5py  # noqa: E402, F401
import h5py  # noqa: E402
from program import Checks, Program, contents, read_bytes, write_contract, write_recipe  # noqa: E402
from tap import Tap  # noqa: E402

sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))
from cut_trace import read_raw  # noqa: E402

# Three layers, states recorded after the last step; and one layer, states after steps 0 and 15, so that step 1 starts from them.
LAYERS, MIXED = "h200_k64_3layers.h5", "h200_k64_mixed.h5"

# Bits flipped by tools/break_trace.py: where; then the place that must be named, and words of the sentence about it.
FLIPS = [
    (LAYERS, "core_out", {"step": 5, "layer": 1, "row": 0, "head": 2, "element": 3, "bit": 6},
     {"from_step": 5, "to_step": 5, "layer": 1, "row": 0, "block": 5}, "the record of core_out", 3, 6),
    (MIXED, "core_out", {"step": 1, "row": 2, "head": 3, "element": 63, "bit": 0},
     {"from_step": 1, "to_step": 1, "layer": 0, "row": 2, "block": 4}, "the record of core_out", 63, 0),
    (MIXED, "norm_out", {"step": 1, "row": 1, "head": 1, "element": 9, "bit": 15},
     {"from_step": 1, "to_step": 1, "layer": 0, "row": 1, "block": 3}, "the record of norm_out", 9, 15),
    (MIXED, "conv_out", {"step": 1, "row": 1, "element": 2, "bit": 9},
     {"from_step": 1, "to_step": 1, "layer": 0, "row": 1, "block": 3}, "the record of conv_out", 2, 9),
    (MIXED, "state", {"step": 0, "block": 3, "head": 1, "element": 777, "bit": 12},
     {"from_step": 0, "to_step": 0, "layer": 0, "block": 3}, "recurrent state of block 3", 777, 12),
    (MIXED, "state", {"step": 0, "block": 2, "head": 3, "element": 4095, "bit": 30},
     {"from_step": 0, "to_step": 0, "layer": 0, "block": 2}, "no row wrote the block", 4095, 30),
    (MIXED, "conv_state", {"step": 0, "block": 1, "element": 100, "bit": 3},
     {"from_step": 0, "to_step": 0, "layer": 0, "row": 0, "block": 1}, "the record of conv state", 100, 3),
    (MIXED, "mixed_qkv", {"step": 1, "row": 1, "element": 300, "bit": 14},
     {"from_step": 1, "to_step": 1, "layer": 0, "row": 1}, "the recorded input mixed_qkv", 300, 14),
    # Rounded away in step 1: no output shows it before step 4 reads it as the window's oldest column.
    (MIXED, "mixed_qkv", {"step": 1, "row": 1, "element": 300, "bit": 5},
     {"from_step": 1, "to_step": 4, "layer": 0, "block": 3}, "column 0, channel 300", 300, 5),
    (MIXED, "z", {"step": 1, "row": 2, "head": 3, "element": 2, "bit": 9},
     {"from_step": 1, "to_step": 1, "layer": 0, "row": 2}, "the recorded input z", 3 * 64 + 2, 9),
]
GOLDEN_LACKS = ["exp", "div", "sqrt", "softplus", "dot-order", "update-fma"]


class Files:
    def __init__(self, root, folder):
        self.root, self.folder = root, folder

    def sample(self, name):
        return os.path.join(self.root, "traces", name)

    def __call__(self, name):
        return os.path.join(self.folder, name)

    def broken(self, sample, name, tap, place):
        options = [text for key, value in place.items() for text in (f"--{key}", str(value))]
        tool = os.path.join(self.root, "tools", "break_trace.py")
        subprocess.run([sys.executable, tool, self.sample(sample), self(name), "--tap", tap, *options, "--force"],
                       check=True, capture_output=True)
        return self(name)

    def changed(self, sample, name, datasets, change):
        """A copy in which `change` was done to the words of some datasets."""
        shutil.copyfile(self.sample(sample), self(name))
        with h5py.File(self(name), "r+") as trace:
            for path in datasets:
                words = read_raw(trace[path])
                change(words)
                trace[path].id.write(h5py.h5s.ALL, h5py.h5s.ALL, words, mtype=trace[path].id.get_type())
        return self(name)


def explained(checks, path, *options):
    """Exit code and report; (code, None) without one."""
    done = checks.program("explain", path, "--json", "-", "--quiet", *options)
    return done, done.json if done.code in (0, 1) else None


def names_only(checks, name, path, mechanism, scope, words, *options):
    """Exit 1, and one mechanism: that id, exactly that scope, a sentence with those words."""
    done, report = explained(checks, path, *options)
    found = report["mechanisms"] if report else []
    right = done.code == 1 and [(m["id"], m["scope"]) for m in found] == [(mechanism, scope)]
    right = right and all(word in found[0]["says"] for word in words)
    checks.tap.check(right, name, f"wanted {mechanism} {scope} {words}\n{found}\n{done.err}")
    return report


def check_flips(checks, files):
    for sample, tap, place, scope, words, element, bit in FLIPS:
        path = files.broken(sample, "flipped.h5", tap, place)
        name = f"{tap} of step {place['step']}, bit {bit}"
        at = f"element {element}"
        if tap in ("core_out", "norm_out", "state"):
            at = f"head {place['head']}, element {place['element']}"
        said = [words, at, f"bit {bit}"]
        names_only(checks, f"{name}: named at its place", path, "memory-corruption", scope, said)


def put(target, source):
    def change(words):
        words[target] = words[source]

    return change


def swap(*at):
    """Exchanges what two indices hold."""

    def change(words):
        words[at[0]], words[at[1]] = words[at[1]].copy(), words[at[0]].copy()

    return change


def check_states(checks, files):
    """The snapshot after step 0 of block 1 holds block 3's; the loads of blocks 1 and 3 are exchanged."""
    state = ["recorded/state/recurrent", "recorded/state/conv"]
    path = files.changed(MIXED, "snapshot.h5", state, put(0, 2))
    here = {"from_step": 0, "to_step": 0, "layer": 0}
    said = ["the snapshot of block 1", "the state of block 3 after step 0"]
    names_only(checks, "a snapshot that is another block's", path, "wrong-block", {**here, "row": 0, "block": 3}, said)
    path = files.changed(MIXED, "loads.h5", ["events/recurrent", "events/conv"], swap(0, 1))
    done, report = explained(checks, path)
    found = [(m["id"], m["scope"]) for m in report["mechanisms"]] if report else done
    wanted = [("wrong-block", {**here, "block": 3}), ("wrong-block", {**here, "block": 1})]
    checks.tap.check(found == wanted, "two loads that were exchanged are named, each with its block", found)


def check_rows(checks, files):
    """Rows 0 and 1 of an output change places: no fault of a step does that, so it is not explained, but the sign is shown."""
    path = files.changed(MIXED, "rows.h5", ["recorded/0/core_out"], swap((1, 0), (1, 1)))
    done, report = explained(checks, path, "--steps", "0:2")
    found = report["mechanisms"] if report else []
    place = {"from_step": 1, "layer": 0, "row": 0}
    right = done.code == 1 and [m["id"] for m in found] == ["unexplained"] and found[0]["proof"] == "pattern"
    right = right and place.items() <= found[0]["scope"].items()
    right = right and "the recorded row equals ours of row 1" in found[0]["says"]
    checks.tap.check(right, "rows that changed places: unexplained, with the row it equals", f"{found}\n{done.err}")
    checks.tap.check(bool(report) and len(report["tried"]) > 3, "and what was tried is listed", report and report["tried"])


def check_golden(checks, files):
    """Held to golden, a kernel's recording names each choice golden lacks; golden with these choices is that kernel."""
    path = files.sample(LAYERS)
    begin = time.monotonic()
    done, report = explained(checks, path, "--contract", "golden")
    took = time.monotonic() - begin
    found = report["mechanisms"] if report else []
    checks.tap.check([m["id"] for m in found] == GOLDEN_LACKS, "what golden lacks is named", f"{found}\n{done.err}")
    everywhere = all(m["scope"] == {} and m["proof"] == "rerun" for m in found)
    checks.tap.check(everywhere and took < 60, "everywhere, by re-runs, within a minute", f"{took} s\n{found}")
    changes = dict(re.findall(r"([a-z_.]+) = ([\w/-]+) \(", ", ".join(m["says"] for m in found)))
    contract = write_contract(checks.program, files("lacks.contract"), {"name": "lacks", **changes})
    checks.ends("golden with those choices gives every recorded bit", ["replay", path, "--contract", contract], 0, "match")
    for field, value in changes.items():
        fewer = {key: other for key, other in changes.items() if key != field}
        contract = write_contract(checks.program, files("fewer.contract"), {"name": "fewer", **fewer})
        what = f"and without {field} = {value} it does not"
        checks.ends(what, ["replay", path, "--contract", contract, "--mode", "carried"], 1, "diverged")


def check_deadline(checks, files):
    """Out of time: still a divergence, and nothing is claimed to be shown that was not."""
    begin = time.monotonic()
    done, report = explained(checks, files.sample(LAYERS), "--contract", "golden", "--seconds", "0.1")
    found = report["mechanisms"] if report else []
    honest = all(m["id"] == "unexplained" or m["id"] in GOLDEN_LACKS for m in found)
    checks.tap.check(done.code == 1 and found and honest, "--seconds 0.1", f"{found}\n{done.err}")
    checks.tap.check(time.monotonic() - begin < 60, "ends soon", time.monotonic() - begin)


def check_slices(checks, files):
    """Layers and steps without the broken word match; with it alone they say the same as the whole."""
    sample, tap, place, scope = FLIPS[0][:4]
    path = files.broken(sample, "slice.h5", tap, place)
    for options in (["--layers", "0,2"], ["--steps", "0:5"], ["--steps", "6:16"]):
        done, report = explained(checks, path, *options)
        right = done.code == 0 and report["mechanisms"] == [] and report["searched"]
        checks.tap.check(right, f"{' '.join(options)}: match, nothing to explain", done)
    whole = names_only(checks, "the whole", path, "memory-corruption", scope, [])
    options = ["--layers", "1", "--steps", "5:6"]
    part = names_only(checks, "the broken step of the broken layer", path, "memory-corruption", scope, [], *options)
    checks.tap.check(part["modes"]["carried"]["compared"] < whole["modes"]["carried"]["compared"], "compares less")
    again = checks.program.shell(whole["repro"] + " --json - --quiet")
    same = again.code == 1 and again.json["first"] == whole["first"]
    checks.tap.check(same and again.json["mechanisms"] == whole["mechanisms"], "the repro line shows the same", again)
    shown = checks.program.shell(whole["next"].replace("again.h5", files.sample(sample)) + " --quiet")
    checks.tap.check(shown.code == 1 and "differing 1" in shown.verdict, "the next line works, once it is recorded again", shown)


def check_next(checks, files):
    """What is advised goes with what was found, and works."""

    def flip(words):
        words.reshape(-1)[40] ^= 1 << 14

    weight = files.changed(MIXED, "weight.h5", ["params/0/conv_weight"], flip)
    done, report = explained(checks, weight, "--steps", "0:16")
    found = [m["id"] for m in report["mechanisms"]] if report else done
    checks.tap.check(found == ["memory-corruption"], "a flipped bit of a parameter", found)
    checks.tap.check(report and report["next"] == f"gdnsim diff {weight} again.h5 --steps 0:16"
                     and any("record the same batch again" in note for note in report["notes"]),
                     "is a reason to record again, not to fit a contract", report and (report["next"], report["notes"]))
    recipe = write_recipe(files("unloaded.json"), steps=4, rows=2, model={"layer_ids": [0]})
    trace = files("unloaded.h5")
    checks.does("a trace", ["synth", recipe, "-o", trace, "--record"])
    with h5py.File(trace, "r+") as file:
        del file["events"]
    done, report = explained(checks, trace, "--seconds", "1")
    block = report["first"]["block"] if report else -1
    asked = f"block {block} was never loaded: did the capture miss its starting state?"
    checks.tap.check(report and asked in report["notes"], "a starting state that was not captured is asked for", report and report["notes"])
    shown = checks.program.shell(report["next"] + " --quiet") if report else done
    checks.tap.check(shown.code == 1 and f"block {block} was last written by nobody" in shown.out, "and the next line shows it", shown)


def check_model(checks, files):
    """A wrong number in /model is named, with what was used; the repro line, under the contract that was found, says the same."""
    for field, wrong, right in (("scale", 1 / 64, "0.125"), ("norm_eps", 1e-5, "1e-06"), ("use_qk_l2norm", 0, "true")):
        path = files(f"wrong {field}.h5")
        shutil.copyfile(files.sample(LAYERS), path)
        with h5py.File(path, "r+") as trace:
            attributes = trace["model"].attrs
            attributes.modify(field, attributes[field].dtype.type(wrong))
        says = [f"/model says {field} = ", f"the provider computed with {right}"]
        report = names_only(checks, f"a wrong {field}", path, "model-field", {}, says)
        again = checks.program.shell(report["repro"] + " --json - --quiet") if report else None
        checks.tap.check(again and again.code == 1 and [m["id"] for m in again.json["mechanisms"]] == ["model-field"],
                         f"a wrong {field}: again by the repro line", again)
    path = files("odd.h5")
    shutil.copyfile(files.sample(MIXED), path)
    with h5py.File(path, "r+") as trace:
        trace["model"].attrs.modify("scale", trace["model"].attrs["scale"].dtype.type(0.1))
    done, report = explained(checks, path, "--steps", "0:2", "--contract", "triton-sm90-mixed")
    checks.tap.check(report and report["mechanisms"][0]["id"] == "model-field", "the usual one for an odd one", done)


def check_incomplete(checks, files):
    """An interrupted log: each command names the next, the last of which finishes it."""
    recipe, log = write_recipe(files("killed.json")), files("killed log.h5")
    checks.does("a log", ["run", recipe, "-o", log, "--contract", "golden", "--state", "every:2", "--checkpoint", "every:3",
                          "--taps", "u,core_out", "--layers", "1", "--quiet"])
    before = read_bytes(log)
    with h5py.File(log, "r") as file:
        commit = file["commit"]
        start, end = commit.id.get_offset() + 5 * 32, commit.id.get_offset() + commit.shape[0] * 32
    with open(log, "r+b") as stream:
        stream.seek(start)
        stream.write(bytes(end - start))
    for command in ("replay", "explain"):
        done = checks.ends(f"{command} of an interrupted log", [command, log, "--quiet"], 2, "inconclusive")
        checks.tap.check(done.line("next") == f"gdnsim verify '{log}'", "sends to verify", done)
    searched = checks.ends("bisect of it", ["bisect", log, "--quiet"], 2, "inconclusive")
    checks.tap.check(f"gdnsim verify '{log}'" in searched.line("because"), "says why, and sends there too", searched)
    checks.ends("bisect of the steps that it has", ["bisect", log, "--steps", "0:5", "--quiet"], 0, "match")
    done = checks.program.shell(done.line("next"))
    checks.tap.check(done.code == 2 and done.line("next").endswith(" --resume"), "which sends to run --resume", done)
    done = checks.program.shell(done.line("next") + " --quiet")
    checks.tap.check(done.code == 0 and read_bytes(log) == before, "which ends in the same bytes", done)


def check_outputs(checks, files):
    """Text, JSON and page say the same; the page needs nothing but itself; inputs stay as they are."""
    path = files.broken(MIXED, "outputs.h5", *FLIPS[4][1:3])
    before = contents(files.folder)
    text, page, report = checks.program("explain", path), files("report.html"), files("report.json")
    checks.tap.check(contents(files.folder) == before, "nothing is written that was not asked for")
    for line in ("mechanism", "  memory-corruption (step 0, layer 0, block 3)", "  bit 12"):
        checks.tap.check(line.strip() in text.out, f"the text has '{line.strip()}'", text)
    done = checks.program("explain", path, "--html", page, "--json", report, "--quiet")
    checks.tap.check((done.code, done.out, done.err) == (1, text.out, ""), "with --html and --json the same text", done)
    again = checks.program("explain", path, "--json", "-")
    checks.tap.check(again.out.strip() == read_bytes(report).decode().strip(), "--json - is what --json FILE writes", again)
    check_page(checks.tap, read_bytes(page).decode(), again.json)
    for option, target in (("--html", page), ("--json", report)):
        checks.refused(f"{option} over a file", ["explain", path, option, target], target, "exists already")
        checks.refused(f"{option} over the trace", ["explain", path, option, path, "--force"], path)
        checks.refused(f"{option} into no folder", ["explain", path, option, files("none/x")], "none")
    after = contents(files.folder)
    del after["report.html"], after["report.json"]
    checks.tap.check(after == before, "the trace is as it was")


def check_page(tap, page, report):
    data = re.search(r'<script type="application/json" id="report">(.*?)</script>', page, re.S)
    tap.check(data and json.loads(data[1]) == report, "the page holds the report")
    fetches = re.findall(r'(?:src|href)\s*=\s*["\']?[^"\'#\s>]|url\(|@import|https?://', page.replace(data[1], ""))
    tap.check("default-src 'none'" in page and not fetches, "the page fetches nothing", fetches)


def check_logs(checks, files):
    """A log is held to its own contract, another trace than its own is refused."""
    trace, log = files("moving.h5"), files("golden.log.h5")
    shutil.copyfile(files.sample(MIXED), trace)
    checks.does("a log", ["run", trace, "-o", log, "--contract", "golden", "--backend", "golden", "--quiet"])
    checks.ends("a log explains itself", ["explain", log, "--quiet"], 0, "match")
    os.rename(trace, files("moved.h5"))
    for command in ("explain", "replay", "fit", "bisect"):
        checks.refused(f"{command} of a log whose trace is gone", [command, log], log, trace, "--trace FILE")
    wanted = ["explain", log, "--trace", files("moved.h5"), "--quiet"]
    checks.ends("a log with --trace", wanted, 0, "match")
    names_only(checks, "and held to another kernel", log, "kernel-path", {}, ["'golden'"], *wanted[2:4],
               "--contract", "triton-sm90-mixed")
    checks.refused("a log with another trace", ["explain", log, "--trace", files.sample(LAYERS)], LAYERS, "is not the trace")
    recipe = write_recipe(files("own.json"))
    checks.does("a recipe's log", ["run", recipe, "-o", files("own.log.h5"), "--contract", "golden", "--quiet"])
    for command in ("explain", "replay", "fit"):
        for file in (files("own.log.h5"), files.sample(LAYERS)):
            words = [command, file, "--trace", files.sample(MIXED)]
            checks.refused(f"{command} --trace where it says nothing", words, "--trace", file)


def check_refusals(checks, files):
    sample = files.sample(MIXED)
    hostile = {"escape": b"gdnsim-contract 1\nname = x\nexp = \x1b[31mred\n", "binary": bytes(range(256)), "empty": b"",
               "long": b"gdnsim-contract 1\n" + b"#" * 70000, "truncated": b"gdnsim-contract 1\nname = x\n"}
    before = contents(files.folder)
    for name, text in hostile.items():
        with tempfile.NamedTemporaryFile(suffix=".contract") as contract:
            contract.write(text)
            contract.flush()
            done = checks.refused(f"a contract file: {name}", ["explain", sample, "--contract", contract.name], contract.name)
            checks.tap.check(done.err.strip("\n").isprintable(), f"{name}: nothing that a terminal obeys", repr(done.err))
    for name, arguments, words in [
        ("an unknown contract", [sample, "--contract", "triton-sm99"], ["triton-sm99"]),
        ("a folder for a contract", [sample, "--contract", files.folder], [files.folder]),
        ("no such file", [files("none.h5")], ["none.h5"]),
        ("a file that is no trace", [os.path.join(files.root, "README.md")], ["README.md"]),
        ("a layer that is not there", [sample, "--layers", "1"], ["layer 1"]),
        ("no steps", [sample, "--steps", "3:3"], ["no steps"]),
        ("no time", [sample, "--seconds", "0"], ["--seconds"]),
    ]:
        checks.refused(name, ["explain", *arguments], *words)
    checks.tap.check(contents(files.folder) == before, "refusals write nothing")


def check_clean(checks, files):
    for name in sorted(os.listdir(files.sample(""))):
        if name.endswith(".h5"):
            done, report = explained(checks, files.sample(name))
            right = done.code == 0 and report["verdict"] == "match" and report["mechanisms"] == []
            checks.tap.check(right and report["searched"], f"{name}: match, no mechanism", done)


def main():
    tap = Tap()
    checks = Checks(tap, Program(os.path.abspath(sys.argv[2])))
    with tempfile.TemporaryDirectory() as folder:
        files = Files(os.path.abspath(sys.argv[1]), folder)
        for check in (check_clean, check_flips, check_states, check_rows, check_golden, check_deadline, check_slices, check_next,
                      check_model, check_incomplete, check_outputs, check_logs, check_refusals):
            check(checks, files)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
