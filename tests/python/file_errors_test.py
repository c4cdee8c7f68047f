#!/usr/bin/env python3
"""tools/break_trace.py, cut_trace.py and plot on disks that fill up, missing and damaged files: one line, exit 2, nothing left.

file_errors_test.py ROOT
"""

import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402

try:
    import h5py
except ImportError:
    h5py = None

ROOT = os.path.abspath(sys.argv[1])
SAMPLE = os.path.join(ROOT, "traces", "h200_k64_mixed.h5")
DEBIAN = "/usr/bin/python3"  # where Debian's packages are, when another python3 comes first
PLACE = ["--tap", "core_out", "--step", "3", "--bit", "6"]


class Room:
    """Runs the tools in a folder of its own, and looks at what they left there."""

    def __init__(self, tap, folder):
        self.tap, self.folder = tap, folder
        self.out = os.path.join(folder, "out")

    def call(self, tool, *arguments, limit=None, stdout=subprocess.PIPE):
        def confine():
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        command = [sys.executable, os.path.join(ROOT, "tools", tool), *arguments]
        return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, cwd=self.folder,
                              preexec_fn=confine if limit is not None else None)

    def refused(self, name, tool, *arguments, says, left=(), **options):
        """One line `TOOL: says`, and no files but `left` in the folder of outputs."""
        shutil.rmtree(self.out, ignore_errors=True)
        os.mkdir(self.out)
        done = self.call(tool, *arguments, **options)
        line = f"{tool.removesuffix('.py')}: {says}"
        right = done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith(line)
        found = sorted(os.listdir(self.out))
        self.tap.check(right and found == sorted(left), f"{tool}: {name}", f"wanted {line}\n{done}\nleft {found}")


def damaged(folder):
    """A trace cut short, and one with a broken chunk in step 3 of core_out."""
    short, broken = os.path.join(folder, "short.h5"), os.path.join(folder, "broken.h5")
    with open(SAMPLE, "rb") as stream:
        whole = bytearray(stream.read())
    with open(short, "wb") as stream:
        stream.write(whole[:200000])
    with h5py.File(SAMPLE) as trace:
        chunk = trace["recorded/0/core_out"].id.get_chunk_info(3)
    assert chunk.chunk_offset[0] == 3 and chunk.size > 100
    whole[chunk.byte_offset + 5:chunk.byte_offset + 25] = b"\xff" * 20
    with open(broken, "wb") as stream:
        stream.write(whole)
    return short, broken


def check_traces(room):
    short, broken = damaged(room.folder)
    absent, size = os.path.join(room.folder, "nope.h5"), os.path.getsize(SAMPLE)
    for tool, options, limits in (("break_trace.py", PLACE, [size // 2]), ("cut_trace.py", [], [5000, size - 30000])):
        for limit in limits:
            room.refused(f"files of at most {limit} bytes", tool, SAMPLE, "out/x.h5", *options, says="out/x.h5: File too large", limit=limit)
        room.refused("a folder that is not there", tool, SAMPLE, "out/no/x.h5", *options, says="out/no/x.h5: No such file or directory")
        room.refused("a broken chunk", tool, broken, "out/x.h5", *options, says=f"{broken}: ")
    room.refused("no such trace", "break_trace.py", absent, "out/x.h5", *PLACE, says=f"{absent}: no such file")
    room.refused("a folder as the trace", "cut_trace.py", room.folder, "out/x.h5", says=f"{room.folder}: is a folder")
    room.refused("a trace cut short", "break_trace.py", short, "out/x.h5", *PLACE, says=f"{short}: ")
    room.refused("a folder as the output", "cut_trace.py", SAMPLE, "out", "--force", says="out: is a folder")
    with open("/dev/full", "w", encoding="utf-8") as full:
        room.refused("stdout is full", "break_trace.py", SAMPLE, "out/x.h5", *PLACE, says="stdout: No space left on device",
                     stdout=full, left=["x.h5"])


def check_plot(room):
    from drift_file import write_drift_file

    result = write_drift_file(os.path.join(room.folder, "result.h5"))
    one = ["-o", "out/x", "--only", "regimes", "--format"]
    # First without a limit: where matplotlib has no list of its fonts yet it writes one, and says so when it cannot.
    with open("/dev/full", "w", encoding="utf-8") as full:
        room.refused("stdout is full", "plot", result, *one, "svg", says="stdout: No space left on device", stdout=full,
                     left=["x.regimes.svg"])
    room.refused("files of at most 2000 bytes", "plot", result, *one, "png", says="out/x.regimes.png: File too large", limit=2000)


def main():
    there = all(importlib.util.find_spec(name) for name in ("h5py", "matplotlib"))
    if not there and os.path.exists(DEBIAN) and os.path.realpath(sys.executable) != os.path.realpath(DEBIAN):
        os.execv(DEBIAN, [DEBIAN, *sys.argv])
    tap = Tap()
    if h5py is None:
        tap.skip("errors of the tools", "python3-h5py is not installed")
        return tap.finish()
    with tempfile.TemporaryDirectory() as folder:
        room = Room(tap, folder)
        check_traces(room)
        if importlib.util.find_spec("matplotlib"):
            check_plot(room)
        else:
            tap.skip("errors of plot", "python3-matplotlib is not installed")
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
