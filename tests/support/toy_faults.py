"""Faults for the toy engine (toy_engine.Hooks), each with its place: step t, layer, row; None is everywhere."""

import dataclasses

import numpy as np
from toy_engine import Hooks
from toy_step import f32, inactive_row
from toy_trace import LOAD, Maker

REC, CONV, BOTH = (True, False), (False, True), (True, True)


def pick(parts, new, old):
    """(rec, conv) of `new` where the part is chosen, of `old` elsewhere."""
    return tuple(n if part else o for part, n, o in zip(parts, new, old))


def computes(t=None, layer=None, row=None, **changes):
    """Other arithmetic: fields of Rules."""

    def rules(place, value):
        return dataclasses.replace(value, **changes) if place.is_at(t, layer, row) else value

    return Hooks(rules=rules)


def reads_block(t, layer, row, other, parts=BOTH):
    def read(place, value):
        return pick(parts, place.state(other), value) if place.is_at(t, layer, row) else value

    return Hooks(read=read)


def writes_block(t, layer, row, other, parts=BOTH):
    """The new state goes to another block; the row's own keeps the old one."""

    def write(place, value):
        if not place.is_at(t, layer, row):
            return value
        (block, rec, conv), *more = value
        own = pick(parts, (None, None), (rec, conv))
        return [(block, *own), (other, *pick(parts, (rec, conv), (None, None))), *more]

    return Hooks(write=write)


def reads_position(clean, t, layer, row, n, parts=BOTH):
    """The row starts from the state that a clean run's sequence had n tokens later (n < 0: earlier)."""

    def read(place, value):
        if not place.is_at(t, layer, row):
            return value
        sequence, position = place.stream.sequence[t, row], place.stream.position[t, row]
        when, at = np.argwhere((place.stream.sequence == sequence) & (place.stream.position == position + n))[0]
        return pick(parts, clean.before[when, layer, at], value)

    return Hooks(read=read)


def snapshot_of_position(run, stream, t, layer, block, n, parts=BOTH):
    """Only the saved copy is wrong: after step t it is the block's state n tokens later."""
    row = stream.row_of(t, block)
    sequence, position = stream.sequence[t, row], stream.position[t, row]
    when, _ = np.argwhere((stream.sequence == sequence) & (stream.position == position + n))[0]
    run.changed[t, layer, block] = pick(parts, run.after[when][layer, block], run.after[t][layer, block])


def shifted(columns, n, fill=0.0):
    """Columns read n places later in memory (n < 0: earlier); what lies outside is `fill`."""
    made = np.full_like(columns, fill)
    for j in range(len(columns)):
        if 0 <= j + n < len(columns):
            made[j] = columns[j + n]
    return made


def shifts_window(t, layer, row, n, stored=False):
    """The conv sum meets shifted columns; with `stored` the rolled window is made from them too."""

    def window(place, value):
        if not place.is_at(t, layer, row):
            return value
        return shifted(place.state(place.block)[1], n)

    def read(place, value):
        return (value[0], shifted(value[1], n)) if place.is_at(t, layer, row) else value

    return Hooks(read=read) if stored else Hooks(window=window)


def loses_write(t, layer, row, parts=BOTH):
    def write(place, value):
        if not place.is_at(t, layer, row):
            return value
        return [(block, *pick(parts, (None, None), (rec, conv))) for block, rec, conv in value]

    return Hooks(write=write)


def loses_event(t, block, layer=None):
    """A load or zero that never happens."""

    def event(place, value):
        return value and not (place.is_at(t, layer) and place.block == block)

    return Hooks(event=event)


def event_late(t, block, layer=None):
    """A load or zero that is done when the step's rows are."""

    def pool(place, value):
        for event in place.stream.events:
            if place.is_at(t, layer) and event[0] == place.t and event[1] in (-1, place.layer) and event[2] == block:
                place.engine.apply(place.layer, event)
        return value

    return loses_event(t, block, layer) + Hooks(pool=pool)


def event_elsewhere(t, block, other, layer=None):
    """A load or zero that is done to another block."""

    def event(place, value):
        if not (value and place.is_at(t, layer) and place.block == block):
            return value
        place.engine.apply(place.layer, (*place.event[:2], other, *place.event[3:]))
        return False

    return Hooks(event=event)


