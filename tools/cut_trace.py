#!/usr/bin/env python3
"""Cuts a range of steps and some layers out of a trace (docs/trace-format.md), bit for bit.

    tools/cut_trace.py rollout.h5 sample.h5 --steps 0:16
    tools/cut_trace.py rollout.h5 sample.h5 --steps 8:16 --layers 0,2 --rows 0 --snapshots 15

Steps and layers are renumbered from 0. A cut that starts later than step 0 needs the state it starts from: snapshots of every
block that was named before, taken after the step before; they become load events of its first step, after allocate events that
say whose each block is then. Without them the cut is refused. A cut begins and ends between launches.
"""

import argparse
import sys

import h5py
import numpy as np
from file_errors import Refused, errors_of, hdf5_file, made, open_trace, run_tool

SNAPSHOT, EVENT = ("step", "layer", "block"), ("step", "layer", "block", "kind", "source")
REASON = {"sequence": -1, "why": 0}  # of an event of version 2, and what a file means that does not say
STATE = ("recurrent", "conv", "conv_offset")
LOAD, COPY, FREE, ALLOCATE = 1, 2, 3, 4


def read_raw(dataset):
    """The stored words, unconverted: numpy's own type where it has one, else (bf16) unsigned words of that size."""
    file_type = dataset.id.get_type()
    bf16 = dataset.dtype.itemsize != file_type.get_size()
    words = np.empty(dataset.shape, f"<u{file_type.get_size()}" if bf16 else dataset.dtype)
    with errors_of(f"{dataset.file.filename}: {dataset.name}"):
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, words, mtype=file_type)
    return words


def write_raw(group, name, words, like, stepped):
    """A dataset of the type of `like`; stepped ones get chunks of one step, deflated."""
    space = h5py.h5s.create_simple(words.shape)
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_obj_track_times(False)
    if stepped and words.size:
        creation.set_chunk((1, *words.shape[1:]))
        creation.set_shuffle()
        creation.set_deflate(6)
    file_type = like.id.get_type()
    made = h5py.h5d.create(group.id, name.encode(), file_type, space, creation)
    if words.size:
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(words), mtype=file_type)
    for key in like.attrs:
        copy_attribute(like, made, key)


def copy_attribute(source, target_id, key):
    attribute = h5py.h5a.open(source.id, key.encode())
    made = h5py.h5a.create(target_id, key.encode(), attribute.get_type(), attribute.get_space())
    value = np.empty(attribute.shape, attribute.dtype)
    attribute.read(value)
    made.write(value)


def make_group(source, target, path):
    """The group of that path with the attributes of the source's."""
    creation = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    creation.set_obj_track_times(False)
    made = h5py.Group(h5py.h5g.create(target.id, path.encode(), gcpl=creation))
    if path in source:
        for key in source[path].attrs:
            copy_attribute(source[path], made.id, key)
    return made


