#!/usr/bin/env python3
"""Where words and files go.

stdout and stderr kept apart, --quiet, no progress off a terminal, closed pipes and full disks, --force.

outputs.py ROOT PROGRAM
"""

import json
import os
import stat
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from program import Checks, Program, contents, read_bytes, write_recipe  # noqa: E402
from tap import Tap  # noqa: E402


class Files:
    def __init__(self, folder):
        self.folder = folder
        self.recipe = write_recipe(self("recipe.json"))
        self.trace, self.log = self("trace.h5"), self("run.log.h5")

    def __call__(self, name):
        return os.path.join(self.folder, name)

    def every_command(self):
        """One call of each command that succeeds, with the fewest words; outputs are replaced."""
        return [
            ["run", self.recipe, "-o", self("out.log.h5"), "--force"],
            ["replay", self.log],
            ["diff", self.log, self.log],
            ["synth", self.recipe, "-o", self("out.h5"), "--force"],
            ["info", self.trace],
            ["verify", self.log],
            ["contracts"],
            ["backends"],
        ]


def check_apart(tap, program, files):
    for arguments in files.every_command():
        done = program(*arguments)
        told = done.err if arguments[0] == "run" else ""
        tap.check(
            done.code == 0
            and done.out
            and done.err == told
            and "\r" not in done.err
            and "\033" not in done.out + done.err,
            f"{arguments[0]}: data on stdout, no progress when stderr is no terminal",
            done,
        )
        tap.check(
            all(line.startswith("gdnsim: ") for line in done.err.splitlines()),
            f"{arguments[0]}: messages begin with the program's name",
            done,
        )
        quiet = program(*arguments, "--quiet")
        tap.check(
            quiet.code == 0 and quiet.err == "" and quiet.out == done.out,
            f"{arguments[0]} --quiet: the same data, no messages",
            quiet,
        )
        as_json = program(*arguments, "--quiet", "--json", "-")
        tap.check(
            as_json.code == 0 and as_json.err == "" and as_json.json["schema"].startswith("gdnsim."),
            f"{arguments[0]} --json -: stdout is JSON alone",
            as_json,
        )
        path = files("report.json")
        to_file = program(*arguments, "--quiet", "--json", path)
        same = os.path.exists(path) and json.loads(read_bytes(path)) == as_json.json
        tap.check(
            to_file.code == 0 and to_file.out == done.out and same,
            f"{arguments[0]} --json FILE: the same JSON, the text still on stdout",
            to_file,
        )
        os.remove(path)
    done = program("run", files.recipe, "-o", files("out.log.h5"), "--force")
    tap.check(
        " will take " in done.err and "contract " in done.err and "backend " in done.err,
        "run says backend, contract and size on stderr",
        done,
    )
    done = program("replay", files.log, "--json", "-")
    tap.check(done.err.startswith("gdnsim: verdict: match"), "with --json - the verdict goes to stderr", done)


