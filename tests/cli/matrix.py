#!/usr/bin/env python3
"""The same bits from every compiler, instruction set and thread count.

    matrix.py ROOT BUILD

Builds the program again with other compilers and -march (in BUILD/matrix, kept between runs), writes logs of a recorded trace and
of a synthetic recipe under every contract with 1 and 4 threads, and demands byte-identical files everywhere.
"""

import collections
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402

Configuration = collections.namedtuple("Configuration", "name compiler arguments optimization")
CONFIGURATIONS = [
    Configuration("gcc-x86-64", "g++", "-march=x86-64", "2"),
    Configuration("gcc-native", "g++", "-march=native", "3"),
    Configuration("clang", "clang++", "", "2"),
]
# Between them: both state types, both conv state types, several layers, inactive rows, widths 64 and 128.
INPUTS = ["traces/h200_k64_3layers.h5", "traces/h200_tp4_bf16state.h5", "traces/h200_tp4_f32_convf32.h5",
          "traces/recipes/small_k64.json"]
THREADS = [1, 4]
# These must run on every input; others may be undefined for its shapes, and must then say the same everywhere.
ALWAYS_DEFINED = ["golden", "triton-sm90"]


def build_program(root, build, configuration):
    """Path of the program, or the messages of the failed build."""
    folder = os.path.join(build, "matrix", configuration.name)
    environment = {**os.environ, "CXX": configuration.compiler}
    environment.pop("CXXFLAGS", None)
    steps = [["ninja", "-C", folder, "tools/gdnsim"]]
    if not os.path.exists(os.path.join(folder, "build.ninja")):
        steps.insert(0, ["meson", "setup", folder, root, "-Dtests=false", "-Dcuda=disabled", "-Dbuildtype=plain",
                         f"-Doptimization={configuration.optimization}", f"-Dcpp_args={configuration.arguments}"])
    for step in steps:
        done = subprocess.run(step, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return None, (done.stdout + done.stderr)[-4000:]
    return os.path.join(folder, "tools", "gdnsim"), ""


def contract_names(program):
    done = subprocess.run([program, "contracts", "--json", "-"], capture_output=True, text=True, check=False)
    return [contract["name"] for contract in json.loads(done.stdout)["contracts"]]


def outcome(program, source, contract, threads, directory):
    """What one run came to: ("log", SHA-256 of the log), or ("exit", code, message)."""
    log = os.path.join(directory, "run.log.h5")
    command = [program, "run", source, "-o", log, "--contract", contract, "--threads", str(threads), "--backend", "golden",
               "--no-provenance", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not os.path.exists(log):
        return ("exit", done.returncode, done.stderr.strip())
    with open(log, "rb") as stream:
        digest = hashlib.sha256(stream.read()).hexdigest()
    os.remove(log)
    return ("log", digest)


def compare_input(tap, programs, source, contracts, directory):
    """Every program and thread count against the first; returns the logs' digests by contract."""
    digests = {}
    name = os.path.basename(source)
    for contract in contracts:
        found = {(program, threads): outcome(path, source, contract, threads, directory)
                 for program, path in programs.items() for threads in THREADS}
        reference = next(iter(found.values()))
        different = [f"{program}, {threads} threads: {value}" for (program, threads), value in found.items() if value != reference]
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
    programs = {"this build": os.path.join(build, "tools", "gdnsim")}
    for configuration in CONFIGURATIONS:
        if shutil.which(configuration.compiler) is None:
            tap.skip(configuration.name, f"{configuration.compiler} is not installed")
            continue
        program, messages = build_program(root, build, configuration)
        if tap.check(program is not None, f"{configuration.name} builds", messages):
            programs[configuration.name] = program
    contracts = contract_names(programs["this build"])
    tap.check(set(ALWAYS_DEFINED) <= set(contracts), "the program lists its contracts", contracts)
    with tempfile.TemporaryDirectory() as directory:
        ran = set()
        for source in INPUTS:
            digests = compare_input(tap, programs, os.path.join(root, source), contracts, directory)
            tap.check(digests["golden"] != digests["triton-sm90"], f"{os.path.basename(source)}: contracts differ in the log")
            ran |= {contract for contract, found in digests.items() if found[0] == "log"}
        tap.check(ran == set(contracts), "every contract ran on some input", sorted(set(contracts) - ran))
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
