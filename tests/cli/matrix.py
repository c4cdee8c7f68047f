#!/usr/bin/env python3
"""The same bits from every compiler, instruction set and thread count.

    matrix.py ROOT BUILD

Builds what writes a log (tests/support/matrix_run.cpp) again with other compilers and -march (in BUILD/matrix, kept between runs) -
clang all of it, further GCCs the sources that numbers go through, linked with the rest of this build -, writes logs of recorded traces and of a synthetic recipe under every contract, with several thread counts and every level of
vector instructions that this CPU has, and demands byte-identical files everywhere - those of the program itself among them.
"""

import collections
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402

Configuration = collections.namedtuple("Configuration", "name compiler arguments optimization whole")
CONFIGURATIONS = [
    Configuration("gcc-x86-64", "g++", "-march=x86-64", "2", False),
    Configuration("gcc-native", "g++", "-march=native", "3", False),
    Configuration("clang", "clang++", "", "2", True),
]
# Sources of the core with numbers in them, but for those that move bytes between files and memory.
NUMBERS = re.compile(r"\b(float|double)\b|<cmath>|\b(arith|clones|digest|order)\.hpp")
MOVES_BYTES = re.compile(r"(file|log|trace)_")  # their rooms
# Sources of golden that write no log, or have only numbers to show.
NOT_IN_A_LOG = {"approximate", "bench", "bench_golden", "oracle_f64"}
# Some that must be among those that are found, of each kind.
EXPECTED = {"decode_step", "decode_step_simd", "exact_rows", "golden", "norm_rows", "sfu", "window", "core_digest", "core_norm",
            "core_order", "core_words", "synth_values", "support_matrix_run"}
# Between them: both state types, both conv state types, several layers, inactive rows, widths 64 and 128.
INPUTS = ["traces/h200_k64_3layers.h5", "traces/h200_tp4_bf16state.h5", "traces/h200_tp4_f32_convf32.h5",
          "traces/recipes/small_k64.json"]
RUNS = [("1", ""), ("4", ""), ("2", "plain"), ("1", "sse2"), ("3", "avx2"), ("2", "avx512")]  # threads, --cpu-level
# These must run on every input; others may be undefined for its shapes, and must then say the same everywhere.
ALWAYS_DEFINED = ["golden", "triton-sm90"]


