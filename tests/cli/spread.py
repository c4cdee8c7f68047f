#!/usr/bin/env python3
"""replay and drift over processes that mpirun starts: the bytes of one process, for any number of ranks, and after one was killed.

spread.py ROOT PROGRAM MPI    MPI: "mpi" when the program was built with it, else "no-mpi"
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from program import Checks, Done, Program, read_bytes, write_recipe  # noqa: E402
from small_sweep import write_sweep  # noqa: E402
from tap import Tap  # noqa: E402

def mpirun(ranks):
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]


class Ranks:
    """Calls the program under mpirun."""

    def __init__(self, program, ranks):
        self.program, self.ranks = program, ranks

    def __call__(self, *arguments):
        command = [*mpirun(self.ranks), self.program.path, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        return Done(done.returncode, done.stdout, done.stderr)


def check_same(tap, name, one, many, code, files=()):
    """Exit code, report and written files of one process and of several."""
    tap.check(one.code == code and many.code == code, f"{name}: both exit {code}", f"{one}\n{many}")
    tap.check(one.out == many.out and one.out != "", f"{name}: the same report", f"{one}\n{many}")
    for a, b in files:
        tap.check(read_bytes(a) == read_bytes(b), f"{name}: the same bytes in {os.path.basename(a)}")


def check_replay(tap, root, program, folder):
    recorded = os.path.join(root, "traces", "h200_k64_3layers.h5")
    log = os.path.join(folder, "run.h5")
    recipe = write_recipe(os.path.join(folder, "r.json"))
    done = program("run", recipe, "-o", log, "--backend", "golden", "--contract", "golden")
    tap.check(done.code == 0, "a log to replay", done)
    cases = [
        ("a match, more ranks than layers", 4, 0, [recorded]),
        ("a divergence", 2, 1, [recorded, "--contract", "golden"]),
        ("one layer", 2, 0, [recorded, "--layers", "1", "--mode", "local"]),
        ("a log", 2, 0, [log]),
        ("a log's rows", 3, 1, [log, "--contract", "triton-sm90"]),
    ]
    for name, ranks, code, arguments in cases:
        outputs = []
        for who, run in (("one", program), ("many", Ranks(program, ranks))):
            page, report = (os.path.join(folder, f"{who}.{kind}") for kind in ("html", "json"))
            outputs.append((run("replay", *arguments, "--backend", "golden", "--threads", 1, "--force", "--json", report, "--html", page), report, page))
        (one, *first), (many, *second) = outputs
        check_same(tap, f"replay, {name}", one, many, code, zip(first, second))


def kill_one(process, victim, command, holds=""):
    """Kills the rank of `gdnsim COMMAND` with signal 9 once its launcher has started it, and it has `holds` open; returns whether it was found."""
    wanted = f"OMPI_COMM_WORLD_RANK={victim}".encode()
    for _ in range(2000):
        for pid in os.listdir("/proc"):
            try:
                if not pid.isdigit() or command.encode() not in read_bytes(f"/proc/{pid}/cmdline").split(b"\0"):
                    continue
                variables = read_bytes(f"/proc/{pid}/environ").split(b"\0")
                parent = read_bytes(f"/proc/{pid}/stat").rsplit(b")")[1].split()[1].decode()
                if os.readlink(f"/proc/{parent}/exe") == os.readlink(f"/proc/{pid}/exe"):
                    continue  # a rank's own child, which tries a file first
                held = not holds or holds in [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            except OSError:
                continue
            if held and wanted in variables and f"SPREAD_TEST={process.pid}".encode() in variables:
                os.kill(int(pid), signal.SIGKILL)
                return True
        time.sleep(0.005)
    return False


def marked(command):
    """Started so that its ranks can be told from anybody else's: sh knows its own number and then becomes mpirun."""
    return subprocess.Popen(["sh", "-c", 'export SPREAD_TEST=$$; exec "$@"', "sh", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def times_in(folder):
    """When each finished part there was written."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return {name: os.stat(os.path.join(folder, name)).st_mtime_ns for name in names if name.endswith(".h5")}


def check_killed_replay(tap, program, folder):
    """A rank of a replay dies by signal 9: no report, no verdict, and mpirun says by which signal."""
    log, report = os.path.join(folder, "long_run.h5"), os.path.join(folder, "killed.json")
    recipe = write_recipe(os.path.join(folder, "long_run.json"), steps=4096)
    done = program("run", recipe, "-o", log, "--backend", "golden", "--contract", "golden")
    tap.check(done.code == 0, "a longer log to replay", done)
    process = marked([*mpirun(2), program.path, "replay", log, "--backend", "golden", "--contract", "golden", "--threads", "1", "--json", report])
    found = kill_one(process, 1, "replay", log)
    out, err = process.communicate(timeout=300)
    tap.check(found, "replay: rank 1 was there to be killed", err)
    tap.check(process.returncode == 128 + signal.SIGKILL, "replay: a killed rank ends the run with its signal", f"exit {process.returncode}\n{err}")
    tap.check("signal 9" in err and "verdict" not in out and not os.path.exists(report), "replay: what happened is said, and no verdict", out + err)


def check_killed(tap, program, folder, sweep, whole):
    """A rank dies by signal 9: no result, a clear end; the same command again completes it."""
    result = os.path.join(folder, "killed.h5")
    command = [*mpirun(4), program.path, "drift", sweep, "-o", result, "--threads", "1"]
    process = marked(command)
    parts = result + ".parts"
    while process.poll() is None and not times_in(parts):
        time.sleep(0.002)
    found = process.poll() is None and kill_one(process, 2, "drift")
    out, err = process.communicate(timeout=300)
    tap.check(found, "drift: rank 2 was there to be killed", err)
    tap.check(process.returncode != 0 and not os.path.exists(result), "drift: a killed rank fails the run", f"exit {process.returncode}\n{err}")
    tap.check("signal 9" in err, "drift: what happened is said", err)
    left = times_in(parts)
    again = subprocess.run([*command, "--keep-parts"], capture_output=True, text=True, check=False, timeout=300)
    tap.check(again.returncode == 0 and left, f"drift: the same command goes on from {len(left)} parts", again.stderr)
    now = times_in(parts)
    tap.check(len(now) > len(left) and all(now.get(name) == when for name, when in left.items()), "drift: and computes none of them again", (left, now))
    tap.check(os.path.exists(result) and read_bytes(result) == read_bytes(whole), "drift: and its result has the bytes of an undisturbed run")
    done = program("drift", sweep, "-o", result)
    tap.check(done.code == 0 and not os.path.exists(parts), "drift: no parts are left", done)


def check_drift(tap, program, folder):
    sweep = write_sweep(os.path.join(folder, "sweep.json"))
    whole, ranks = os.path.join(folder, "whole.h5"), os.path.join(folder, "ranks.h5")
    one = program("drift", sweep, "-o", whole, "--csv", whole + ".csv", "--threads", 1)
    many = Ranks(program, 4)("drift", sweep, "-o", ranks, "--csv", ranks + ".csv", "--threads", 1)
    check_same(tap, "drift", one, many, 0, [(whole, ranks), (whole + ".csv", ranks + ".csv")])
    folders = []
    for shard in range(4):
        out = os.path.join(folder, f"shard{shard}.h5")
        folders.append(out + ".parts")
        done = program("drift", sweep, "-o", out, "--shard", f"{shard}/4", "--threads", 1)
        tap.check(done.code == 0 and not os.path.exists(out), f"drift: shard {shard} of 4", done)
    merged = os.path.join(folder, "merged.h5")
    done = program("drift", sweep, "-o", merged, "--merge", *folders)
    tap.check(done.code == 0 and read_bytes(merged) == read_bytes(whole), "drift: 4 shards, merged, are the bytes of 1 process", done)
    long_sweep = write_sweep(os.path.join(folder, "long.json"), steps=2048, seeds={"first": 1, "count": 12})
    long_whole = os.path.join(folder, "long.h5")
    done = program("drift", long_sweep, "-o", long_whole)
    tap.check(done.code == 0, "drift: a longer sweep in one process", done)
    check_killed(tap, program, folder, long_sweep, long_whole)


def check_refused(tap, root, program, folder):
    recorded = os.path.join(root, "traces", "h200_k64_3layers.h5")
    done = Ranks(program, 3)("replay", os.path.join(folder, "absent.h5"))
    tap.check(done.code == 2 and "absent.h5" in done.err and done.out == "", "a file that is not there ends all ranks with 2", done)
    done = Ranks(program, 2)("info", recorded)
    tap.check(done.code == 2 and "info: cannot be spread over 2 processes" in done.err, "a command that cannot be spread is refused", done)
    done = Ranks(program, 2)("replay", recorded, "--audit", 1)
    tap.check(done.code == 2 and "expected one process, found 2" in done.err, "an audit of the pool wants one process", done)
    sweep = write_sweep(os.path.join(folder, "sweep.json"), steps=47)
    done = Ranks(program, 2)("drift", sweep, "-o", os.path.join(folder, "x.h5"), "--shard", "0/2")
    tap.check(done.code == 2 and "expected one process" in done.err, "ranks are shards already", done)


def check_without(checks, root, folder):
    """A build without MPI must not let four processes write the same file."""
    recorded = os.path.join(root, "traces", "h200_k64_3layers.h5")
    os.environ.update({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"})
    checks.refused("started as one of four, without MPI", ["replay", recorded], "4 processes", "no MPI")
    for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"):
        del os.environ[name]


def check_variables(tap, root, program):
    """With MPI or without: how many processes there are is what Open MPI's, MPICH's or Slurm's own starter says."""
    recorded = os.path.join(root, "traces", "h200_k64_3layers.h5")
    cases = [
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, 4),
        ({"PMI_SIZE": "5", "PMI_RANK": "2"}, 5),
        ({"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "3"}, 3),
        ({"PMIX_RANK": "6"}, 7),
        ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "SLURM_STEP_NUM_TASKS": "3"}, 1),
    ]
    for variables, ranks in cases:
        done = program("info", recorded, env={**os.environ, **variables})
        refused = done.code == 2 and f"info: cannot be spread over {ranks} processes" in done.err
        tap.check(done.code == 0 if ranks == 1 else refused, f"{variables}: {ranks} processes", done)


def main():
    root, program, mpi = sys.argv[1], Program(sys.argv[2]), sys.argv[3] == "mpi"
    tap = Tap()
    check_variables(tap, root, program)
    with tempfile.TemporaryDirectory() as folder:
        if not mpi:
            check_without(Checks(tap, program), root, folder)
            tap.skip("spread over ranks", "the program was built without MPI (libopenmpi-dev)")
        elif not shutil.which("mpirun"):
            tap.skip("spread over ranks", "mpirun is not installed (openmpi-bin)")
        else:
            check_replay(tap, root, program, folder)
            check_killed_replay(tap, program, folder)
            check_drift(tap, program, folder)
            check_refused(tap, root, program, folder)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
