"""The HDF5 side: the file types of a trace, and a file whose datasets are laid out first and filled with plain writes
after.
"""

import os

import h5py
import numpy as np

ATTRIBUTES = ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "conv_width", "num_blocks", "use_qk_l2norm")
STRIDES = ("block_stride", "conv_block_stride", "index_bits")  # version 2, where they say something
TEXTS = (
    "activation",
    "state_dtype",
    "conv_state_dtype",
    "act_dtype",
    "sentinel",
    "norm_gate",
    "inactive_conv_out",
    "inactive_core_out",
)


def bf16_type():
    """1 sign, 8 exponent, 7 mantissa bits, bias 127: what HDF5 2.0 calls FLOAT_BFLOAT16LE."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


def file_type(kind):
    plain = {
        "i8": h5py.h5t.STD_I8LE,
        "i32": h5py.h5t.STD_I32LE,
        "i64": h5py.h5t.STD_I64LE,
        "f16": h5py.h5t.IEEE_F16LE,
        "f32": h5py.h5t.IEEE_F32LE,
    }
    return bf16_type() if kind == "bf16" else plain[kind]


def kind_of(dataset):
    """bf16, f16, f32, or numpy's name for anything else. @dtype names 16-bit words that are bf16."""
    found = dataset.id.get_type()
    label = dataset.attrs.get("dtype", "")
    label = label.decode() if isinstance(label, bytes) else label
    if found.get_size() == 2 and (
        label == "bfloat16" or (found.get_class() == h5py.h5t.FLOAT and found.get_fields()[2] == 8)
    ):
        return "bf16"
    return {"float16": "f16", "float32": "f32"}.get(dataset.dtype.name, dataset.dtype.name)


def read_words(dataset, row=None):
    """Stored words, unconverted (bf16: uint16); all of them, or entry `row` of the first axis."""
    kind = kind_of(dataset)
    dtype = np.dtype("<u2") if kind == "bf16" else dataset.dtype
    if kind != "bf16":
        return dataset[()] if row is None else dataset[row]
    shape = dataset.shape if row is None else dataset.shape[1:]
    found = np.empty(shape, dtype)
    space = dataset.id.get_space()
    if row is not None:
        space.select_hyperslab((row, *[0] * len(shape)), (1, *shape))
    if found.size:
        dataset.id.read(h5py.h5s.create_simple((found.size,)), space, found.reshape(-1), mtype=dataset.id.get_type())
    return found


def text_attribute(node, name, text):
    """A fixed-length string, as other readers of the format expect."""
    node.attrs.create(name, np.bytes_(text.encode() or b" "))


class Layout:
    """A new file: `add` datasets, `begin_filling`, put rows, `complete`."""

    def __init__(self, path, shown, version=1):
        self.path, self.shown, self.version = path, shown, version
        self.rows, self.now, self.copied, self.file = {}, [], [], None

    def __enter__(self):
        access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
        access.set_libver_bounds(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_V110)
        access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
        creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
        self.hdf5 = h5py.File(h5py.h5f.create(self.path.encode(), h5py.h5f.ACC_TRUNC, fcpl=creation, fapl=access))
        text_attribute(self.hdf5, "format", "gdnsim-trace")
        self.hdf5.attrs.create("version", self.version, dtype=np.int32)
        self.hdf5.attrs.create("complete", 0, dtype=np.int32)
        return self

    def __exit__(self, *_):
        if self.hdf5:
            self.hdf5.close()
        if self.file is not None:
            os.close(self.file)

    def group(self, path):
        """The group of that path, made without times where it is missing."""
        if path in self.hdf5:
            return self.hdf5[path]
        creation = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
        creation.set_obj_track_times(False)
        parent, _, name = path.rpartition("/")
        where = self.group(parent) if parent else self.hdf5
        return h5py.Group(h5py.h5g.create(where.id, name.encode(), gcpl=creation))

    def attributes(self, model):
        group = self.group("model")
        for name in ATTRIBUTES:
            group.attrs.create(name, getattr(model, name), dtype=np.int64)
        group.attrs.create("scale", model.scale, dtype=np.float32)
        if model.norm_eps is not None:
            group.attrs.create("norm_eps", model.norm_eps, dtype=np.float32)
        for name in TEXTS:
            text_attribute(group, name, getattr(model, name))
        for name in STRIDES if self.version > 1 else ():
            group.attrs.create(name, getattr(model, name), dtype=np.int64)

    def provenance(self, texts):
        group = self.group("provenance")
        for name, text in texts.items():
            text_attribute(group, name, str(text))

    def add(self, path, kind, shape, words=None):
        """A dataset, allocated at once; `words` go in with the layout."""
        folder, _, name = path.rpartition("/")
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_obj_track_times(False)
        creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        made = h5py.h5d.create(
            self.group(folder).id, name.encode(), file_type(kind), h5py.h5s.create_simple(shape), creation
        )
        size = made.get_type().get_size() * int(np.prod(shape[1:], dtype=np.int64))
        self.rows[path] = (made.get_offset(), size)
        if words is not None:
            self.now.append((path, np.ascontiguousarray(words)))

    def add_copied(self, path, kind, shape, spool, at):
        """A dataset that is copied whole from a spool; returns where the next one begins there."""
        self.add(path, kind, shape)
        size = self.rows[path][1] * shape[0]
        self.copied.append((path, spool, at, size))
        return at + size

    def begin_filling(self):
        self.hdf5.close()
        self.hdf5 = None
        self.file = os.open(self.path, os.O_RDWR)
        os.posix_fallocate(self.file, 0, max(os.fstat(self.file).st_size, 1))
        for path, words in self.now:
            self.write(self.rows[path][0], memoryview(words).cast("B"))
        for path, spool, at, size in self.copied:
            self.write(self.rows[path][0], memoryview(spool.read(at, size)))

    def put_row(self, path, row, words):
        offset, size = self.rows[path]
        self.write(offset + row * size, memoryview(words).cast("B"))

    def copy_row(self, path, row, spool, at):
        offset, size = self.rows[path]
        self.write(offset + row * size, memoryview(spool.read(at, size)))
        return at + size

    def write(self, offset, view):
        done = 0
        while done < view.nbytes:
            done += os.pwrite(self.file, view[done : done + (1 << 30)], offset + done)

    def complete(self):
        """@complete last, after all words are on disk."""
        os.fsync(self.file)
        with h5py.File(self.path, "r+", libver=("earliest", "v110")) as hdf5:
            hdf5.attrs.modify("complete", np.int32(1))
