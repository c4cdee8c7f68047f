#!/usr/bin/env python3
"""Rewrites a small trace in the ways that other HDF5 writers do, and in ways that no reader should accept.

    odd_hdf5.py BASE OUT_DIR     writes OUT_DIR/<variant>.h5 for every variant; prints their names
"""

import os
import shutil
import sys

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t

WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}


def raw(dataset):
    """The stored words of a dataset, unconverted."""
    kind = dataset.id.get_type()
    words = np.empty(dataset.shape, WORDS[kind.get_size()])
    if words.size:
        dataset.id.read(h5s.ALL, h5s.ALL, words, kind)
    return words, kind


def put(group, name, words, kind, creation=None, limits=None):
    space = h5s.create_simple(words.shape, limits)
    made = h5d.create(group.id, name.encode(), kind, space, creation)
    if words.size:
        made.write(h5s.ALL, h5s.ALL, np.ascontiguousarray(words), kind)
    return group[name]


def rewrite(base, path, attribute=None, dataset=None, **options):
    """Copies a file object by object; `attribute` and `dataset` may do an object's part themselves (True: done)."""
    with h5py.File(base, "r") as source, h5py.File(path, "w", **options) as target:
        def copy(name, item):
            if isinstance(item, h5py.Dataset):
                words, kind = raw(item)
                group = target.require_group(os.path.dirname(name) or "/")
                if not (dataset and dataset(group, os.path.basename(name), words, kind, name)):
                    put(group, os.path.basename(name), words, kind)
            else:
                attributes(item, target.require_group(name))

        def attributes(item, made):
            for key, value in item.attrs.items():
                if not (attribute and attribute(made, key, value)):
                    made.attrs[key] = np.bytes_(value.encode()) if isinstance(value, str) else value
        attributes(source["/"], target["/"])
        source.visititems(copy)


def chunked(shape, *filters, limits=False):
    creation = h5p.create(h5p.DATASET_CREATE)
    creation.set_chunk((1,) + tuple(max(1, n) for n in shape[1:]))
    for add in filters:
        add(creation)
    return creation


def shuffle(creation):
    creation.set_shuffle()


def deflate(creation):
    creation.set_deflate(4)


def fletcher(creation):
    creation.set_fletcher32()


def stepwise(name):
    """Bulk data: what has the step or the block row as its first axis."""
    return name.startswith(("steps/", "recorded/", "events/"))


def with_chunks(*filters):
    def dataset(group, leaf, words, kind, name):
        if not stepwise(name) or not words.size:
            return False
        put(group, leaf, words, kind, chunked(words.shape, *filters))
        return True
    return dataset


def extendible(group, leaf, words, kind, name):
    if not stepwise(name) or not words.size:
        return False
    put(group, leaf, words, kind, chunked(words.shape), (h5s.UNLIMITED,) + words.shape[1:])
    return True


def text_words(group, leaf, words, kind, name):
    """bf16 as uint16 or opaque words with the attribute that says so."""
    if kind.get_size() != 2:
        return False
    other = h5t.STD_U16LE
    if name.startswith("recorded/"):
        other = h5t.create(h5t.OPAQUE, 2)
        other.set_tag(b"bf16")
    made = put(group, leaf, words, other)
    made.attrs["dtype"] = np.bytes_("bfloat16") if name.startswith("steps/") else "bfloat16"
    return True


def python_values(made, key, value):
    """What h5py writes when it is given plain Python values: text of variable length, 64-bit numbers, enums for bools."""
    if key == "use_qk_l2norm":
        made.attrs[key] = bool(value)
    elif key in ("scale", "norm_eps"):
        made.attrs[key] = np.float64(value)
    elif isinstance(value, np.integer):
        made.attrs[key] = int(value)
    else:
        made.attrs[key] = value if isinstance(value, str) else value.decode()
    return True


def replaced(name, change):
    """A variant where one object of a copy is changed: `change(file, words, kind)` after the object was unlinked."""
    def make(base, path):
        shutil.copyfile(base, path)
        with h5py.File(path, "r+") as target:
            words, kind = raw(target[name])
            target.move(name, "kept")
            change(target, name, words, kind)
    return make


def at(target, name):
    return target[os.path.dirname(name)], os.path.basename(name)


def external_storage(target, name, words, kind):
    creation = h5p.create(h5p.DATASET_CREATE)
    creation.set_external(b"outside.bin", 0, words.nbytes)
    put(*at(target, name), words, kind, creation)


