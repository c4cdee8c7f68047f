#!/usr/bin/env python3
"""Disks that are full, broken, read-only or limited, and pipes that are closed: one line, exit 2, complete steps intact, nothing left behind.

disk.py ROOT PROGRAM
"""

import errno
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import kill_shim  # noqa: E402
from program import Program, read_bytes, write_recipe  # noqa: E402
from tap import Tap  # noqa: E402

RUN = ["--contract", "golden", "--backend", "golden", "--no-provenance", "--quiet", "--threads", "1"]
NOBODY = 65534


def one_line(done, *words):
    """What is wrong with a refusal: exit 2, one line, these words."""
    tidy = done.code == 2 and done.err.count("\n") == 1 and done.err.startswith("gdnsim: ")
    return "" if tidy and all(word in done.err for word in words) else f"wanted one line with {words}\n{done}"


class Room:
    """A recipe, the whole log of it, and folders to fail in."""

    def __init__(self, tap, program, folder):
        self.tap, self.program, self.folder = tap, program, folder
        self.recipe = write_recipe(os.path.join(folder, "recipe.json"), steps=4)
        self.whole, calls = os.path.join(folder, "whole.h5"), os.path.join(folder, "calls")
        done = program("run", self.recipe, "-o", self.whole, *RUN, env=kill_shim.environment(log=calls))
        assert done.code == 0, done
        self.calls = len(kill_shim.calls(calls))
        self.trace = os.path.join(folder, "trace.h5")
        done = program("synth", self.recipe, "-o", self.trace, "--record", "--contract", "triton-sm90", "--quiet")
        assert done.code == 0, done

    def readers(self):
        """Every command that reads one of our files, with something to find."""
        held = ["--contract", "golden"]
        return (["info", self.whole], ["info", self.trace], ["verify", self.whole], ["verify", self.trace], ["replay", self.whole],
                ["replay", self.trace, *held], ["explain", self.trace, *held, "--seconds", "5"], ["fit", self.whole, "--seconds", "5"],
                ["diff", self.whole, self.trace], ["bisect", self.whole, self.whole], ["bisect", self.trace, *held])

    def writers(self, folder):
        """(file, command) of every command that writes one, but `run`."""
        held = ["--contract", "golden"]
        out = os.path.join(folder, "out")
        return ((out, ["synth", self.recipe, "-o", out, "--quiet"]), (out, ["synth", self.recipe, "-o", out, "--record", *held, "--quiet"]),
                (out, ["pack", self.trace, "-o", out, *held]), (out, ["info", self.whole, "--json", out]),
                (out, ["replay", self.trace, *held, "--html", out]), (out, ["fit", self.whole, "-o", out, "--seconds", "5"]),
                (out, ["bisect", self.whole, "--check", "false", "--session", out]))

    def after(self, name, folder, done, words, log="a.h5"):
        """The check after a failed run: its line, what lies there, and that --resume completes it."""
        wrong = one_line(done, *words)
        left = sorted(os.listdir(folder))
        if left not in ([], [log]):
            wrong += f"\nleft behind: {left}"
        steps = 0
        if left == [log]:
            verified = self.program("verify", os.path.join(folder, log))
            counted = re.search(r"(\d+) of 4 steps complete", verified.out)
            steps = int(counted[1]) if counted else -1
            said = re.search(r"the last complete step is (\d+)|no step is complete", done.err)
            if verified.code != 2 or steps < 0 or not said or steps != int(said[1] or -1) + 1:
                wrong += f"\n{done.err}verify: {verified}"
        resumed = self.program("run", self.recipe, "-o", os.path.join(folder, log), *RUN, "--resume")
        if resumed.code != 0 or read_bytes(os.path.join(folder, log)) != read_bytes(self.whole):
            wrong += f"\n--resume: {resumed}"
        return wrong and f"{name}: {wrong}", steps


