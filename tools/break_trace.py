#!/usr/bin/env python3
"""Copies a trace (docs/trace-format.md) and flips one bit of one word in the copy, so that there is something to find.

    tools/break_trace.py rollout.h5 broken.h5 --tap core_out --step 5 --layer 1 --row 0 --head 2 --element 3 --bit 6
    tools/break_trace.py rollout.h5 broken.h5 --tap state --step 15 --block 2 --head 1 --element 777 --bit 12
    tools/break_trace.py rollout.h5 broken.h5 --tap mixed_qkv --step 5 --element 300 --bit 14

--tap is a recorded tap, an input (mixed_qkv, a, b, z), or a snapshot's part (state, conv_state). --element counts within the head,
as in a report: v for core_out, norm_out and z, v * K + k for state; without heads it is the channel, for conv_state column * dim +
channel. Bit 0 is the last one of the fraction. The file stays a valid trace: only the word is another.
"""

import argparse
import os
import shutil
import sys

import h5py
import numpy as np

INPUTS = ("mixed_qkv", "a", "b", "z")
SNAPSHOTS = {"state": "recurrent", "conv_state": "conv"}
NO_HEADS = ("mixed_qkv", "conv_acc", "conv_out", "conv_state")


class Refused(Exception):
    """One line for the user."""


def below(option, value, limit):
    if not 0 <= value < limit:
        raise Refused(f"--{option} {value}: expected 0 to {limit - 1}")
    return value


def snapshot_at(trace, step, layer, block):
    """The row of that snapshot in /recorded/state."""
    state = trace.get("recorded/state")
    places = [] if state is None else list(zip(*(state[name][:].tolist() for name in ("step", "layer", "block"))))
    if (step, layer, block) not in places:
        known = ", ".join(f"step {s} layer {p} block {b}" for s, p, b in places[:8])
        raise Refused(f"no snapshot of step {step}, layer {layer}, block {block}; there are: {known or 'none'}")
    return places.index((step, layer, block))


def place_of(trace, options):
    """The dataset, and the index of what the options name up to the row: a list of one or two numbers."""
    below("layer", options.layer, trace["model/layer_ids"].shape[0])
    if options.tap in SNAPSHOTS:
        if options.block is None:
            raise Refused(f"--tap {options.tap}: needs --block")
        at = snapshot_at(trace, options.step, options.layer, options.block)
        return trace[f"recorded/state/{SNAPSHOTS[options.tap]}"], [at]
    path = f"{'steps' if options.tap in INPUTS else 'recorded'}/{options.layer}/{options.tap}"
    if path not in trace:
        group = trace.get(f"recorded/{options.layer}", {})
        raise Refused(f"/{path}: not in this trace; recorded are {', '.join(sorted(group)) or 'no taps'}")
    dataset = trace[path]
    return dataset, [below("step", options.step, dataset.shape[0]), below("row", options.row, dataset.shape[1])]


def index_of(trace, dataset, start, options):
    """The index of the word: heads and elements are spread over what axes the dataset has left."""
    rest = dataset.shape[len(start):]
    heads = 1 if options.tap in NO_HEADS else int(trace["model"].attrs["num_v_heads"]) if options.tap == "z" else rest[0]
    per_head = int(np.prod(rest)) // heads
    flat = below("head", options.head, heads) * per_head + below("element", options.element, per_head)
    return (*start, *(int(i) for i in np.unravel_index(flat, rest)))


def flip(dataset, index, bit):
    """Flips the bit of that word, unconverted; returns the word before and after."""
    file_type = dataset.id.get_type()
    size = file_type.get_size()
    below("bit", bit, 8 * size)
    space, one = dataset.id.get_space(), h5py.h5s.create_simple((1,))
    space.select_hyperslab(index, (1,) * len(index))
    word = np.empty(1, f"<u{size}")
    dataset.id.read(one, space, word, mtype=file_type)
    before = int(word[0])
    word[0] = before ^ (1 << bit)
    dataset.id.write(one, space, word, mtype=file_type)
    return f"0x{before:0{2 * size}x}", f"0x{int(word[0]):0{2 * size}x}"


def break_copy(options):
    if not os.path.exists(options.input) or not h5py.is_hdf5(options.input):
        raise Refused(f"{options.input}: not an HDF5 file")
    if os.path.exists(options.output) and (not options.force or os.path.samefile(options.input, options.output)):
        raise Refused(f"{options.output}: exists (--force overwrites it)")
    partial = options.output + ".partial"
    try:
        shutil.copyfile(options.input, partial)
        with h5py.File(partial, "r+") as trace:
            if trace.attrs.get("format", b"") not in (b"gdnsim-trace", "gdnsim-trace"):
                raise Refused(f"{options.input}: expected a gdnsim-trace")
            dataset, start = place_of(trace, options)
            index = index_of(trace, dataset, start, options)
            before, after = flip(dataset, index, options.bit)
            said = f"{options.output}: {dataset.name}{list(index)} was {before}, is {after}"
        os.replace(partial, options.output)
    finally:
        if os.path.exists(partial):
            os.remove(partial)
    print(said)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--tap", required=True, help="core_out, norm_out, conv_out, ...; mixed_qkv, a, b, z; state, conv_state")
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--layer", type=int, default=0, help="position in /model/layer_ids (default: 0)")
    parser.add_argument("--row", type=int, default=0, help="row of the batch (default: 0)")
    parser.add_argument("--block", type=int, help="block of the snapshot, for state and conv_state")
    parser.add_argument("--head", type=int, default=0)
    parser.add_argument("--element", type=int, default=0)
    parser.add_argument("--bit", type=int, default=0)
    parser.add_argument("--force", action="store_true", help="overwrite the output")
    try:
        break_copy(parser.parse_args())
    except Refused as refusal:
        print(f"break_trace: {refusal}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