def swaps_blocks(t, layer, rows, reads=True):
    """Two rows write each other's blocks, and (`reads`) start from them."""

    def other(place):
        a, b = rows
        return int(place.stream.index[t, b if place.row == a else a])

    def here(place):
        return place.is_at(t, layer, rows)

    def read(place, value):
        return place.state(other(place)) if reads and here(place) else value

    def write(place, value):
        return [(other(place), rec, conv) for _, rec, conv in value] if here(place) else value

    return Hooks(read=read, write=write)


def transposed(rec):
    return np.ascontiguousarray(rec.transpose(0, 2, 1))


def loads_transposed(t, layer, block):
    def event(place, value):
        if not (value and place.is_at(t, layer) and place.block == block and place.event[3] == LOAD):
            return value
        rec, conv = place.stream.loads[place.event[4]]
        place.pool[place.layer, block] = (transposed(rec), conv)
        return False

    return Hooks(event=event)


def loads_flipped(t, layer, block, at, bit):
    """One bit of a recurrent state changes between its load and the first step that reads it."""

    def event(place, value):
        if not (value and place.is_at(t, layer) and place.block == block and place.event[3] == LOAD):
            return value
        rec, conv = place.stream.loads[place.event[4]]
        place.pool[place.layer, block] = (flip(rec, at, bit), conv)
        return False

    return Hooks(event=event)


def reads_transposed(t, layer, row):
    def read(place, value):
        return (transposed(value[0]), value[1]) if place.is_at(t, layer, row) else value

    return Hooks(read=read)


def writes_transposed(t, layer, row):
    def write(place, value):
        if not place.is_at(t, layer, row):
            return value
        return [(block, None if rec is None else transposed(rec), conv) for block, rec, conv in value]

    return Hooks(write=write)


def inactive_works(t, layer, row, block, parts=BOTH, shows=False):
    """An inactive row computes and writes `block`; its outputs show it, or (not `shows`) are zeros as ever."""

    def live(place, value):
        return block if place.is_at(t, layer, row) and value is None else value

    def taps(place, value):
        if shows or not place.is_at(t, layer, row) or not place.stream.inactive(place.t, place.row):
            return value
        stream = place.stream
        return inactive_row(
            stream.model, stream.params[place.layer], stream.row_inputs(place.t, place.layer, place.row)
        )

    def write(place, value):
        if not place.is_at(t, layer, row) or not place.stream.inactive(place.t, place.row):
            return value
        return [(b, *pick(parts, (rec, conv), (None, None))) for b, rec, conv in value]

    return Hooks(live=live, taps=taps, write=write)


def unpack_order(model):
    """Where flat channel c lies in the layout interleaved by key head: [H] of (q K, k K, v HV/H * V)."""
    ratio = model.HV // model.H * model.V
    whole = np.arange(model.dim).reshape(model.H, 2 * model.K + ratio)
    parts = whole[:, : model.K], whole[:, model.K : 2 * model.K], whole[:, 2 * model.K :]
    return np.concatenate([part.ravel() for part in parts])


def permutes_inputs(order):
    """The engine takes column order[c] for channel c."""

    def inputs(place, value):
        return {**value, "x": value["x"][order]}

    return Hooks(inputs=inputs)


def flip(values, at, bit):
    """A copy of float32 values with one bit of one word (flat) changed."""
    made = np.array(values, f32)
    made.view(np.uint32).reshape(-1)[at] ^= np.uint32(1 << bit)
    return made


def flips_state(t, layer, block, at, bit, part=0):
    """One bit of a block's recurrent (part 0) or conv state (part 1) changes after step t and stays."""

    def pool(place, value):
        if place.is_at(t, layer):
            state = list(place.state(block))
            state[part] = flip(state[part], at, bit)
            place.pool[layer, block] = tuple(state)
        return value

    return Hooks(pool=pool)


def changes_output(tap, change, t=None, layer=None, row=None):
    """What is put out, not what is stored."""

    def taps(place, value):
        return {**value, tap: change(value[tap])} if place.is_at(t, layer, row) else value

    return Hooks(taps=taps)


def random_state(seed, model):
    return Maker(seed, model).state()
