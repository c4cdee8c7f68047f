#!/usr/bin/env python3
"""Runs a recipe on two backends and compares the logs, byte for byte, for each contract and state type.

    tools/compare_backends.py --gdnsim build/tools/gdnsim traces/recipes/long_churn.json
    tools/compare_backends.py RECIPE --backends golden,cuda --contracts golden,triton-sm90 --states f32,bf16

Logs are written to a folder of their own, one pair at a time. Exit: 0 all equal, 1 some differ, 2 a run failed.
"""

import argparse
import filecmp
import json
import os
import subprocess
import sys
import tempfile
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--gdnsim", default="build/tools/gdnsim", metavar="PROGRAM")
    parser.add_argument("--backends", default="golden,cuda", metavar="A,B")
    parser.add_argument("--contracts", default="golden,triton-sm90,triton-sm90-mixed", metavar="LIST")
    parser.add_argument("--states", default="f32,bf16", metavar="LIST", help="state types")
    parser.add_argument("--taps", default="conv_out,core_out,norm_out", metavar="LIST", help="outputs that the logs hold")
    parser.add_argument("--steps", type=int, help="instead of the recipe's")
    return parser.parse_args()


def recipe_with(options, state, folder):
    with open(options.recipe, encoding="utf-8") as stream:
        recipe = json.load(stream)
    recipe["model"]["state_dtype"] = state
    recipe["steps"] = options.steps or recipe["steps"]
    path = os.path.join(folder, "recipe.json")
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(recipe, stream)
    return path


def run(options, recipe, backend, contract, log):
    """Runs; returns the log's digest and the seconds it took."""
    command = [options.gdnsim, "run", recipe, "-o", log, "--backend", backend, "--contract", contract, "--state", "digest"]
    command += ["--taps", options.taps, "--no-provenance", "--force", "--json", "-"]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"compare_backends: {' '.join(command)}\n{done.stderr.rstrip()}", file=sys.stderr)
        sys.exit(2)
    return json.loads(done.stdout)["digest"], time.monotonic() - start


def main():
    options = arguments()
    backends = options.backends.split(",")
    differing = 0
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for state in options.states.split(","):
            recipe = recipe_with(options, state, folder)
            for contract in options.contracts.split(","):
                logs = [os.path.join(folder, backend + ".log.h5") for backend in backends]
                results = [run(options, recipe, b, contract, log) for b, log in zip(backends, logs)]
                same = filecmp.cmp(*logs, shallow=False)
                differing += not same
                times = ", ".join(f"{backend} {seconds:.2f} s" for backend, (_, seconds) in zip(backends, results))
                print(f"{contract}, state {state}: {'equal' if same else 'DIFFERENT'} logs of {os.path.getsize(logs[0])} bytes, "
                      f"digest {results[0][0]}; {times}", flush=True)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
