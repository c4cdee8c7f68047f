#!/usr/bin/env python3
"""tools/gdnsim_trace: no kill and no full disk loses a step that was committed.

trace_crash.py ROOT PROGRAM
"""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import needs_h5py  # noqa: E402, F401
from program import Program  # noqa: E402
from tap import Tap  # noqa: E402

ROOT = sys.argv[1]
sys.path.insert(0, os.path.join(ROOT, "tools"))
from gdnsim_trace import TraceError, recover, spool  # noqa: E402
from gdnsim_trace.finish import finish  # noqa: E402
from toy_package import input_digest, write_toy  # noqa: E402


def check_cuts(tap, program, folder):
    """A kill leaves a beginning of the spool, since it only grows: each gives the steps whose tail it holds."""
    path = os.path.join(folder, "cut.h5")
    write_toy(path, steps=5, close=False).abandon()
    whole = spool.SpoolReader(path + ".partial")
    ends = [
        record.offset + record.size + spool.FIXED.size for record in whole.records() if record.head["kind"] == "step"
    ]
    bounds = [record.offset + record.size + spool.FIXED.size for record in whole.records()]
    size = whole.length
    whole.close()
    cuts = (
        {cut for bound in bounds for cut in (bound - 1, bound, bound + 1)}
        | set(random.Random(3).sample(range(size), 150))
        | {0, size}
    )
    wrong = []
    for cut in sorted(cut for cut in cuts if cut <= size):
        part = os.path.join(folder, "part")
        shutil.copyfile(path + ".partial", part)
        os.truncate(part, cut)
        wanted = sum(end <= cut for end in ends)
        try:
            found = finish(part, path, force=True)
        except TraceError:
            found = 0
        if found != wanted:
            wrong.append(f"cut at {cut}: {found} steps, wanted {wanted}")
    tap.check(
        not wrong and bounds[-1] == size, f"cut at {len(cuts)} places: every committed step is there", "\n".join(wrong)
    )
    for steps in (1, 3):
        shutil.copyfile(path + ".partial", part)
        os.truncate(part, ends[steps] - 7)
        finish(part, path, force=True)
        write_toy(os.path.join(folder, f"wanted{steps}.h5"), steps=steps)
        a, b = input_digest(program, path), input_digest(program, os.path.join(folder, f"wanted{steps}.h5"))
        tap.check(a == b, f"cut in step {steps}: the program finds the {steps} steps before", f"{a}\n{b}")


def in_child(work):
    """Runs work() in a child process; (exit status, what it said on stderr)."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.dup2(write, 2)
        try:
            work()
        except TraceError as problem:
            os.write(2, f"{problem}\n".encode())
            os._exit(2)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        said = stream.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def recovered(path):
    """The command that makes a trace of what a kill has left."""
    return subprocess.run(
        [sys.executable, "-m", "gdnsim_trace", "recover", path],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "tools")},
    )


def check_kill(tap, program, folder):
    path = os.path.join(folder, "killed.h5")

    def victim():
        real, written = os.write, []

        def write(file, data):
            written.append(len(data))
            if len(written) > 150:  # in the middle of a step's arrays
                real(file, memoryview(data)[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(file, data)

        os.write = write
        write_toy(path, steps=100)

    status, _ = in_child(victim)
    tap.check(
        status == -signal.SIGKILL and not os.path.exists(path) and os.path.exists(path + ".partial"),
        "a kill leaves only the partial file",
        status,
    )
    again = in_child(lambda: write_toy(path))
    tap.check(
        again[0] == 2 and "recover" in again[1] and again[1].count("\n") == 1,
        "a new capture does not write over it, and says so",
        again,
    )
    done = recovered(path)
    steps = int(done.stdout.split()[0]) if done.returncode == 0 else 0
    whole = os.path.join(folder, "whole.h5")
    write_toy(whole, steps=max(steps, 1))
    tap.check(
        steps > 0 and input_digest(program, path) == input_digest(program, whole),
        f"recovered {steps} steps: the words of an undisturbed run",
        done,
    )
    tap.check(not os.path.exists(path + ".partial"), "and the partial file is gone")
    done = recovered(path)
    tap.check(done.returncode == 2 and done.stderr.count("\n") == 1, "nothing to recover is one line, exit 2", done)


def check_disk(tap, program, folder):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = os.path.join(folder, "full.h5")

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))
        write_toy(path, steps=1000)

    status, said = in_child(limited)
    tap.check(status == 2 and said.count("\n") == 1 and "File too large" in said, "a full disk is one line", said)
    steps = recover(path)
    write_toy(os.path.join(folder, "enough.h5"), steps=steps)
    a, b = input_digest(program, path), input_digest(program, os.path.join(folder, "enough.h5"))
    tap.check(steps > 2 and a == b, f"full disk: {steps} steps are intact", f"{a}\n{b}")
    tight = os.path.join(folder, "tight.h5")

    def at_the_end():
        trace = write_toy(tight, steps=6, close=False)
        resource.setrlimit(resource.RLIMIT_FSIZE, (trace.bytes + 200, resource.RLIM_INFINITY))
        trace.close()

    status, said = in_child(at_the_end)
    left = sorted(name for name in os.listdir(folder) if name.startswith("tight"))
    tap.check(
        status == 2 and said.count("\n") == 1 and left == ["tight.h5.partial"],
        "a disk that fills up while closing keeps every step",
        f"{said}{left}",
    )
    tap.check(recover(tight) == 6, "which recover then finds")


def main():
    tap = Tap()
    program = Program(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="gdnsim-test-") as folder:
        check_cuts(tap, program, folder)
        check_kill(tap, program, folder)
        check_disk(tap, program, folder)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
