"""A flat trace in the layouts of engines, element by element with h5py alone: packed projections, longer, circular or
channels-first conv states, block tables (docs/trace-format.md, "Layouts"). bf16 words are uint16 with @dtype.
"""

import h5py
import numpy as np


def words_of(dataset):
    """Stored 16-bit words of a bf16 dataset, or the values of any other."""
    kind = dataset.id.get_type()
    if kind.get_class() != h5py.h5t.FLOAT or kind.get_size() != 2:
        return dataset[()]
    words = np.empty(dataset.shape, np.uint16)
    dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, words, mtype=kind)
    return words


def store(group, name, words):
    made = group.create_dataset(name, data=words)
    if words.dtype == np.uint16:
        made.attrs["dtype"] = "bfloat16"


def packed(model, x, z, a, b, packing):
    """qkvz and ba of one row as the layouts table says."""
    H, HV = int(model["num_k_heads"]), int(model["num_v_heads"])
    K, V = int(model["head_k_dim"]), int(model["head_v_dim"])
    q, k, v = x[: H * K], x[H * K : 2 * H * K], x[2 * H * K :]
    if packing == "flat":
        return [*q, *k, *v, *z], [*b, *a]
    qkvz, ba, each = [], [], HV // H
    for h in range(H):
        mine = range(h * each, (h + 1) * each)
        qkvz += [*q[h * K : (h + 1) * K], *k[h * K : (h + 1) * K]]
        qkvz += [word for hv in mine for word in v[hv * V : (hv + 1) * V]]
        qkvz += [word for hv in mine for word in z[hv * V : (hv + 1) * V]]
        ba += [b[hv] for hv in mine] + [a[hv] for hv in mine]
    return qkvz, ba


def pack_inputs(group, model, packing):
    flat = [words_of(group[name]) for name in ("mixed_qkv", "z", "a", "b")]
    steps, rows = flat[0].shape[:2]
    made = [[packed(model, *(words[t, row] for words in flat), packing) for row in range(rows)] for t in range(steps)]
    for name in ("mixed_qkv", "z", "a", "b"):
        del group[name]
    for at, name in enumerate(("qkvz", "ba")):
        store(group, name, np.array([[row[at] for row in step] for step in made], flat[0].dtype))


def widen_windows(group, width, layout, columns, offset):
    """Conv states of `columns` columns of which the window begins at `offset`; what is no window holds NaNs."""
    windows = words_of(group["conv"])
    count, _, dim = windows.shape
    states = np.full((count, columns, dim), 0x7FC1, np.uint16) if windows.dtype == np.uint16 else np.full((count, columns, dim), np.nan, np.float32)
    for j in range(width):
        states[:, (offset + j) % columns] = windows[:, j]
    del group["conv"]
    store(group, "conv", states if layout == "columns" else np.ascontiguousarray(states.transpose(0, 2, 1)))
    group.create_dataset("conv_offset", data=np.full(count, offset, np.int32))


def add_table(steps, columns):
    """A table of `columns` blocks a row of which the last is the row's own."""
    index = steps["index"][()]
    table = np.zeros((*index.shape, columns), np.int32)
    table[..., -1] = index
    steps.create_dataset("table", data=table)
    steps.create_dataset("column", data=np.full(index.shape, columns - 1, np.int32))


def rewrite(flat, path, packing, order, layout, columns, offset, table=0):
    """The flat trace of version 2 in another layout."""
    with h5py.File(flat, "r") as old, h5py.File(path, "w") as new:
        for name in old:
            old.copy(name, new)
        for key, value in old.attrs.items():
            new.attrs[key] = value
        model = new["model"].attrs
        model.update(z_packing=packing, ba_packing=packing, conv_order=order, conv_layout=layout, conv_columns=columns)
        for layer in range(len(new["model/layer_ids"])):
            pack_inputs(new[f"steps/{layer}"], model, packing)
        for folder in ("events", "recorded/state"):
            if f"{folder}/conv" in new:
                widen_windows(new[folder], int(model["conv_width"]) - 1, layout, columns, offset)
        if table:
            add_table(new["steps"], table)