def check_errno(room, code, words):
    """Every call that changes a file, and all later ones, fail."""
    faults, most = [], 0
    for at in range(0, room.calls, 2):
        with tempfile.TemporaryDirectory(dir=room.folder) as folder:
            done = room.program("run", room.recipe, "-o", os.path.join(folder, "a.h5"), *RUN, env=kill_shim.environment(code, at))
            if done.code == 0 and not done.err:  # what failed was a sync of the folder, which loses nothing
                fault = "" if at + 2 >= room.calls else f"call {at} failed, and the run did not: {done}"
                steps = 4
            else:
                fault, steps = room.after(f"call {at}", folder, done, [words])
            faults += [fault] if fault else []
            most = max(most, steps)
    room.tap.check(not faults, f"{words} at each second of {room.calls} calls", "\n".join(faults[:5]))
    room.tap.check(most > 1, f"{words}: some runs had complete steps", most)


def check_writers(room, code, words):
    """The same for the other commands: of the file nothing is left, or it is whole and only stdout failed."""
    with tempfile.TemporaryDirectory(dir=room.folder) as folder:
        for number, (out, command) in enumerate(room.writers(folder)):
            calls = os.path.join(room.folder, "calls")
            whole = room.program(*command, env=kill_shim.environment(log=calls))
            expected, faults = read_bytes(out), []
            count = len(kill_shim.calls(calls))
            for at in range(0, count, max(1, count // 12)):
                os.remove(out) if os.path.exists(out) else None
                done = room.program(*command, env=kill_shim.environment(code, at))
                left = os.listdir(folder)
                stdout_only = left == ["out"] and read_bytes(out) == expected and "stdout: cannot be written" in done.err
                # What failed was a sync of the folder, which loses nothing.
                synced = done.code == whole.code and not done.err and left == ["out"] and read_bytes(out) == expected and at + 2 >= count
                if not synced and (one_line(done, words if not stdout_only else "") or left and not stdout_only):
                    faults.append(f"call {at} of {count}: left {left}\n{done}")
            name = f"{command[0]} {number}: {words}"
            room.tap.check(not faults and count > 0 and whole.code < 2, f"{name} at calls of {count}", "\n".join(faults[:3]) or whole)
            os.remove(out) if os.path.exists(out) else None


def check_reads(room):
    """Reads that fail from some point on, in the child that tries the file or in the program itself."""
    library = os.path.join(room.folder, "read_shim.so")
    source = os.path.join(kill_shim.HERE, "read_shim.c")
    subprocess.run([kill_shim.compiler(), "-std=gnu11", "-O1", "-shared", "-fPIC", source, "-o", library], check=True)
    for command in room.readers():
        log, faults = os.path.join(room.folder, "reads"), []
        whole = room.program(*command, env={**os.environ, "LD_PRELOAD": library, "GDNSIM_READ_LOG": log})
        with open(log, encoding="utf-8") as stream:
            count = len(stream.readlines())
        os.remove(log)
        failed = 0
        for at in [0, 1, 2, 5, *range(10, count, max(1, count // 12))]:
            done = room.program(*command, env={**os.environ, "LD_PRELOAD": library, "GDNSIM_READ_FAIL": str(at)})
            same = (done.code, done.verdict) == (whole.code, whole.verdict)  # each process counts for itself: `at` may be beyond its end
            failed += not same
            if not same and one_line(done):
                faults.append(f"read {at}: {done}")
        shown = [os.path.basename(word) for word in command]
        room.tap.check(not faults and failed > 3, f"reads that fail: {' '.join(shown)}, {failed} times", "\n".join(faults[:3]) or failed)


def check_limit(room):
    """RLIMIT_FSIZE below the log's size."""
    for part in (0.02, 0.5, 0.99):
        limit = int(len(read_bytes(room.whole)) * part)

        def confine(limit=limit):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        with tempfile.TemporaryDirectory(dir=room.folder) as folder:
            log = os.path.join(folder, "a.h5")
            done = room.program("run", room.recipe, "-o", log, *RUN, preexec_fn=confine)
            fault, _ = room.after("limit", folder, done, [log, "RLIMIT_FSIZE", f"{limit} bytes"])
        room.tap.check(not fault, f"a file-size limit of {limit} bytes", fault)

    def confine_to_little():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    with tempfile.TemporaryDirectory(dir=room.folder) as folder:
        for number, (out, command) in enumerate(room.writers(folder)):
            done = room.program(*command, preexec_fn=confine_to_little)
            fault = one_line(done, "RLIMIT_FSIZE")
            if command[0] == "fit" and "state_dot" not in done.out:
                fault += f"what a long search found is lost: {done}"
            left = os.listdir(folder)
            room.tap.check(not fault and not left, f"a file-size limit: {command[0]} {number}", f"left {left}\n{fault}")


def check_small_disk(room):
    """A tmpfs that the log does not fit on; mounted in a namespace of its own."""
    with tempfile.TemporaryDirectory(dir=room.folder) as folder:
        listing = os.path.join(room.folder, "listing")
        script = 'mount -t tmpfs -o size=96k none "$1" && cd "$1" && shift && { "$@"; code=$?; ls -A > "$0"; exit $code; }'

        def inside(unshare, *command):
            return subprocess.run([*unshare, "sh", "-c", script, listing, folder, *command], capture_output=True, text=True, check=False)

        ways = [way for way in (["unshare", "-m"], ["unshare", "-Urm"]) if shutil.which("unshare") and inside(way, "true").returncode == 0]
        if not ways:
            return room.tap.skip("a log that does not fit on a small tmpfs", "a file system cannot be mounted here")
        done = inside(ways[0], room.program.path, "run", room.recipe, "-o", "a.h5", *RUN)
        tidy = done.returncode == 2 and done.stderr.count("\n") == 1 and "the disk cannot hold" in done.stderr
        room.tap.check(tidy and read_bytes(listing) == b"", "a log that does not fit on a small tmpfs: refused, nothing left", (done, read_bytes(listing)))


def check_read_only(room):
    """A folder that may not be written, by somebody who has no right to; root has every right, so it steps down."""
    with tempfile.TemporaryDirectory(dir=room.folder) as folder:
        os.chmod(room.folder, 0o755)
        os.chmod(folder, 0o555)
        options = {"user": NOBODY} if os.geteuid() == 0 else {}
        program = Program(shutil.copy(room.program.path, room.folder))  # the build may lie where nobody may look
        log = os.path.join(folder, "a.h5")
        for name, command in (("run", ["run", room.recipe, "-o", log, *RUN]), ("synth", ["synth", room.recipe, "-o", log]),
                              ("info --json", ["info", room.whole, "--json", os.path.join(folder, "a.json")])):
            done = program(*command, **options)
            fault = one_line(done, folder, "ermission denied")
            room.tap.check(not fault and not os.listdir(folder), f"read-only folder: {name}", fault)
        os.chmod(folder, 0o755)
        os.remove(program.path)


def check_closed_pipe(room):
    """A reader that is gone, as `| true` leaves it, and a full device."""
    gone, end = os.pipe()
    os.close(gone)
    out = os.path.join(room.folder, "piped.h5")
    writers = (["run", room.recipe, "-o", out, *RUN, "--force"], ["synth", room.recipe, "-o", out, "--force"],
               ["pack", room.trace, "-o", out, "--contract", "golden", "--force"])
    commands = (*room.readers(), ["info", room.whole, "--json", "-"], ["contracts"], ["backends"], ["--help"], ["info", "--help"],
                ["--version"], ["bisect", room.whole, "--check", "true"], *writers)
    for command in commands:
        for name, target in (("a closed pipe", end), ("a full device", os.open("/dev/full", os.O_WRONLY))):
            done = subprocess.run([room.program.path, *command], stdout=target, stderr=subprocess.PIPE, text=True, check=False)
            tidy = done.returncode == 2 and done.stderr.splitlines()[-1:] == ["gdnsim: stdout: cannot be written"]
            shown = [os.path.basename(word) for word in command]
            room.tap.check(tidy and done.stderr.count("gdnsim: stdout") == 1, f"{name}: {' '.join(shown)}", done)
    os.close(end)


def main():
    tap, program = Tap(), Program(sys.argv[2])
    if kill_shim.obstacle(program.path):
        tap.skip("failing disks", kill_shim.obstacle(program.path))
        return tap.finish()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with tempfile.TemporaryDirectory() as folder:
        room = Room(tap, program, folder)
        check_errno(room, errno.ENOSPC, "No space left on device")
        check_errno(room, errno.EIO, "Input/output error")
        check_writers(room, errno.ENOSPC, "No space left on device")
        check_writers(room, errno.EIO, "Input/output error")
        check_reads(room)
        check_limit(room)
        check_small_disk(room)
        check_read_only(room)
        check_closed_pipe(room)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
