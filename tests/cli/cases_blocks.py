"""Faults of blocks, positions, windows and rows, for explain_cases.py."""

import numpy as np
import toy_faults as faults
from explain_case import ABSENT, Case, Want, block_of, row_of, unused
from toy_engine import Hooks, run_engine
from toy_faults import BOTH, CONV, REC
from toy_step import Model
from toy_trace import make_stream

WIDE = Model(K=8, V=4, H=1, HV=3)
BF16 = Model(state="bf16")
F32CONV = Model(conv="f32", activation="none")


def wrong_block():
    for seed, model, parts, snapshots, t, layer, name in [
        (1, Model(), BOTH, "every", 5, 1, 0),
        (2, WIDE, REC, "fifth", 3, 0, 1),
        (3, F32CONV, CONV, "every", 6, 1, 3),
        (4, BF16, BOTH, "last", 5, 0, 3),
        (5, Model(), REC, "last", 1, 1, 2),
    ]:
        s = make_stream(seed, model)
        row, other = row_of(s, name), unused(s) if seed % 2 else block_of(s, 1 if name != 1 else 0)
        yield Case(
            f"wrong-block read {seed}",
            s,
            faults.reads_block(t, layer, row, other, parts),
            [Want("wrong-block", step=t, layer=layer, row=row, block=other)],
            snapshots,
        )
    for seed, parts, snapshots in [(6, BOTH, "every"), (7, REC, "fifth"), (8, CONV, "every"), (9, BOTH, "last")]:
        s = make_stream(seed)
        row = row_of(s, 0)
        other = unused(s) if seed % 2 else block_of(s, 2)  # sequence 2 sits step 5 out
        yield Case(
            f"wrong-block write {seed}",
            s,
            faults.writes_block(5, 0, row, other, parts),
            [Want("wrong-block", step=5, layer=0, row=row, block=other)],
            snapshots,
        )
    s = make_stream(10)
    row, other = row_of(s, 3), unused(s)

    def live(place, value):
        return other if place.is_at(range(4, 8), None, row) else value

    yield Case(
        "wrong-block from step 4 on",
        s,
        Hooks(live=live),
        [Want("wrong-block", since=4, row=row, block=other, layer=ABSENT)],
    )


def wrong_position():
    for seed, model, n, parts, snapshots in [
        (11, Model(), -2, BOTH, "every"),
        (12, WIDE, -3, REC, "every"),
        (13, BF16, 1, BOTH, "every"),
        (14, Model(), -1, BOTH, "every"),
        (15, F32CONV, -2, REC, "fifth"),
        (16, Model(), 1, REC, "last"),
    ]:
        s = make_stream(seed, model)
        row = row_of(s, 0)
        yield Case(
            f"wrong-position read {n} {seed}",
            s,
            faults.reads_position(run_engine(s), 6, 1, row, n, parts),
            [Want("wrong-position", step=6, layer=1, row=row)],
            snapshots,
        )
    s = make_stream(20)
    row = row_of(s, 0)
    # Two tokens before the third is the loaded state itself.
    yield Case(
        "wrong-position read, back to the load",
        s,
        faults.reads_position(run_engine(s), 2, 1, row, -2),
        [Want("wrong-position", step=2, layer=1, row=row)],
    )
    for seed, t, n, parts, snapshots in [
        (17, 4, -2, BOTH, "every"),
        (18, 5, 1, BOTH, "every"),
        (19, 4, -3, REC, "fifth"),
    ]:
        s = make_stream(seed)
        block = block_of(s, 0)
        yield Case(
            f"wrong-position snapshot {n} {seed}",
            s,
            None,
            [Want("wrong-position", step=t, layer=0, block=block)],
            snapshots,
            change=lambda run, s, t=t, n=n, parts=parts, block=block: faults.snapshot_of_position(
                run, s, t, 0, block, n, parts
            ),
        )


def conv_window():
    for seed, model, n, stored, snapshots in [
        (21, Model(), -1, False, "every"),
        (22, F32CONV, 1, False, "fifth"),
        (23, WIDE, -2, False, "last"),
        (24, Model(), 2, False, "every"),
        (25, BF16, -1, True, "every"),
        (26, Model(), 1, True, "every"),
    ]:
        s = make_stream(seed, model, bias=seed % 2 == 0)
        row = row_of(s, 0 if seed % 2 else 3)
        t = 3 if seed % 2 else 6
        yield Case(
            f"conv-window-shift {n} {'stored ' if stored else ''}{seed}",
            s,
            faults.shifts_window(t, 1, row, n, stored),
            [Want("conv-window-shift", step=t, layer=1, row=row)],
            snapshots,
        )
    s = make_stream(27)
    yield Case(
        "conv-window-shift, one layer from step 3 on",
        s,
        faults.shifts_window(range(3, 8), 0, None, -1),
        [Want("conv-window-shift", since=3, layer=0, row=ABSENT)],
    )


def write_missing():
    for seed, model, parts, snapshots, t in [
        (31, Model(), REC, "every", 6),
        (32, WIDE, CONV, "every", 3),
        (33, BF16, BOTH, "every", 5),
        (34, Model(), REC, "fifth", 6),
        (35, F32CONV, CONV, "last", 2),
        (36, Model(), REC, "last", 1),
    ]:
        s = make_stream(seed, model)
        row = row_of(s, 0)
        yield Case(
            f"write-missing {seed}",
            s,
            faults.loses_write(t, 1, row, parts),
            [Want("write-missing", step=t, layer=1, row=row)],
            snapshots,
        )
    for seed, parts, which, snapshots in [(37, CONV, None, "every"), (38, REC, 0, "every"), (39, REC, None, "fifth")]:
        s = make_stream(seed)
        row = None if which is None else row_of(s, which)
        yield Case(
            f"write-missing from step 3 on {seed}",
            s,
            faults.loses_write(range(3, 8), 0, row, parts),
            [Want("write-missing", since=3, layer=0, row=ABSENT if row is None else row)],
            snapshots,
        )