class Cut:
    """One cut: source and target files, steps [begin, end), chosen layers (positions), rows and snapshot steps (None: all).

    check() raises when the target could not be written so far."""

    def __init__(self, source, target, begin, end, layers, rows, snapshots, check):
        self.source, self.target, self.check = source, target, check
        self.begin, self.end, self.layers, self.rows, self.snapshots = begin, end, layers, rows, snapshots
        self.named = None if rows is None else self.named_blocks()

    def named_blocks(self):
        """The blocks that the chosen rows name; events and snapshots of others are left out."""
        index = self.source["steps/index"][self.begin:self.end]
        if any(not 0 <= row < index.shape[1] for row in self.rows):
            raise Refused(f"--rows: expected rows below {index.shape[1]}")
        if "steps/rows" in self.source or ("events" in self.source and COPY in self.source["events/kind"][:]):
            raise Refused("--rows: cannot be used with a trace that has /steps/rows or copy events")
        if self.source.attrs["version"] > 1:
            raise Refused("--rows: cannot be used with a trace of version 2: its rows go on from each other's blocks")
        return set(index[:, self.rows].ravel().tolist())

    def wants_block(self, block):
        return self.named is None or block in self.named

    def write(self):
        for key in self.source.attrs:
            if key != "complete":
                copy_attribute(self.source, self.target.id, key)
        self.model()
        self.params()
        self.steps()
        self.events()
        self.recorded()
        if "provenance" in self.source:
            make_group(self.source, self.target, "provenance")
        copy_attribute(self.source, self.target.id, "complete")

    def model(self):
        group = make_group(self.source, self.target, "model")
        ids = self.source["model/layer_ids"]
        write_raw(group, "layer_ids", read_raw(ids)[self.layers], ids, False)

    def params(self):
        make_group(self.source, self.target, "params")
        for position, layer in enumerate(self.layers):
            group = make_group(self.source, self.target, f"params/{position}")
            for name, dataset in self.source[f"params/{layer}"].items():
                write_raw(group, name, read_raw(dataset), dataset, False)

    def stepped(self, source_path, target_path):
        """All datasets of a group whose first axis is the step."""
        group = self.target[target_path] if target_path in self.target else make_group(self.source, self.target, target_path)
        for name, dataset in self.source[source_path].items():
            self.check()
            if isinstance(dataset, h5py.Dataset):
                words = read_raw(dataset)[self.begin:self.end]
                if self.rows is not None and words.ndim > 1:
                    words = words[:, self.rows]
                write_raw(group, name, words, dataset, True)

    def steps(self):
        self.stepped("steps", "steps")
        for position, layer in enumerate(self.layers):
            self.stepped(f"steps/{layer}", f"steps/{position}")

    def recorded(self):
        if "recorded" not in self.source:
            return
        make_group(self.source, self.target, "recorded")
        for position, layer in enumerate(self.layers):
            if f"recorded/{layer}" in self.source:
                self.stepped(f"recorded/{layer}", f"recorded/{position}")
        if "recorded/state" in self.source:
            self.state()

    def state(self):
        rows = self.snapshot_rows(lambda step: self.begin <= step < self.end
                                  and (self.snapshots is None or step in self.snapshots))
        if not rows:
            return
        source = self.source["recorded/state"]
        group = make_group(self.source, self.target, "recorded/state")
        columns = {"step": [step - self.begin for _, step, _, _ in rows],
                   "layer": [self.layers.index(layer) for _, _, layer, _ in rows],
                   "block": [block for _, _, _, block in rows]}
        for name in SNAPSHOT:
            write_raw(group, name, np.array(columns[name], source[name].dtype), source[name], False)
        at = [row for row, _, _, _ in rows]
        for name in (name for name in STATE if name in source):
            write_raw(group, name, read_raw(source[name])[at], source[name], name != "conv_offset")

    def snapshot_rows(self, wanted):
        """(row, step, layer, block) of the wanted steps' snapshots in the chosen layers."""
        if "recorded/state" not in self.source:
            return []
        columns = [self.source[f"recorded/state/{name}"][:].tolist() for name in SNAPSHOT]
        return [(row, *values) for row, values in enumerate(zip(*columns))
                if wanted(values[0]) and values[1] in self.layers and self.wants_block(values[2])]

    def events(self):
        """The start state first, then the events of the range, with the load rows they use."""
        entries, rows = self.start_state()
        if "events" in self.source:
            kept, old = self.events_in_range(len(rows))
            entries += kept
            rows += old
        if not entries:
            return
        group = make_group(self.source, self.target, "events")
        like = self.source["events"] if "events" in self.source else None
        if like is None:
            raise Refused("/events: the source has none, so there is no type to copy for the start state's load events")
        for name, column in zip((*EVENT, *REASON), zip(*entries)):
            if name in like:
                write_raw(group, name, np.array(column, like[name].dtype), like[name], False)
        for name, column in zip(STATE, zip(*rows) if rows else [[]] * len(STATE)):
            if name in like:
                words = np.array(column) if rows else read_raw(like[name])[:0]
                write_raw(group, name, words, like[name], name != "conv_offset")

    def start_state(self):
        """What rebuilds the pool before `begin`: whose each block is, and its state; one that is all zero bits needs no load."""
        if self.begin == 0:
            return [], []
        snapshots = self.snapshot_rows(lambda step: step == self.begin - 1)
        found = {(layer, block) for _, _, layer, block in snapshots}
        named = self.named_before()
        missing = [(layer, block) for layer in self.layers for block in self.usable_blocks()
                   if block in named and (layer, block) not in found]
        if missing:
            layer, block = missing[0]
            raise Refused(f"/recorded/state: a cut from step {self.begin} needs a snapshot of every block after step "
                          f"{self.begin - 1}; layer {layer} block {block} has none")
        states = self.states("recorded/state")
        kept = [row for row in snapshots if states[0][row[0]].view("u1").any() or states[1][row[0]].view("u1").any()]
        owners, lent = self.owners(), []
        if owners is not None:  # a free block's bytes are put there by one that has it for as long
            lent = sorted({block for _, _, _, block in kept} - set(owners))
        entries = [(0, -1, block, ALLOCATE, -1, *owners[block]) for block in sorted(owners or {})]
        entries += [(0, -1, block, ALLOCATE, -1, -1, 0) for block in lent]
        for at, (_, _, layer, block) in enumerate(kept):
            sequence = (owners or {}).get(block, (-1, 0))[0]
            entries.append((0, self.layers.index(layer), block, LOAD, at, sequence, 0))
        entries += [(0, -1, block, FREE, -1, -1, 0) for block in lent]
        return entries, [tuple(state[row] for state in states) for row, _, _, _ in kept]

    def states(self, folder):
        """[recurrent, conv, conv_offset] of a folder's entries; the offset is 0 where none is said."""
        group = self.source[folder]
        count = group["recurrent"].shape[0]
        return [read_raw(group[name]) if name in group else np.zeros(count, np.int32) for name in STATE]

    def event_rows(self):
        """(step, layer, block, kind, source, sequence, why) of every event."""
        if "events" not in self.source:
            return []
        group = self.source["events"]
        count = group["step"].shape[0]
        columns = [group[name][:].tolist() for name in EVENT]
        columns += [group[name][:].tolist() if name in group else [absent] * count for name, absent in REASON.items()]
        return list(zip(*columns))

    def owners(self):
        """{block: (sequence, why)} before `begin`, or None where the trace does not say whose blocks are."""
        events = self.event_rows()
        if not any(kind == ALLOCATE for _, _, _, kind, *_ in events):
            return None
        owners = {}
        for step, _, block, kind, _, sequence, why in events:
            if step < self.begin and kind == ALLOCATE:
                owners[block] = (sequence, why)
            elif step < self.begin and kind == FREE:
                owners.pop(block, None)
        return owners

    def named_before(self):
        """Blocks that an event or a row before `begin` names: all others are zeros."""
        named = {block for step, _, block, *_ in self.event_rows() if step < self.begin}
        return named | set(self.source["steps/index"][:self.begin].ravel().tolist())

    def usable_blocks(self):
        """Blocks that an active row can name: all, or all but 0 where index 0 marks an inactive row."""
        model = self.source["model"].attrs
        sentinel = model["sentinel"]
        sentinel = sentinel.decode() if isinstance(sentinel, bytes) else sentinel
        return range(0 if sentinel == "minus_one" else 1, int(model["num_blocks"]))

    def events_in_range(self, first_row):
        kept, sources = [], []
        for step, layer, block, kind, row, sequence, why in self.event_rows():
            if not self.begin <= step < self.end or (layer != -1 and layer not in self.layers) or not self.wants_block(block):
                continue
            if kind == LOAD:
                if row not in sources:
                    sources.append(row)
                row = first_row + sources.index(row)
            layer = layer if layer == -1 else self.layers.index(layer)
            kept.append((step - self.begin, layer, block, kind, row, sequence, why))
        if not sources:
            return kept, []
        states = self.states("events")
        return kept, [tuple(state[row] for state in states) for row in sources]


