"""Finishes a trace whose writer was killed, ran out of disk or was abandoned."""

import contextlib
import os

from .finish import finish
from .model import TraceError
from .writer import partial_name


def recover(path, force=False, output=None):
    """Makes the trace `path` (or `output`) of path.partial and removes that if it can. Returns its number of steps."""
    path = str(path)
    if path.endswith(".partial"):
        path = path[: -len(".partial")]
    partial = partial_name(path)
    if not os.path.exists(partial):
        raise TraceError(f"{partial}: no such file: nothing was left to recover")
    steps = finish(partial, str(output or path), force)
    with contextlib.suppress(OSError):  # it may lie where nothing can be removed
        os.remove(partial)
    return steps