def check_lost_output(tap, program, files):
    """What cannot be told was not done: exit 2."""
    for arguments in [*files.every_command(), ["--help"], ["replay", files.log, "--json", "-"]]:
        name = " ".join(word for word in (arguments[0], *arguments[2:]) if not word.startswith(files.folder))
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [program.path, *arguments, *([] if arguments[0] == "--help" else ["--quiet"])],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        os.close(writer)
        tap.check(
            done.returncode == 2 and done.stderr == "gdnsim: stdout: cannot be written\n",
            f"{name}: a closed pipe is exit 2",
            done,
        )
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run(
                [program.path, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        tap.check(
            done.returncode == 2 and "stdout: cannot be written" in done.stderr,
            f"{name}: a full stdout is exit 2",
            done,
        )


def device(files, name, minor):
    """A device of that kind. For root one of our own, so that a program that replaces it does no harm."""
    own = files(name)
    try:
        os.mknod(own, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        with open(own, "rb"):
            return own
    except PermissionError:
        if os.path.lexists(own):
            os.remove(own)
        return "/dev/" + name


def check_full_disk(tap, program, files):
    """/dev/full stands for a full disk; a limit on the size of files for one that fills up half-way."""
    full, null = device(files, "full", 7), device(files, "null", 3)
    done = program("replay", files.log, "--json", full)
    tap.check(done.code == 2 and f"{full}: cannot be written: No space left" in done.err, "--json to a full disk", done)
    done = program("info", files.log, "--json", null)
    tap.check(
        done.code == 0 and not os.path.isfile(full) and not os.path.isfile(null),
        "--json to a device needs no --force and leaves it one",
        done,
    )
    for path in (full, null):
        if path.startswith(files.folder):
            os.remove(path)
    for arguments in (
        ["run", files.recipe, "-o", files("big.h5"), "--quiet"],
        ["synth", files.recipe, "-o", files("big.h5")],
        ["info", files.log, "--json", files("big.json")],
    ):
        before = contents(files.folder)
        command = 'ulimit -f 1; exec "$0" "$@"'
        done = subprocess.run(
            ["sh", "-c", command, program.path, *arguments], capture_output=True, text=True, check=False
        )
        tap.check(
            done.returncode == 2
            and done.stderr.count("\n") == 1
            and "big" in done.stderr
            and contents(files.folder) == before,
            f"{arguments[0]}: a disk that is too small is one line, exit 2, and leaves nothing",
            f"{done}\n{contents(files.folder)}",
        )


def check_force(checks, files):
    tap, program = checks.tap, checks.program
    for name, arguments in [
        ("a log", ["run", files.recipe, "--quiet", "-o"]),
        ("a trace", ["synth", files.recipe, "-o"]),
        ("a JSON report", ["replay", files.log, "--json"]),
    ]:
        path = files("precious")
        with open(path, "w", encoding="utf-8") as stream:
            stream.write("precious")
        before = contents(files.folder)
        checks.refused(f"{name} does not replace a file", [*arguments, path], path, "--force")
        tap.check(contents(files.folder) == before, f"{name}: the file is untouched and alone")
        done = program(*arguments, path, "--force")
        tap.check(done.code == 0 and read_bytes(path) != b"precious", f"{name} replaces it with --force", done)
        os.remove(path)
        os.symlink(files("nowhere"), path)
        done = program(*arguments, path)
        tap.check(done.code == 2 and os.path.islink(path), f"{name} does not replace a dangling link", done)
        os.remove(path)
        checks.refused(f"{name} never replaces a folder", [*arguments, files.folder, "--force"], files.folder)
        if name == "a JSON report":
            continue
        os.mkfifo(path)
        checks.refused(f"{name} never replaces a pipe or device", [*arguments, path, "--force"], path)
        tap.check(not os.path.isfile(path), f"{name}: it is still one")
        os.remove(path)


def check_own_files(checks, files):
    """Nobody loses an input, or one output to another, even with --force."""
    before = contents(files.folder)
    beside = os.path.join(files.folder, ".", "trace.h5")
    checks.refused("run -o its own input", ["run", files.trace, "-o", beside, "--force"], "trace.h5")
    checks.refused("synth -o its own recipe", ["synth", files.recipe, "-o", files.recipe, "--force"], "recipe.json")
    checks.refused("replay --json its own input", ["replay", files.trace, "--json", beside, "--force"], "trace.h5")
    checks.refused(
        "diff --json its own input", ["diff", files.trace, files.log, "--json", files.log, "--force"], "run.log.h5"
    )
    checks.refused("run --json its own log", ["run", files.recipe, "-o", files("new"), "--json", files("new")], "new")
    checks.tap.check(contents(files.folder) == before, "all files are as before")


def main():
    tap = Tap()
    program = Program(sys.argv[2])
    checks = Checks(tap, program)
    with tempfile.TemporaryDirectory() as folder:
        files = Files(folder)
        checks.does("a trace", ["synth", files.recipe, "-o", files.trace, "--record"])
        checks.does("a log", ["run", files.recipe, "-o", files.log])
        check_own_files(checks, files)
        check_force(checks, files)
        check_apart(tap, program, files)
        check_lost_output(tap, program, files)
        check_full_disk(tap, program, files)
        left = sorted(contents(folder))
        tap.check(
            left == ["out.h5", "out.log.h5", "recipe.json", "run.log.h5", "trace.h5"], "no temporary file is left", left
        )
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
