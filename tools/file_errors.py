"""What the Python tools share: every error as one line, outputs that are whole or not there, and HDF5 on a disk that fills up."""

import contextlib
import io
import os
import sys

import h5py


class Refused(Exception):
    """One line for the user."""


def what(problem):
    """The first line of an error, without a number or a name in front."""
    if isinstance(problem, OSError) and problem.errno:
        return os.strerror(problem.errno)
    return str(problem.args[0] if problem.args else type(problem).__name__).split("\n", maxsplit=1)[0]


@contextlib.contextmanager
def errors_of(name):
    """What goes wrong in here is said of that file. A damaged one can make h5py raise any of these."""
    try:
        yield
    except (OSError, RuntimeError, KeyError, ValueError, IndexError, TypeError, AttributeError, MemoryError) as problem:
        raise Refused(f"{name}: {what(problem)}") from None


class SilentFile(io.FileIO):
    """For HDF5, which does not survive a write that fails: it is told that each was done, and the first error is kept."""

    problem = None

    def write(self, data):
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while self.problem is None and rest:
                rest = rest[super().write(rest):]
        except OSError as problem:
            self.problem = problem
        return size

    def truncate(self, size=None):
        try:
            return super().truncate(size) if self.problem is None else size
        except OSError as problem:
            self.problem = problem
            return size

    def check(self):
        if self.problem is not None:
            raise self.problem


@contextlib.contextmanager
def made(output, force):
    """The name under which to write `output`, which it gets at the end; nothing is left when anything went wrong."""
    if os.path.isdir(output):
        raise Refused(f"{output}: is a folder")
    if os.path.exists(output) and not force:
        raise Refused(f"{output}: exists (--force overwrites it)")
    partial = output + ".partial"
    try:
        yield partial
        with errors_of(output):
            os.replace(partial, output)
    finally:
        with contextlib.suppress(OSError):
            os.remove(partial)


@contextlib.contextmanager
def hdf5_file(path, mode, output, source, **options):
    """(h5py.File, SilentFile) of `path`; what cannot be written is said of `output`, anything else of `source`."""
    with errors_of(output):
        silent = SilentFile(path, "w+" if mode == "w" else "r+")
    try:
        with errors_of(source), h5py.File(silent, mode, **options) as file:
            yield file, silent
    finally:
        with errors_of(output):
            silent.close()
            silent.check()


def open_trace(path):
    """A trace to read from."""
    if not os.path.exists(path):
        raise Refused(f"{path}: no such file")
    if os.path.isdir(path):
        raise Refused(f"{path}: is a folder")
    with errors_of(path):
        if not h5py.is_hdf5(path):
            with open(path, "rb"):
                raise Refused(f"{path}: not an HDF5 file")
        file = h5py.File(path, "r")
    with errors_of(path):
        if file.attrs.get("format", b"") in (b"gdnsim-trace", "gdnsim-trace") and file.attrs.get("version") in (1, 2):
            return file
    file.close()
    raise Refused(f"{path}: expected a gdnsim-trace of version 1 or 2")


def run_tool(name, function, *arguments):
    """The exit code: 2 and one line when it was refused."""
    try:
        function(*arguments)
    except Refused as refusal:
        print(f"{name}: {refusal}", file=sys.stderr)
        return 2
    return 0


def say(line):
    """One line to stdout, which may be full or gone."""
    try:
        print(line, flush=True)
    except OSError as problem:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more
        raise Refused(f"stdout: {what(problem)}") from None
