"""The file that a trace is written to while it grows: PATH.partial, records that are only ever appended.

A record is a head (JSON: what, and which arrays follow), the arrays' words, and a tail that repeats its size and the
head's checksum. The tail goes in last: a record without a good tail does not exist, so a kill costs at most the record
being written. HDF5 is not open while steps come in; `finish.py` makes the trace out of the records.
"""

import json
import os
import struct
import zlib

import numpy as np

from .model import TraceError

HEAD, TAIL = b"gdnsimR1", b"gdnsimE1"
FIXED = struct.Struct(
    "<8sQQ"
)  # magic, bytes of the head, bytes of the body; the tail: magic, crc32 of the head, bytes of the body


class SpoolWriter:
    def __init__(self, path):
        self.path = path
        try:
            self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            raise TraceError(
                f"{path}: left by a capture that was cut off: `python -m gdnsim_trace recover` finishes it"
            ) from None
        except OSError as problem:
            raise TraceError(f"{path}: cannot be created: {problem.strerror}") from None
        self.size = 0

    def append(self, head, arrays=()):
        """One record, whole or not at all. Arrays are contiguous."""
        views = [memoryview(array).cast("B") for array in arrays if array.nbytes]
        body = sum(view.nbytes for view in views)
        text = json.dumps(head, separators=(",", ":")).encode()
        try:
            self.write(FIXED.pack(HEAD, len(text), body) + text)
            for view in views:
                self.write(view)
            self.write(FIXED.pack(TAIL, zlib.crc32(text), body))
        except OSError as problem:
            os.ftruncate(self.file, self.size)
            os.lseek(self.file, self.size, os.SEEK_SET)
            raise TraceError(
                f"{self.path}: cannot be written: {problem.strerror}; the steps before are intact"
            ) from None
        self.size += 2 * FIXED.size + len(text) + body

    def write(self, data):
        view = memoryview(data)
        while view.nbytes:
            view = view[os.write(self.file, view[: 1 << 30]) :]

    def close(self):
        if self.file is not None:
            os.close(self.file)
            self.file = None


class Record:
    """A committed record: its head, and where its arrays' words begin."""

    def __init__(self, head, offset, size):
        self.head, self.offset, self.size = head, offset, size


class SpoolReader:
    def __init__(self, path):
        self.path = path
        try:
            self.file = os.open(path, os.O_RDONLY)
        except OSError as problem:
            raise TraceError(f"{path}: cannot be opened: {problem.strerror}") from None
        self.length = os.fstat(self.file).st_size

    def records(self):
        """All committed records, in order; what follows the last good tail is not there."""
        at = 0
        while (record := self.record(at)) is not None:
            yield record
            at = record.offset + record.size + FIXED.size

    def record(self, at):
        if at + 2 * FIXED.size > self.length:
            return None
        magic, text_size, body = FIXED.unpack(os.pread(self.file, FIXED.size, at))
        start = at + FIXED.size + text_size
        if magic != HEAD or start + body + FIXED.size > self.length:
            return None
        text = os.pread(self.file, text_size, at + FIXED.size)
        if os.pread(self.file, FIXED.size, start + body) != FIXED.pack(TAIL, zlib.crc32(text), body):
            return None
        return Record(json.loads(text), start, body)

    def read(self, offset, size):
        """Words of a record's body as bytes."""
        found = np.empty(size, np.uint8)
        view, done = memoryview(found), 0
        while done < size:
            got = os.preadv(self.file, [view[done : done + (1 << 30)]], offset + done)
            if got == 0:
                raise TraceError(f"{self.path}: ends in the middle of a record")
            done += got
        return found

    def close(self):
        os.close(self.file)
