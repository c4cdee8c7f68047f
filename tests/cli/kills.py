#!/usr/bin/env python3
"""SIGKILL: what a run had reported stays readable, and --resume ends in the bytes of an uninterrupted run.

    kills.py ROOT PROGRAM                at every call that changes a file, before it and half way through it; 40 random moments
    kills.py ROOT PROGRAM --random N     only N random moments of a larger run

A step counts as reported when its commit record was written: the shim says so, not the program.
"""

import concurrent.futures
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import kill_shim  # noqa: E402
from program import Program, read_bytes, write_recipe  # noqa: E402
from tap import Tap  # noqa: E402

try:
    import h5py
except ImportError:
    h5py = None

SMALL = {"steps": 4, "rows": 2, "model": {"head_k_dim": 8, "head_v_dim": 8, "num_blocks": 4}, "schedule": {"running": 2}}
LARGE = {"steps": 400, "rows": 4, "model": {"num_blocks": 8}, "schedule": {"running": 4, "length": [3, 60], "shuffle": 0.5}}


class Case:
    """One recipe and its options: the uninterrupted run, and how a log of it is judged."""

    def __init__(self, program, folder, name, recipe, options):
        self.program, self.folder, self.name, self.recipe = program, folder, name, recipe
        self.options = ["--contract", "golden", "--backend", "golden", "--no-provenance", "--quiet", "--threads", "1", *options]
        self.whole = os.path.join(folder, f"{name.replace(' ', '-')}.whole.h5")
        calls = self.whole + ".calls"
        started = time.monotonic()
        done = program(*self.command(self.whole), env=kill_shim.environment(log=calls))
        self.seconds = time.monotonic() - started
        assert done.code == 0, done
        self.calls = len(kill_shim.calls(calls))
        self.bytes = read_bytes(self.whole)
        self.places = self.layout()

    def command(self, log, *more):
        return ["run", self.recipe, "-o", log, *self.options, *more]

    def layout(self):
        """(name, offset, bytes a step) of what every step writes."""
        places = []

        def add(name, item):
            if isinstance(item, h5py.Dataset) and name.startswith(("out/", "digest/", "commit")):
                places.append((name, item.id.get_offset(), item.id.get_storage_size() // item.shape[0]))

        with h5py.File(self.whole, "r") as file:
            file.visititems(add)
            self.steps = file["commit"].shape[0]
        self.commit = next(offset for name, offset, _ in places if name == "commit")
        return places

    def reported(self, calls):
        """Steps whose whole record was written, by the shim's list of calls."""
        records = [offset for name, offset, size in calls if name == "pwrite" and size == 32]
        inside = [(offset - self.commit) // 32 for offset in records if self.commit <= offset < self.commit + 32 * self.steps]
        return max(inside, default=-1) + 1

    def differing(self, log, steps):
        """Datasets whose first `steps` entries are not those of the uninterrupted run."""
        data = read_bytes(log)
        return [name for name, at, size in self.places if data[at : at + steps * size] != self.bytes[at : at + steps * size]]

    def judge(self, log, reported, thorough):
        """What is wrong with an interrupted log; afterwards it is resumed."""
        wrong = []
        if os.path.exists(log):
            wrong += self.judge_reading(log, reported, thorough)
        elif reported:
            wrong.append(f"{reported} steps were reported, and there is no log")
        done = self.program(*self.command(log, "--resume"))
        if done.code != 0:
            wrong.append(f"run --resume: {done}")
        elif read_bytes(log) != self.bytes:
            wrong.append("--resume ended in other bytes")
        return wrong

    def judge_reading(self, log, reported, thorough):
        wrong = []
        done = self.program("verify", log)
        counted = re.search(r"(\d+) of (\d+) steps complete", done.out)
        steps = int(counted[1]) if counted else -1
        if steps < reported:
            wrong.append(f"{reported} steps were reported, verify finds {steps}")
        if (done.code, done.verdict) != ((0, "verdict: match, whole") if steps == self.steps else (2, "verdict: inconclusive, incomplete")):
            wrong.append(f"verify: {done}")
        wrong += [f"{name} lost a step" for name in self.differing(log, max(steps, reported))]
        if thorough:
            info, replay = self.program("info", log), self.program("replay", log)
            if info.code != 0:
                wrong.append(f"info: {info}")
            same = "differing 0 carried and 0 local" in replay.verdict
            partial = replay.code == 2 and replay.verdict.startswith("verdict: inconclusive, ") and same
            if not (replay.code == 0 if steps == self.steps else partial or steps == 0 and replay.err.count("\n") == 1):
                wrong.append(f"replay: {replay}")
        return wrong


def at_call(case, mode, at, thorough):
    """Kills one run at one call. Returns what went wrong, and whether a log was there."""
    with tempfile.TemporaryDirectory(dir=case.folder) as folder:
        log, calls = os.path.join(folder, "a.h5"), os.path.join(folder, "calls")
        done = case.program(*case.command(log), env=kill_shim.environment(mode, at, calls))
        if done.code != -signal.SIGKILL:
            return [f"{mode} at call {at}: not killed: {done}"], False
        there = os.path.exists(log)
        wrong = case.judge(log, case.reported(kill_shim.calls(calls)), thorough)
        wrong += [f"left behind: {name}" for name in os.listdir(folder) if name not in ("a.h5", "calls")]
        return [f"{mode} at call {at}: {what}" for what in wrong], there


def check_synth(tap, program, recipe, folder):
    """A trace has no name before it is whole: a killed synth leaves nothing, at whatever call."""
    calls, out = os.path.join(folder, "synth.calls"), os.path.join(folder, "synth")
    os.mkdir(out)
    command = ["synth", recipe, "-o", os.path.join(out, "a.h5"), "--record", "--contract", "golden", "--quiet"]
    program(*command, env=kill_shim.environment(log=calls))
    count, wrong = len(kill_shim.calls(calls)), []
    os.remove(os.path.join(out, "a.h5"))
    for at in range(0, count, max(1, count // 20)):
        done = program(*command, env=kill_shim.environment("kill", at))
        left = os.listdir(out)
        if done.code != -signal.SIGKILL or left not in ([], ["a.h5"]) or left and program("verify", command[3]).code != 0:
            wrong.append(f"call {at}: left {left}\n{done}")
        for name in left:
            os.remove(os.path.join(out, name))
    tap.check(not wrong and count > 20, f"synth, killed at some of {count} calls, leaves nothing or a whole trace", "\n".join(wrong))


def check_every_call(tap, case):
    points = [(mode, at) for mode in ("kill", "half") for at in range(case.calls)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda point: at_call(case, *point, thorough=point[1] % 8 == 0), points))
    wrong = [what for faults, _ in found for what in faults]
    logs = sum(there for _, there in found)
    tap.check(not wrong, f"{case.name}: killed at each of {case.calls} calls, before it and half way; {logs} logs resumed",
              "\n".join(wrong[:10]))
    tap.check(logs > len(points) // 2, f"{case.name}: most kills leave a log behind", f"{logs} of {len(points)}")


def at_moment(case, seconds, thorough):
    """Kills one run after some time. Returns what went wrong, and how many steps the log had, -1 when there was none."""
    with tempfile.TemporaryDirectory(dir=case.folder) as folder:
        log, calls = os.path.join(folder, "a.h5"), os.path.join(folder, "calls")
        running = subprocess.Popen([case.program.path, *case.command(log)], env=kill_shim.environment(log=calls),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        running.kill()
        running.wait()
        reported = case.reported(kill_shim.calls(calls)) if os.path.exists(calls) else 0
        at = reported if os.path.exists(log) else -1
        return [f"killed after {seconds:.4f} s: {what}" for what in case.judge(log, reported, thorough)], at


def check_random(tap, case, count, seed):
    chance, wrong, steps = random.Random(seed), [], []
    for n in range(count):
        faults, at = at_moment(case, chance.uniform(0, 1.05 * case.seconds), thorough=n % 10 == 0)
        wrong += faults
        steps.append(at)
    inside = sum(0 < at < case.steps for at in steps)
    ends = f"{sum(at < 0 for at in steps)} before there was a log, {sum(at == case.steps for at in steps)} after the last step"
    tap.check(not wrong, f"{case.name}: {count} random kills, {inside} among the steps, {ends}", "\n".join(wrong[:10]))
    tap.check(inside >= count // 4, f"{case.name}: many of them among the steps", f"{inside} of {count}, a run takes {case.seconds:.2f} s")


def check_is_seen(tap, case):
    """The judge itself: a step that is lost, or changed, is found."""
    log = os.path.join(case.folder, "lost.h5")
    for name, at, fill in (("record", case.commit + 32, bytes(32)), ("output", case.places[-1][1], b"\xa5" * 8)):
        shutil.copy(case.whole, log)
        with open(log, "r+b") as stream:
            stream.seek(at)
            stream.write(fill)
        wrong = case.judge_reading(log, case.steps, False)
        tap.check(wrong, f"a lost {name} is noticed", wrong)


def main():
    tap, program = Tap(), Program(sys.argv[2])
    obstacle = "python3-h5py is not installed" if h5py is None else kill_shim.obstacle(program.path)
    if obstacle:
        tap.skip("kills", obstacle)
        return tap.finish()
    only_random = len(sys.argv) > 4 and sys.argv[3] == "--random"
    with tempfile.TemporaryDirectory() as folder:
        small = write_recipe(os.path.join(folder, "small.json"), **SMALL)
        large = write_recipe(os.path.join(folder, "large.json"), **LARGE)
        if not only_random:
            for state in ("full", "every:2", "digest"):
                for every in ("", "every:2"):
                    options = ["--state", state] + (["--checkpoint", every] if every else [])
                    check_every_call(tap, Case(program, folder, " ".join(options), small, options))
            check_synth(tap, program, small, folder)
            check_is_seen(tap, Case(program, folder, "judged", small, []))
        options = ["--state", "every:16", "--checkpoint", "every:64"]
        check_random(tap, Case(program, folder, "large, " + " ".join(options), large, options), int(sys.argv[4]) if only_random else 40, 1)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
