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
import sys

import h5py
import numpy as np
from file_errors import Refused, errors_of, hdf5_file, made, open_trace, run_tool, say

INPUTS = ("mixed_qkv", "a", "b", "z")
SNAPSHOTS = {"state": "recurrent", "conv_state": "conv"}
NO_HEADS = ("mixed_qkv", "conv_acc", "conv_out", "conv_state")


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


def copy_file(source, target, output):
    """What cannot be written is said of `output`, which `target` is going to be."""
    with errors_of(source):
        reading = open(source, "rb")
    with errors_of(output), reading, open(target, "wb", buffering=0) as writing:
        while True:
            with errors_of(source):
                rest = memoryview(reading.read(1 << 20))
            if not rest:
                return
            while rest:
                rest = rest[writing.write(rest):]


def break_copy(options):
    if os.path.exists(options.output) and os.path.exists(options.input) and os.path.samefile(options.input, options.output):
        raise Refused(f"{options.output}: exists, and is the input")
    with made(options.output, options.force) as partial:
        with open_trace(options.input) as trace, errors_of(options.input):
            dataset, start = place_of(trace, options)
            index, name = index_of(trace, dataset, start, options), dataset.name
        copy_file(options.input, partial, options.output)
        with hdf5_file(partial, "r+", options.output, options.input) as (trace, _):
            before, after = flip(trace[name], index, options.bit)
    say(f"{options.output}: {name}{list(index)} was {before}, is {after}")


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
    return run_tool("break_trace", break_copy, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