def reset_missing():
    for seed, reuse, second, layer, snapshots in [
        (41, True, "zero", None, "every"),
        (42, True, "load", 1, "fifth"),
        (43, False, "load", None, "last"),
        (44, False, "zero", 0, "every"),
    ]:
        s = make_stream(seed, reuse=reuse, second=second)
        block = block_of(s, 3)
        yield Case(
            f"reset-missing {second} {seed}",
            s,
            faults.loses_event(4, block, layer),
            [Want("reset-missing", step=4, block=block, layer=ABSENT if layer is None else layer)],
            snapshots,
        )
    s = make_stream(45)
    block = block_of(s, 0)
    yield Case(
        "reset-missing at step 0",
        s,
        faults.loses_event(0, block, 1),
        [Want("reset-missing", step=0, block=block, layer=1)],
    )


def padded_rows():
    """Blocks that the inactive row never had before; an old one of its own would be a stale tail."""
    for seed, padding, block, parts, shows, snapshots in [
        (51, 0, 0, BOTH, False, "every"),
        (520, -1, 5, BOTH, False, "every"),
        (53, -1, 0, REC, False, "every"),
        (54, 0, 0, BOTH, True, "fifth"),
        (55, 0, None, CONV, False, "every"),
        (56, -1, None, BOTH, True, "last"),
    ]:
        s = next(s for s in (make_stream(one, padding=padding) for one in range(seed, seed + 40)) if free(s, 2, block))
        row = row_of(s, 2)
        block = unused(s) if block is None else block
        # As it computed: the outputs of an inactive row differ too, which is the same fault.
        yield Case(
            f"padded-row-wrote {seed}",
            s,
            faults.inactive_works(2, 0, row, block, parts, shows),
            [Want("padded-row-wrote", step=2, layer=0, row=row, block=block)],
            snapshots,
        )
    s = make_stream(59)
    row, block = row_of(s, 2), block_of(s, 2)
    yield Case(
        "the block of its last step, though the index says 0",
        s,
        faults.inactive_works(2, 0, row, block),
        [Want("stale-tail", step=2, layer=0, row=row, block=block)],
    )
    s = two_writers()
    row, block = row_of(s, 2), block_of(s, 0)
    yield Case(
        "padded-row-wrote after the block's own row",
        s,
        faults.inactive_works(2, 0, row, block),
        [Want("padded-row-wrote", step=2, layer=0, row=row, block=block)],
    )
    s = next(s for s in (make_stream(one, Model(sentinel="minus_one")) for one in range(570, 610)) if free(s, 2, 0))
    row, block = row_of(s, 2), 0
    yield Case(
        "padded-row-wrote, -1 clamped to a live block 0",
        s,
        faults.inactive_works(2, 1, row, block, BOTH, False),
        [Want("padded-row-wrote", step=2, layer=1, row=row, block=block)],
    )


def free(stream, t, block):
    """Neither a row of this step nor sequence 2, which sits it out, has the block."""
    rows = [row for row in range(3) if not stream.inactive(t, row)]
    return block not in (*stream.index[t, rows], block_of(stream, 2))


def two_writers():
    """A stream whose pausing row comes after sequence 0's, so that its write is the one that stays."""
    return next(s for s in map(make_stream, range(580, 600)) if row_of(s, 2) > row_of(s, 0))


def stale_tails():
    for seed, parts, snapshots, shows in [
        (61, BOTH, "every", False),
        (62, CONV, "every", False),
        (63, BOTH, "fifth", True),
    ]:
        s = stale_stream(seed)
        block = int(s.index[5, 2])
        yield Case(
            f"stale-tail {seed}",
            s,
            faults.inactive_works(5, 0, 2, block, parts, shows),
            [Want("stale-tail", step=5, layer=0, row=2, block=block)],
            snapshots,
        )
    s = stale_stream(64)
    block = unused(s)
    s.index[5, 2] = block
    yield Case(
        "a row beyond the present ones, its index not an old one",
        s,
        faults.inactive_works(5, 0, 2, block, BOTH, False),
        [Want("padded-row-wrote", step=5, layer=0, row=2, block=block)],
    )


def stale_stream(seed):
    """Row 2 is beyond the rows present at step 5, and its index is the one that step 4 left."""
    s = make_stream(seed, pause=())
    s.rows = np.full(8, 3, np.int32)
    s.rows[5] = 2
    s.sequence[5, 2] = -1
    later = s.sequence[6:, 2] == s.sequence[4, 2]
    s.position[6:, 2] -= later
    s.position[5, 2] = -1
    return s


def transposed():
    for seed, snapshots in [(71, "every"), (72, "fifth")]:
        s = make_stream(seed)
        block = block_of(s, 3)
        yield Case(
            f"kv-transposed load {seed}",
            s,
            faults.loads_transposed(4, 1, block),
            [Want("kv-transposed", step=4, layer=1)],
            snapshots,
        )
        row = row_of(s, 0)
        yield Case(
            f"kv-transposed read {seed}",
            s,
            faults.reads_transposed(5, 0, row),
            [Want("kv-transposed", step=5, layer=0, row=row)],
            snapshots,
        )
    s = make_stream(73, BF16)
    row = row_of(s, 0)
    yield Case(
        "kv-transposed write", s, faults.writes_transposed(6, 1, row), [Want("kv-transposed", step=6, layer=1, row=row)]
    )


GROUPS = [wrong_block, wrong_position, conv_window, write_missing, reset_missing, padded_rows, stale_tails, transposed]
