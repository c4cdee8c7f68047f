#!/usr/bin/env python3
"""gdnsim drift with sides on a GPU: the result of the CPU, byte for byte, however many threads and ranks there are.

    drift_cuda.py ROOT PROGRAM
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from program import Checks, Done, Program, read_bytes  # noqa: E402
from tap import Tap, without_gpu  # noqa: E402

BASE = {
    "rows": 3,
    "model": {"num_k_heads": 2, "num_v_heads": 4, "head_k_dim": 64, "head_v_dim": 64, "num_blocks": 30, "layer_ids": [3, 7]},
    "params": {"A_log": {"uniform": [-9, -2]}},
    "schedule": {"running": 2, "length": [5, 9], "shuffle": 0.3},
}
DRAFTS = {"schedule": {"length": [5, 9], "allocator": "fifo", "fork": 0.2, "speculative": {"drafts": 1, "rate": 0.6, "plain": 0.5}}}
SPECIALS = {"inputs": {"specials": {"rate": 0.0005, "kinds": ["nan", "inf"]}}}
SWEEP = {
    "schema": "gdnsim.drift/1",
    "base": BASE,
    "steps": 150,
    "seeds": [1, 2],
    "axes": [{"name": "stream", "values": [{"name": "plain"}, {"name": "drafts", "set": DRAFTS}, {"name": "specials", "set": SPECIALS}]}],
    "pairs": [
        {"name": "bf16 state", "reference": {"contract": "golden"}, "other": {"contract": "golden", "state": "bf16"}},
        {"name": "triton", "reference": {"contract": "golden"}, "other": {"contract": "triton-sm90"}},
        {"name": "truth", "reference": "f64", "other": {"contract": "triton-sm90"}},
    ],
    "measure": {"every": 3},
}


def check_bytes(tap, program, folder, sweep):
    path = lambda name: os.path.join(folder, name)  # noqa: E731
    done = program("drift", sweep, "-o", path("golden.h5"), "--quiet")
    tap.check(done.code == 0, "the sweep on the CPU", done)
    want = read_bytes(path("golden.h5"))
    for name, options in (("1 thread", ["--threads", 1]), ("4 threads", ["--threads", 4]), ("the first device", ["--device", 0])):
        result = path(name.replace(" ", "_"))
        done = program("drift", sweep, "-o", result, "--backend", "cuda", "--quiet", *options)
        tap.check(done.code == 0 and read_bytes(result) == want, f"the same bytes on the GPU, {name}", done)
    checks = Checks(tap, program)
    checks.refused("a device that is not there", ["drift", sweep, "-o", path("x.h5"), "--backend", "cuda", "--device", 99, "--quiet"], "99")
    if not shutil.which("mpirun"):
        tap.skip("ranks on the GPU", "mpirun is not installed (openmpi-bin)")
        return
    for ranks in (2, 3):
        result = path(f"{ranks}_ranks.h5")
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", ranks, program.path, "drift", sweep, "-o", result, "--backend", "cuda", "--quiet"]
        ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=120)
        if "this build has no MPI" in ended.stderr:
            tap.skip("ranks on the GPU", "the program was built without MPI")
            return
        there = os.path.exists(result) and read_bytes(result) == want
        tap.check(ended.returncode == 0 and there, f"the same bytes from {ranks} ranks", Done(ended.returncode, ended.stdout, ended.stderr))


def main():
    program, tap = Program(sys.argv[2]), Tap()
    listed = program("backends", "--json", "-").json["backends"]
    cuda = next(backend for backend in listed if backend["name"] == "cuda")
    with tempfile.TemporaryDirectory() as folder:
        sweep = os.path.join(folder, "sweep.json")
        with open(sweep, "w", encoding="utf-8") as stream:
            json.dump(SWEEP, stream)
        if cuda["available"]:
            check_bytes(tap, program, folder, sweep)
        else:
            result = os.path.join(folder, "never.h5")
            Checks(tap, program).refused("without a device drift says why", ["drift", sweep, "-o", result, "--backend", "cuda", "--quiet"], cuda["detail"])
            tap.check(not os.path.exists(result), "and writes no result")
            tap.skip("sides on the GPU", without_gpu(cuda))
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
