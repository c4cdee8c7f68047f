"""kill_shim.c from Python: built once, and the environment that puts it under a program.

    program("run", ..., env=kill_shim.environment("kill", 17, log))
"""

import atexit
import functools
import os
import shutil
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def compiler():
    return next((found for found in map(shutil.which, ("cc", "gcc", "clang")) if found), None)


@functools.lru_cache(maxsize=None)
def library():
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, True)
    path = os.path.join(folder, "kill_shim.so")
    subprocess.run([compiler(), "-std=gnu11", "-O1", "-shared", "-fPIC", os.path.join(HERE, "kill_shim.c"), "-o", path, "-ldl"], check=True)
    return path


def obstacle(program):
    """Why the shim cannot be used with the program, or nothing."""
    if compiler() is None:
        return "no C compiler for the shim"
    done = subprocess.run([program, "--version"], capture_output=True, env=environment(), check=False)
    return "" if done.returncode == 0 else "the program does not run with a preloaded library (a build with sanitizers)"


def environment(mode="count", at=0, log=None):
    """`mode`: count, kill, half, or an errno value from call `at` on."""
    words = {"GDNSIM_SHIM_MODE": str(int(mode)) if isinstance(mode, int) else mode, "GDNSIM_SHIM_AT": str(at), "LD_PRELOAD": library()}
    if log:
        words["GDNSIM_SHIM_LOG"] = log
    return {**os.environ, **words}


def calls(log):
    """(name, offset, size) of every call that was done; the last line of a killed program may be cut off."""
    if not os.path.exists(log):
        return []
    with open(log, encoding="ascii") as stream:
        lines = stream.read().split("\n")[:-1]
    return [(name, int(offset), int(size)) for name, offset, size in (line.split() for line in lines)]
