"""Named arrays from .npz, .safetensors and .pt files, as words: bf16 is uint16."""

import json
import mmap
import os
import struct
import zipfile

import numpy as np

from .bits import host
from .model import TraceError

SAFE = {
    "BF16": "<u2",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}


class Npz:
    def __init__(self, path):
        self.path = path
        try:
            self.data = np.load(path, allow_pickle=False)
        except (OSError, ValueError, zipfile.BadZipFile) as problem:
            raise TraceError(f"{path}: cannot be read: {problem}") from None

    def names(self):
        return list(self.data.files)

    def get(self, name):
        try:
            found = self.data[name]
        except ValueError:
            raise TraceError(f"{self.path}: {name}: expected plain numbers, found Python objects") from None
        return found.view(np.uint16) if found.dtype.kind == "V" and found.dtype.itemsize == 2 else host(found)


class SafeTensors:
    """The format's own layout: eight bytes of length, a JSON header, the data."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = struct.unpack("<Q", stream.read(8))[0] if size >= 8 else size
            if length > size - 8:
                raise TraceError(f"{path}: expected a safetensors file, found no header")
            try:
                self.header = json.loads(stream.read(length))
            except ValueError:
                raise TraceError(f"{path}: expected a safetensors file, found a header that is no JSON") from None
            self.start = 8 + length
            self.data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)

    def names(self):
        return [name for name in self.header if name != "__metadata__"]

    def get(self, name):
        entry = self.header[name]
        if entry["dtype"] not in SAFE:
            raise TraceError(f"{self.path}: {name}: expected one of {', '.join(SAFE)}, found {entry['dtype']}")
        begin, end = entry["data_offsets"]
        dtype, shape = np.dtype(SAFE[entry["dtype"]]), tuple(entry["shape"])
        if not 0 <= begin <= end <= len(self.data) - self.start or end - begin != dtype.itemsize * int(
            np.prod(shape, dtype=np.int64)
        ):
            raise TraceError(f"{self.path}: {name}: its data do not fit the file")
        return np.frombuffer(self.data, np.uint8, end - begin, self.start + begin).view(dtype).reshape(shape)


class TorchFile:
    """Loaded with weights_only=True: a file of tensors, never code."""

    def __init__(self, path):
        self.path = path
        try:
            import torch
        except ImportError:
            raise TraceError(f"{path}: reading a .pt file needs torch") from None
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as problem:  # torch raises whatever its unpickler meets
            raise TraceError(f"{path}: cannot be read with weights_only=True: {str(problem).splitlines()[0]}") from None
        self.data = dict(flat(found, ""))

    def names(self):
        return list(self.data)

    def get(self, name):
        return host(self.data[name])


def flat(value, name):
    """(dotted name, tensor) of nested dicts and lists."""
    if hasattr(value, "detach"):
        yield name, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from flat(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for at, part in enumerate(value):
            yield from flat(part, f"{name}.{at}" if name else str(at))


def open_arrays(path):
    kinds = {".npz": Npz, ".safetensors": SafeTensors, ".pt": TorchFile}
    kind = kinds.get(os.path.splitext(path)[1])
    if kind is None:
        raise TraceError(f"{path}: expected {', '.join(kinds)}")
    if not os.path.isfile(path):
        raise TraceError(f"{path}: no such file")
    return kind(path)