def parse_range(text, steps):
    try:
        begin, end = (int(part) if part else None for part in text.split(":"))
    except ValueError:
        raise Refused(f"--steps {text}: expected A:B") from None
    begin, end = begin or 0, steps if end is None else end
    if not 0 <= begin < end <= steps:
        raise Refused(f"--steps {text}: expected 0 <= A < B <= {steps}")
    return begin, end


def require_launches(source, begin, end):
    """A launch is cut out whole or not at all."""
    drafts = source["steps/draft"][:].tolist() if "steps/draft" in source else []
    for step in (begin, end):
        if step < len(drafts) and drafts[step] != 0:
            first, last = step - drafts[step], step
            while last < len(drafts) and drafts[last] != 0:
                last += 1
            raise Refused(f"--steps {begin}:{end}: step {step} is within the launch of steps {first}:{last}")


def parse_numbers(option, text):
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise Refused(f"{option} {text}: expected numbers separated by commas") from None


def cut(arguments):
    with made(arguments.output, arguments.force) as partial, open_trace(arguments.input) as source, errors_of(arguments.input):
        begin, end = parse_range(arguments.steps, source["steps/index"].shape[0])
        require_launches(source, begin, end)
        known = source["model/layer_ids"].shape[0]
        layers = list(range(known)) if arguments.layers is None else parse_numbers("--layers", arguments.layers)
        if any(not 0 <= layer < known for layer in layers):
            raise Refused(f"--layers {arguments.layers}: expected positions below {known}")
        rows = None if arguments.rows is None else parse_numbers("--rows", arguments.rows)
        snapshots = None
        if arguments.snapshots is not None:
            snapshots = [] if arguments.snapshots == "none" else parse_numbers("--snapshots", arguments.snapshots)
        with hdf5_file(partial, "w", arguments.output, arguments.input, libver=("earliest", "v110")) as (target, file):
            Cut(source, target, begin, end, layers, rows, snapshots, file.check).write()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--steps", default=":", metavar="A:B", help="steps A to B-1 (default: all)")
    parser.add_argument("--layers", metavar="0,1", help="positions in /model/layer_ids (default: all)")
    parser.add_argument("--rows", metavar="0,1", help="rows of the batch (default: all); blocks they never name are left out")
    parser.add_argument("--snapshots", metavar="7,15", help="source steps whose snapshots are kept, or none (default: all in range)")
    parser.add_argument("--force", action="store_true", help="overwrite the output")
    return run_tool("cut_trace", cut, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
