#!/usr/bin/env python3
"""Every recorded trace replays without a differing bit; a cut of one does too; and one flipped bit is found.

    samples.py ROOT PROGRAM
"""

import glob
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import schema  # noqa: E402
from tap import Tap  # noqa: E402

try:
    import h5py
except ImportError:
    h5py = None

ROOT, PROGRAM = sys.argv[1:3]


def replay(path, *options):
    """Exit code, the last line, everything."""
    done = subprocess.run([PROGRAM, "replay", path, "--backend", "golden", *options], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() or [""]
    return done.returncode, lines[-1], done.stdout + done.stderr


CAPTURED = "triton-sm90 (decode steps), triton-sm90-mixed-gating (mixed steps)"


def check_match(tap, path, name, contract=None):
    """Match under the contract of the kernel that recorded it: the mixed-step one where the name says so."""
    code, verdict, text = replay(path)
    tap.check(code == 0 and verdict.startswith("verdict: match"), f"{name} replays to the bit", f"exit {code}\n{text}")
    contract = contract or ("triton-sm90-mixed" if "mixed" in name else "triton-sm90")
    tap.check(f"\ncontract  {contract}\n" in text, f"{name}: chose {contract}", text)
    report = replay_json(path)
    modes = [report["modes"][mode] for mode in ("carried", "local")]
    tap.check(all(mode["done"] and mode["compared"] > 0 and mode["differing"] == 0 for mode in modes),
              f"{name}: 0 differing, carried and local", modes)


def replay_json(path, *options):
    done = subprocess.run([PROGRAM, "replay", path, "--backend", "golden", "--json", "-", "--quiet", *options],
                          capture_output=True, text=True, check=False)
    return schema.checked(done.stdout)


def check_faults(tap, folder):
    """Every trace with a planted fault diverges under the contract of the rest of it, the clean one matches."""
    with open(os.path.join(folder, "answers.json"), encoding="utf-8") as stream:
        answers = json.load(stream)
    tap.check(len(answers) > 0, "there are answers", folder)
    for answer in answers:
        report = replay_json(os.path.join(folder, answer["file"]), "--contract", "triton-sm90")
        expected = "match" if answer["id"] is None else "diverged"
        tap.check(report["verdict"] == expected, f"{answer['file']}: {expected}", report["verdict"])
        first = report["first"] or {}
        places = {key: answer[key] for key in ("step", "layer", "row") if answer[key] is not None}
        if answer["id"] in ("wrong-block", "conv-window-shift"):  # faults that show in the very step's outputs
            tap.check(all(first.get(key) == value for key, value in places.items()), f"{answer['file']}: at {places}", first)


def check_captures(tap):
    """Captured from vLLM: each path under its own kernel's contract, found by itself; under the other mixed kernel's, it is not."""
    paths = sorted(glob.glob(os.path.join(ROOT, "traces", "vllm*.h5")))
    tap.check(len(paths) >= 2, "the captures are there", paths)
    for path in paths:
        name = os.path.basename(path)
        check_match(tap, path, name, CAPTURED)
        report = replay_json(path, "--contract", "triton-sm90+triton-sm90-mixed-gating")
        tap.check(report["verdict"] == "match", f"{name}: the contracts by name", report["verdict"])
        report = replay_json(path, "--contract", "triton-sm90")
        first, differing = report["first"] or {}, report["modes"]["carried"]["differing"]
        tap.check(report["verdict"] == "diverged" and first.get("tap") == "state" and differing > 100,
                  f"{name}: S.k in the other kernel's order is seen, in states alone", f"{differing}: {first}")


def run_program(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)


def check_launches(tap):
    """The sample of version 2: what it holds, what a run of it gives, and that its launches are whole."""
    path = os.path.join(ROOT, "traces", "version2", "golden_speculative.h5")
    code, verdict, text = replay(path)
    tap.check(code == 0 and verdict.startswith("verdict: match"), "golden_speculative.h5 matches", text)
    done = run_program("verify", path)
    tap.check("input digest b66df2c322b733d675b03310e589edc9" in done.stdout, "version 2: the content digest stays", done.stdout)
    with tempfile.TemporaryDirectory() as directory:
        log = os.path.join(directory, "log.h5")
        done = run_program("run", path, "-o", log, "--contract", "golden", "--no-provenance", "--quiet", "--backend", "golden", "--audit", "3", "--poison")
        tap.check("digest ad54cd99863b977f539ea25ad9730ad2" in done.stdout, "version 2: the log's digest stays, watched or not", done.stdout + done.stderr)
        done = run_program("verify", log)
        tap.check(done.returncode == 0, "version 2: the log is whole", done.stdout)
        for command in (["replay", path], ["run", path, "-o", os.path.join(directory, "never.h5")]):
            done = run_program(*command, "--steps", "4:10")
            wanted = "step 4 is within the launch of steps 3:6: expected a start at step 3 or 6"
            tap.check(done.returncode == 2 and wanted in done.stderr, f"version 2: {command[0]} does not begin within a launch", done.stderr)
        bundle = os.path.join(directory, "bundle.h5")
        done = run_program("pack", path, "-o", bundle, "--steps", "9:15")
        tap.check(done.returncode == 0, "version 2: two launches packed", done.stderr)
        code, verdict, text = replay(bundle)
        tap.check(code == 0 and verdict.startswith("verdict: match"), "version 2: the bundle matches", text)


def check_extra(tap):
    extra = os.environ.get("GDNSIM_EXTRA_DATA")
    if not extra:
        tap.skip("more recorded traces", "GDNSIM_EXTRA_DATA is not set")
        return
    paths = sorted(glob.glob(os.path.join(extra, "traces", "*.h5")))
    tap.check(bool(paths), "GDNSIM_EXTRA_DATA holds traces", extra)
    for path in paths:
        check_match(tap, path, f"extra {os.path.basename(path)}")
    faults = os.path.join(extra, "faults")
    if os.path.isdir(faults):
        check_faults(tap, faults)


def make_cut(source, target, *options):
    tool = os.path.join(ROOT, "tools", "cut_trace.py")
    return subprocess.run([sys.executable, tool, source, target, *options], capture_output=True, text=True, check=False)


def check_cut(tap, directory):
    """The start state of a later cut is the snapshot's: its replay matches, and with one state bit flipped it does not."""
    source, target = os.path.join(ROOT, "traces", "h200_k64_mixed.h5"), os.path.join(directory, "cut.h5")
    done = make_cut(source, target, "--steps", "1:16")
    tap.check(done.returncode == 0, "a cut from step 1", done.stderr)
    check_match(tap, target, "the cut of a mixed trace")
    with h5py.File(target, "r+") as trace:
        trace["events/recurrent"][0, 1, 2, 3] = -trace["events/recurrent"][0, 1, 2, 3]
    code, verdict, text = replay(target)
    tap.check(code == 1 and verdict.startswith("verdict: diverged"), "a flipped sign in a loaded state is found", f"exit {code}\n{text}")


def check_flipped(tap, directory):
    source, target = os.path.join(ROOT, "traces", "h200_tp4_f32.h5"), os.path.join(directory, "flipped.h5")
    done = make_cut(source, target, "--steps", "0:4")
    tap.check(done.returncode == 0, "a cut of four steps", done.stderr)
    with h5py.File(target, "r+") as trace:
        trace["recorded/0/core_out"][3, 0, 5, 77] = -trace["recorded/0/core_out"][3, 0, 5, 77]
    code, verdict, text = replay(target)
    tap.check(code == 1 and verdict.startswith("verdict: diverged"), "a flipped sign in the last step's output is found",
              f"exit {code}\n{text}")


def main():
    tap = Tap()
    paths = sorted(glob.glob(os.path.join(ROOT, "traces", "h200_*.h5")))
    tap.check(len(paths) >= 6, "the samples are there", paths)
    for path in paths:
        check_match(tap, path, os.path.basename(path))
    check_captures(tap)
    check_launches(tap)
    check_extra(tap)
    if h5py is None:
        tap.skip("cut and flipped traces", "python3-h5py is not installed")
        return tap.finish()
    with tempfile.TemporaryDirectory() as directory:
        check_cut(tap, directory)
        check_flipped(tap, directory)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