def run_all(steps, environment, directory=None):
    """The messages of the first step that fails, or an empty string."""
    for step in steps:
        done = subprocess.run(step, env=environment, cwd=directory, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return (done.stdout + done.stderr)[-4000:] or f"{step}: exit {done.returncode}"
    return ""


def objects_with_numbers(root, folder):
    """Targets of the objects that decide bits: all of golden, and the sources of the core with numbers in them."""
    listed = subprocess.run(["ninja", "-C", folder, "-t", "targets", "all"], capture_output=True, text=True, check=True).stdout
    found = []
    for target in re.findall(r"^(\S+\.cpp\.o):", listed, re.M):
        place, stem = os.path.dirname(target), os.path.basename(target)[: -len(".cpp.o")]
        if place.startswith("golden/") and stem not in NOT_IN_A_LOG or place == "tests/matrix_run.p":
            found.append(target)
        elif place == "src/libgdnsim_core.a.p" and not MOVES_BYTES.match(stem):
            with open(os.path.join(root, "src", *stem.split("_", 1)) + ".cpp", encoding="utf-8") as source:
                found += [target] if NUMBERS.search(source.read()) else []
    missing = EXPECTED - {os.path.basename(target)[: -len(".cpp.o")] for target in found}
    assert not missing, f"no objects of {sorted(missing)}"
    return found


def link_with_rest(build, folder, objects):
    """This build's command that links matrix_run, with those objects before its archives: they come first."""
    listed = subprocess.run(["ninja", "-C", build, "-t", "commands", "tests/matrix_run"], capture_output=True, text=True, check=True)
    command = shlex.split(listed.stdout.splitlines()[-1])
    at = command.index("-o")
    own = [word for word in command[at + 2 :] if not word.startswith("tests/matrix_run.p/")]
    return [*command[:at], "-o", os.path.join(folder, "matrix_run"), *(os.path.join(folder, name) for name in objects), *own]


def build_program(root, build, configuration):
    """Path of its matrix_run, or the messages of the failed build."""
    folder = os.path.join(build, "matrix", configuration.name)
    environment = {**os.environ, "CXX": configuration.compiler}
    environment.pop("CXXFLAGS", None)
    again = ["--reconfigure"] if os.path.exists(os.path.join(folder, "build.ninja")) else []  # a kept one may know old sources
    messages = run_all([["meson", "setup", *again, folder, root, "-Dtools=false", "-Dcuda=disabled", "-Dbuildtype=plain",
                         f"-Doptimization={configuration.optimization}", f"-Dcpp_args={configuration.arguments}"]], environment)
    if messages:
        return None, messages
    if configuration.whole:
        messages = run_all([["ninja", "-C", folder, "tests/matrix_run"]], environment)
        return None if messages else os.path.join(folder, "tests", "matrix_run"), messages
    objects = objects_with_numbers(root, folder)
    messages = run_all([["ninja", "-C", folder, *objects], link_with_rest(build, folder, objects)], environment, build)
    return None if messages else os.path.join(folder, "matrix_run"), messages


def contract_names(program):
    done = subprocess.run([program, "contracts", "--json", "-"], capture_output=True, text=True, check=False)
    return [contract["name"] for contract in json.loads(done.stdout)["contracts"]]


def outcome(command, log):
    """What one run came to: ("log", SHA-256 of the log), or ("exit", code, message)."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not os.path.exists(log):
        return ("exit", done.returncode, done.stderr.strip().split(": ", 1)[-1])
    with open(log, "rb") as stream:
        digest = hashlib.sha256(stream.read()).hexdigest()
    os.remove(log)
    return ("log", digest)


def runs_here(program):
    """RUNS without the levels that this CPU lacks; plain and SSE2 must be there."""
    def there(level):
        if level in ("", "plain", "sse2"):
            return True
        done = subprocess.run([program, "-", "-", "golden", "1", level], capture_output=True, text=True, check=False)
        return f"'{level}'" not in done.stderr and "--cpu-level" not in done.stderr
    return [(threads, level) for threads, level in RUNS if there(level)]


def compare_input(tap, program, builds, source, contracts, directory):
    """Every build, thread count and level against the program; returns the logs' digests by contract."""
    digests = {}
    name, log = os.path.basename(source), os.path.join(directory, "run.log.h5")
    for contract in contracts:
        found = {("gdnsim run", "all", ""): outcome([program, "run", source, "-o", log, "--contract", contract, "--backend", "golden",
                                                   "--no-provenance", "--quiet"], log)}
        for (build, (path, runs)) in builds.items():
            for threads, level in runs:
                found[build, threads, level] = outcome([path, source, log, contract, threads, level], log)
        reference = next(iter(found.values()))
        different = [f"{build}, {threads} threads, level {level or 'best'}: {value}"
                     for (build, threads, level), value in found.items() if value != reference]
        tap.check(not different, f"{name}, {contract}: the same bytes from {len(found)} runs",
                  "\n".join([f"expected {reference}", *different]))
        if contract in ALWAYS_DEFINED or reference[0] == "log":
            tap.check(reference[0] == "log", f"{name}, {contract}: wrote a log", reference)
        else:
            tap.check(reference[1] == 2 and reference[2].count("\n") == 0, f"{name}, {contract}: undefined, in one line", reference)
        digests[contract] = reference
    return digests


def main():
    root, build = sys.argv[1:3]
    tap = Tap()
    program, first = os.path.join(build, "tools", "gdnsim"), os.path.join(build, "tests", "matrix_run")
    builds = {"this build": (first, runs_here(first))}
    for configuration in CONFIGURATIONS:
        if shutil.which(configuration.compiler) is None:
            tap.skip(configuration.name, f"{configuration.compiler} is not installed")
            continue
        path, messages = build_program(root, build, configuration)
        if tap.check(path is not None, f"{configuration.name} builds", messages):
            builds[configuration.name] = (path, runs_here(path))
    contracts = contract_names(program)
    tap.check(set(ALWAYS_DEFINED) <= set(contracts), "the program lists its contracts", contracts)
    with tempfile.TemporaryDirectory() as directory:
        ran = set()
        for source in INPUTS:
            digests = compare_input(tap, program, builds, os.path.join(root, source), contracts, directory)
            tap.check(digests["golden"] != digests["triton-sm90"], f"{os.path.basename(source)}: contracts differ in the log")
            ran |= {contract for contract, found in digests.items() if found[0] == "log"}
        tap.check(ran == set(contracts), "every contract ran on some input", sorted(set(contracts) - ran))
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
