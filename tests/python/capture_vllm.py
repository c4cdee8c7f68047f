#!/usr/bin/env python3
"""The vLLM hook on a stand-in with vLLM's names (tests/support/fake_vllm): what it records, and how it ends.

capture_vllm.py ROOT PROGRAM
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

SUPPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
sys.path.insert(0, SUPPORT)
import needs_h5py  # noqa: E402, F401
from program import Program  # noqa: E402
from tap import Tap  # noqa: E402

ROOT = sys.argv[1]
sys.path.insert(0, os.path.join(ROOT, "tools"))
from gdnsim_trace import TraceReader, recover  # noqa: E402
from gdnsim_trace.recorder import Options, parse_bytes  # noqa: E402


def run(scenario, path=None, limit=None, **options):
    """The stand-in engine in a process of its own; options as GDNSIM_CAPTURE_*."""
    environment = {**os.environ, **{f"GDNSIM_CAPTURE_{name.upper()}": str(value) for name, value in options.items()}}
    environment["FAKE_VLLM_VERSION"] = options.pop("version", "0.33.0")
    if path:
        environment["GDNSIM_CAPTURE"] = path
    before = None
    if limit:

        def before():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run(
        [sys.executable, os.path.join(SUPPORT, "fake_vllm_run.py"), scenario],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        preexec_fn=before,
    )


def matches(program, path):
    done = program("replay", path, "--contract", "golden")
    return done.code == 0 and done.verdict.startswith("verdict: match, compared"), done


def check_contents(tap, program, folder):
    path = os.path.join(folder, "steps.h5")
    done = run("steps", path, rows=4, snapshots=2)
    tap.check(
        done.returncode == 0 and f"{path}: 10 steps, " in done.stderr and " bytes and " in done.stderr,
        "the capture says what it cost",
        done,
    )
    good, replayed = matches(program, path)
    tap.check(good and "2 steps are opaque" in replayed.out, "what was captured replays: 0 differing", replayed)
    with TraceReader(path) as trace:
        plans = [trace.plan(step) for step in range(trace.steps)]
        check_plans(tap, trace, plans)
        check_loads(tap, trace)
    plain = run("steps")
    tap.check(
        plain.stdout == done.stdout and plain.stderr == "" and len(plain.stdout) == 65,
        "the engine's states are those of a run without capture",
        plain,
    )


def check_plans(tap, trace, plans):
    paths = [int(plan["path"]) for plan in plans]
    tap.check(
        paths == [0, 0, 1, 0, 0, 2, 0, 0, 2, 0],
        "path 0 alone, 1 beside a prefill, 2 for drafts and an unknown kernel",
        paths,
    )
    rows = [int(plan["rows"]) for plan in plans]
    tap.check(rows == [2, 3, 2, 3, 3, 0, 2, 2, 0, 2], "decode rows only, the padded one among them", rows)
    tap.check(
        plans[1]["index"].tolist() == [1, 2, 0, 0] and plans[1]["sequence"].tolist() == [0, 1, -1, -1],
        "a padded row keeps its index and is nobody's",
        plans[1],
    )
    tap.check(
        plans[2]["index"].tolist()[:2] == [2, 1] and plans[2]["sequence"].tolist()[:2] == [1, 0],
        "rows that change places keep their block and request",
    )
    tap.check(
        plans[0]["position"].tolist()[:2] == [3, 5] and plans[3]["position"].tolist()[:3] == [8, 6, 4],
        "positions go on from the prompt",
        plans[3]["position"],
    )
    tap.check(
        plans[7]["sequence"].tolist()[:2] == [3, 2] and plans[7]["index"].tolist()[:2] == [2, 3],
        "a preempted block comes back with another request",
        plans[7],
    )
    tap.check(
        plans[2]["launch_tokens"] == 6 and trace.words("steps/1/engine_block", 0).tolist()[:2] == [9, 10],
        "the launch's tokens and the engine's own blocks stand beside",
        plans[2]["launch_tokens"],
    )
    about = trace.provenance()
    tap.check(
        about["tp_rank"] == "0"
        and about["packing"] == "flat"
        and about["projection"] == "flat"
        and about["engine_version"] == "0.33.0",
        "rank, packing and version",
        about,
    )


def check_loads(tap, trace):
    """(step, layer, block) of each load: once after the prefill, then only what somebody else wrote."""
    loads = sorted((step, layer, block) for step, layer, block, *_ in trace.events)
    both = [
        (step, layer, block)
        for step, block in ((0, 1), (0, 2), (3, 3), (6, 1), (6, 3), (7, 2), (9, 2), (9, 3))
        for layer in (0, 1)
    ]
    tap.check(
        loads == sorted([*both, (4, 1, 2)]),
        "loads: blocks unseen, changed in one layer, or left by what cannot be replayed",
        loads,
    )
    tap.check(
        trace.model.num_blocks == 4 and trace.model.sentinel == "nonpositive",
        "blocks have small numbers of their own",
        trace.model,
    )


def check_runner(tap, program, folder):
    path = os.path.join(folder, "v2.h5")
    done = run("v2", path, rows=4)
    with TraceReader(path) as trace:
        plan = trace.plan(3)
    good, replayed = matches(program, path)
    tap.check(
        done.returncode == 0
        and good
        and plan["sequence"].tolist()[:3] == [1, 0, 2]
        and plan["position"].tolist()[:3] == [8, 6, 4],
        "the other model runner: the same",
        f"{done}{replayed}{plan}",
    )
    path = os.path.join(folder, "alone.h5")
    done = run("alone", path, rows=4)
    with TraceReader(path) as trace:
        plan = trace.plan(3)
    good, replayed = matches(program, path)
    rows = plan["sequence"].tolist()[:3], plan["position"].tolist()[:3]
    tap.check(
        good and rows == ([1, 0, 2], [100, 101, 102]), "steps bracketed by hand: the same", f"{done}{replayed}{plan}"
    )
    path = os.path.join(folder, "fused.h5")
    done = run("fused", path, rows=4)
    good, replayed = matches(program, path)
    with TraceReader(path) as trace:
        paths = [int(trace.plan(step)["path"]) for step in range(trace.steps)]
    tap.check(good and paths == [0, 2, 0], "drafts in a fused kernel: path 2", f"{done}{replayed}{paths}")
    path = os.path.join(folder, "padded.h5")
    done = run("padded", path, rows=4)
    good, replayed = matches(program, path)
    with TraceReader(path) as trace:
        declared = (trace.model.inactive_conv_out, trace.model.inactive_core_out)
    tap.check(
        good and declared == ("unwritten", "zero"),
        "decode-only steps: the zeros of a padded row are declared and compared",
        f"{done}{replayed}{declared}",
    )
    path = os.path.join(folder, "narrow.h5")
    done = run("steps", path, rows=2)
    good, replayed = matches(program, path)
    tap.check(
        good and "rows, more than the 2" in done.stderr and "5 steps are opaque" in replayed.out,
        "more rows than room: such steps are path 2, said once",
        f"{done}{replayed}",
    )


def check_ends(tap, program, folder):
    path = os.path.join(folder, "budget.h5")
    done = run("many", path, rows=2, budget="60k", snapshots=0)
    whole = run("many")
    with TraceReader(path) as trace:
        steps = trace.steps
    tap.check(
        done.returncode == 0
        and "stopped: the byte budget of 61440 is used up" in done.stderr
        and 3 < steps < 40
        and done.stdout == whole.stdout
        and matches(program, path)[0],
        f"a byte budget stops it after {steps} steps; the engine goes on",
        done,
    )
    path = os.path.join(folder, "few.h5")
    done = run("many", path, rows=2, steps=3)
    with TraceReader(path) as trace:
        steps = trace.steps
    tap.check(
        "stopped: 3 steps were asked for" in done.stderr and steps == 3 and matches(program, path)[0],
        "so does a number of steps",
        done,
    )
    path = os.path.join(folder, "killed.h5")
    done = run("kill", path, rows=2, snapshots=3)
    tap.check(
        done.returncode == -signal.SIGKILL and not os.path.exists(path),
        "a kill in the middle of a step leaves no trace",
        done,
    )
    steps = recover(path)
    tap.check(steps == 5 and matches(program, path)[0], "recovered: the 5 steps before, and they replay", steps)
    path = os.path.join(folder, "full.h5")
    done = run("many", path, limit=40000, rows=2, snapshots=0)
    tap.check(
        done.returncode == 0
        and "File too large" in done.stderr
        and "are kept" in done.stderr
        and done.stdout == whole.stdout,
        "a full disk ends the capture, not the engine",
        done,
    )
    tap.check(recover(path) > 3 and matches(program, path)[0], "and its steps are intact")


def check_refusals(tap, folder):
    def says(name, done, *words):
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""
        written = [end for end in ("", ".partial") if os.path.exists(path + end)]
        refused = done.returncode == 1 and all(word in last for word in words)
        tap.check(refused and not written, f"{name}, and nothing is written", (written, done))

    path = os.path.join(folder, "refused.h5")
    done = run("graphs", path)
    says(
        "CUDA graphs on: refused when the engine starts", done, "TraceError", "CUDA graphs are on", "enforce_eager=True"
    )
    says(
        "another version: refused by name",
        run("steps", path, version="0.25.1"),
        "vLLM 0.25.1",
        "not checked",
        "0.19.x, 0.26.x, 0.33.x",
    )
    says("a bad option", run("steps", path, rows="many"), "GDNSIM_CAPTURE_ROWS", "whole number")
    there = os.path.join(folder, "there.h5")
    shutil.copyfile(os.path.join(ROOT, "README.md"), there)
    done = run("steps", there)
    tap.check(
        done.returncode == 0
        and "already exists" in done.stderr
        and os.path.getsize(there) == os.path.getsize(os.path.join(ROOT, "README.md")),
        "an existing file is kept; the engine goes on",
        done,
    )
    for text, size in (("2GiB", 2 << 30), ("1.5k", 1536), ("7", 7), ("3 MB", 3 << 20)):
        tap.check(parse_bytes(text) == size, f"a budget of {text}")
    marked = Options("a/rollout.h5").for_rank(tp=(1, 4), pp=(0, 1), dp=(0, 2)).path
    tap.check(marked == "a/rollout.tp1of4.dp0of2.h5", "ranks mark the file's name", marked)


def main():
    tap = Tap()
    program = Program(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="gdnsim-test-") as folder:
        check_contents(tap, program, folder)
        check_runner(tap, program, folder)
        check_ends(tap, program, folder)
        check_refusals(tap, folder)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