def virtual(target, name, words, kind):
    group, leaf = at(target, name)
    layout = h5py.VirtualLayout(shape=words.shape, dtype="i4")
    layout[...] = h5py.VirtualSource(".", "kept", shape=words.shape)
    group.create_virtual_dataset(leaf, layout)


def missing_chunk(target, name, words, kind):
    group, leaf = at(target, name)
    made = h5d.create(group.id, leaf.encode(), kind, h5s.create_simple(words.shape), chunked(words.shape))
    here = h5s.create_simple(words.shape)
    here.select_hyperslab((0,) * words.ndim, (1,) + words.shape[1:])
    made.write(h5s.create_simple((1,) + words.shape[1:]), here, np.ascontiguousarray(words[:1]), kind)


def never_written(target, name, words, kind):
    group, leaf = at(target, name)
    h5d.create(group.id, leaf.encode(), kind, h5s.create_simple(words.shape))


def big_endian(target, name, words, kind):
    group, leaf = at(target, name)
    group.create_dataset(leaf, data=words.view("i4").astype(">i4"))


def other_filter(target, name, words, kind):
    put(*at(target, name), words, kind, chunked(words.shape, lambda creation: creation.set_scaleoffset(h5py.h5z.SO_INT, 0)))


def extendible_second_axis(target, name, words, kind):
    put(*at(target, name), words, kind, chunked(words.shape), words.shape[:1] + (h5s.UNLIMITED,) + words.shape[2:])


def soft_link(target, name, words, kind):
    target[name] = h5py.SoftLink("/kept")


def external_link(target, name, words, kind):
    target[name] = h5py.ExternalLink("outside.h5", "/kept")


def group_instead(target, name, words, kind):
    target.create_group(name)


def huge(target, name, words, kind):
    """A shape of 2^60 bytes of which nothing is stored."""
    group, leaf = at(target, name)
    shape = (1 << 40,) + tuple(words.shape[1:-1]) + (1 << 18,)
    creation = h5p.create(h5p.DATASET_CREATE)
    creation.set_chunk((1,) * len(shape))
    h5d.create(group.id, leaf.encode(), kind, h5s.create_simple(shape), creation)


def huge_chunk(target, name, words, kind):
    """One stored chunk of a few bytes that unpacks to 4 GiB less one row."""
    group, leaf = at(target, name)
    shape = (words.shape[0], 1 << 29)
    creation = h5p.create(h5p.DATASET_CREATE)
    creation.set_chunk((1, 1 << 29))
    creation.set_deflate(1)
    h5d.create(group.id, leaf.encode(), kind, h5s.create_simple(shape), creation)


VARIANTS = {
    "plain": lambda base, path: rewrite(base, path),
    "latest": lambda base, path: rewrite(base, path, libver="latest"),
    "latest_extendible": lambda base, path: rewrite(base, path, dataset=extendible, libver="latest"),
    "chunks": lambda base, path: rewrite(base, path, dataset=with_chunks()),
    "deflate": lambda base, path: rewrite(base, path, dataset=with_chunks(shuffle, deflate)),
    "fletcher": lambda base, path: rewrite(base, path, dataset=with_chunks(shuffle, deflate, fletcher)),
    "extendible": lambda base, path: rewrite(base, path, dataset=extendible),
    "words": lambda base, path: rewrite(base, path, dataset=text_words),
    "python_values": lambda base, path: rewrite(base, path, attribute=python_values),
    "bad_external_storage": replaced("steps/sequence", external_storage),
    "bad_virtual": replaced("steps/index", virtual),
    "bad_missing_chunk": replaced("steps/sequence", missing_chunk),
    "bad_missing_bulk_chunk": replaced("steps/1/a", missing_chunk),
    "bad_never_written": replaced("steps/sequence", never_written),
    "bad_big_endian": replaced("steps/index", big_endian),
    "bad_filter": replaced("steps/index", other_filter),
    "bad_extendible": replaced("steps/index", extendible_second_axis),
    "bad_soft_link": replaced("steps/index", soft_link),
    "bad_external_link": replaced("steps/index", external_link),
    "bad_group": replaced("steps/index", group_instead),
    "bad_huge": replaced("steps/index", huge),
    "bad_huge_chunk": replaced("steps/index", huge_chunk),
}


def main():
    base, out = sys.argv[1:]
    for name, make in VARIANTS.items():
        make(base, os.path.join(out, name + ".h5"))
        print(name)


if __name__ == "__main__":
    main()
